//! Reads GPUs in Slurm's lists of generic resources: `gpu:h100:8(S:0-1)`, `gres:gpu:8` (22.05),
//! `gres/gpu:8` (23.11), `gres/gpu:h100=8`, alone or among others.

/// GPUs by type; the type is empty where the list does not say it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Gpus(Vec<(String, u64)>);

/// The most types kept of a list.
const MAX_TYPES: usize = 16;
/// More GPUs than a job or a node has.
const MOST: u64 = 1 << 20;

impl Gpus {
    pub(super) fn parse(list: &str) -> Self {
        Self(items(list).filter_map(item).take(MAX_TYPES).collect())
    }

    /// The number of GPUs. Lists of accounting name each GPU twice, without a type and with it.
    pub(super) fn total(&self) -> u64 {
        let plain: u64 = self.0.iter().filter(|(kind, _)| kind.is_empty()).map(|(_, n)| n).sum();
        if plain > 0 { plain } else { self.0.iter().map(|(_, n)| n).sum() }
    }

    /// The number of GPUs of a type; of all if `kind` is empty.
    pub(super) fn of(&self, kind: &str) -> u64 {
        if kind.is_empty() {
            return self.total();
        }
        self.0.iter().filter(|(of, _)| of == kind).map(|(_, n)| n).sum()
    }

    /// The type, if all GPUs have the same.
    pub(super) fn kind(&self) -> &str {
        let named = self.0.iter().map(|(kind, _)| kind.as_str()).filter(|kind| !kind.is_empty());
        named.reduce(|one, other| if one == other { one } else { "" }).unwrap_or_default()
    }
}

/// The items of a list; commas within parentheses belong to an item.
fn items(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    list.split(move |c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
}

fn item(item: &str) -> Option<(String, u64)> {
    let item = item.trim();
    let name = item.strip_prefix("gres:").or_else(|| item.strip_prefix("gres/")).unwrap_or(item);
    let name = name.split('(').next()?;
    let mut parts = name.split([':', '=']);
    if parts.next() != Some("gpu") {
        return None;
    }
    let (mut kind, mut count) = (String::new(), 1);
    for part in parts {
        if let Ok(n) = part.parse::<u64>() {
            count = n.min(MOST);
        } else {
            part.clone_into(&mut kind);
        }
    }
    Some((kind, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_all_versions() {
        for (list, total, kind) in [
            ("gpu:h100:8(S:0-1)", 8, "h100"),
            ("gpu:h100:6(IDX:0-3,6-7),shard:h100:0(0/32)", 6, "h100"),
            ("gres:gpu:8", 8, ""),
            ("gres/gpu:8", 8, ""),
            ("gres/gpu:h100=2", 2, "h100"),
            ("gres:gpu:h100:2", 2, "h100"),
            ("gres:gpu", 1, ""),
            ("gpu:h100", 1, "h100"),
            ("gpu:a100:4,gpu:h100:4", 8, ""),
            ("cpu=3,mem=3M,node=3,billing=3,gres/gpu=6,gres/gpu:h100=6", 6, "h100"),
            ("cpu=3,mem=3M,node=3,billing=3", 0, ""),
            ("gpu:h100:0(IDX:N/A)", 0, "h100"),
            ("gres/gpu_memory:80G,mps:100", 0, ""),
            ("N/A", 0, ""),
            ("(null)", 0, ""),
            ("", 0, ""),
            (")(,gpu:8", 0, ""),
            ("gpu:99999999999999999999", 1, "99999999999999999999"),
        ] {
            let gpus = Gpus::parse(list);
            assert_eq!((gpus.total(), gpus.kind()), (total, kind), "{list}");
        }
        let mixed = Gpus::parse("gpu:a100:4,gpu:h100:2");
        assert_eq!((mixed.of("h100"), mixed.of("b200"), mixed.of("")), (2, 0, 6));
    }

    proptest::proptest! {
        #[test]
        fn any_list_is_read(list: String) {
            let gpus = Gpus::parse(&list);
            proptest::prop_assert!(gpus.total() <= MOST * MAX_TYPES as u64);
        }
    }
}

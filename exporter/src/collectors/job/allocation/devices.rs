//! Resolves names of GPUs to UUIDs: schedulers, container runtimes and programs each name devices
//! in a different way.

use std::collections::BTreeSet;

use crate::gpus::Gpu;

/// The most devices in one list.
const MAX_DEVICES: usize = 256;

/// A GPU, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Device {
    /// UUID of the GPU, or of the MIG device if its GPU is unknown.
    pub(super) gpu: String,
    /// The GPU instance of MIG.
    pub(super) gi: Option<u32>,
}

impl Device {
    /// Whether both may be the same device: some sources name a GPU without its instance.
    pub(super) fn may_be(&self, other: &Self) -> bool {
        self.gpu == other.gpu && (self.gi == other.gi || self.gi.is_none() || other.gi.is_none())
    }
}

/// A MIG device that the driver lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MigDevice {
    pub(super) uuid: String,
    pub(super) gpu: String,
    pub(super) gi: u32,
}

/// The GPUs of this node.
#[derive(Debug, Default)]
pub(super) struct Known {
    gpus: Vec<Gpu>,
    mig: Vec<MigDevice>,
}

impl Known {
    pub(super) fn new(mut gpus: Vec<Gpu>, mig: Vec<MigDevice>) -> Self {
        gpus.sort_by(|a, b| a.pci.cmp(&b.pci));
        Self { gpus, mig }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// Finds a device by any of its names.
    ///
    /// `GPU-…`, `MIG-…`, the older `MIG-GPU-…/gi/ci`, `nvidia3` and `nvidia3/gi1` of GKE,
    /// `gpu-3` of DRA, `3`, and `3.1` and `3:1` with a GPU instance. The suffixes `::7` and
    /// `/vgpu7` mark a share of it. DRA's `gpu-3-mig-1g10gb-19-0` and `gpu-3-mig-19-0-1` contain
    /// the profile and placement of an instance, not its number, so they stand for the GPU. A
    /// number after a word is that of a device file. A bare number is NVML's index, in the order of
    /// the bus: on some hosts those are different GPUs.
    pub(super) fn find(&self, name: &str) -> Option<Device> {
        let name = name.split("::").next().unwrap_or(name).trim();
        if let Some(parts) = name.strip_prefix("MIG-GPU-") {
            let mut parts = parts.split('/');
            let gpu = format!("GPU-{}", parts.next()?);
            return Some(Device {
                gpu: self.known_as(&gpu)?,
                gi: parts.next().and_then(|gi| gi.parse().ok()),
            });
        }
        if has_prefix(name, "MIG-") {
            return self.mig_device(name);
        }
        if has_prefix(name, "GPU-") && is_uuid(&name[4..]) {
            return Some(Device { gpu: self.known_as(name)?, gi: None });
        }
        let of_file = name.strip_prefix("nvidia").or_else(|| name.strip_prefix("gpu-"));
        let numbers = of_file.unwrap_or(name);
        if let Some((number, _)) = of_file.and_then(|_| numbers.split_once("-mig-")) {
            return Some(Device { gpu: self.by_minor(number.parse().ok()?)?, gi: None });
        }
        let (number, rest) = match numbers.find(['/', '.', ':']) {
            Some(at) => (&numbers[..at], Some(&numbers[at + 1..])),
            None => (numbers, None),
        };
        let gi = match rest.and_then(|rest| rest.split('/').next()).filter(|part| !is_share(part)) {
            Some(gi) => Some(gi.strip_prefix("gi").unwrap_or(gi).parse().ok()?),
            None => None,
        };
        let number: u32 = number.parse().ok()?;
        let gpu = if of_file.is_some() { self.by_minor(number)? } else { self.by_index(number)? };
        Some(Device { gpu, gi })
    }

    /// As [`find`](Self::find), but not for bare numbers: plugins of Kubernetes number other things
    /// too, and KubeVirt's number the groups of the IOMMU.
    pub(super) fn find_named(&self, name: &str) -> Option<Device> {
        let is_name = name.trim_start().starts_with(|c: char| c.is_ascii_alphabetic());
        if is_name { self.find(name) } else { None }
    }

    /// The devices in a list with commas or spaces, and the number that it names. Numbers are those
    /// of device files, and may be ranges: `0-3,5`.
    pub(super) fn list(&self, text: &str) -> (BTreeSet<Device>, usize) {
        let (mut found, mut named) = (BTreeSet::new(), 0);
        for item in text.split([',', ' ', '\n']).map(str::trim).filter(|i| !i.is_empty()).take(MAX_DEVICES) {
            if let Some(range) = range(item) {
                named += range.clone().count();
                found.extend(range.filter_map(|n| Some(Device { gpu: self.by_minor(n)?, gi: None })));
            } else {
                named += 1;
                found.extend(self.find(item));
            }
        }
        (found, named)
    }

    /// The devices that a list names by UUID.
    pub(super) fn uuids(&self, text: &str) -> BTreeSet<Device> {
        let items = text.split(',').map(str::trim).filter(|i| has_prefix(i, "GPU-") || has_prefix(i, "MIG-"));
        items.take(MAX_DEVICES).filter_map(|item| self.find(item)).collect()
    }

    /// The devices of a list of numbers in the order of the bus.
    pub(super) fn in_bus_order(&self, text: &str) -> BTreeSet<Device> {
        let numbers = text.split(',').take(MAX_DEVICES).filter_map(|n| n.trim().parse().ok());
        numbers.filter_map(|n| Some(Device { gpu: self.by_index(n)?, gi: None })).collect()
    }

    fn by_index(&self, index: u32) -> Option<String> {
        Some(self.gpus.get(usize::try_from(index).ok()?)?.uuid.clone())
    }

    pub(super) fn by_minor(&self, minor: u32) -> Option<String> {
        let gpu = self.gpus.iter().find(|g| g.minor.parse() == Ok(minor))?;
        Some(gpu.uuid.clone())
    }

    /// The UUID in the driver's spelling. If the driver does not list the GPU, a valid UUID is
    /// kept, because the driver may be unloaded.
    fn known_as(&self, uuid: &str) -> Option<String> {
        let listed = self.gpus.iter().find(|g| g.uuid.eq_ignore_ascii_case(uuid));
        listed.map(|g| g.uuid.clone()).or_else(|| is_uuid(uuid.get(4..)?).then(|| uuid.to_owned()))
    }

    fn mig_device(&self, uuid: &str) -> Option<Device> {
        if let Some(mig) = self.mig.iter().find(|m| m.uuid.eq_ignore_ascii_case(uuid)) {
            return Some(Device { gpu: mig.gpu.clone(), gi: Some(mig.gi) });
        }
        is_uuid(&uuid[4..]).then(|| Device { gpu: uuid.to_owned(), gi: None })
    }
}

fn has_prefix(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix))
}

/// Whether a name is a PCI address such as `0000:3b:00.2`, which is a network card's.
pub(super) fn is_pci_address(name: &str) -> bool {
    let hex = |text: &str, digits: std::ops::RangeInclusive<usize>| {
        digits.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
    };
    let parts: Vec<&str> = name.trim().splitn(4, ':').collect();
    let [domain, bus, place] = parts[..] else { return false };
    let place =
        place.split_once('.').is_some_and(|(slot, function)| hex(slot, 2..=2) && hex(function, 1..=1));
    place && hex(domain, 4..=8) && hex(bus, 2..=2)
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(i, b)| match i {
            8 | 13 | 18 | 23 => b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
}

/// Whether a part is GKE's `vgpu1`: a number of time-sharing, not a part of the GPU.
fn is_share(part: &str) -> bool {
    part.strip_prefix("vgpu").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Parses `0-3`, or `5` alone.
fn range(item: &str) -> Option<std::ops::RangeInclusive<u32>> {
    let (first, last) = item.split_once('-').unwrap_or((item, item));
    let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
    (first <= last && last - first < MAX_DEVICES as u32).then_some(first..=last)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn uuid(n: u32) -> String {
        format!("GPU-00000000-0000-0000-0000-0000000000{n:02x}")
    }

    /// Eight GPUs whose minor numbers are in reverse order of the bus.
    pub(in super::super) fn eight() -> Known {
        let gpu = |n: u32| Gpu {
            uuid: uuid(n),
            name: "NVIDIA H100 80GB HBM3".into(),
            pci: format!("0000:{:02x}:00.0", 0xf0 - n),
            minor: n.to_string(),
            vbios: String::new(),
            firmware: String::new(),
        };
        let mig = MigDevice { uuid: "MIG-11111111-2222-3333-4444-555555555555".into(), gpu: uuid(2), gi: 7 };
        Known::new((0..8).map(gpu).collect(), vec![mig])
    }

    #[test]
    fn a_gpu_by_any_name() {
        let known = eight();
        let whole = |n| Some(Device { gpu: uuid(n), gi: None });
        let part = |n, gi| Some(Device { gpu: uuid(n), gi: Some(gi) });
        for (name, want) in [
            (uuid(3).as_str(), whole(3)),
            (&uuid(10).to_lowercase(), Some(Device { gpu: uuid(10).to_lowercase(), gi: None })),
            (&uuid(3).to_uppercase(), whole(3)),
            (&format!("{}::5", uuid(3)), whole(3)),
            ("3", whole(4)),
            ("0", whole(7)),
            ("nvidia3", whole(3)),
            ("nvidia3/vgpu0", whole(3)),
            ("nvidia3/vgpu", None),
            ("gpu-3", whole(3)),
            ("nvidia3/gi2", part(3, 2)),
            ("nvidia3/gi2/vgpu1", part(3, 2)),
            ("3.2", part(4, 2)),
            ("3:2", part(4, 2)),
            (&format!("MIG-{}/2/0", uuid(3)), part(3, 2)),
            ("MIG-11111111-2222-3333-4444-555555555555", part(2, 7)),
            ("MIG-11111111-2222-3333-4444-555555555555::0", part(2, 7)),
            ("9", None),
            ("", None),
            ("NoDevFiles", None),
            ("GPU-0", None),
            ("gpu-4-mig-1g10gb-19-0", whole(4)),
            ("gpu-0-mig-19-0-1", whole(0)),
            ("gpu-9-mig-19-0-1", None),
            ("gpu-mig-19-0-1", None),
            ("gpu-vfio-3", None),
            ("3-mig-19-0-1", None),
        ] {
            assert_eq!(known.find(name), want, "{name}");
        }
        let unknown = "MIG-99999999-2222-3333-4444-555555555555";
        assert_eq!(known.find(unknown), Some(Device { gpu: unknown.into(), gi: None }));
    }

    #[test]
    fn names_of_kubernetes() {
        let known = eight();
        for (name, want) in
            [("nvidia3", Some(uuid(3))), ("gpu-3", Some(uuid(3))), ("5", None), ("+5", None), ("3:1", None)]
        {
            assert_eq!(known.find_named(name).map(|d| d.gpu), want, "{name}");
        }
        for (name, is) in [
            ("0000:3b:00.2", true),
            ("10000:E1:1f.7", true),
            ("0000:3b:00", false),
            ("3b:00.2", false),
            ("0000:3b:00.22", false),
            ("0:0000:3b:00.2", false),
            ("gpu:3b:00.2", false),
            ("5", false),
        ] {
            assert_eq!(is_pci_address(name), is, "{name}");
        }
    }

    #[test]
    fn lists_and_orders() {
        let known = eight();
        let minors = |found: BTreeSet<Device>| -> Vec<String> { found.into_iter().map(|d| d.gpu).collect() };
        let (found, named) = known.list("0-2,5, 7,99");
        assert_eq!((minors(found), named), ([0, 1, 2, 5, 7].map(uuid).to_vec(), 6));
        assert_eq!(minors(known.in_bus_order("0,1")), [uuid(6), uuid(7)]);
        assert_eq!(minors(known.uuids(&format!("0,{},all", uuid(4)))), [uuid(4)]);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text: String, cut in 0usize..100, with: char) {
            let known = eight();
            let _ = known.list(&text);
            let name = "MIG-GPU-00000000-0000-0000-0000-000000000001/2/0,nvidia3/gi1,gpu-4-mig-1g10gb-19-0,0000:3b:00.2";
            let changed: String = name.chars().enumerate().map(|(i, c)| if i == cut { with } else { c }).collect();
            for text in [&text, &changed] {
                let (found, named) = known.list(text);
                proptest::prop_assert!(found.len() <= named);
                known.uuids(text);
                known.in_bus_order(text);
                for item in text.split(',') {
                    let number = item.trim().parse::<u32>().is_ok();
                    proptest::prop_assert!(!(number || is_pci_address(item)) || known.find_named(item).is_none());
                }
            }
        }
    }
}

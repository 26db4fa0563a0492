//! Asks the DNS for the targets of a name, such as that of a headless Service.
//!
//! An answer of the DNS has at most 64 KiB. Of a name with more addresses than that, each answer
//! leaves out others, so that they are put together from several answers.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use super::groups::MAX_TARGETS;
use super::loss::BELIEVED_ANSWERS;
use super::target::Target;

/// The time limit for a name to resolve.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// An answer with as many addresses of one kind may lack some: 64 KiB have room for 4,090 of IPv4,
/// of 16 bytes each, or 2,340 of IPv6, of 28 bytes.
const FULL: usize = 4_000;
const FULL_V6: usize = 2_300;
/// A target that so many full answers in a row left out is gone. Of four times as many targets as
/// an answer has room for, one that is there is left out as often once in thirty million times.
const GONE: u32 = 60;
const INCOMPLETE: &str = "names as many addresses as an answer of the DNS has room for, so others may be missing until a later answer; use several names, http_sd or file_sd";

#[derive(Debug)]
pub(super) struct Name {
    name: String,
    /// The targets of full answers, each with how many of these in a row left it out.
    seen: BTreeMap<Target, u32>,
    /// Answers in a row that were not full. One alone may be of a name server that just started,
    /// and the next full one has not all of the targets.
    small: u32,
}

impl Name {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), seen: BTreeMap::new(), small: 0 }
    }

    /// The targets, if the DNS answered, and the errors.
    pub(super) async fn ask(&mut self) -> (Option<BTreeSet<Target>>, Vec<String>) {
        match ask(&self.name).await {
            Ok(found) => {
                let (targets, error) = self.take(found);
                (Some(targets), error.map(str::to_owned).into_iter().collect())
            }
            Err(error) => (None, vec![error]),
        }
    }

    fn take(&mut self, found: BTreeSet<Target>) -> (BTreeSet<Target>, Option<&'static str>) {
        if !is_full(&found) {
            self.small += 1;
            if self.small >= BELIEVED_ANSWERS {
                self.seen.clear();
            }
            return (found, None);
        }
        self.small = 0;
        self.seen.retain(|_, left_out| {
            *left_out += 1;
            *left_out < GONE
        });
        for target in found {
            if self.seen.len() < MAX_TARGETS || self.seen.contains_key(&target) {
                self.seen.insert(target, 0);
            }
        }
        (self.seen.keys().cloned().collect(), Some(INCOMPLETE))
    }
}

fn is_full(found: &BTreeSet<Target>) -> bool {
    let of_v6 = found.iter().filter(|target| target.name().starts_with('[')).count();
    of_v6 >= FULL_V6 || found.len() - of_v6 >= FULL
}

async fn ask(name: &str) -> Result<BTreeSet<Target>, String> {
    let target = Target::parse(name)?;
    let lookup = tokio::time::timeout(ANSWER_TIMEOUT, tokio::net::lookup_host(target.name().as_ref()));
    let addresses = lookup
        .await
        .map_err(|_| format!("no answer within {ANSWER_TIMEOUT:?}"))?
        .map_err(|e| format!("does not resolve: {e}"))?;
    // The text form of a socket address is a valid target.
    let targets: BTreeSet<_> =
        addresses.take(MAX_TARGETS).filter_map(|a| Target::discovered(&a.to_string()).ok()).collect();
    if targets.is_empty() { Err("resolves to no address that may be asked".into()) } else { Ok(targets) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers of a name server that shuffles `all` targets and has room for 4,090.
    fn answer(all: usize, nth: usize) -> BTreeSet<Target> {
        let node = |i: usize| Target::parse(&format!("node{:05}:9765", (nth * 977 + i) % all)).unwrap();
        (0..all.min(4_090)).map(node).collect()
    }

    #[test]
    fn more_targets_than_an_answer_has_room_for_are_those_of_several() {
        let mut name = Name::new("exporters:9765");
        let (targets, error) = name.take(answer(3_000, 0));
        assert_eq!((targets.len(), error), (3_000, None));
        let (targets, error) = name.take(answer(5_000, 0));
        assert_eq!((targets.len(), error), (4_090, Some(INCOMPLETE)));
        // None is taken away because an answer leaves it out.
        let lens: Vec<_> = (1..4).map(|nth| name.take(answer(5_000, nth)).0.len()).collect();
        assert_eq!(lens, [5_000, 5_000, 5_000]);
        // A thousand nodes left.
        let left = |name: &mut Name, passes: usize| {
            (0..passes).fold(0, |_, nth| name.take(answer(4_095, nth)).0.len())
        };
        assert_eq!(left(&mut name, 40), 5_000);
        assert_eq!(left(&mut name, 25), 4_095);
        let (targets, error) = name.take(answer(3_000, 0));
        assert_eq!((targets.len(), error), (3_000, None), "what has room is all of it");
    }

    #[test]
    fn one_small_answer_between_full_ones_takes_no_target_away() {
        let mut name = Name::new("exporters:9765");
        for nth in 0..3 {
            name.take(answer(5_000, nth));
        }
        assert_eq!(name.take(answer(100, 0)).0.len(), 100);
        assert_eq!(name.take(answer(5_000, 3)).0.len(), 5_000);
        for _ in 0..BELIEVED_ANSWERS {
            name.take(answer(100, 0));
        }
        assert_eq!(name.take(answer(5_000, 4)).0.len(), 4_090, "the nodes before have left");
    }

    #[test]
    fn an_answer_has_room_for_fewer_addresses_of_ipv6() {
        let addresses = |v4: usize, v6: usize| -> BTreeSet<Target> {
            let v4 = (0..v4).map(|i| format!("10.0.{}.{}:9765", i / 250, 1 + i % 250));
            let v6 = (0..v6).map(|i| format!("[fd00::{:x}]:9765", i + 1));
            v4.chain(v6).map(|text| Target::parse(&text).unwrap()).collect()
        };
        for (v4, v6, full) in [(4_090, 0, true), (0, 2_339, true), (2_250, 2_250, false), (3_000, 0, false)] {
            let error = Name::new("exporters:9765").take(addresses(v4, v6)).1;
            assert_eq!(error.is_some(), full, "{v4} {v6}");
        }
    }

    #[tokio::test]
    async fn a_name_becomes_an_address_each() {
        let found = ask("localhost:7").await.unwrap();
        assert!(
            found.iter().any(|t| t.to_string() == "127.0.0.1:7" || t.to_string() == "[::1]:7"),
            "{found:?}"
        );
        assert!(ask("two..dots").await.is_err());
        let (targets, errors) = Name::new("two..dots").ask().await;
        assert_eq!((targets, errors.len()), (None, 1));
    }
}

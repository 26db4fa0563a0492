//! Saves the rail of each NIC: a NIC is usually lost at a reboot, after which the others must keep
//! their numbers.
//!
//! A NIC is identified by its GUID, or if no known NIC has that GUID, by its slot: a replacement
//! card gets the rail of the previous one. When an unknown NIC appears, rails are renumbered in the
//! order of the bus. Missing NICs are included as long as there are fewer NICs than were known. So
//! the state of other cards, or of another machine, is replaced at once. A NIC that is missing for
//! two weeks counts as removed on purpose.

use serde::{Deserialize, Serialize};

use super::{MAX_NICS, Nic};

const FORGET_SECONDS: f64 = 14.0 * 86_400.0;

/// The rails in their order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Rails(Vec<Rail>);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Rail {
    guid: String,
    pci: String,
    model: String,
    rdma: bool,
    seen_at: f64,
}

/// How a NIC is matched with the known ones, the most reliable way first.
const SAME: [fn(&Rail, &Nic) -> bool; 3] =
    [|rail, nic| rail.has_guid_of(nic) && rail.has_slot_of(nic), Rail::has_guid_of, Rail::has_slot_of];

impl Rail {
    fn from_nic(nic: &Nic, now: f64) -> Self {
        let Nic { guid, place, model, rdma, .. } = nic;
        let (guid, pci, model) = (guid.clone(), place.address.clone(), model.clone());
        Self { guid, pci, model, rdma: *rdma, seen_at: now }
    }

    fn has_guid_of(&self, nic: &Nic) -> bool {
        !self.guid.is_empty() && self.guid == nic.guid
    }

    fn has_slot_of(&self, nic: &Nic) -> bool {
        self.pci == nic.place.address
    }

    fn is_of(&self, nic: &Nic) -> bool {
        self.has_guid_of(nic) || self.has_slot_of(nic)
    }
}

impl Rails {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether any was an RDMA device; only those have GUIDs.
    pub(super) fn has_rdma(&self) -> bool {
        self.0.iter().any(|rail| rail.rdma || !rail.guid.is_empty())
    }

    pub(super) fn knows(&self, nic: &Nic) -> bool {
        self.0.iter().any(|rail| rail.is_of(nic))
    }

    /// The models of known NICs that are missing here.
    pub(super) fn gone<'a>(&'a self, nics: &'a [Nic]) -> impl Iterator<Item = &'a str> {
        let gone = |rail: &&Rail| !nics.iter().any(|nic| rail.is_of(nic));
        self.0.iter().filter(gone).map(|rail| rail.model.as_str())
    }

    /// Removes a NIC that is present and not part of the fabric.
    pub(super) fn retire(&mut self, nic: &Nic) {
        let same = |rail: &Rail| rail.guid == nic.guid || rail.guid.is_empty() || nic.guid.is_empty();
        self.0.retain(|rail| !(rail.has_slot_of(nic) && same(rail)));
    }

    /// The rails of these NICs of the fabric, which are present at Unix time `now`.
    pub(super) fn number(&mut self, now: f64, nics: &[Nic]) -> Vec<usize> {
        self.0.retain(|rail| now - rail.seen_at < FORGET_SECONDS);
        let mut places = vec![None; nics.len()];
        for same in SAME {
            for (at, nic) in
                nics.iter().enumerate().filter(|(at, _)| places[*at].is_none()).collect::<Vec<_>>()
            {
                let free =
                    |(place, rail): &(usize, &Rail)| !places.contains(&Some(*place)) && same(rail, nic);
                places[at] = self.0.iter().enumerate().find(free).map(|(place, _)| place);
            }
        }
        if places.contains(&None) {
            let complete = nics.len() >= self.0.len();
            let gone = std::mem::take(&mut self.0).into_iter().enumerate();
            let gone =
                gone.filter(|(place, _)| !complete && !places.contains(&Some(*place))).map(|(_, rail)| rail);
            self.0 = nics.iter().map(|nic| Rail::from_nic(nic, now)).chain(gone).take(MAX_NICS).collect();
            self.0.sort_by(|a, b| a.pci.cmp(&b.pci));
            let place = |nic: &Nic| self.0.iter().position(|rail| *rail == Rail::from_nic(nic, now));
            return nics.iter().filter_map(place).collect();
        }
        let places: Vec<usize> = places.into_iter().flatten().collect();
        for (place, nic) in places.iter().zip(nics) {
            self.0[*place] = Rail::from_nic(nic, now);
        }
        places
    }

    /// Whether the NICs or their order differ.
    pub(super) fn differ(&self, other: &Self) -> bool {
        let same = |(a, b): (&Rail, &Rail)| (&a.guid, &a.pci, &a.model) == (&b.guid, &b.pci, &b.model);
        self.len() != other.len() || !self.0.iter().zip(&other.0).all(same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Place;

    /// NICs with names such as `a1`: the card with the GUID `a` in slot 1.
    fn nics(names: &[&str]) -> Vec<Nic> {
        let nic = |name: &&str| Nic {
            name: (*name).into(),
            guid: name[..1].into(),
            place: Place {
                address: format!("0000:{}b:00.0", &name[1..]),
                root: String::new(),
                bridges: Vec::new(),
                numa_node: None,
            },
            model: "CX7".into(),
            rdma: true,
        };
        names.iter().map(nic).collect()
    }

    fn numbered(rails: &mut Rails, now: f64, names: &[&str]) -> Vec<usize> {
        let text = serde_json::to_string(rails).unwrap();
        *rails = serde_json::from_str(&text).unwrap();
        rails.number(now, &nics(names))
    }

    #[test]
    fn a_card_keeps_its_rail_whatever_becomes_of_the_others() {
        let mut rails = Rails::default();
        assert_eq!(numbered(&mut rails, 1.0, &["a1", "b2", "c3", "d4"]), [0, 1, 2, 3]);
        assert_eq!(numbered(&mut rails, 2.0, &["a1", "c3", "d4"]), [0, 2, 3], "one is lost");
        assert_eq!(
            numbered(&mut rails, 3.0, &["a1", "c2", "d3"]),
            [0, 2, 3],
            "and the slots are numbered anew"
        );
        assert_eq!(numbered(&mut rails, 4.0, &["a1", "x2", "c3", "d4"]), [0, 1, 2, 3], "it was exchanged");
        assert_eq!(rails.len(), 4);
        assert_eq!(numbered(&mut rails, 5.0, &["d4"]), [3]);
        assert_eq!(numbered(&mut rails, 4.0 + FORGET_SECONDS, &["d4"]), [0], "gone for good");
    }

    #[test]
    fn what_is_known_gives_way_to_another_machine_and_not_to_one_more_card() {
        let mut rails = Rails::default();
        assert_eq!(numbered(&mut rails, 1.0, &["b2", "d4"]), [0, 1]);
        assert_eq!(
            numbered(&mut rails, 2.0, &["a1", "b2", "c3", "d4"]),
            [0, 1, 2, 3],
            "the others came up later"
        );
        assert_eq!(numbered(&mut rails, 3.0, &["a1", "d4"]), [0, 3]);
        assert_eq!(numbered(&mut rails, 4.0, &["a1", "d4", "e5"]), [0, 3, 4], "two are still missed");
        assert_eq!(
            numbered(&mut rails, 5.0, &["p6", "q7", "r8", "s9", "t5"]),
            [1, 2, 3, 4, 0],
            "other cards"
        );
        assert_eq!(rails.len(), 5);
        rails.retire(&nics(&["q7"])[0]);
        assert_eq!(numbered(&mut rails, 6.0, &["p6", "r8", "s9", "t5"]), [1, 2, 3, 0]);
    }

    #[test]
    fn a_memory_that_contains_little() {
        let rails: Rails = serde_json::from_str(r#"[{"pci": "0000:1b:00.0"}]"#).unwrap();
        assert_eq!(rails.clone().number(1.0, &nics(&["b2"])), [0]);
        assert_eq!(rails.gone(&nics(&["b2"])).count(), 1);
        assert!(!rails.has_rdma());
        let rails: Rails = serde_json::from_str(r#"[{"guid": "b"}]"#).unwrap();
        assert!(rails.has_rdma());
    }
}

//! Limits the memory of unfinished text: lines without a newline yet, lines that a container
//! runtime split, records that span blocks.
//!
//! One budget serves the whole program, because every reader has a limit and there are hundreds of
//! readers. A user may hold at most as many bytes as stay free: one user alone half of the budget,
//! two a third each. So a user who fills the budget leaves room for the next, and no user has to
//! give up anything for another.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::lock::Locked as _;
use crate::principal::Principal;

/// The most bytes of unfinished text in the whole program.
const MAX_BYTES: usize = 16 << 20;
/// Bytes per reader that are not counted, so that an ordinary line always has room.
const FREE_BYTES: usize = 2 * stepwatch_formats::KEPT_BYTES;
/// The reason for dropping text: the label of the counter.
pub(crate) const LIMIT: &str = "unfinished_limit";

/// The bytes that all readers hold.
#[derive(Debug, Clone, Default)]
pub struct Room(Arc<Mutex<Held>>);

#[derive(Debug, Default)]
struct Held {
    all: usize,
    by: BTreeMap<Principal, usize>,
}

/// The bytes that one reader holds.
#[derive(Debug)]
pub(crate) struct Share {
    room: Room,
    whose: Principal,
    bytes: usize,
}

impl Room {
    pub(crate) fn share(&self) -> Share {
        Share { room: self.clone(), whose: Principal::Unknown, bytes: 0 }
    }
}

impl Held {
    fn release(&mut self, whose: Principal, bytes: usize) {
        self.all = self.all.saturating_sub(bytes);
        if let Some(held) = self.by.get_mut(&whose) {
            *held = held.saturating_sub(bytes);
            if *held == 0 {
                self.by.remove(&whose);
            }
        }
    }

    fn take(&mut self, whose: Principal, bytes: usize) -> bool {
        let held = self.by.get(&whose).copied().unwrap_or_default() + bytes;
        let all = self.all + bytes;
        if held > MAX_BYTES.saturating_sub(all) {
            return false;
        }
        self.all = all;
        self.by.insert(whose, held);
        true
    }
}

impl Share {
    /// Sets the bytes that the reader holds of this user. Returns false if there is no room for
    /// them; the reader must drop them then.
    #[must_use]
    pub(crate) fn hold(&mut self, whose: Principal, bytes: usize) -> bool {
        let bytes = bytes.saturating_sub(FREE_BYTES);
        if bytes == self.bytes && (bytes == 0 || whose == self.whose) {
            return true;
        }
        let mut held = self.room.0.locked();
        held.release(self.whose, std::mem::take(&mut self.bytes));
        let taken = bytes == 0 || held.take(whose, bytes);
        if taken {
            (self.whose, self.bytes) = (whose, bytes);
        }
        taken
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.room.0.locked().release(self.whose, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: usize = 64 << 10;

    /// Holds as many pieces as one user may.
    fn fill(room: &Room, whose: Principal) -> Vec<Share> {
        let piece = || {
            let mut share = room.share();
            share.hold(whose, PIECE + FREE_BYTES).then_some(share)
        };
        std::iter::from_fn(piece).collect()
    }

    #[test]
    fn whoever_fills_it_leaves_room_for_the_next() {
        let room = Room::default();
        let first = fill(&room, Principal::User(1));
        assert_eq!(first.len() * PIECE, MAX_BYTES / 2);
        let second = fill(&room, Principal::User(2));
        assert_eq!(second.len() * PIECE, MAX_BYTES / 4);
        let mut third = room.share();
        assert!(third.hold(Principal::User(3), 1 << 20), "a record of a third");
        let mut more = room.share();
        assert!(!more.hold(Principal::User(1), 2 * FREE_BYTES));
        assert!(more.hold(Principal::User(1), FREE_BYTES), "a line of the first");
        drop((first, second, third, more));
        assert_eq!(room.0.locked().all, 0);
        assert!(room.0.locked().by.is_empty());
    }

    proptest::proptest! {
        #[test]
        fn never_more_than_the_budget(asked in proptest::collection::vec((0_usize..8, 0_u32..4, 0_usize..3 << 20), 0..200)) {
            let room = Room::default();
            let mut shares: Vec<Share> = (0..8).map(|_| room.share()).collect();
            for (share, user, bytes) in asked {
                let _ = shares[share].hold(Principal::User(user), bytes);
                let held = room.0.locked();
                proptest::prop_assert!(held.all <= MAX_BYTES);
                proptest::prop_assert_eq!(held.all, shares.iter().map(|s| s.bytes).sum::<usize>());
                proptest::prop_assert_eq!(held.all, held.by.values().sum::<usize>());
            }
        }
    }
}

//! The records of the ring, by sender.
//!
//! When the ring is full, the user with the most records gives up the oldest one. So a user who
//! floods the stream pushes out only that user's own records. The numbers of a lane have holes
//! where records of others are; a number that is in no lane was given up.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;

use super::journal::Place;
use super::ring::Limits;
use crate::principal::Principal;

/// The most senders with a lane of their own; the others share the lane of the unknown. Half of the
/// lanes at most are for remote senders, who may have more addresses than there are users here.
const MAX_LANES: usize = 64;
/// The most records returned to a reader at once: enough to catch up quickly, few enough to share
/// the lock.
const BATCH_RECORDS: usize = 512;
const BATCH_BYTES: usize = 64 * 1024;
/// Bytes of the latest records that stay in memory where the ring is kept: more than readers who
/// follow the stream are behind.
const AT_HAND_BYTES: usize = if cfg!(test) { 1 << 10 } else { 512 << 10 };

#[derive(Debug)]
pub(super) struct Lanes {
    lanes: BTreeMap<Principal, Lane>,
    /// The number of the next record.
    next: u64,
    evicted: u64,
    /// The number of the last record that each sender gave up to make room.
    given_up: BTreeMap<Principal, u64>,
    records: usize,
    /// Bytes of all records, and of those in memory.
    bytes: usize,
    at_hand_bytes: usize,
}

/// The records of one sender with their numbers, the oldest first.
#[derive(Debug, Default)]
struct Lane {
    /// Records that were copied into memory because their file was removed.
    copied: VecDeque<(u64, Bytes)>,
    /// Records that are read back from a file.
    kept: VecDeque<(u64, Place)>,
    /// Records in memory, with their place in a file.
    at_hand: VecDeque<(u64, Bytes, Option<Place>)>,
    bytes: usize,
}

/// The result of a read.
pub(super) enum Taken {
    Nothing,
    /// The number of records that were given up.
    Lost(u64),
    Records(Vec<Piece>),
}

/// A record, or its place in a file.
pub(super) enum Piece {
    Text(Bytes),
    Kept(Place),
}

impl Piece {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Kept(place) => place.len(),
        }
    }
}

impl Lanes {
    /// Continues after the records that earlier processes left, whose senders are unknown.
    pub(super) fn after(first: u64, kept: VecDeque<Place>) -> Self {
        let (records, bytes) = (kept.len(), kept.iter().map(Place::len).sum());
        let next = first + records as u64;
        let lane = Lane { kept: (first..).zip(kept).collect(), bytes, ..Lane::default() };
        let lanes = [(Principal::Unknown, lane)].into_iter().filter(|_| records > 0).collect();
        let (evicted, given_up) = (first - 1, BTreeMap::new());
        Self { lanes, next, evicted, given_up, records, bytes, at_hand_bytes: 0 }
    }

    pub(super) fn records(&self) -> usize {
        self.records
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// The senders who gave up records after this number to make room, the latest first.
    pub(super) fn given_up_after(&self, after: u64) -> Vec<Principal> {
        let given_up = self.given_up.iter().filter(|(_, last)| **last > after);
        let mut given_up: Vec<_> = given_up.map(|(sender, last)| (Reverse(*last), *sender)).collect();
        given_up.sort_unstable();
        given_up.into_iter().map(|(_, sender)| sender).collect()
    }

    /// The number of the last record.
    pub(super) fn head(&self) -> u64 {
        self.next - 1
    }

    /// The number of the oldest record, or of the next record if there is none.
    pub(super) fn first(&self) -> u64 {
        self.lanes
            .values()
            .filter_map(|lane| lane.pieces(0).next())
            .map(|(n, _)| n)
            .min()
            .unwrap_or(self.next)
    }

    pub(super) fn push(&mut self, sender: Principal, record: Bytes, place: Option<Place>) {
        let elsewhere = || self.lanes.keys().filter(|principal| principal.is_unknown()).count();
        let has_room =
            || self.lanes.len() < MAX_LANES && !(sender.is_unknown() && elsewhere() >= MAX_LANES / 2);
        let is_full = !self.lanes.contains_key(&sender) && !has_room();
        let lane = self.lanes.entry(if is_full { Principal::Unknown } else { sender }).or_default();
        self.bytes += record.len();
        self.at_hand_bytes += record.len();
        self.records += 1;
        lane.bytes += record.len();
        lane.at_hand.push_back((self.next, record, place));
        self.next += 1;
        while self.at_hand_bytes > AT_HAND_BYTES {
            let oldest = self.lanes.values_mut().filter_map(|lane| Some((lane.at_hand.front()?.0, lane)));
            let Some((_, lane)) = oldest.min_by_key(|(number, _)| *number) else { return };
            let Some((number, old, Some(place))) = lane.at_hand.pop_front_if(|(.., place)| place.is_some())
            else {
                return;
            };
            self.at_hand_bytes -= old.len();
            lane.kept.push_back((number, place));
        }
    }

    pub(super) fn evict(&mut self, limits: Limits) {
        while self.records > limits.records || (self.bytes > limits.bytes && self.records > 1) {
            let by_bytes = self.bytes > limits.bytes;
            let share = |lane: &Lane| if by_bytes { lane.bytes } else { lane.len() };
            let largest = self.lanes.iter().max_by_key(|(_, lane)| share(lane));
            let Some(sender) = largest.map(|(sender, _)| *sender) else { return };
            let Some(lane) = self.lanes.get_mut(&sender) else { return };
            let Some((number, len, at_hand)) = lane.pop() else { return };
            self.bytes -= len;
            self.at_hand_bytes -= if at_hand { len } else { 0 };
            self.records -= 1;
            self.evicted += 1;
            if lane.len() == 0 {
                self.lanes.remove(&sender);
            }
            self.gave_up(sender, number);
        }
    }

    /// Records the number. Above [`MAX_LANES`] senders, forgets the one whose last number is the
    /// lowest.
    fn gave_up(&mut self, sender: Principal, number: u64) {
        self.given_up.insert(sender, number);
        if self.given_up.len() > MAX_LANES {
            let oldest = self.given_up.iter().min_by_key(|(_, last)| **last).map(|(sender, _)| *sender);
            if let Some(oldest) = oldest {
                self.given_up.remove(&oldest);
            }
        }
    }

    /// Copies the records whose files the journal is about to remove into memory. Otherwise a few
    /// records would keep a whole file each.
    pub(super) fn leave_files_but(&mut self, files: &[Arc<File>]) {
        for lane in self.lanes.values_mut() {
            while let Some((number, place)) = lane.kept.pop_front_if(|(_, place)| !place.is_in(files)) {
                let mut text = Vec::new();
                if place.read(&mut text).is_ok() {
                    lane.copied.push_back((number, text.into()));
                } else {
                    lane.bytes -= place.len();
                    self.bytes -= place.len();
                    self.records -= 1;
                    self.evicted += 1;
                }
            }
        }
        self.lanes.retain(|_, lane| lane.len() > 0);
    }

    /// Gives up the records that only the journal has, because it cannot be read.
    pub(super) fn forget_kept(&mut self) {
        for lane in self.lanes.values_mut() {
            let bytes: usize = lane.kept.iter().map(|(_, place)| place.len()).sum();
            lane.bytes -= bytes;
            self.bytes -= bytes;
            self.records -= lane.kept.len();
            self.evicted += lane.kept.len() as u64;
            lane.kept.clear();
        }
        self.lanes.retain(|_, lane| lane.len() > 0);
    }

    /// The records after this number, up to the next hole or the limits of one read.
    pub(super) fn take(&self, after: u64) -> Taken {
        let mut lanes: Vec<_> = self.lanes.values().map(|lane| lane.pieces(after).peekable()).collect();
        let (mut pieces, mut bytes, mut expected) = (Vec::new(), 0, after + 1);
        while pieces.len() < BATCH_RECORDS {
            let heads = lanes.iter_mut().filter_map(|lane| Some((lane.peek()?.0, lane)));
            let Some((number, lane)) = heads.min_by_key(|(number, _)| *number) else { break };
            if number > expected {
                let is_first = pieces.is_empty();
                return if is_first { Taken::Lost(number - expected) } else { Taken::Records(pieces) };
            }
            let Some((_, piece)) = lane.next() else { break };
            bytes += piece.len();
            if bytes > BATCH_BYTES && !pieces.is_empty() {
                break;
            }
            pieces.push(piece);
            expected += 1;
        }
        match pieces.is_empty() {
            true if expected < self.next => Taken::Lost(self.next - expected),
            true => Taken::Nothing,
            false => Taken::Records(pieces),
        }
    }
}

impl Lane {
    fn len(&self) -> usize {
        self.copied.len() + self.kept.len() + self.at_hand.len()
    }

    /// Removes the oldest record. Returns its number, its length, and whether it was in memory.
    fn pop(&mut self) -> Option<(u64, usize, bool)> {
        let popped = if let Some((number, text)) = self.copied.pop_front() {
            (number, text.len(), false)
        } else if let Some((number, place)) = self.kept.pop_front() {
            (number, place.len(), false)
        } else {
            let (number, text, _) = self.at_hand.pop_front()?;
            (number, text.len(), true)
        };
        self.bytes -= popped.1;
        Some(popped)
    }

    /// The records after this number, in order.
    fn pieces(&self, after: u64) -> impl Iterator<Item = (u64, Piece)> {
        let copied = self.copied.partition_point(|(number, _)| *number <= after);
        let kept = self.kept.partition_point(|(number, _)| *number <= after);
        let at_hand = self.at_hand.partition_point(|(number, ..)| *number <= after);
        let copied = self.copied.range(copied..).map(|(number, text)| (*number, Piece::Text(text.clone())));
        let kept = self.kept.range(kept..).map(|(number, place)| (*number, Piece::Kept(place.clone())));
        let at_hand =
            self.at_hand.range(at_hand..).map(|(number, text, _)| (*number, Piece::Text(text.clone())));
        copied.chain(kept).chain(at_hand)
    }
}

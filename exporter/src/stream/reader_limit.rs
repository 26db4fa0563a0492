//! Limits the readers of the stream, and decides which reader loses its place: the alerter must get
//! in however many unknown clients ask for the stream.
//!
//! Readers of one address, or on this machine of one user, get a few places. If no place is free,
//! the owner with the most places loses its latest one to a reader with fewer. If all owners have
//! one place, a trusted reader replaces the untrusted reader that came last. A reader is trusted if
//! it authenticated with a password or a certificate, or followed for a while before. If there is
//! no untrusted reader, it replaces the one that became known last. Authenticated readers take half
//! of the places in this way at most.
//!
//! An owner that has all its places and followed for a while before may be an alerter that shares
//! its address with others, behind NAT. Its readers take turns: a new one replaces one that had its
//! place for at least [`TURN`]. A reader resumes at its cursor, so a turn loses no records.
//!
//! The owners that followed for a while are saved over a restart of the exporter, because all
//! readers come back at once then.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use stepwatch_kit::serve::Client;
use tokio_util::sync::CancellationToken;

use crate::lock::Locked as _;

/// The owner of a reader: its address, and its user if it is on this machine, where all users have
/// one address.
pub(super) type Owner = (Option<Client>, Option<u32>);

/// An owner that followed for this long is known from then on.
pub(super) const KNOWN_AFTER: Duration = Duration::from_mins(5);
/// The least time for which a reader keeps its place where readers of one owner take turns.
const TURN: Duration = Duration::from_secs(10);
/// The most owners remembered.
const MAX_KNOWN: usize = 64;
/// A known owner that has not followed for this long may be forgotten for another.
const FORGOTTEN_AFTER: Duration = Duration::from_hours(1);

#[derive(Debug, Clone, Default)]
pub(super) struct Seats(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    taken: BTreeMap<u64, Taken>,
    /// The owners that followed for a while.
    known: BTreeMap<Owner, Known>,
    /// The number of owners that became known so far.
    known_so_far: u64,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    /// The number of owners that became known before this one.
    before: u64,
    /// When the owner was last seen to follow.
    seen: Instant,
}

#[derive(Debug)]
struct Taken {
    owner: Owner,
    authenticated: bool,
    since: Instant,
    cut: CancellationToken,
}

/// One place, until it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Seats,
    id: u64,
    cut: CancellationToken,
}

impl Seats {
    /// Creates an empty table in which `owners` are known, the first of them for longest.
    pub(super) fn knowing(owners: Vec<Owner>) -> Self {
        let seats = Self::default();
        let mut state = seats.0.locked();
        owners.into_iter().take(MAX_KNOWN).for_each(|owner| state.know(owner, Instant::now()));
        drop(state);
        seats
    }

    /// The owners that followed for a while, in the order in which they became known.
    pub(super) fn known(&self) -> Vec<Owner> {
        let mut state = self.0.locked();
        state.learn(Instant::now());
        let mut known: Vec<_> = state.known.iter().map(|(owner, known)| (known.before, *owner)).collect();
        known.sort_unstable();
        known.into_iter().map(|(_, owner)| owner).collect()
    }

    pub(super) fn taken(&self) -> usize {
        self.0.locked().taken.len()
    }

    /// Takes a place for a reader. `limits` are the most places of all readers and of one owner.
    /// `None` if no reader has to give up a place for it.
    pub(super) fn take(
        &self,
        owner: Owner,
        authenticated: bool,
        (all, per_address): (usize, usize),
    ) -> Option<Seat> {
        let mut state = self.0.locked();
        state.learn(Instant::now());
        let own = if authenticated { 0 } else { state.held_by(owner) };
        if own >= per_address {
            let victim = state.whose_turn_is_over(owner, Instant::now())?;
            state.cut(victim);
        } else if state.taken.len() >= all {
            let trusted = || authenticated || own == 0 && state.known.contains_key(&owner);
            let less_trusted = || {
                let known_later = || state.known_later(owner, authenticated, all);
                trusted().then(|| state.last_stranger().or_else(known_later)).flatten()
            };
            let victim = state.of_the_greediest(own).or_else(less_trusted)?;
            state.cut(victim);
        }
        let id = state.next;
        state.next += 1;
        let cut = CancellationToken::new();
        let since = Instant::now();
        state.taken.insert(id, Taken { owner, authenticated, since, cut: cut.clone() });
        Some(Seat { seats: self.clone(), id, cut })
    }
}

impl State {
    /// Remembers the owners that have followed for [`KNOWN_AFTER`] by now.
    fn learn(&mut self, now: Instant) {
        let long = |t: &&Taken| now.saturating_duration_since(t.since) >= KNOWN_AFTER;
        let owners: Vec<_> = self.taken.values().filter(long).map(|t| t.owner).collect();
        owners.into_iter().for_each(|owner| self.know(owner, now));
        // Owners that become known later never displace those known before, unless these are away.
        while self.known.len() > MAX_KNOWN {
            let away = |known: &Known| now.saturating_duration_since(known.seen) >= FORGOTTEN_AFTER;
            let last = self.known.iter().max_by_key(|(_, known)| (away(known), known.before));
            let Some(last) = last.map(|(owner, _)| *owner) else { break };
            self.known.remove(&last);
        }
    }

    fn know(&mut self, owner: Owner, now: Instant) {
        let before = self.known_so_far;
        let known = self.known.entry(owner).or_insert(Known { before, seen: now });
        known.seen = now;
        self.known_so_far += u64::from(known.before == before);
    }

    /// The place of the owner that became known last, if that was after `owner`. A password counts
    /// for more than having followed, for up to half of all places.
    fn known_later(&self, owner: Owner, authenticated: bool, all: usize) -> Option<u64> {
        let passwords = self.taken.values().filter(|t| t.authenticated).count();
        let own = self.known.get(&owner).map(|known| known.before);
        let gives_way = |before: u64| {
            if authenticated { passwords < all / 2 } else { own.is_some_and(|own| own < before) }
        };
        let held = self.taken.iter().filter(|(_, t)| !t.authenticated);
        let known = held.filter_map(|(id, t)| Some((self.known.get(&t.owner)?.before, *id)));
        known.max().filter(|(before, _)| gives_way(*before)).map(|(_, id)| id)
    }

    fn held_by(&self, owner: Owner) -> usize {
        self.taken.values().filter(|t| !t.authenticated && t.owner == owner).count()
    }

    /// The latest place of the owner with the most places, if that owner still has as many as the
    /// newcomer, who has `own`, will have.
    fn of_the_greediest(&self, own: usize) -> Option<u64> {
        let all = self.taken.iter().filter(|(_, t)| !t.authenticated);
        let (id, most) =
            all.map(|(id, t)| (*id, self.held_by(t.owner))).max_by_key(|(id, most)| (*most, *id))?;
        (most > own + 1).then_some(id)
    }

    /// The place that a known owner gives up for its next reader: of the places held for a short
    /// time the one whose turn ended first, or, if all are held for long, the latest. So readers
    /// that come and go do not cut an alerter that follows for long.
    fn whose_turn_is_over(&self, owner: Owner, now: Instant) -> Option<u64> {
        let own = self.taken.iter().filter(|(_, t)| !t.authenticated && t.owner == owner);
        let mut held = own.map(|(id, t)| (*id, now.saturating_duration_since(t.since)));
        let mut recent = held.clone().filter(|(_, held)| *held < KNOWN_AFTER).peekable();
        let victim = match recent.peek() {
            Some(_) => recent.find(|(_, held)| *held >= TURN),
            None => held.next_back(),
        };
        victim.map(|(id, _)| id).filter(|_| self.known.contains_key(&owner))
    }

    fn cut(&mut self, victim: u64) {
        if let Some(taken) = self.taken.remove(&victim) {
            taken.cut.cancel();
        }
    }

    fn last_stranger(&self) -> Option<u64> {
        let stranger = |t: &&Taken| !t.authenticated && !self.known.contains_key(&t.owner);
        self.taken.iter().rev().find(|(_, t)| stranger(t)).map(|(id, _)| *id)
    }
}

impl Seat {
    /// Returns when another reader has taken the place.
    pub(super) async fn evicted(&self) {
        self.cut.cancelled().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.seats.0.locked();
        state.learn(Instant::now());
        state.taken.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::persisted_state;

    fn client(n: u8) -> Owner {
        (Some(Client::from_addresses([10, 0, 0, n].into(), [192, 0, 2, 1].into())), None)
    }

    fn user(uid: u32) -> Owner {
        (Some(Client::from_addresses([127, 0, 0, 1].into(), [127, 0, 0, 1].into())), Some(uid))
    }

    #[test]
    fn users_of_this_machine_have_places_of_their_own() {
        let seats = Seats::default();
        let _theirs: Vec<_> = (0..2).map(|_| seats.take(user(1000), false, (8, 2)).unwrap()).collect();
        assert!(seats.take(user(1000), false, (8, 2)).is_none());
        assert!(seats.take(user(0), false, (8, 2)).is_some(), "the alerter's");
    }

    #[test]
    fn whoever_has_the_most_gives_one_up_also_if_they_followed_for_long() {
        let seats = Seats::default();
        let strangers: Vec<_> =
            (0..8).map(|n| seats.take(client(1 + n % 2), false, (8, 4)).unwrap()).collect();
        let long_ago = Instant::now().checked_sub(KNOWN_AFTER).unwrap();
        seats.0.locked().taken.values_mut().for_each(|t| t.since = long_ago);
        let alerter = seats.take(client(9), false, (8, 4)).unwrap();
        assert!(strangers[7].cut.is_cancelled());
        // Readers that come back do not take its place: no reader gives up a place to one that has
        // as many. They take turns among themselves.
        let _back: Vec<_> = (0..4).filter_map(|n| seats.take(client(1 + n % 2), false, (8, 4))).collect();
        assert!(!alerter.cut.is_cancelled());
        assert_eq!(seats.taken(), 8);
    }

    #[test]
    fn strangers_of_one_address_get_a_few_places() {
        let seats = Seats::default();
        let taken: Vec<_> = (0..3).filter_map(|_| seats.take(client(1), false, (8, 2))).collect();
        assert_eq!(taken.len(), 2);
        assert!(seats.take(client(2), false, (8, 2)).is_some());
        assert!(seats.take(client(1), true, (8, 2)).is_some(), "who is known by a password is not counted");
        drop(taken);
        assert_eq!(seats.taken(), 0);
    }

    /// All clients behind one NAT have the address of the alerter.
    #[test]
    fn an_alerter_comes_back_although_strangers_have_all_places_of_its_address() {
        let seats = Seats::default();
        let at = |seat: &Seat, ago: Duration| {
            let since = Instant::now().checked_sub(ago).unwrap();
            seats.0.locked().taken.get_mut(&seat.id).unwrap().since = since;
        };
        let alerter = seats.take(client(1), false, (8, 3)).unwrap();
        let early = seats.take(client(1), false, (8, 3)).unwrap();
        let late = seats.take(client(1), false, (8, 3)).unwrap();
        assert!(seats.take(client(1), false, (8, 3)).is_none(), "nobody of this address is known");
        at(&alerter, KNOWN_AFTER);
        at(&early, TURN);
        let stranger = seats.take(client(1), false, (8, 3)).unwrap();
        assert!(early.cut.is_cancelled() && !alerter.cut.is_cancelled());
        assert!(seats.take(client(1), false, (8, 3)).is_none(), "nobody has had a turn");
        drop(alerter);
        let third = seats.take(client(1), false, (8, 3)).unwrap();
        for seat in [&stranger, &late, &third] {
            at(seat, KNOWN_AFTER);
        }
        let back = seats.take(client(1), false, (8, 3)).unwrap();
        assert!(third.cut.is_cancelled() && !back.cut.is_cancelled(), "the last of those held for long");
        assert_eq!(seats.taken(), 3);
    }

    #[test]
    fn an_alerter_comes_back_although_others_that_are_known_have_all_places() {
        let seats = Seats::default();
        let long_ago = Instant::now().checked_sub(KNOWN_AFTER).unwrap();
        let known = |seat: &Seat| seats.0.locked().taken.get_mut(&seat.id).unwrap().since = long_ago;
        let alerter = seats.take(client(1), false, (4, 4)).unwrap();
        known(&alerter);
        drop(alerter);
        let others: Vec<_> = (2..6).map(|n| seats.take(client(n), false, (4, 4)).unwrap()).collect();
        others.iter().for_each(known);
        let back = seats.take(client(1), false, (4, 4)).unwrap();
        assert_eq!(others.iter().filter(|seat| seat.cut.is_cancelled()).count(), 1);
        assert!(seats.take(client(2), false, (4, 4)).is_none(), "they were known later");
        assert!(seats.take(client(9), true, (4, 4)).is_some(), "a password");
        assert!(!back.cut.is_cancelled());
        // Many owners that become known later do not displace it.
        drop((back, others));
        for n in 10..=255 {
            known(&seats.take(client(n), false, (4, 4)).unwrap());
        }
        assert!(seats.0.locked().known.contains_key(&client(1)));
        assert!(seats.0.locked().known.len() <= MAX_KNOWN);
    }

    /// After a restart all readers come back at once, and the strangers may be faster.
    #[test]
    fn who_followed_for_long_is_known_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let seats = Seats::default();
        let long_ago = Instant::now().checked_sub(KNOWN_AFTER).unwrap();
        for owner in [client(7), user(1000), client(1)] {
            let seat = seats.take(owner, false, (8, 3)).unwrap();
            seats.0.locked().taken.get_mut(&seat.id).unwrap().since = long_ago;
        }
        let _new = seats.take(client(8), false, (8, 3)).unwrap();
        let known = seats.known();
        assert_eq!(known, [client(7), user(1000), client(1)]);
        persisted_state::save(Some(dir.path()), "x", &known).unwrap();
        let seats = Seats::knowing(persisted_state::load(Some(dir.path()), "x"));
        assert_eq!(seats.known(), known);
        let strangers: Vec<_> = (10..12).filter_map(|n| seats.take(client(n), false, (2, 2))).collect();
        assert!(seats.take(client(12), false, (2, 2)).is_none());
        let alerter = seats.take(client(1), false, (2, 2)).unwrap();
        assert!(strangers[1].cut.is_cancelled());
        let earlier = seats.take(user(1000), false, (2, 2)).unwrap();
        assert!(strangers[0].cut.is_cancelled() && !alerter.cut.is_cancelled());
        // Both were known before; the one known for longer stays.
        assert!(seats.take(client(13), false, (2, 2)).is_none());
        let earliest = seats.take(client(7), false, (2, 2)).unwrap();
        assert!(alerter.cut.is_cancelled() && !earlier.cut.is_cancelled() && !earliest.cut.is_cancelled());
    }

    #[test]
    fn who_followed_before_or_shows_a_password_takes_the_place_of_the_last_stranger() {
        let seats = Seats::default();
        let alerter = seats.take(client(1), false, (3, 3)).unwrap();
        let long_ago = Instant::now().checked_sub(KNOWN_AFTER).unwrap();
        seats.0.locked().taken.get_mut(&alerter.id).unwrap().since = long_ago;
        drop(alerter);
        let strangers: Vec<_> = (2..5).map(|n| seats.take(client(n), false, (3, 3)).unwrap()).collect();
        assert!(seats.take(client(5), false, (3, 3)).is_none());
        let back = seats.take(client(1), false, (3, 3)).unwrap();
        assert!(strangers[2].cut.is_cancelled() && !strangers[1].cut.is_cancelled());
        let user = seats.take(client(6), true, (3, 3)).unwrap();
        assert!(strangers[1].cut.is_cancelled() && !back.cut.is_cancelled());
        let _another = seats.take(client(7), true, (3, 3)).unwrap();
        assert!(strangers[0].cut.is_cancelled());
        assert!(seats.take(client(8), true, (3, 3)).is_none(), "no stranger is left");
        assert!(!user.cut.is_cancelled());
        assert_eq!(seats.taken(), 3);
    }
}

//! Handles lists that lose many targets at once: an inventory that answers `[]`, or a target file
//! that a full disk left empty, must not stop the monitoring of a fleet without notice.
//!
//! As long as the lost targets still send, they stay targets until the list has omitted them for a
//! while, and a ticket reports this. New names are targets at once. The accepted targets are
//! stored, so that the first answer after a restart is checked in the same way.

use core::time::Duration;
use std::collections::BTreeSet;

use tokio::time::Instant;

use super::target::Target;

/// The number of consecutive answers, and the time, after which a loss is accepted.
pub(super) const BELIEVED_ANSWERS: u32 = 3;
pub(super) const BELIEVED_AFTER: Duration = Duration::from_mins(5);
/// The number of targets from which losing more than half is many. With fewer targets, only losing
/// all is.
const MANY: usize = 4;

/// The targets of one list, and a loss that is not accepted yet.
#[derive(Debug)]
pub(super) struct Listed {
    believed_after: Duration,
    /// The targets that were last accepted.
    named: Option<BTreeSet<Target>>,
    /// Whether those were accepted by an earlier process.
    restored: bool,
    answered: bool,
    doubt: Option<Doubt>,
    /// The targets before the loss that was reported to people.
    told: Option<BTreeSet<Target>>,
}

#[derive(Debug)]
struct Doubt {
    since: Instant,
    answers: u32,
}

/// The number of lost targets that still send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sending {
    Known(usize),
    /// The targets are from before this process, and not all of them have been tried yet.
    Restarted,
}

/// A report to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    /// The list omits `lost` of its `all` targets, of which some still send.
    Lost { lost: usize, all: usize, sending: Sending },
    /// The loss is accepted: these are no longer targets.
    Believed,
    /// The list has the targets again, or they no longer send. A first answer with any target also
    /// ends the report of an earlier process.
    Settled,
}

impl Listed {
    /// Creates the state. `kept` has the targets from before this process.
    pub(super) fn new(believed_after: Duration, kept: Option<BTreeSet<Target>>) -> Self {
        let restored = kept.is_some();
        Self { believed_after, named: kept, restored, answered: false, doubt: None, told: None }
    }

    /// The targets that were last accepted.
    pub(super) fn named(&self) -> Option<&BTreeSet<Target>> {
        self.named.as_ref()
    }

    /// Whether no answer was accepted since the start of this process.
    pub(super) fn is_restored(&self) -> bool {
        self.restored
    }

    /// The targets in force after the list answered `new`.
    pub(super) fn take(
        &mut self,
        now: Instant,
        new: BTreeSet<Target>,
        sends: impl Fn(&Target) -> bool,
    ) -> (BTreeSet<Target>, Option<Notice>) {
        let first = !core::mem::replace(&mut self.answered, true);
        let Some(named) = &self.named else {
            self.named = Some(new.clone());
            let settled = (!new.is_empty()).then_some(Notice::Settled);
            return (new, settled);
        };
        let all = named.len();
        let sending = named.difference(&new).filter(|target| sends(target)).count();
        let lost = named.difference(&new).count();
        if sending == 0 || !(lost == all || is_most(sending, all)) {
            let was_doubted = self.doubt.take().is_some();
            let settled = self.told.take_if(|before| {
                let (lost, all) = (before.difference(&new).count(), before.len());
                was_doubted || !(lost == all || is_most(lost, all))
            });
            let is_settled = settled.is_some() || first && !new.is_empty();
            (self.named, self.restored) = (Some(new.clone()), false);
            return (new, is_settled.then_some(Notice::Settled));
        }
        let doubt = self.doubt.get_or_insert(Doubt { since: now, answers: 0 });
        doubt.answers += 1;
        if doubt.answers >= BELIEVED_ANSWERS && now - doubt.since >= self.believed_after {
            self.doubt = None;
            (self.named, self.restored) = (Some(new.clone()), false);
            return (new, Some(Notice::Believed));
        }
        let sending = if self.restored { Sending::Restarted } else { Sending::Known(sending) };
        let notice = (doubt.answers == 1).then_some(Notice::Lost { lost, all, sending });
        self.told.get_or_insert_with(|| named.clone());
        (named.union(&new).cloned().collect(), notice)
    }
}

fn is_most(some: usize, all: usize) -> bool {
    all >= MANY && some * 2 > all
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    struct List {
        listed: Listed,
        start: Instant,
    }

    impl List {
        fn of(names: &str) -> Self {
            let mut list = Self { listed: Listed::new(BELIEVED_AFTER, None), start: Instant::now() };
            assert_eq!(list.names(0, names, "").1, Some(Notice::Settled));
            list
        }

        /// Restarts the alerter, which restores the last accepted targets.
        fn restarted(self) -> Self {
            let listed = Listed::new(BELIEVED_AFTER, self.listed.named().cloned());
            Self { listed, ..self }
        }

        /// The targets in force after an answer with these names, `minute` minutes after the first
        /// one; `down` has those that do not send.
        fn names(&mut self, minute: u32, names: &str, down: &str) -> (String, Option<Notice>) {
            let targets = names.split_whitespace().map(|name| Target::parse(name).unwrap()).collect();
            let down: BTreeSet<Target> =
                down.split_whitespace().map(|name| Target::parse(name).unwrap()).collect();
            let now = self.start + minute * MINUTE;
            let (in_force, notice) = self.listed.take(now, targets, |target| !down.contains(target));
            let in_force: Vec<_> = in_force.iter().map(|t| t.to_string().replace(":9765", "")).collect();
            (in_force.join(" "), notice)
        }
    }

    fn lost(lost: usize, all: usize) -> Notice {
        Notice::Lost { lost, all, sending: Sending::Known(lost) }
    }

    #[test]
    fn an_empty_list_is_believed_after_three_answers_and_five_minutes() {
        let mut list = List::of("a");
        assert_eq!(list.names(1, "", ""), ("a".into(), Some(lost(1, 1))));
        assert_eq!(list.names(2, "", ""), ("a".into(), None));
        assert_eq!(list.names(5, "", ""), ("a".into(), None));
        assert_eq!(list.names(6, "", ""), (String::new(), Some(Notice::Believed)));
        assert_eq!(list.names(7, "", ""), (String::new(), None));
        assert_eq!(list.names(8, "a", ""), ("a".into(), Some(Notice::Settled)));
        // With a long interval, three answers are needed too.
        assert_eq!(list.names(10, "", ""), ("a".into(), Some(lost(1, 1))));
        assert_eq!(list.names(20, "", "").0, "a");
        assert_eq!(list.names(30, "", ""), (String::new(), Some(Notice::Believed)));
    }

    #[test]
    fn a_list_that_names_its_targets_again_is_as_it_was() {
        let mut list = List::of("a b");
        assert_eq!(list.names(1, "", ""), ("a b".into(), Some(lost(2, 2))));
        assert_eq!(list.names(4, "", "").0, "a b");
        assert_eq!(list.names(5, "a b", ""), ("a b".into(), Some(Notice::Settled)));
        // Earlier answers do not count.
        assert_eq!(list.names(6, "", ""), ("a b".into(), Some(lost(2, 2))));
        assert_eq!(list.names(7, "", "").0, "a b");
    }

    #[test]
    fn more_than_half_of_four_is_much() {
        assert_eq!(List::of("a b c d").names(1, "a b", ""), ("a b".into(), None));
        assert_eq!(List::of("a b c d").names(1, "a", ""), ("a b c d".into(), Some(lost(3, 4))));
        assert_eq!(List::of("a b c").names(1, "a", ""), ("a".into(), None));
        // New names are targets at once.
        assert_eq!(List::of("a b c d").names(1, "e f", ""), ("a b c d e f".into(), Some(lost(4, 4))));
    }

    #[test]
    fn targets_that_do_not_send_go_at_once() {
        assert_eq!(List::of("a b c d").names(1, "", "a b c d"), (String::new(), None));
        assert_eq!(List::of("a b c d").names(1, "a", "c d"), ("a".into(), None));
        let told = Some(Notice::Lost { lost: 4, all: 4, sending: Sending::Known(1) });
        assert_eq!(List::of("a b c d").names(1, "", "b c d"), ("a b c d".into(), told));
        // The targets were switched off after they had been removed from the list.
        let mut list = List::of("a b c d");
        assert_eq!(list.names(1, "", ""), ("a b c d".into(), Some(lost(4, 4))));
        assert_eq!(list.names(2, "", "a b c d"), (String::new(), Some(Notice::Settled)));
    }

    #[test]
    fn the_first_answer_after_a_restart_is_not_believed_either() {
        let mut list = List::of("a b").restarted();
        let told = Some(Notice::Lost { lost: 2, all: 2, sending: Sending::Restarted });
        assert_eq!(list.names(1, "", ""), ("a b".into(), told));
        assert_eq!(list.names(2, "", "").0, "a b");
        // Restarts during a loss have the same effect, also repeatedly.
        let mut list = list.restarted();
        assert_eq!(list.names(3, "", ""), ("a b".into(), told));
        assert_eq!(list.names(7, "", "").0, "a b");
        assert_eq!(list.names(8, "", ""), (String::new(), Some(Notice::Believed)));
        let mut list = list.restarted();
        assert_eq!(list.names(9, "", ""), (String::new(), None));
        // An unchanged list ends the report of an earlier process.
        let mut list = List::of("a b").restarted();
        assert_eq!(list.names(1, "a b c", ""), ("a b c".into(), Some(Notice::Settled)));
        // Targets that do not send are removed as soon as that is known.
        let mut list = List::of("a b").restarted();
        assert_eq!(list.names(1, "", "").0, "a b");
        assert_eq!(list.names(2, "", "a b"), (String::new(), Some(Notice::Settled)));
    }

    #[test]
    fn a_second_loss_is_held_too() {
        let mut list = List::of("a b c d");
        assert_eq!(list.names(1, "a", ""), ("a b c d".into(), Some(lost(3, 4))));
        list.names(5, "a", "");
        assert_eq!(list.names(6, "a", ""), ("a".into(), Some(Notice::Believed)));
        assert_eq!(list.names(7, "", ""), ("a".into(), Some(lost(1, 1))));
    }
}

//! Lists that lose much at once: an inventory that answers `[]`, or a target file that a full disk
//! left empty, must not end the watch of a fleet without a word.
//!
//! As long as the streams of the lost targets work, they stay targets until the list has left them
//! out for a while, and a ticket says so. What a list names anew is a target at once. What it named
//! is kept in the store, so that the first answer after a restart is judged like any other.

use core::time::Duration;
use std::collections::BTreeSet;

use tokio::time::Instant;

use super::target::Target;

/// A loss is believed after so many answers in a row, and after so long.
pub(super) const BELIEVED_ANSWERS: u32 = 3;
pub(super) const BELIEVED_AFTER: Duration = Duration::from_mins(5);
/// The least targets of which more than half is much. Of fewer, only all are.
const MANY: usize = 4;

/// What one list names, and the loss that is not believed yet.
#[derive(Debug)]
pub(super) struct Listed {
    believed_after: Duration,
    /// What it named when that was last believed.
    named: Option<BTreeSet<Target>>,
    /// That was in an earlier life of this alerter.
    restored: bool,
    answered: bool,
    doubt: Option<Doubt>,
    /// What it named before the loss that people were told of.
    told: Option<BTreeSet<Target>>,
}

#[derive(Debug)]
struct Doubt {
    since: Instant,
    answers: u32,
}

/// How many of the lost targets send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sending {
    Known(usize),
    /// They were named before this alerter started, and it has not heard of all of them yet.
    Restarted,
}

/// What people are to hear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    /// So many of all it named are left out, of which some still send.
    Lost { lost: usize, all: usize, sending: Sending },
    /// They are no longer targets.
    Believed,
    /// The list names them again, or they no longer send. A first answer that names any targets
    /// settles what an earlier life told.
    Settled,
}

impl Listed {
    /// `kept`: what it named before this alerter started.
    pub(super) fn new(believed_after: Duration, kept: Option<BTreeSet<Target>>) -> Self {
        let restored = kept.is_some();
        Self { believed_after, named: kept, restored, answered: false, doubt: None, told: None }
    }

    /// What it named when that was last believed.
    pub(super) fn named(&self) -> Option<&BTreeSet<Target>> {
        self.named.as_ref()
    }

    /// It was not believed since this alerter started.
    pub(super) fn is_restored(&self) -> bool {
        self.restored
    }

    /// The targets in force, now that the list names `new`.
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

        /// The alerter is started again, and remembers what was last believed.
        fn restarted(self) -> Self {
            let listed = Listed::new(BELIEVED_AFTER, self.listed.named().cloned());
            Self { listed, ..self }
        }

        /// What is in force once it names these, minutes after its first answer; the names of those
        /// that are down.
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
        // Seldom asked, it has to say so three times all the same.
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
        // The answers of before do not count.
        assert_eq!(list.names(6, "", ""), ("a b".into(), Some(lost(2, 2))));
        assert_eq!(list.names(7, "", "").0, "a b");
    }

    #[test]
    fn more_than_half_of_four_is_much() {
        assert_eq!(List::of("a b c d").names(1, "a b", ""), ("a b".into(), None));
        assert_eq!(List::of("a b c d").names(1, "a", ""), ("a b c d".into(), Some(lost(3, 4))));
        assert_eq!(List::of("a b c").names(1, "a", ""), ("a".into(), None));
        // What is new is a target at once.
        assert_eq!(List::of("a b c d").names(1, "e f", ""), ("a b c d e f".into(), Some(lost(4, 4))));
    }

    #[test]
    fn targets_that_do_not_send_go_at_once() {
        assert_eq!(List::of("a b c d").names(1, "", "a b c d"), (String::new(), None));
        assert_eq!(List::of("a b c d").names(1, "a", "c d"), ("a".into(), None));
        let told = Some(Notice::Lost { lost: 4, all: 4, sending: Sending::Known(1) });
        assert_eq!(List::of("a b c d").names(1, "", "b c d"), ("a b c d".into(), told));
        // They were switched off after they had left the list.
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
        // In the middle of a loss as well, and however often.
        let mut list = list.restarted();
        assert_eq!(list.names(3, "", ""), ("a b".into(), told));
        assert_eq!(list.names(7, "", "").0, "a b");
        assert_eq!(list.names(8, "", ""), (String::new(), Some(Notice::Believed)));
        let mut list = list.restarted();
        assert_eq!(list.names(9, "", ""), (String::new(), None));
        // What an earlier life told is settled by a list that is as it was.
        let mut list = List::of("a b").restarted();
        assert_eq!(list.names(1, "a b c", ""), ("a b c".into(), Some(Notice::Settled)));
        // Those that do not send go as soon as that is known.
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

//! Which steps are training steps.
//!
//! The writer of a scalar chooses its step. Beside the loss of every iteration are scalars by
//! epoch, by sample or by token, and a step that falls back means that the job went back to a
//! checkpoint. So a record that is behind the training is believed only if a name in it went back
//! itself, or if nothing else comes any more.

/// Records in a row behind the training after which it is the training that went back.
const CONVINCED: u32 = 3;

#[derive(Debug, Default)]
pub(crate) struct Axis {
    /// Last step of a record that carried a metric of training.
    main: Option<i64>,
    /// Steps between the last two of those.
    gap: i64,
    /// Last step of any record that was taken.
    last: Option<i64>,
    /// Records in a row that were refused although they carried a metric of training.
    refused: u32,
}

/// What is known of a record before it is judged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Evidence {
    /// It carries a metric of training: a loss, a gradient norm, a learning rate.
    pub(crate) main: bool,
    /// A name in it was at a later step before.
    pub(crate) went_back: bool,
}

impl Axis {
    /// Goes on after a step that an earlier life has read.
    pub(crate) fn resume(&mut self, last_step: i64) {
        (self.main, self.last) = (Some(last_step), Some(last_step));
    }

    /// A new session may begin anywhere.
    pub(crate) fn restart(&mut self) {
        *self = Self::default();
    }

    /// Whether a record at `step` is on the axis of the training steps.
    pub(crate) fn admits(&mut self, step: i64, evidence: Evidence) -> bool {
        if !evidence.main {
            let near = self.main.is_none_or(|main| step <= main.saturating_add(self.gap.saturating_mul(2)));
            let admitted = near && self.last.is_none_or(|last| step >= last);
            if admitted {
                self.last = Some(step);
            }
            return admitted;
        }
        let behind = self.main.or(self.last).is_some_and(|last| step < last);
        if behind && !evidence.went_back {
            self.refused += 1;
            if self.refused < CONVINCED {
                return false;
            }
        }
        self.gap = self.main.map_or(0, |main| step.saturating_sub(main).max(0));
        (self.main, self.last, self.refused) = (Some(step), Some(step), 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIN: Evidence = Evidence { main: true, went_back: false };
    const BACK: Evidence = Evidence { main: true, went_back: true };
    const OTHER: Evidence = Evidence { main: false, went_back: false };

    fn run(records: &[(i64, Evidence)]) -> Vec<i64> {
        let mut axis = Axis::default();
        records.iter().filter(|(step, e)| axis.admits(*step, *e)).map(|(step, _)| *step).collect()
    }

    #[test]
    fn a_training_that_goes_back_is_believed() {
        assert_eq!(run(&[(10, MAIN), (20, MAIN), (15, BACK), (16, MAIN)]), [10, 20, 15, 16]);
    }

    #[test]
    fn scalars_of_another_axis_are_not_steps() {
        let epochs = [(10, MAIN), (20, MAIN), (1, OTHER), (30, MAIN), (2, OTHER), (40, MAIN)];
        assert_eq!(run(&epochs), [10, 20, 30, 40]);
        let losses_of_epochs = [(10, MAIN), (1, MAIN), (20, MAIN), (2, MAIN), (30, MAIN), (3, MAIN)];
        assert_eq!(run(&losses_of_epochs), [10, 20, 30]);
        assert_eq!(run(&[(1, MAIN), (2, MAIN), (8192, OTHER), (3, MAIN), (12288, OTHER)]), [1, 2, 3]);
    }

    #[test]
    fn scalars_between_the_steps_are_taken() {
        let fine = [(10, MAIN), (20, MAIN), (20, OTHER), (25, OTHER), (30, MAIN), (31, OTHER)];
        assert_eq!(run(&fine), [10, 20, 20, 25, 30, 31]);
        assert_eq!(
            run(&[(1, OTHER), (2, OTHER), (2, OTHER), (1, OTHER)]),
            [1, 2, 2],
            "nothing else is there"
        );
    }

    #[test]
    fn after_a_restart_of_the_reader_it_convinces_by_going_on() {
        let mut axis = Axis::default();
        axis.resume(100);
        let taken: Vec<_> = [50, 51, 52, 53].into_iter().filter(|s| axis.admits(*s, MAIN)).collect();
        assert_eq!(taken, [52, 53]);
    }
}

//! Where the steps of a log begin again.
//!
//! A job that went back to a checkpoint, or a second run in the same file, may log something else.
//! Lines of several ranks, which may be a few steps apart, are no restart.

/// How many strides lines may be apart that are written at the same time.
const APART: u64 = 4;

/// How the log went on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Move {
    On,
    /// To a checkpoint.
    Back,
    /// To the first steps there are: it is likely another run.
    Start,
}

/// The steps of one log.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Course {
    last: Option<i64>,
    /// The largest stride of the steps.
    stride: i64,
}

impl Course {
    pub(crate) fn last(&self) -> Option<i64> {
        self.last
    }

    pub(crate) fn moves(&mut self, step: i64) -> Move {
        let by = self.last.map_or(0, |last| step.saturating_sub(last));
        let apart = self.stride.unsigned_abs().saturating_mul(APART);
        let starts = step.unsigned_abs() <= self.stride.unsigned_abs();
        let how = match () {
            () if by >= 0 || by.unsigned_abs() <= apart && !starts => Move::On,
            () if step.unsigned_abs() <= apart => Move::Start,
            () => Move::Back,
        };
        let stride = if how == Move::On { self.stride } else { 0 };
        *self = Self { last: Some(step), stride: stride.max(by) };
        how
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moves(steps: &[i64]) -> Vec<Move> {
        let mut course = Course::default();
        steps.iter().map(|step| course.moves(*step)).collect()
    }

    #[test]
    fn restarts_and_ranks() {
        use Move::{Back, On, Start};
        assert_eq!(moves(&[1, 2, 3, 1, 2]), [On, On, On, Start, On], "a short run and another");
        assert_eq!(moves(&[10, 20, 30, 10]), [On, On, On, Start]);
        assert_eq!(moves(&[10, 20, 30, 40, 50, 60, 25]), [On, On, On, On, On, On, On]);
        assert_eq!(moves(&[100, 110, 200, 25]), [On, On, On, Start], "other strides");
        assert_eq!(moves(&[501, 502, 520, 521, 400]), [On, On, On, On, Back]);
        assert_eq!(moves(&[100, 101, 102, 100, 103, 101]), [On; 6], "ranks");
        assert_eq!(moves(&[i64::MAX, i64::MIN, 0]), [On, Back, On]);
    }
}

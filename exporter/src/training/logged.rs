//! Lines of the log that any process of this node can cause. Their content is on the stream as
//! well, every time. The log is limited to so many a minute, and gives the number of those left
//! out.

const MINUTE: f64 = 60.0;
/// Connections that report at once do not come in the order of their times. A clock that was set
/// back by more begins a new minute.
const DISORDER: f64 = 1.0;
/// A job of 256 ranks on a node may die as a whole.
const LINES: u32 = 300;

#[derive(Debug, Default)]
pub(super) struct Logged {
    /// When the minute began that is counted.
    began: f64,
    lines: u32,
    left_out: u64,
}

impl Logged {
    /// Whether there is room for one more line.
    pub(super) fn has_room(&mut self, now: f64) -> bool {
        let left_out = self.next_minute(now);
        if left_out > 0 {
            tracing::warn!(left_out, "more happened to runs of this node than is logged in a minute");
        }
        let room = self.lines < LINES;
        self.lines += u32::from(room);
        self.left_out += u64::from(!room);
        room
    }

    /// How many lines were left out in the minute that is over, if it is.
    fn next_minute(&mut self, now: f64) -> u64 {
        if (-DISORDER..MINUTE).contains(&(now - self.began)) {
            return 0;
        }
        let left_out = self.left_out;
        *self = Self { began: now, ..Self::default() };
        left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_a_minute_and_then_how_many_more() {
        let mut logged = Logged::default();
        let mut room = |now: f64, n: u32| (0..n).filter(|_| logged.has_room(now)).count();
        assert_eq!(room(1e9, 2 * LINES), LINES as usize);
        assert_eq!(room(1e9 + 59.0, 1), 0);
        assert_eq!(room(1e9 - 0.5, 1), 0, "read before the first, and heard after it");
        assert_eq!(room(1e9 + 60.0, 2 * LINES), LINES as usize);
        assert_eq!(room(1e9, 1), 1, "a clock that was set back");
        assert_eq!((logged.left_out, logged.next_minute(1e9 + 1.0)), (0, 0));
        logged.left_out = 7;
        assert_eq!(logged.next_minute(2e9), 7);
    }
}

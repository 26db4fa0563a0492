//! Limits log lines that any process of this node can cause to a number a minute, and logs how many
//! were left out. The stream has every one of these events.

const MINUTE: f64 = 60.0;
/// Seconds that a report may be older than the previous one, because connections report
/// concurrently. A clock that was set back further begins a new minute.
const DISORDER: f64 = 1.0;
/// The most lines a minute. A job of 256 ranks on a node may die as a whole.
const LINES: u32 = 300;

#[derive(Debug, Default)]
pub(super) struct Logged {
    /// The Unix time when the current minute began.
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

    /// How many lines the previous minute left out, if a new one begins; else 0.
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

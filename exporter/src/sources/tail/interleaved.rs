//! Separates the steps of several trainers in one log.
//!
//! Nothing in such a log names the trainer of a line. Each trainer continues from its own last
//! step, so the lines are assigned to tracks: a step that continues a track belongs to it. A
//! trainer that restarts leaves its old track for good. If two tracks continue alternately, several
//! trainers write. Then one of them is followed, and the steps of the others are dropped, because
//! to the hub each would be a restart. A value that is not finite is kept, as the followed
//! trainer's next step, because it must be reported for any of them.

use std::collections::BTreeMap;

use stepwatch_wire::Event;
use stepwatch_wire::names::metric;

/// The most ranks of one file that are separated; of further ones, nothing is dropped.
const MAX_RANKS: usize = 1024;
/// The most tracks of a rank; above it, the one without lines for longest is replaced.
const MAX_TRACKS: usize = 4;
/// The number of changes between continuing tracks after which several trainers certainly write.
/// `QUICK_TURNS` counts changes after at most [`QUICK_LINES`] lines of one track, `KNOWN_TURNS`
/// applies if trainers of several runs are known to write, and `TURNS` if nothing is known. A
/// trainer that crashes repeatedly may continue exactly where the last start but one stopped, but
/// not after so few lines.
const QUICK_TURNS: u32 = 2;
const QUICK_LINES: u32 = 2;
const KNOWN_TURNS: u32 = 3;
const TURNS: u32 = 6;
/// After this many lines in a row of one track, the other trainers are gone.
const ALONE: u32 = 256;
/// After this many lines in a row of another track, the trainer has restarted. It applies if
/// trainers of several runs are known to write, and their steps have not been mixed so far.
const IN_A_ROW: u32 = 3;
/// The most strides by which a line may be ahead and still belong to the track.
const REACH: i64 = 16;
/// A track is silent after this time, or after this many of its usual intervals.
const SILENT_SECONDS: f64 = 60.0;
const SILENT_INTERVALS: f64 = 20.0;
/// The weight of the last interval in the average.
const WEIGHT: f64 = 0.2;

/// The tracks of each rank of a log.
#[derive(Debug, Default)]
pub(super) struct Interleaved {
    /// The run of the log. Another run starts with new tracks.
    run: Option<String>,
    ranks: BTreeMap<u32, Rank>,
}

#[derive(Debug)]
struct Rank {
    tracks: Vec<Track>,
    /// The index of the followed track, and of the one that had the last line.
    followed: usize,
    last: usize,
    /// The changes between tracks since one began, those of them after a few lines, and the lines
    /// since the last change.
    turns: u32,
    quick_turns: u32,
    lines: u32,
    /// Whether several trainers write.
    mixed: bool,
    /// Lines of other tracks since the last one of the followed track.
    in_a_row: u32,
    /// The last step that was kept, and whether its value was not finite.
    kept: i64,
    nonfinite: bool,
}

/// The lines of one start of a trainer.
#[derive(Debug, Clone, Copy)]
struct Track {
    step: i64,
    /// The distance of its last two steps; zero if it has only one.
    stride: i64,
    /// The Unix times in seconds of its first and last line.
    began: f64,
    at: f64,
    /// The usual seconds between its lines.
    interval: f64,
}

/// A line of one rank.
#[derive(Debug, Clone, Copy)]
struct Line {
    step: i64,
    at: f64,
    nonfinite: bool,
}

impl Interleaved {
    /// Whether an event is dropped. If another trainer's value is not finite, the event becomes the
    /// followed trainer's next step instead. `several` means that processes of several runs are
    /// known to write the log.
    pub(super) fn leaves_out(&mut self, event: &mut Event, several: bool) -> bool {
        let Some(step) = event.step else { return false };
        if self.run.is_some() && self.run != event.run {
            self.ranks.clear();
        }
        if self.run != event.run {
            self.run.clone_from(&event.run);
        }
        let line = Line { step, at: event.ts.unwrap_or_default(), nonfinite: is_nonfinite(event) };
        let number = event.rank.unwrap_or(0);
        let Some(rank) = self.ranks.get_mut(&number) else {
            if self.ranks.len() < MAX_RANKS {
                self.ranks.insert(number, Rank::new(line));
            }
            return false;
        };
        if !rank.leaves_out(line, several) {
            return false;
        }
        // One such value is enough until the followed trainer's next line.
        if !line.nonfinite || rank.nonfinite {
            return true;
        }
        let next = rank.kept.saturating_add(1);
        event.step = Some(next);
        !rank.keeps(next, true)
    }

    /// Whether the steps of several trainers are mixed.
    pub(super) fn is_mixed(&self) -> bool {
        self.ranks.values().any(|rank| rank.mixed)
    }
}

impl Rank {
    fn new(line: Line) -> Self {
        Self {
            tracks: vec![Track::new(line)],
            followed: 0,
            last: 0,
            turns: 0,
            quick_turns: 0,
            lines: 1,
            mixed: false,
            in_a_row: 0,
            kept: line.step,
            nonfinite: line.nonfinite,
        }
    }

    fn leaves_out(&mut self, line: Line, several: bool) -> bool {
        let apart = several || self.mixed;
        // If a step appears twice, both lines are of one trainer.
        if !apart && line.step == self.tracks[self.followed].step {
            return false;
        }
        let found = self.track_of(line, apart);
        let track = found.unwrap_or_else(|| self.begin(line));
        if found.is_some() {
            self.turn(track, line, several);
            self.tracks[track].goes_on(line);
        } else {
            (self.turns, self.quick_turns, self.lines) = (0, 0, 1);
        }
        self.last = track;
        if track == self.followed {
            self.in_a_row = 0;
            return !self.keeps(line.step, line.nonfinite);
        }
        self.in_a_row += 1;
        let is_next = match (self.mixed, several) {
            (true, _) => self.is_left(track, line),
            (false, true) => self.in_a_row >= IN_A_ROW,
            (false, false) => true,
        };
        if is_next {
            (self.followed, self.in_a_row, self.mixed) = (track, 0, false);
            (self.kept, self.nonfinite) = (line.step, line.nonfinite);
        }
        !is_next
    }

    /// Counts changes between tracks, and decides whether several trainers write.
    fn turn(&mut self, track: usize, line: Line, several: bool) {
        if track == self.last || self.tracks[track].is_silent(line.at) {
            self.lines = self.lines.saturating_add(1);
            self.mixed &= self.lines < ALONE;
            return;
        }
        self.turns += 1;
        self.quick_turns += u32::from(self.lines <= QUICK_LINES);
        self.lines = 1;
        let enough = if several { KNOWN_TURNS } else { TURNS };
        self.mixed |= self.turns >= enough || self.quick_turns >= QUICK_TURNS;
    }

    /// The track that a line continues.
    fn track_of(&self, line: Line, apart: bool) -> Option<usize> {
        let followed = &self.tracks[self.followed];
        let nearest = |goes_on: &dyn Fn(&Track) -> bool| {
            let others = self.tracks.iter().enumerate().filter(|(at, _)| *at != self.followed);
            others.filter(|(_, track)| goes_on(track)).max_by_key(|(_, t)| t.step).map(|(at, _)| at)
        };
        if followed.expects(line, followed.stride) {
            return Some(self.followed);
        }
        if let Some(exact) = nearest(&|track| track.expects(line, followed.stride)) {
            return Some(exact);
        }
        if followed.reaches(line) {
            // After one line the stride of the followed track is unknown, so a nearer track is
            // preferred.
            let nearer = |track: &Track| {
                track.step > followed.step && track.reaches(line) && !track.is_silent(line.at)
            };
            let other = if followed.stride == 0 { nearest(&nearer) } else { None };
            return Some(other.unwrap_or(self.followed));
        }
        if apart { nearest(&|track| track.reaches(line)) } else { None }
    }

    /// Begins a track with a line. Returns its index.
    fn begin(&mut self, line: Line) -> usize {
        if self.tracks.len() < MAX_TRACKS {
            self.tracks.push(Track::new(line));
            return self.tracks.len() - 1;
        }
        let others = self.tracks.iter().enumerate().filter(|(at, _)| *at != self.followed);
        let oldest = others.min_by(|(_, a), (_, b)| a.at.total_cmp(&b.at)).map_or(0, |(at, _)| at);
        self.tracks[oldest] = Track::new(line);
        oldest
    }

    /// Whether the followed track is silent and `track` replaces it. A track that began since is
    /// preferred, because it may be the same trainer.
    fn is_left(&self, track: usize, line: Line) -> bool {
        let followed = self.tracks[self.followed];
        let is_new = |track: &Track| track.began > followed.at && !track.is_silent(line.at);
        followed.is_silent(line.at) && (is_new(&self.tracks[track]) || !self.tracks.iter().any(is_new))
    }

    /// Accepts a step that is higher than the last one kept.
    fn keeps(&mut self, step: i64, nonfinite: bool) -> bool {
        let rises = step > self.kept;
        if rises {
            (self.kept, self.nonfinite) = (step, nonfinite);
        }
        rises
    }
}

impl Track {
    fn new(line: Line) -> Self {
        Self { step: line.step, stride: 0, began: line.at, at: line.at, interval: 0.0 }
    }

    /// Whether a line is the next one of this track. `usual` is the stride of the followed track,
    /// which is used until this one has its own.
    fn expects(&self, line: Line, usual: i64) -> bool {
        let stride = if self.stride > 0 { self.stride } else { usual.max(1) };
        line.step == self.step.saturating_add(stride) && !self.is_silent(line.at)
    }

    /// Whether a line may belong to this track, if steps are irregular.
    fn reaches(&self, line: Line) -> bool {
        let further = line.step.saturating_sub(self.step);
        further > 0 && (self.stride == 0 || further <= self.stride.saturating_mul(REACH))
    }

    fn is_silent(&self, at: f64) -> bool {
        at - self.at > SILENT_SECONDS.max(SILENT_INTERVALS * self.interval)
    }

    fn goes_on(&mut self, line: Line) {
        let interval = (line.at - self.at).max(0.0);
        self.interval =
            if self.stride == 0 { interval } else { self.interval + WEIGHT * (interval - self.interval) };
        self.stride = line.step.saturating_sub(self.step).max(1);
        (self.step, self.at) = (line.step, line.at.max(self.at));
    }
}

/// Whether the loss or the gradient norm is not finite, or missing.
fn is_nonfinite(event: &Event) -> bool {
    let lost = |name: &str| {
        event.m.get(name).is_some_and(|v| !v.is_finite()) || event.missing.iter().any(|m| m == name)
    };
    [metric::LOSS, metric::GRAD_NORM].iter().any(|name| lost(name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nan(step: i64) -> Event {
        let mut event = Event::step("r", step);
        event.m.set(metric::LOSS, f64::NAN);
        event
    }

    /// The steps that are kept of lines a second apart; a negative one has a loss that is not
    /// finite.
    fn kept_by(of: &mut Interleaved, several: bool, steps: impl IntoIterator<Item = i64>) -> Vec<i64> {
        let event = |(at, step): (usize, i64)| Event {
            ts: Some(at as f64),
            ..if step < 0 { nan(-step) } else { Event::step("r", step) }
        };
        let mut events: Vec<Event> = steps.into_iter().enumerate().map(event).collect();
        events.retain_mut(|event| !of.leaves_out(event, several));
        events.iter().filter_map(|event| event.step).collect()
    }

    /// As [`kept_by`], if trainers of several runs are known to write.
    fn kept(of: &mut Interleaved, steps: impl IntoIterator<Item = i64>) -> Vec<i64> {
        kept_by(of, true, steps)
    }

    /// As [`kept_by`], for one log from its beginning of which nothing is known.
    fn unknown(steps: impl IntoIterator<Item = i64>) -> Vec<i64> {
        kept_by(&mut Interleaved::default(), false, steps)
    }

    /// How many steps are not higher than the previous one.
    fn restarts(steps: &[i64]) -> usize {
        steps.windows(2).filter(|w| w[1] <= w[0]).count()
    }

    #[test]
    fn one_trainer_is_followed() {
        let mut of = Interleaved::default();
        assert_eq!(kept(&mut of, [300, 0, 301, 1, 302, 2, 3, 303]), [300, 301, 302, 303]);
        assert_eq!(kept(&mut of, [4, 310, 20, 360]), [310, 360], "with lines further apart");
        let mut of = Interleaved::default();
        assert_eq!(kept(&mut of, [5, 5, 6, 6, 7, 7]), [5, 6, 7], "the same step of both");
    }

    #[test]
    fn two_trainers_of_which_nothing_is_known_are_found_out() {
        let mixed: Vec<i64> = (0..200).flat_map(|n| [3000 + 10 * n, 10 * n]).collect();
        let steps = unknown(mixed);
        assert_eq!(steps[..4], [3000, 0, 3010, 3020]);
        assert_eq!(restarts(&steps), 1);
        let later = (0..50).map(|n| 10 * n).chain((0..200).flat_map(|n| [500 + 10 * n, 10 * n]));
        assert_eq!(restarts(&unknown(later)), 1, "the second starts later");
        let ahead = (0..200).flat_map(|n| if n < 50 { vec![n] } else { vec![5200 + n, n] });
        let steps = unknown(ahead);
        assert!(restarts(&steps) == 1 && steps.iter().filter(|s| **s > 5000).count() == 1, "{steps:?}");
        let fast = (0..30).flat_map(|n| [1000 + n].into_iter().chain(20 * n..20 * n + 20));
        assert!(restarts(&unknown(fast)) <= 3, "one is much faster");
        let far = (1..100).flat_map(|n| [n, 1_000_000 + n]);
        assert_eq!(restarts(&unknown(far)), 1, "both begin at once, far apart");
        let beside = (1..100).flat_map(|n| [n + 1, n]);
        assert_eq!(restarts(&unknown(beside)), 1, "ranks that say the same");
    }

    #[test]
    fn one_trainer_that_starts_anew_is_never_left_out() {
        let all = |steps: Vec<i64>| assert_eq!(unknown(steps.clone()), steps);
        all((0..25).flat_map(|_| 0..4).collect());
        all((0..25).flat_map(|n| n * 5..n * 5 + 8).collect());
        all((0..6).flat_map(|n| n * 4..n * 4 + 8).collect());
        all((0..300).chain(200..500).chain(400..900).collect());
        all((0..100).map(|n| n * 10).chain((0..300).map(|n| 500 + n * 10)).collect());
        all(vec![1, 1, 2, 2, 3, 3, 4, 4]);
        all(vec![10, 500, 510, 520, 10_000, 10_010, 20, 30, 40]);
    }

    #[test]
    fn a_crash_loop_beside_another_writer_is_seen() {
        for length in [2, 3, 4, 5, 8] {
            let loops = kept(&mut Interleaved::default(), (0..25).flat_map(|_| 0..length));
            assert!(restarts(&loops) >= 12, "of {length}: {loops:?}");
        }
    }

    #[test]
    fn a_pause_of_the_one_that_is_followed_is_none_of_it() {
        let mixed =
            (0..40).flat_map(|n| [300 + n, n]).chain(40..90).chain((0..40).flat_map(|n| [340 + n, 90 + n]));
        assert_eq!(kept(&mut Interleaved::default(), mixed), (300..380).collect::<Vec<_>>());
    }

    #[test]
    fn a_trainer_that_is_much_slower_is_not_followed_for_long() {
        let slow = (0..20).flat_map(|n| [1000 + n].into_iter().chain(20 * n..20 * n + 20));
        let kept = kept(&mut Interleaved::default(), slow);
        assert_eq!(kept[..3], [1000, 2, 3]);
        assert!(kept[1..].is_sorted() && kept.len() > 390, "{kept:?}");
    }

    #[test]
    fn a_trainer_that_is_left_alone_or_went_back_is_followed() {
        let steps = kept(&mut Interleaved::default(), core::iter::once(300).chain(4..100));
        assert_eq!(steps, core::iter::once(300).chain(6..100).collect::<Vec<_>>());
        let mixed = (0..40).flat_map(|n| [300 + n, n]).chain(40..200);
        let steps = kept(&mut Interleaved::default(), mixed);
        assert_eq!((restarts(&steps), steps.last()), (1, Some(&199)), "after it is silent for long enough");
        let again = (0..40).flat_map(|n| [300 + n, n]).chain((40..200).flat_map(|n| [n, n + 260]));
        let steps = kept(&mut Interleaved::default(), again.clone());
        assert_eq!(
            (restarts(&steps), steps.last()),
            (1, Some(&459)),
            "the trainer that began anew: {steps:?}"
        );
    }

    #[test]
    fn a_value_that_is_not_finite_is_kept() {
        let mut of = Interleaved::default();
        assert_eq!(kept(&mut of, [300, 1, -2]), [300, 301], "no restart");
        assert_eq!(kept(&mut of, [301]), [0; 0], "no step comes twice");
        assert_eq!(kept(&mut of, [-3, 302, -4, -5, 303, 304]), [302, 303, 304], "one is enough");
        let mut event = Event { missing: vec![metric::LOSS.into()], ..Event::step("r", 6) };
        assert!(!of.leaves_out(&mut event, true));
        assert_eq!(event.step, Some(305));
        assert_eq!(kept(&mut Interleaved::default(), [300, 1, -301, 2, 302]), [300, 301, 302]);
    }

    #[test]
    fn another_run_begins_anew() {
        let mut of = Interleaved::default();
        assert_eq!(kept(&mut of, [300, 1]), [300]);
        assert!(!of.leaves_out(&mut Event::step("next", 1), true));
    }

    #[test]
    fn ranks_are_apart() {
        let mut of = Interleaved::default();
        let event = |rank, step| Event { rank: Some(rank), ..Event::step("r", step) };
        let alike = [(0, 7), (1, 7), (0, 8), (1, 8)];
        assert!(alike.into_iter().all(|(r, s)| !of.leaves_out(&mut event(r, s), true)));
        assert!(of.leaves_out(&mut event(1, 3), true));
    }

    proptest! {
        /// For any input, a value that is not finite is reported unless the previous step had one,
        /// and nothing overflows.
        #[test]
        fn no_value_that_is_not_finite_is_lost(
            steps in proptest::collection::vec((prop_oneof![0i64..20, any::<i64>()], any::<bool>(), 0u32..100), 1..60),
            several: bool,
        ) {
            let mut of = Interleaved::default();
            let mut heard = false;
            for (step, nonfinite, at) in steps {
                let mut event = if nonfinite { nan(step) } else { Event::step("r", step) };
                event.ts = Some(f64::from(at));
                let out = of.leaves_out(&mut event, several);
                prop_assert!(!nonfinite || !out || heard || event.step == Some(i64::MAX));
                heard = if out { heard } else { nonfinite };
            }
        }
    }
}

use proptest::prelude::*;

use super::*;

/// Of one step.
const STEP: i64 = 10_000;
const SIZE: Size = Size { gpus: Some(8), dollars_per_gpu_hour: Some(3.6) };

/// A trainer of which is known what it does at every moment, and the ledger of its reports.
struct Bench {
    ledger: Ledger,
    now: i64,
    step: i64,
    furthest: i64,
    job: u32,
    truth: [i64; TimeState::ALL.len()],
    began: i64,
    /// Between jobs, when the GPUs were not the run's.
    released: i64,
}

#[derive(Debug, Clone)]
enum Act {
    Steps(u8),
    Slow(i64),
    Save(i64),
    Evaluate(i64),
    /// Declares a save that goes on beside steps that are no longer for it.
    SaveBeside(i64),
    /// Nothing was received.
    Unreceived(i64),
    Crash {
        partial: i64,
        lost: u8,
        down: i64,
        loading: i64,
        starting: i64,
        same_job: bool,
    },
    /// It ends well, and another job goes on with it.
    Resume {
        idle: i64,
        away: i64,
        starting: i64,
    },
    /// Its log ends without a word.
    Vanish {
        idle: i64,
        away: i64,
        starting: i64,
        same_job: bool,
    },
}

impl Bench {
    fn started() -> Self {
        // Not a whole second, nor is any other time.
        let began = 1_800_000_000_001;
        let mut bench = Self {
            ledger: Ledger::default(),
            now: began,
            step: 0,
            furthest: 0,
            job: 0,
            truth: [0; TimeState::ALL.len()],
            began,
            released: 0,
        };
        bench.start(30_000, 90_000);
        bench.apply(&Act::Steps(16));
        bench
    }

    fn pass(&mut self, state: TimeState, ms: i64) {
        self.now += ms;
        self.truth[state as usize] += ms;
    }

    fn line(&mut self, class: StepClass, watched: bool) {
        let (at, last) = (Ts(self.now), self.step);
        self.ledger.steps(Steps { at, last, count: 1, class, tokens: None, reported: None, watched }, SIZE);
        self.furthest = self.furthest.max(self.step);
    }

    fn step(&mut self, class: StepClass, watched: bool) {
        self.step += 1;
        let again = self.step <= self.furthest;
        self.pass(if again { TimeState::Recomputing } else { TimeState::Productive }, STEP);
        self.line(class, watched);
    }

    fn start(&mut self, loading: i64, starting: i64) {
        self.ledger.greeted(Ts(self.now), Some(&self.job.to_string()), None, SIZE);
        self.pass(TimeState::Loading, loading);
        self.ledger.declared(Declared::Loading, Ts(self.now), Span(loading));
        self.pass(TimeState::Starting, starting);
        self.step += 1;
        self.line(StepClass::First, true);
    }

    fn apply(&mut self, act: &Act) {
        match *act {
            Act::Steps(n) => (0..n).for_each(|_| self.step(StepClass::Train, true)),
            Act::Slow(ms) => {
                let stalls = STEP + ms >= STALL.0;
                self.pass(if stalls { TimeState::Stalled } else { TimeState::Slowed }, ms);
                self.step(StepClass::Train, true);
            }
            Act::Save(ms) => {
                self.pass(TimeState::Saving, ms);
                self.ledger.declared(Declared::Saving, Ts(self.now), Span(ms));
                self.step(StepClass::Checkpoint, true);
            }
            Act::Evaluate(ms) => {
                self.pass(TimeState::Evaluating, ms);
                // Only the class of the step says so: the time is what it takes beyond the usual.
                self.step(StepClass::Eval, true);
            }
            Act::SaveBeside(ms) => {
                self.ledger.declared(Declared::Saving, Ts(self.now), Span(ms));
                self.step(StepClass::Checkpoint, true);
            }
            Act::Unreceived(ms) => {
                self.pass(TimeState::Unknown, ms);
                self.step(StepClass::Train, false);
            }
            Act::Crash { partial, lost, down, loading, starting, same_job } => {
                self.pass(TimeState::Down, partial);
                self.ledger.died(Ts(self.now));
                if same_job {
                    self.pass(TimeState::Down, down);
                } else {
                    self.job += 1;
                    self.now += down;
                    self.released += down;
                }
                self.step = (self.step - i64::from(lost)).max(0);
                self.start(loading, starting);
            }
            Act::Resume { idle, away, starting } => {
                self.pass(TimeState::Idle, idle);
                self.ledger.over(Ts(self.now));
                self.job += 1;
                self.now += away;
                self.released += away;
                self.start(0, starting);
            }
            Act::Vanish { idle, away, starting, same_job } => {
                self.pass(TimeState::Idle, idle);
                self.ledger.fell_silent(Ts(self.now));
                self.ledger.close(SIZE);
                if same_job {
                    self.pass(TimeState::Down, away);
                } else {
                    self.job += 1;
                    self.now += away;
                    self.released += away;
                }
                self.start(0, starting);
            }
        }
    }

    fn check(&self) {
        let mut ledger = self.ledger.clone();
        ledger.settle_beyond(SIZE);
        let accounts = ledger.totals();
        for state in TimeState::ALL {
            let (name, truth) = (state.as_str(), self.truth[state as usize]);
            assert_eq!(accounts.millis(state), truth, "{name}");
            assert_eq!(accounts.gpu_millis(state), 8 * truth, "{name}");
            let dollars = truth as f64 * 8.0 * 3.6 / 3.6e6;
            let counted = accounts.dollars(state).unwrap_or_default();
            assert!((counted - dollars).abs() < 1e-6 * (1.0 + dollars), "{name}");
        }
        let all: i64 = TimeState::ALL.into_iter().map(|state| accounts.millis(state)).sum();
        assert_eq!(all, self.now - self.began - self.released);
    }
}

fn act() -> impl Strategy<Value = Act> {
    let secs = |range: core::ops::Range<i64>| range.prop_map(|s| s * 1000);
    prop_oneof![
        3 => (1..40u8).prop_map(Act::Steps),
        2 => secs(1..600).prop_map(Act::Slow),
        2 => secs(1..600).prop_map(Act::Save),
        1 => secs(1..3600).prop_map(Act::Evaluate),
        1 => secs(1..60).prop_map(Act::SaveBeside),
        1 => secs(1..7200).prop_map(Act::Unreceived),
        2 => (secs(0..10), 0..30u8, secs(0..900), secs(0..300), secs(1..600), any::<bool>()).prop_map(
            |(partial, lost, down, loading, starting, same_job)| Act::Crash {
                partial, lost, down, loading, starting, same_job
            }
        ),
        1 => (secs(0..30), secs(0..90_000), secs(1..600))
            .prop_map(|(idle, away, starting)| Act::Resume { idle, away, starting }),
        1 => (secs(0..30), secs(0..90_000), secs(1..600), any::<bool>())
            .prop_map(|(idle, away, starting, same_job)| Act::Vanish { idle, away, starting, same_job }),
    ]
}

proptest! {
    /// A recount by who knows the truth agrees to the millisecond, at every moment.
    #[test]
    fn every_moment_has_the_state_that_it_had(acts in prop::collection::vec(act(), 0..60)) {
        let mut bench = Bench::started();
        for act in &acts {
            bench.apply(act);
            bench.check();
        }
    }

    /// Whatever is reported, in whatever order: no count goes back, and all together are no more
    /// than the time between the first and the last report.
    #[test]
    fn nothing_goes_back_and_no_time_counts_twice(
        reports in prop::collection::vec((0..11u8, 0..100_000_000i64, 0..50i64, 0..4i64), 1..80)
    ) {
        let mut ledger = Ledger::default();
        let others = reports.iter().skip(1).chain(&reports);
        for ((what, at, step, count), (_, given, ..)) in reports.iter().zip(others) {
            let before = ledger.totals();
            // Their number is known, and is another, from time to time.
            let size = Size { gpus: Some((*step % 3) as u32 * 8).filter(|gpus| *gpus > 0), ..SIZE };
            match what {
                0 => {
                    let given = Some(Ts(*given)).filter(|_| step % 2 == 0);
                    ledger.greeted(Ts(*at), Some(&(at % 3).to_string()), given, size);
                }
                1 => ledger.died(Ts(*at)),
                2 => ledger.over(Ts(*at)),
                3 => ledger.fell_silent(Ts(*at)),
                4 => ledger.close(size),
                5 => ledger.declared(Declared::Saving, Ts(*at), Span(*at)),
                8 => ledger.released(Ts(*at), step % 2 == 0, size),
                9 => ledger.pass_on(Ts(*at), size),
                10 => ledger.given(Ts(*given), size),
                _ => {
                    let class = if *what == 6 { StepClass::First } else { StepClass::Train };
                    let (at, last, count) = (Ts(*at), *step, *count);
                    ledger.steps(Steps { at, last, count, class, tokens: None, reported: None, watched: step % 2 == 0 }, size);
                }
            }
            let now = ledger.totals();
            for state in TimeState::ALL {
                let times = |of: &Totals| (of.millis(state), of.gpu_millis(state));
                let ((ms, gpu_ms), (now_ms, now_gpu_ms)) = (times(&before), times(&now));
                prop_assert!(ms <= now_ms && gpu_ms <= now_gpu_ms, "{before:?} {now:?}");
            }
        }
        let times = reports.iter().map(|(_, at, ..)| *at);
        let span = times.clone().max().unwrap_or(0) - times.min().unwrap_or(0);
        prop_assert!(ledger.totals().total() <= span as f64 / 1e3);
    }
}

#[test]
fn a_larger_batch_is_no_slow_step() {
    let mut ledger = Ledger::default();
    let mut at = 0;
    for (last, tokens) in (1..).zip([1e6; 20].into_iter().chain([2e6; 20])) {
        at += (tokens / 100.0) as i64;
        let class = if last == 1 { StepClass::First } else { StepClass::Train };
        ledger.steps(
            Steps { at: Ts(at), last, count: 1, class, tokens: Some(tokens), reported: None, watched: true },
            SIZE,
        );
    }
    assert_eq!(ledger.totals().seconds(TimeState::Slowed), 0.0);
    assert_eq!(ledger.totals().goodput(), Some(1.0));
}

#[test]
fn nothing_is_priced_by_a_guess() {
    let mut ledger = Ledger::default();
    let unknown = Size { gpus: None, ..SIZE };
    for (at, last) in [(0, 1), (10_000, 2), (20_000, 3)] {
        let class = if last == 1 { StepClass::First } else { StepClass::Train };
        let s = Steps { at: Ts(at), last, count: 1, class, tokens: None, reported: None, watched: true };
        ledger.steps(s, unknown);
    }
    let accounts = ledger.totals();
    assert_eq!((accounts.total(), accounts.goodput()), (20.0, Some(1.0)));
    assert_eq!(accounts.gpu_seconds(TimeState::Productive), None);
    assert_eq!(accounts.dollars(TimeState::Productive), None);
}

#[test]
fn without_a_job_nobody_knows_whether_the_gpus_were_held() {
    let mut ledger = Ledger::default();
    let line = |at: i64, last, class| Steps {
        at: Ts(at),
        last,
        count: 1,
        class,
        tokens: None,
        reported: None,
        watched: true,
    };
    ledger.steps(line(0, 1, StepClass::First), SIZE);
    ledger.steps(line(10_000, 2, StepClass::Train), SIZE);
    ledger.steps(line(3_610_000, 1, StepClass::First), SIZE);
    assert_eq!(ledger.totals().seconds(TimeState::Unknown), 3600.0);
    assert_eq!(ledger.totals().total(), 3610.0);
}

#[test]
fn an_attempt_that_was_killed_without_a_word_starts_when_the_next_one_greets() {
    let mut bench = Bench::started();
    bench.pass(TimeState::Down, 600_000);
    bench.step = 5;
    bench.start(20_000, 40_000);
    bench.apply(&Act::Steps(3));
    bench.check();
}

#[test]
fn a_save_after_the_last_step_is_saved_whatever_follows() {
    for told in [true, false] {
        let mut bench = Bench::started();
        bench.pass(TimeState::Saving, 25_000);
        bench.ledger.declared(Declared::Saving, Ts(bench.now), Span(25_000));
        bench.pass(TimeState::Down, 1000);
        if told {
            bench.ledger.died(Ts(bench.now));
        }
        bench.pass(TimeState::Down, 200_000);
        bench.start(20_000, 40_000);
        bench.check();
    }
}

#[test]
fn a_load_of_an_attempt_that_makes_no_step_is_none_of_the_next_one() {
    let mut bench = Bench::started();
    bench.ledger.died(Ts(bench.now));
    bench.pass(TimeState::Down, 10_000);
    bench.ledger.greeted(Ts(bench.now), Some("0"), None, SIZE);
    bench.pass(TimeState::Down, 300_000);
    bench.ledger.declared(Declared::Loading, Ts(bench.now), Span(300_000));
    bench.ledger.died(Ts(bench.now));
    bench.pass(TimeState::Down, 10_000);
    bench.start(20_000, 400_000);
    bench.check();
}

#[test]
fn a_rank_that_is_replaced_stops_no_run_that_goes_on() {
    let mut bench = Bench::started();
    bench.ledger.died(Ts(bench.now + 2000));
    bench.ledger.greeted(Ts(bench.now + 5000), Some("0"), None, SIZE);
    bench.apply(&Act::Steps(3));
    bench.check();
}

#[test]
fn what_is_repeated_later_changes_nothing() {
    let mut bench = Bench::started();
    bench.apply(&Act::Steps(5));
    let earlier = Ts(bench.now - 25_000);
    bench.ledger.died(earlier);
    bench.ledger.greeted(earlier, Some("0"), None, SIZE);
    bench.ledger.declared(Declared::Saving, earlier, Span::secs(30));
    bench.apply(&Act::Slow(600_000));
    bench.check();
}

#[test]
fn a_log_that_is_written_through_a_buffer_stalls_between_no_two_of_its_blocks() {
    let mut ledger = Ledger::default();
    for last in 1..=2000 {
        // A hundred lines at once, of steps of ten seconds.
        let at = Ts((last + 99) / 100 * 1_000_000);
        let class = if last == 1 { StepClass::First } else { StepClass::Train };
        let reported = Some(10_000.0);
        ledger.steps(Steps { at, last, count: 1, class, tokens: None, reported, watched: true }, SIZE);
    }
    let accounts = ledger.totals();
    assert!(accounts.goodput() > Some(0.99), "{accounts:?}");
    let all = accounts.seconds(TimeState::Productive);
    assert!((17_000.0..=19_000.0).contains(&all), "{accounts:?}");
}

#[test]
fn the_last_stretch_of_a_run_that_never_comes_back_is_accounted() {
    let mut bench = Bench::started();
    bench.pass(TimeState::Down, STEP);
    bench.pass(TimeState::Stalled, 3_600_000);
    bench.ledger.died(Ts(bench.now));
    bench.ledger.close(Size { gpus: Some(64), ..SIZE });
    bench.check();
}

#[test]
fn another_job_is_another_attempt_though_nobody_saw_the_end_of_the_first() {
    let mut bench = Bench::started();
    bench.job += 1;
    bench.now += 86_400_000;
    bench.released += 86_400_000;
    bench.start(0, 60_000);
    bench.apply(&Act::Steps(3));
    bench.check();
}

#[test]
fn a_clock_of_whole_seconds_makes_no_step_slow() {
    let mut ledger = Ledger::default();
    for last in 1..=1000 {
        let at = Ts(last * 1400 / 1000 * 1000);
        let class = if last == 1 { StepClass::First } else { StepClass::Train };
        ledger.steps(Steps { at, last, count: 1, class, tokens: None, reported: None, watched: true }, SIZE);
    }
    assert_eq!(ledger.totals().seconds(TimeState::Slowed), 0.0);
}

#[test]
fn a_job_that_is_named_by_a_later_word_is_that_of_the_attempt() {
    for named_after_a_step in [false, true] {
        let mut ledger = Ledger::default();
        let line = |at: i64, last, class| Steps {
            at: Ts(at),
            last,
            count: 1,
            class,
            tokens: None,
            reported: None,
            watched: true,
        };
        ledger.greeted(Ts(0), None, None, SIZE);
        if !named_after_a_step {
            ledger.greeted(Ts(1000), Some("77"), None, SIZE);
        }
        ledger.steps(line(60_000, 1, StepClass::First), SIZE);
        ledger.steps(line(70_000, 2, StepClass::Train), SIZE);
        if named_after_a_step {
            ledger.greeted(Ts(75_000), Some("77"), None, SIZE);
        }
        ledger.steps(line(80_000, 3, StepClass::Train), SIZE);
        ledger.died(Ts(80_000));
        ledger.greeted(Ts(380_000), None, None, SIZE);
        ledger.greeted(Ts(381_000), Some("77"), None, SIZE);
        ledger.steps(line(400_000, 3, StepClass::First), SIZE);
        let seconds = |state| ledger.totals().seconds(state);
        assert_eq!((seconds(TimeState::Down), seconds(TimeState::Unknown)), (300.0, 0.0));
        assert_eq!(seconds(TimeState::Starting), 80.0);
    }
}

/// A line of one step.
fn line(at: i64, last: i64) -> Steps {
    let class = if last == 1 { StepClass::First } else { StepClass::Train };
    Steps { at: Ts(at), last, count: 1, class, tokens: None, reported: None, watched: true }
}

#[test]
fn lines_without_tokens_unlearn_nothing() {
    const TOKENS: f64 = 1_048_576.0;
    let mut ledger = Ledger::default();
    for last in 1..=60 {
        // The batch grows in the middle.
        let (at, tokens) = if last <= 30 { (last, TOKENS) } else { (2 * last - 30, 2.0 * TOKENS) };
        let tokens = Some(tokens).filter(|_| last % 3 != 0);
        ledger.steps(Steps { tokens, ..line(at * 10_000, last) }, SIZE);
    }
    ledger.steps(Steps { tokens: Some(2.0 * TOKENS), ..line(900_000 + 3_600_000 + 20_000, 61) }, SIZE);
    ledger.died(Ts(4_520_000));
    ledger.close(SIZE);
    assert_eq!(ledger.totals().seconds(TimeState::Stalled), 3600.0);
}

#[test]
fn a_hang_of_a_run_that_has_just_begun_is_no_long_step() {
    let begun = || {
        let mut ledger = Ledger::default();
        (1..=4).for_each(|last| ledger.steps(line(last * 10_000, last), SIZE));
        ledger
    };
    let seconds = |ledger: &Ledger, state| ledger.totals().seconds(state);
    let mut goes_on = begun();
    goes_on.steps(line(3_640_000, 5), SIZE);
    goes_on.steps(line(3_650_000, 6), SIZE);
    assert_eq!(seconds(&goes_on, TimeState::Stalled), 3590.0);
    assert_eq!(seconds(&goes_on, TimeState::Productive), 50.0);
    let mut killed = begun();
    killed.died(Ts(3_640_000));
    killed.close(SIZE);
    assert_eq!(seconds(&killed, TimeState::Stalled), 3590.0);
    assert_eq!(seconds(&killed, TimeState::Down), 10.0);
}

#[test]
fn a_run_that_has_just_begun_may_take_its_time() {
    let mut ledger = Ledger::default();
    let mut at = 0;
    for (last, secs) in (1..).zip([0, 1, 55, 2, 1, 59, 1]) {
        at += secs * 1000;
        ledger.steps(line(at, last), SIZE);
    }
    assert_eq!(ledger.totals().seconds(TimeState::Productive), 119.0);
}

#[test]
fn a_log_without_step_times_that_is_written_through_a_buffer_stalls_nowhere() {
    // Steps of ten seconds, and milliseconds between lines that are written at once.
    for apart in [0, 1] {
        let mut ledger = Ledger::default();
        for last in 1..=2000 {
            let at = (last + 99) / 100 * 1_000_000 + (last - 1) % 100 * apart;
            ledger.steps(line(at, last), SIZE);
        }
        let accounts = ledger.totals();
        assert!(accounts.goodput() > Some(0.99), "{accounts:?}");
        let all = accounts.seconds(TimeState::Productive);
        assert!((17_000.0..=19_001.0).contains(&all), "{accounts:?}");
    }
}

#[test]
fn blocks_of_a_buffer_that_hold_more_and_less_stall_nowhere() {
    let mut ledger = Ledger::default();
    let (mut last, mut written) = (1, 0);
    ledger.steps(line(0, 1), SIZE);
    for block in 0..40 {
        written += [38, 41, 40][block % 3];
        while last < written {
            last += 1;
            ledger.steps(line(written * 10_000, last), SIZE);
        }
    }
    let accounts = ledger.totals();
    assert_eq!(accounts.seconds(TimeState::Stalled), 0.0, "{accounts:?}");
    assert!(accounts.goodput() > Some(0.95), "{accounts:?}");
}

#[test]
fn a_hang_between_the_blocks_of_a_buffer_is_seen() {
    let mut ledger = Ledger::default();
    for last in 1..=2000 {
        let hung = if last > 1500 { 7_200_000 } else { 0 };
        ledger.steps(line((last + 99) / 100 * 1_000_000 + hung, last), SIZE);
    }
    let stalled = ledger.totals().seconds(TimeState::Stalled);
    assert!((7_100.0..=7_300.0).contains(&stalled), "{:?}", ledger.totals());
}

#[test]
fn steps_of_less_than_a_millisecond_are_learned_too() {
    let mut ledger = Ledger::default();
    for last in 1..=10_000 {
        ledger.steps(line(last / 4, last), SIZE);
    }
    ledger.steps(line(602_500, 10_001), SIZE);
    ledger.died(Ts(602_500));
    ledger.close(SIZE);
    let stalled = ledger.totals().seconds(TimeState::Stalled);
    assert!((599.0..=600.0).contains(&stalled), "{:?}", ledger.totals());
}

#[test]
fn time_before_the_number_of_gpus_is_known_is_theirs_once_it_is() {
    let mut ledger = Ledger::default();
    let unknown = Size { gpus: None, ..SIZE };
    (1..=31).for_each(|last| ledger.steps(line(last * 10_000, last), unknown));
    assert_eq!(ledger.totals().gpu_seconds(TimeState::Productive), None);
    ledger.steps(line(320_000, 32), SIZE);
    let accounts = ledger.totals();
    assert_eq!(accounts.gpu_seconds(TimeState::Productive), Some(8.0 * 310.0));
    let dollars = accounts.dollars(TimeState::Productive);
    assert!(dollars.is_some_and(|d| (d - 8.0 * 310.0 / 1000.0).abs() < 1e-9), "{dollars:?}");
    // What is known of the usual step is not of another run.
    ledger.steps(line(930_000, 33), SIZE);
    ledger.died(Ts(930_000));
    ledger.close(SIZE);
    assert_eq!(ledger.totals().seconds(TimeState::Stalled), 600.0);
    assert_eq!(ledger.totals().gpu_seconds(TimeState::Stalled), Some(4800.0));
}

#[test]
fn of_a_run_that_is_forgotten_the_hang_before_its_death_is_kept() {
    let mut ledger = Ledger::default();
    (1..=4).for_each(|last| ledger.steps(line(last * 10_000, last), SIZE));
    ledger.died(Ts(3_640_000));
    let kept = ledger.take_accounts(SIZE).map(|accounts| accounts.hours.total()).unwrap_or_default();
    assert_eq!(kept.seconds(TimeState::Stalled), 3590.0);
    assert_eq!(kept.total(), 3630.0);
}

//! All states together are the time for which jobs held GPUs. The sum here is of the allocations
//! alone: of when a scheduler gave them, and when it took them back.

use std::sync::Arc;

use proptest::prelude::*;
use stepwatch_detect::run::{TimeState, Totals};
use stepwatch_detect::{Input, Monitor};
use stepwatch_model::time::Ts;
use stepwatch_wire::Event;

const BEGAN: i64 = 1_700_000_000_001;

/// An allocation, in milliseconds: each time is since the one before.
#[derive(Debug, Clone)]
struct Held {
    /// In the queue.
    waits: i64,
    launches: i64,
    sets_up: i64,
    steps: u8,
    /// From the last step to the end of the processes, and from there to the release.
    tail: i64,
    stays: i64,
    ends_well: bool,
    /// The scheduler keeps the number of the job before.
    requeued: bool,
    /// The first report does not say when the allocation was.
    told_late: bool,
}

struct World {
    monitor: Monitor,
    now: i64,
    last: Totals,
}

impl World {
    fn say(&mut self, ms: i64, event: &str) {
        self.now += ms;
        let now = Ts(self.now);
        while self.monitor.tick_one(now, &mut Vec::new()) {}
        let mut event = Event::parse(event.as_bytes()).unwrap();
        (event.ts, event.node) = (Some(now.as_secs_f64()), Some("n1".into()));
        if event.run.is_some() {
            event.rank = Some(0);
        }
        self.monitor.handle(now, Input::Event { source: "n1:9765", event: &event }, &mut Vec::new());
        let totals = self.monitor.run("r").map(|run| run.state.ledger.totals()).unwrap_or_default();
        for state in TimeState::ALL {
            assert!(totals.millis(state) >= self.last.millis(state), "{state:?} went back");
            assert!(totals.gpu_millis(state) >= self.last.gpu_millis(state), "{state:?} went back");
        }
        self.last = totals;
    }
}

fn held() -> impl Strategy<Value = Held> {
    let times = (1..2_000_000_i64, 0..600_000_i64, 2000..600_000_i64, 0..50_000_i64, 0..600_000_i64);
    (times, 0..20_u8, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |((waits, launches, sets_up, tail, stays), steps, ends_well, requeued, told_late)| Held {
            waits,
            launches,
            sets_up,
            steps,
            tail,
            stays,
            ends_well: ends_well && steps > 0,
            requeued,
            told_late,
        },
    )
}

/// Plays the life of a run. Returns what was accounted of it and the milliseconds of allocations.
fn play(life: &[Held]) -> (Totals, i64) {
    let mut world = World { monitor: Monitor::new(Arc::default()), now: BEGAN, last: Totals::default() };
    let (mut job, mut step, mut allocated) = (0, 0, 0);
    let mut had_step = true;
    for held in life {
        job += i32::from(!held.requeued);
        world.now += held.waits;
        let given = world.now;
        let said = format!(r#","allocated":{}"#, Ts(given).as_secs_f64());
        let hello =
            |said: &str| format!(r#"{{"k":"hello","run":"r","world":1,"devices":8,"job":"{job}"{said}}}"#);
        // Between two attempts of one job that made no step nothing is left to be learned late.
        let is_late = held.told_late && (had_step || !held.requeued);
        world.say(held.launches, &hello(if is_late { "" } else { &said }));
        world.say(0, &format!(r#"{{"k":"health","name":"job","job":"{job}","code":1}}"#));
        world.say(1000, &hello(&said));
        had_step = held.steps > 0;
        world.now += held.sets_up - 1000;
        for n in 0..held.steps {
            step += 1;
            let lasts = if n == 0 { 0 } else { 10_000 };
            world.say(lasts, &format!(r#"{{"k":"step","run":"r","step":{step},"m":{{"loss":2.0}}}}"#));
        }
        let code = i32::from(!held.ends_well);
        world.say(held.tail, &format!(r#"{{"k":"bye","run":"r","code":{code}}}"#));
        world.say(held.stays, &format!(r#"{{"k":"health","name":"job","job":"{job}","code":0}}"#));
        allocated += world.now - given;
    }
    (world.last, allocated)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_states_add_up_to_the_allocations(mut life in prop::collection::vec(held(), 1..8)) {
        // What was a failure is accounted once another attempt begins, or the run is forgotten.
        if let Some(last) = life.last_mut() {
            (last.steps, last.ends_well) = (last.steps.max(1), true);
        }
        let (totals, allocated) = play(&life);
        let all: i64 = TimeState::ALL.into_iter().map(|state| totals.millis(state)).sum();
        prop_assert_eq!(all, allocated);
        let gpus: i64 = TimeState::ALL.into_iter().map(|state| totals.gpu_millis(state)).sum();
        prop_assert_eq!(gpus, 8 * allocated);
    }
}

#[test]
fn a_requeue_is_no_time_of_the_run_and_a_launch_is_its_start() {
    let first = Held {
        waits: 5000,
        launches: 200_000,
        sets_up: 50_000,
        steps: 11,
        tail: 4000,
        stays: 30_000,
        ends_well: false,
        requeued: false,
        told_late: false,
    };
    let second = Held { waits: 900_000, requeued: true, ends_well: true, ..first.clone() };
    let (totals, allocated) = play(&[first, second]);
    let seconds = |state| totals.seconds(state);
    assert_eq!(seconds(TimeState::Starting), 2.0 * 250.0);
    assert_eq!(seconds(TimeState::Productive), 2.0 * 100.0);
    assert_eq!((seconds(TimeState::Down), seconds(TimeState::Idle)), (34.0, 34.0));
    assert_eq!(allocated, 768_000);
}

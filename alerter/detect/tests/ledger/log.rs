//! Logs of what a trainer did, and what the monitor accounts when it is told.

use std::sync::Arc;

use serde::Deserialize;
use stepwatch_detect::run::Totals;
use stepwatch_detect::{Input, Monitor};
use stepwatch_model::time::{Span, Ts};
use stepwatch_wire::Event;

/// Second 0 of a log. One millisecond past a whole second: of a clock of whole seconds the ledger
/// takes no gap for exact.
const BEGAN: Ts = Ts(1_700_000_000_001);

/// `tests/scripts/goodput_oracle.py` says what the words mean.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Record {
    /// Seconds.
    pub(crate) at: f64,
    pub(crate) what: String,
    pub(crate) job: Option<String>,
    pub(crate) step: Option<i64>,
    /// What the process returned, if it lived to say it.
    pub(crate) code: Option<i64>,
    /// Which attempt it says that it is.
    pub(crate) attempt: Option<u32>,
}

/// What the ledger counted once all is told.
pub(crate) fn play(records: &[Record]) -> Totals {
    let mut monitor = Monitor::new(Arc::default());
    let mut load_began = 0.0;
    for r in records {
        let now = BEGAN + Span::from_secs_f64(r.at);
        while monitor.tick_one(now, &mut Vec::new()) {}
        if r.what == "load_start" {
            load_began = r.at;
        }
        let Some(event) = event(r, r.at - load_began) else { continue };
        let mut event = Event::parse(event.as_bytes()).unwrap();
        (event.ts, event.rank, event.node) = (Some(now.as_secs_f64()), Some(0), Some("n1".into()));
        event.attempt = r.attempt;
        monitor.handle(now, Input::Event { source: "n1:9765", event: &event }, &mut Vec::new());
    }
    monitor.run("r").unwrap().state.ledger.totals()
}

/// What a trainer says of it, if it says something: that a step is over, and not that it begins.
fn event(r: &Record, loaded: f64) -> Option<String> {
    let (job, step) = (r.job.as_deref().unwrap_or_default(), r.step.unwrap_or_default());
    let rest = match r.what.as_str() {
        "job_start" => format!(r#""k":"hello","world":8,"job":"{job}""#),
        "load_end" => format!(r#""k":"ckpt","phase":"end","stage":"load","step":{step},"seconds":{loaded}"#),
        "step_end" => format!(r#""k":"step","step":{step},"m":{{"loss":2.0}}"#),
        "save_start" => format!(r#""k":"ckpt","phase":"start","step":{step}"#),
        "save_end" => format!(r#""k":"ckpt","phase":"end","step":{step}"#),
        "write_end" => format!(r#""k":"ckpt","phase":"end","stage":"write","step":{step},"seconds":90"#),
        "eval_start" => r#""k":"phase","name":"eval","edge":"begin""#.to_owned(),
        "eval_end" => r#""k":"phase","name":"eval","edge":"end""#.to_owned(),
        "died" => match r.code {
            Some(code) => format!(r#""k":"bye","code":{code}"#),
            None => r#""k":"event","name":"rank_dead""#.to_owned(),
        },
        "job_end" => r#""k":"bye","code":0"#.to_owned(),
        _ => return None,
    };
    Some(format!(r#"{{"run":"r",{rest}}}"#))
}

//! Runs a simulated incident through the real engine, with its routes, conditions, schedules and
//! timers, in virtual time. No message is sent. The command line and the web interface show the
//! result.

use stepwatch_engine::{DryRun, Engine};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Kind, Labels, Severity};
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::effect::{Effect, IncidentAction, Input};
use stepwatch_respond::oncall::OnCall;

/// The name of the simulated person.
const ANSWERS: &str = "simulation";
/// The most deadlines of a simulation, so that many repeats end.
const MAX_ROUNDS: usize = 1000;

/// The simulated events.
#[derive(Debug)]
pub(crate) struct Simulated<'a> {
    pub(crate) run: &'a str,
    pub(crate) node: Option<&'a str>,
    pub(crate) kind: Kind,
    pub(crate) severity: Severity,
    /// The GPUs of the run, if they are known, and the labels that it declared.
    pub(crate) gpus: Option<u32>,
    pub(crate) labels: &'a Labels,
    pub(crate) begin: Ts,
    /// When a person acknowledges; `None` if nobody does.
    pub(crate) ack: Option<Ts>,
    /// The simulated duration.
    pub(crate) lasts: Span,
}

/// Runs the simulation. `keep` receives and removes the effects, with their time.
pub(crate) fn simulate(
    config: &ResponderConfig,
    oncall: &OnCall,
    what: &Simulated<'_>,
    mut keep: impl FnMut(Ts, &mut Vec<Effect>),
) {
    let Simulated { run, node, kind, severity, gpus, labels, begin, mut ack, lasts } = *what;
    let mut engine = Engine::new(config.clone());
    engine.adopt_oncall(oncall);
    let mut effects = Vec::new();
    engine.dry_run(begin, &DryRun { run, node, kind, severity, gpus, labels }, &mut effects);
    keep(begin, &mut effects);
    let end = begin + lasts;
    for _ in 0..MAX_ROUNDS {
        let due = engine.next_deadline().map(|(at, _)| at);
        let Some(at) = due.into_iter().chain(ack).min().filter(|at| *at <= end) else { break };
        if ack.take_if(|ack| *ack <= at).is_some() {
            let incident = engine.open_incidents().next().map(|r| r.id.clone());
            if let Some(incident) = &incident {
                engine.handle(
                    at,
                    Input::Act { incident, by: ANSWERS, action: &IncidentAction::Ack },
                    &mut effects,
                );
            }
        }
        engine.tick(at, &mut effects);
        keep(at, &mut effects);
    }
}

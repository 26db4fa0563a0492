//! Reports about a run in text form: from its script, its launcher, or a file written after an
//! error.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use stepwatch_model::Target;
use stepwatch_wire::{Event, Value, names::exporter_event};

use stepwatch_model::time::Ts;

/// The most reports kept for a run: the first of a crash matter, and the last of a script.
const MAX_REPORTS: usize = 32;

/// The number of samples for which a report is fresh.
const FRESH: u64 = 8;

/// What a report is about: the name of its event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Topic {
    UserAlert,
    TorchelasticError,
    FlightRecorderDump,
    LauncherDead,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub topic: Topic,
    pub at: Ts,
    /// When it was written, by the clock of the program that wrote it.
    pub when: Ts,
    /// The number of samples before the report. A few more prove that the run goes on.
    pub steps: u64,
    pub rank: Option<u32>,
    /// The local rank, if nothing else is known.
    pub local_rank: Option<u32>,
    pub node: Option<String>,
    /// The level in the event: `error`, `warn`, `info`.
    pub level: String,
    pub text: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Reports(VecDeque<Report>);

impl Topic {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "wandb_alert" => Some(Self::UserAlert),
            "torchelastic_error" => Some(Self::TorchelasticError),
            "flight_recorder_dump" => Some(Self::FlightRecorderDump),
            exporter_event::LAUNCHER_DEAD => Some(Self::LauncherDead),
            _ => None,
        }
    }
}

impl Report {
    /// The rank that it is about.
    pub fn place(&self) -> Target {
        Target::Rank { rank: self.rank, local_rank: self.local_rank, node: self.node.clone() }
    }
}

impl Reports {
    pub(crate) fn take(&mut self, now: Ts, steps: u64, e: &Event) {
        let Some(topic) = e.name.as_deref().and_then(Topic::parse) else { return };
        if self.0.len() >= MAX_REPORTS {
            self.0.pop_front();
        }
        let local = e.extra.get("local_rank").and_then(Value::as_f64).filter(|n| *n >= 0.0);
        self.0.push_back(Report {
            topic,
            at: now,
            when: e.ts.map_or(now, Ts::from_secs_f64),
            steps,
            rank: e.rank.filter(|_| local.is_none()),
            local_rank: local.map(|n| n as u32),
            node: e.node.clone(),
            level: e.level.as_deref().unwrap_or("info").to_ascii_lowercase(),
            text: e.text.clone().unwrap_or_default(),
        });
    }

    /// Reports about a topic, oldest first.
    pub fn about(&self, topic: Topic) -> impl DoubleEndedIterator<Item = &Report> {
        self.0.iter().filter(move |r| r.topic == topic)
    }

    /// Whether a report came within the last samples, so that the next ones show whether the run
    /// goes on.
    pub(crate) fn is_fresh(&self, steps: u64) -> bool {
        self.0.back().is_some_and(|r| r.steps + FRESH >= steps)
    }
}

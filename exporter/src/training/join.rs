//! Renames or merges a run: its reports under one name continue under another.

use std::sync::Arc;

use stepwatch_wire::names::hello;
use stepwatch_wire::{Event, Kind, Value};

use super::run::Run;
use super::{Training, of_run};
use crate::principal::Principal;

impl Training {
    /// Moves a run to another name. Returns the events that end its ranks under the old name and
    /// introduce them under the new one. `by` must be allowed to report both.
    pub fn join(&mut self, now: f64, by: Principal, from: &str, to: &str) -> Vec<Event> {
        let mut out = Vec::new();
        if from == to {
            return out;
        }
        if let Some((run, owner)) =
            [from, to].into_iter().find_map(|run| Some((run, self.not_theirs(run, by, Kind::Event, now)?)))
        {
            self.refuse(run, owner, by, now);
            return out;
        }
        if let Some(past) = self.archive.runs.remove(from) {
            self.archive.runs.entry(to.to_owned()).or_insert(past);
        }
        let Some(mut run) = self.runs.remove(from) else { return out };
        if self.logged.has_room(now) {
            tracing::info!(run = from, to, "a run goes on under the name that one of its sources was given");
        }
        self.urgent = true;
        for (number, rank) in run.ranks.iter().filter(|(_, rank)| !rank.said_bye) {
            let mut bye = Event {
                run: Some(from.to_owned()),
                rank: Some(*number),
                world: run.world,
                code: Some(0),
                text: Some(format!("this run is {to}")),
                attempt: Some(rank.epoch.attempt),
                ..Event::new(Kind::Bye)
            };
            bye.extra.insert(hello::SOURCE.into(), Value::Text("identity".into()));
            out.push(of_run(bye, run.owner, now));
            out.push(of_run(run.hello_again(to, *number), run.owner, now));
        }
        let to: Arc<str> = to.into();
        if let Some(there) = self.runs.get_mut(&to) {
            there.adopt(run);
        } else {
            run.name = Arc::clone(&to);
            self.runs.insert(to, run);
        }
        out
    }
}

impl Run {
    pub(super) fn hello_again(&self, name: &str, rank: u32) -> Event {
        let mut hello = Event {
            run: Some(name.to_owned()),
            rank: Some(rank),
            world: self.world,
            attempt: Some(self.epoch.attempt),
            ..Event::new(Kind::Hello)
        };
        let about = &self.about;
        let known = [
            ("framework", &about.framework),
            ("version", &about.version),
            ("dtype", &about.dtype),
            ("gpu", &about.gpu),
            (hello::JOB, &about.job),
        ];
        for (key, value) in known.into_iter().filter(|(_, value)| !value.is_empty()) {
            hello.extra.insert(key.into(), Value::Text(value.clone()));
        }
        hello.extra.insert(hello::SOURCE.into(), Value::Text("identity".into()));
        hello
    }

    /// Merges the state of another run that is the same as this one.
    fn adopt(&mut self, other: Self) {
        self.world = self.world.or(other.world);
        self.said_gpus.join(&other.said_gpus);
        self.owner = self.owner.joined_by(other.owner).unwrap_or(self.owner);
        self.settled |= other.settled;
        self.epoch.attempt = self.epoch.attempt.max(other.epoch.attempt);
        if !self.model.is_known() {
            self.model = other.model;
            self.peak = self.peak.or(other.peak);
        }
        let (ours, theirs) = (&mut self.about, other.about);
        for (ours, theirs) in [
            (&mut ours.framework, theirs.framework),
            (&mut ours.version, theirs.version),
            (&mut ours.dtype, theirs.dtype),
            (&mut ours.gpu, theirs.gpu),
            (&mut ours.job, theirs.job),
        ] {
            if ours.is_empty() {
                *ours = theirs;
            }
        }
        for (number, rank) in other.ranks {
            match self.ranks.get_mut(&number) {
                Some(there) => {
                    there.connections.extend(rank.connections);
                    there.launchers.extend(rank.launchers);
                    there.connected_once |= rank.connected_once;
                    there.pid = there.pid.or(rank.pid);
                    there.process = there.process.or(rank.process);
                }
                None => {
                    self.ranks.insert(number, rank);
                }
            }
        }
    }
}

//! What is known of the node when its checks are made: one pass of the collectors that they need, and nothing that was read
//! a second time in another way.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use stepwatch_wire::Event;

use super::Options;
use crate::collectors::COLLECTORS;
use crate::config::Config;
use crate::family::Family;
use crate::hub::{Hub, Parts};
use crate::roots::Roots;
use crate::samples::{Row, Samples};
use crate::schedule::{Schedule, State, Status};
use crate::stream::{Limits, Read};
use crate::training::Archive;

/// What one pass of all collectors can publish, many times over.
const RING: Limits = Limits { records: 8192, bytes: 4 << 20 };

pub(super) struct Node<'a> {
    pub(super) config: &'a Config,
    pub(super) reference: Option<&'a Path>,
    samples: Samples,
    collectors: Vec<Status>,
    events: Vec<Event>,
    end: Instant,
}

impl<'a> Node<'a> {
    /// Lets each of the collectors `wanted` make one pass, as it would in service, and waits for it until `end`.
    pub(super) fn look(
        config: &'a Config,
        roots: &'a Roots,
        options: &'a Options,
        wanted: &[&str],
        end: Instant,
    ) -> Self {
        let hub = Hub::new(Parts {
            node: config.node_name(),
            boot: "check".into(),
            ring: RING,
            training: config.training(),
            archive: Archive::default(),
            // What is seen here is told to nobody but the one who asked.
            keep: None,
        });
        let entries = COLLECTORS.iter().filter(|entry| wanted.contains(&entry.name));
        let schedule = Schedule::start(entries, &config.collectors, &Arc::new(roots.clone()), &hub);
        schedule.wait_first_pass_until(Some(end));
        let mut samples = Samples::default();
        schedule.write(&mut samples, &mut Samples::default());
        let collectors = schedule.status();
        let reference = options.reference.as_deref();
        Self { config, reference, samples, collectors, events: published(&hub), end }
    }

    /// What was looked at elsewhere.
    #[cfg(test)]
    pub(super) fn seen(
        config: &'a Config,
        options: &'a Options,
        samples: Samples,
        events: Vec<Event>,
    ) -> Self {
        let reference = options.reference.as_deref();
        Self { config, reference, samples, collectors: Vec::new(), events, end: Instant::now() }
    }

    pub(super) fn rows(&self, family: &'static Family) -> impl Iterator<Item = Row<'_>> {
        self.samples.rows(family)
    }

    /// The rows of a family that says yes or no, where it says yes.
    pub(super) fn set(&self, family: &'static Family) -> impl Iterator<Item = Row<'_>> {
        self.rows(family).filter(|row| row.value != 0.0)
    }

    /// What the collectors published: changes cannot be seen by looking once, conditions that hold can.
    pub(super) fn events(&self) -> &[Event] {
        &self.events
    }

    pub(super) fn collectors(&self) -> &[Status] {
        &self.collectors
    }

    pub(super) fn healthy(&self, collector: &str) -> bool {
        self.collectors.iter().any(|c| c.name == collector && c.state == State::Healthy)
    }

    /// Whether nothing that was asked failed, or is still to answer.
    pub(super) fn all_answered(&self) -> bool {
        let answered = [State::Healthy, State::Unsupported, State::Disabled];
        self.collectors.iter().all(|c| answered.contains(&c.state))
    }

    /// Does what may block in the kernel, and gives it up with the rest of the check.
    pub(super) fn in_time<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (done, result) = mpsc::sync_channel(1);
        std::thread::Builder::new().name("check".into()).spawn(move || done.send(work())).ok()?;
        let left = self.end.saturating_duration_since(Instant::now());
        result.recv_timeout(left.max(LAST_CHANCE)).ok()
    }
}

/// Given to each piece of work when the time of the check is over: what is quick at all is quicker than this.
const LAST_CHANCE: Duration = Duration::from_millis(20);

fn published(hub: &Hub) -> Vec<Event> {
    let (mut events, mut after) = (Vec::new(), 0);
    while let Read::Records { chunk, last } = hub.ring().read(after) {
        events.extend(chunk.split(|b| *b == b'\n').filter_map(|line| Event::parse(line).ok()));
        after = last;
    }
    events
}

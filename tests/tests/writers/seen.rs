//! Every event that an exporter streams, over all its restarts.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::TryStreamExt as _;
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Exporter, http, poll_until};
use stepwatch_wire::{Event, Kind};
use tokio::io::AsyncBufReadExt as _;
use tokio_util::io::StreamReader;

/// The events so far, each once.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    events: Vec<Event>,
    cursors: BTreeSet<String>,
}

impl Seen {
    /// Follows this life of an exporter, from its first event.
    pub(crate) fn follow(&self, exporter: &Exporter) {
        let (seen, url) = (self.clone(), format!("{}/v1/stream", exporter.url()));
        tokio::spawn(async move { seen.read(&url).await });
    }

    async fn read(&self, url: &str) -> anyhow::Result<()> {
        let body = http::client().get(url).send().await?.error_for_status()?.bytes_stream();
        let mut lines = StreamReader::new(body.map_err(std::io::Error::other)).lines();
        while let Some(line) = lines.next_line().await? {
            let event = Event::parse_record(line.as_bytes())?;
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let new = event.cursor.as_ref().is_none_or(|c| state.cursors.insert(c.to_string()));
            if new {
                state.events.push(event);
            }
        }
        Ok(())
    }

    pub(crate) fn events(&self, kind: Kind, run: &str) -> Vec<Event> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.events.iter().filter(|e| e.kind == kind && e.run.as_deref() == Some(run)).cloned().collect()
    }

    /// The steps of every run, once `enough` returns true.
    pub(crate) async fn all_steps(&self, what: &str, enough: impl Fn(&[Event]) -> bool) -> Vec<Event> {
        let steps = || {
            let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.events.iter().filter(|e| e.kind == Kind::Step).cloned().collect::<Vec<_>>()
        };
        match poll_until(what, PATIENCE, async || Some(steps()).filter(|s| enough(s))).await {
            Ok(found) => found,
            Err(err) => panic!("{err}; there were {:?}", steps()),
        }
    }

    /// A metric at every step at which it was published, in that order.
    pub(crate) fn column(&self, run: &str, name: &str) -> Vec<(i64, f64)> {
        self.events(Kind::Step, run).iter().filter_map(|e| Some((e.step?, e.m.get(name)?))).collect()
    }

    /// Waits until a metric was published at so many steps.
    pub(crate) async fn steps(&self, run: &str, name: &str, count: usize) -> Vec<(i64, f64)> {
        let what = format!("{count} steps with {name} of {run}");
        let enough = async || Some(self.column(run, name)).filter(|c| c.len() >= count);
        match poll_until(&what, PATIENCE, enough).await {
            Ok(found) => found,
            Err(err) => panic!("{err}; there were {:?}", self.column(run, name)),
        }
    }

    /// Waits for an event that `wanted` likes.
    pub(crate) async fn event(&self, kind: Kind, run: &str, wanted: impl Fn(&Event) -> bool) -> Event {
        let what = format!("{kind:?} of {run}");
        let found = async || self.events(kind, run).into_iter().find(&wanted);
        match poll_until(&what, PATIENCE, found).await {
            Ok(found) => found,
            Err(err) => panic!("{err}; there were {:?}", self.0.lock().unwrap().events),
        }
    }
}

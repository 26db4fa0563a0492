//! Publishes how much the busiest interfaces send, beside their speed: the alerter compares the two
//! while a run saves its checkpoints.

use stepwatch_wire::{Event, Kind, Value};

use super::{Looked, RX_BYTES, STATISTICS, TX_BYTES};
use crate::collector::Context;
use crate::family::Family;
use crate::origin::Origin;

/// Seconds between two events of an interface.
const SECONDS: f64 = 30.0;
/// The most interfaces, those that have sent most: a node may have hundreds of virtual functions.
const MAX_DEVICES: usize = 8;

#[derive(Debug)]
pub(super) struct Traffic {
    published_at: f64,
}

impl Default for Traffic {
    fn default() -> Self {
        Self { published_at: f64::NEG_INFINITY }
    }
}

impl Traffic {
    pub(super) fn pass(&mut self, now: f64, cx: &Context<'_>, looked: &[Looked]) {
        if (0.0..SECONDS).contains(&(now - self.published_at)) {
            return;
        }
        self.published_at = now;
        let mut all: Vec<Counted<'_>> = looked.iter().filter_map(Counted::of).collect();
        all.sort_by(|a, b| b.sent.cmp(&a.sent).then_with(|| a.device.cmp(b.device)));
        for counted in all.into_iter().take(MAX_DEVICES) {
            cx.hub.publish(Origin::Node, counted.event(now));
        }
    }
}

/// The counters of an interface that is up and whose speed is known.
#[derive(Debug)]
struct Counted<'a> {
    device: &'a str,
    speed: f64,
    sent: u64,
    received: Option<u64>,
}

impl<'a> Counted<'a> {
    fn of(looked: &'a Looked) -> Option<Self> {
        let counter = |family: &'static Family| {
            let at = STATISTICS.iter().position(|(_, of)| core::ptr::eq(*of, family))?;
            *looked.statistics.get(at)?
        };
        let speed = looked.speed.filter(|_| looked.link.up == Some(true))?;
        Some(Self {
            device: &looked.link.device,
            speed,
            sent: counter(&TX_BYTES)?,
            received: counter(&RX_BYTES),
        })
    }

    fn event(&self, now: f64) -> Event {
        let mut event = Event { ts: Some(now), name: Some("nic".into()), ..Event::new(Kind::Health) };
        event.extra.insert("device".into(), Value::Text(self.device.to_owned()));
        event.m.set("rate_bytes_per_second", self.speed);
        event.m.set("transmit_bytes", self.sent as f64);
        if let Some(received) = self.received {
            event.m.set("receive_bytes", received as f64);
        }
        event
    }
}

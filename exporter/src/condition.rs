//! Conditions of the node in the stream: told when they begin and when they end, and again every
//! ten minutes while they hold, so that an alerter that starts late, or lost its place, learns of
//! them.
//!
//! A collector owns one [`Conditions`] and asks it on every pass. What happens once and has no end
//! is no condition: publish it with `once: true`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use stepwatch_wire::{Event, Value};

use crate::collector::Context;
use crate::drops::Reason;
use crate::origin::Origin;

/// A condition that still holds is told again this often.
const AGAIN: Duration = Duration::from_mins(10);
/// Conditions of one collector that hold at a time; those beyond are counted as dropped and not
/// reported.
const MAX_HELD: usize = 256;

/// What one collector has told of, and not yet told the end of.
#[derive(Debug, Default)]
pub struct Conditions(HashMap<Held, Instant>);

#[derive(Debug, PartialEq, Eq, Hash)]
struct Held {
    name: &'static str,
    /// What it is that the condition is of: a device, a mount; empty of the node as a whole.
    key: Box<str>,
}

impl Conditions {
    /// Says how it stands with `name` of `key` now. `make` makes the event, of whichever kind, when
    /// there is one to tell; its `code` is set to whether the condition holds, its `name` to
    /// `name` where it has none, its `level` to `info` at the end.
    pub fn report(
        &mut self,
        cx: &Context<'_>,
        name: &'static str,
        key: &str,
        holds: bool,
        make: impl FnOnce() -> Event,
    ) {
        self.report_at(Instant::now(), cx, name, key, holds, make);
    }

    fn report_at(
        &mut self,
        now: Instant,
        cx: &Context<'_>,
        name: &'static str,
        key: &str,
        holds: bool,
        make: impl FnOnce() -> Event,
    ) {
        let held = Held { name, key: key.into() };
        let reported = self.0.get(&held).copied();
        let again = match (reported, holds) {
            (None, false) => return,
            (Some(reported), true) if now.saturating_duration_since(reported) < AGAIN => return,
            (None, true) if self.0.len() >= MAX_HELD => {
                cx.hub.drops().count(Reason::Conditions);
                return;
            }
            (reported, _) => reported.is_some() && holds,
        };
        if holds {
            self.0.insert(held, now);
        } else {
            self.0.remove(&held);
        }
        let mut event = make();
        event.code = Some(i64::from(holds));
        event.name.get_or_insert_with(|| name.to_owned());
        if !holds {
            event.level = Some("info".into());
        }
        if again {
            event.extra.insert("again".into(), Value::Bool(true));
        }
        cx.hub.publish(Origin::Node, event);
    }

    /// Whether the condition was told of, and not its end.
    pub fn holds(&self, name: &str, key: &str) -> bool {
        self.0.keys().any(|held| held.name == name && *held.key == *key)
    }

    /// Keys of which the condition was reported, and not its end: those of devices that are gone must
    /// be ended by somebody.
    pub fn keys(&self, name: &str) -> Vec<String> {
        let mut keys: Vec<_> =
            self.0.keys().filter(|held| held.name == name).map(|held| held.key.to_string()).collect();
        keys.sort();
        keys
    }

    /// Forgets, without telling of an end, what `keep` does not want to hear of again.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &str) -> bool) {
        self.0.retain(|held, _| keep(held.name, &held.key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roots::Roots;
    use crate::testing;
    use stepwatch_wire::Kind;

    fn event() -> Event {
        Event { level: Some("warn".into()), text: Some("/data is slow".into()), ..Event::new(Kind::Hw) }
    }

    #[test]
    fn told_on_change_and_again_while_it_holds() {
        let bench = testing::Bench::new(Roots::default());
        let (mut conditions, start) = (Conditions::default(), Instant::now());
        for (seconds, holds) in [
            (0, false),
            (1, true),
            (2, true),
            (600, true),
            (601, true),
            (1200, true),
            (1201, false),
            (1202, false),
        ] {
            let at = start + Duration::from_secs(seconds);
            conditions.report_at(at, &bench.context(), "mount_stuck", "/data", holds, event);
        }
        let reported = bench.published();
        let short: Vec<_> =
            reported.iter().map(|e| (e.code, e.level.as_deref(), e.extra.contains_key("again"))).collect();
        assert_eq!(
            short,
            [(Some(1), Some("warn"), false), (Some(1), Some("warn"), true), (Some(0), Some("info"), false)]
        );
        assert!(reported.iter().all(|e| e.name.as_deref() == Some("mount_stuck")));
        assert!(conditions.keys("mount_stuck").is_empty());
    }

    #[test]
    fn one_key_says_nothing_of_another_and_too_many_are_counted() {
        let bench = testing::Bench::new(Roots::default());
        let mut conditions = Conditions::default();
        for i in 0..=MAX_HELD {
            conditions.report(&bench.context(), "mount_stuck", &format!("/{i}"), true, event);
        }
        assert_eq!(bench.published().len(), MAX_HELD);
        assert_eq!(bench.hub.drops().get(Reason::Conditions), 1);
        assert!(conditions.holds("mount_stuck", "/0") && !conditions.holds("disk_filling", "/0"));
        conditions.report(&bench.context(), "mount_stuck", "/0", false, event);
        conditions.report(&bench.context(), "mount_stuck", "/new", true, event);
        assert_eq!(bench.published().len(), 2);
        conditions.retain(|_, key| key == "/new");
        assert_eq!(conditions.keys("mount_stuck"), ["/new"]);
    }
}

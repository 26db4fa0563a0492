//! Streams conditions of the node. A condition is published when it begins and when it ends, and
//! every ten minutes while it holds, so that an alerter that starts late, or lost its position,
//! receives it too.
//!
//! A collector owns one [`Conditions`] and reports to it on every pass. An event without an end is
//! no condition: publish it with `once: true`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::{Event, Value};

use crate::collector::Context;
use crate::drops::Reason;
use crate::origin::Origin;

/// How often a condition that holds is published again.
const AGAIN: Duration = Duration::from_mins(10);
/// The most conditions of one collector that hold at a time; further ones are counted as dropped
/// and not reported.
const MAX_HELD: usize = 256;

/// The conditions of one collector that were published and whose end was not.
#[derive(Debug, Default)]
pub struct Conditions(HashMap<Held, Instant>);

#[derive(Debug, PartialEq, Eq, Hash)]
struct Held {
    condition: NodeCondition,
    /// The subject of the condition: a device or a mount; empty for the whole node.
    key: Box<str>,
}

impl Conditions {
    /// Reports whether `condition` of `key` holds now. `make` builds the event, of any kind, if one
    /// has to be published. The event's `code` is set to whether the condition holds, its `name` to
    /// that of the condition's row if it has none, and its `level` to `info` at the end.
    pub fn report(
        &mut self,
        cx: &Context<'_>,
        condition: NodeCondition,
        key: &str,
        holds: bool,
        make: impl FnOnce() -> Event,
    ) {
        self.report_at(Instant::now(), cx, condition, key, holds, make);
    }

    fn report_at(
        &mut self,
        now: Instant,
        cx: &Context<'_>,
        condition: NodeCondition,
        key: &str,
        holds: bool,
        make: impl FnOnce() -> Event,
    ) {
        let held = Held { condition, key: key.into() };
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
        event.name.get_or_insert_with(|| condition.name().to_owned());
        if !holds {
            event.level = Some("info".into());
        }
        if again {
            event.extra.insert("again".into(), Value::Bool(true));
        }
        cx.hub.publish(Origin::Node, event);
    }

    /// Whether the condition was published and its end was not.
    pub fn holds(&self, condition: NodeCondition, key: &str) -> bool {
        self.0.keys().any(|held| held.condition == condition && *held.key == *key)
    }

    /// The keys whose condition was reported and has not ended. The caller must end those of
    /// devices that are gone.
    pub fn keys(&self, condition: NodeCondition) -> Vec<String> {
        let mut keys: Vec<_> = self
            .0
            .keys()
            .filter(|held| held.condition == condition)
            .map(|held| held.key.to_string())
            .collect();
        keys.sort();
        keys
    }

    /// Forgets the conditions that `keep` rejects, without publishing their end.
    pub fn retain(&mut self, mut keep: impl FnMut(NodeCondition, &str) -> bool) {
        self.0.retain(|held, _| keep(held.condition, &held.key));
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::roots::Roots;
    use crate::testing;
    use stepwatch_wire::Kind;

    fn event() -> Event {
        Event { level: Some("warn".into()), text: Some("/data is slow".into()), ..Event::new(Kind::Hw) }
    }

    #[test]
    fn published_on_change_and_again_while_it_holds() {
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
            conditions.report_at(at, &bench.context(), NodeCondition::MountStuck, "/data", holds, event);
        }
        let reported = bench.published();
        let short: Vec<_> =
            reported.iter().map(|e| (e.code, e.level.as_deref(), e.extra.contains_key("again"))).collect();
        assert_eq!(
            short,
            [(Some(1), Some("warn"), false), (Some(1), Some("warn"), true), (Some(0), Some("info"), false)]
        );
        assert!(reported.iter().all(|e| e.name.as_deref() == Some("mount_stuck")));
        assert!(conditions.keys(NodeCondition::MountStuck).is_empty());
    }

    #[test]
    fn one_key_says_nothing_of_another_and_too_many_are_counted() {
        let bench = testing::Bench::new(Roots::default());
        let mut conditions = Conditions::default();
        for i in 0..=MAX_HELD {
            conditions.report(&bench.context(), NodeCondition::MountStuck, &format!("/{i}"), true, event);
        }
        assert_eq!(bench.published().len(), MAX_HELD);
        assert_eq!(bench.hub.drops().get(Reason::Conditions), 1);
        assert!(
            conditions.holds(NodeCondition::MountStuck, "/0")
                && !conditions.holds(NodeCondition::DiskFilling, "/0")
        );
        conditions.report(&bench.context(), NodeCondition::MountStuck, "/0", false, event);
        conditions.report(&bench.context(), NodeCondition::MountStuck, "/new", true, event);
        assert_eq!(bench.published().len(), 2);
        conditions.retain(|_, key| key == "/new");
        assert_eq!(conditions.keys(NodeCondition::MountStuck), ["/new"]);
    }

    /// The expected contents of `docs/conditions.md`.
    fn document() -> String {
        let mut text = String::from(
            "# Conditions of a node\n\n\
             What an exporter finds wrong with its node, by the name that the event `hw` of the stream bears. The\n\
             table is made from `wire/src/conditions.rs`, which the exporter, its `check` and the alerter read.\n\n\
             * The event carries the present severity (`level`). **Pages**: when one at the level `error`\n  \
             does, if it hits a run; everything else is a ticket or a note.\n\
             * **Stops runs**: whether it can stop or slow a run as a warning already.\n\
             * **Remedy**: what has to be done, where the event itself names no `action`.\n\
             * **Check**: which check of `stepwatch-exporter check` judges it.\n\
             * **Rule**: which alert of `rules/node.yml` reports it where no alerter runs.\n\n\
             | Condition | Of | Stops runs | Remedy | Pages | Runbook | Check | Rule |\n|---|---|---|---|---|---|---|---|\n",
        );
        for condition in NodeCondition::ALL {
            let row = condition.row();
            let (runbook, stops) = (row.incident.as_str(), if row.stops_runs { "yes" } else { "no" });
            writeln!(
                text,
                "| `{}` | {} | {stops} | `{}` | {} | [{runbook}](runbooks/{runbook}.md) | `{}` |{} |",
                row.name,
                row.domain.as_str(),
                row.remedy.as_str(),
                row.pages.as_str(),
                row.check,
                if row.rule.is_empty() { String::new() } else { format!(" `{}`", row.rule) }
            )
            .unwrap();
        }
        text
    }

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    #[test]
    fn conditions_page() {
        let path = root().join("docs/conditions.md");
        if std::env::var_os("STEPWATCH_BLESS").is_some() {
            std::fs::write(&path, document()).unwrap();
        }
        assert!(
            std::fs::read_to_string(&path).unwrap() == document(),
            "docs/conditions.md is not what the table says: STEPWATCH_BLESS=1 cargo test -p stepwatch-exporter conditions_page"
        );
        for condition in NodeCondition::ALL {
            let runbook = root().join(format!("docs/runbooks/{}.md", condition.row().incident.as_str()));
            assert!(runbook.exists(), "{}", runbook.display());
        }
    }

    /// Prometheus and the alerter give a condition the same kind, and so the same runbook.
    #[test]
    fn rules_agree_with_the_table() {
        let rules = std::fs::read_to_string(root().join("rules/node.yml")).unwrap();
        let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
        for condition in NodeCondition::ALL {
            let row = condition.row();
            let kind = row.incident.as_str();
            for alert in alerts.iter().filter(|alert| !row.rule.is_empty() && alert.starts_with(row.rule)) {
                let name = alert.lines().next().unwrap_or_default();
                assert!(alert.contains(&format!("kind: {kind}}}")), "{name}: {} is a {kind}", row.name);
                assert!(alert.contains(&format!("/docs/runbooks/{kind}.md")), "{name}: runbook");
            }
            let named = |alert: &&str| alert.lines().next() == Some(row.rule);
            assert!(row.rule.is_empty() || alerts.iter().any(named), "no {}", row.rule);
        }
    }

    /// A runbook calls a condition by its name.
    #[test]
    fn runbooks_name_conditions_of_the_table() {
        let text = std::fs::read_to_string(root().join("docs/runbooks/node_fault.md")).unwrap();
        let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
        let mut names = Vec::new();
        for row in rows {
            let quoted = row.split('`').filter(|word| !word.is_empty());
            names.extend(quoted.filter(|word| word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')));
        }
        assert!(names.len() > 10, "{names:?}");
        for name in names {
            assert!(NodeCondition::parse(name).is_some(), "{name} is no condition");
        }
    }

    fn sources(dir: &Path, out: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, out);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                out.push(text.split("#[cfg(test)]").next().unwrap().to_owned());
            }
        }
    }

    /// Conditions are an enum, so only those of the table can be reported.
    #[test]
    fn every_row_is_reported_by_somebody() {
        let mut collectors = Vec::new();
        sources(&root().join("exporter/src/collectors"), &mut collectors);
        // What the collectors of schedulers share.
        let shared = std::fs::read_to_string(root().join("exporter/src/scheduler.rs")).unwrap();
        collectors.push(shared.split("#[cfg(test)]").next().unwrap().to_owned());
        let all = collectors.concat();
        for condition in NodeCondition::ALL {
            let named = |by: &str| {
                let name = format!("{by}::{condition:?}");
                let ends = |at: usize| !all[at + name.len()..].starts_with(|c: char| c.is_alphanumeric());
                all.match_indices(&name).any(|(at, _)| ends(at))
            };
            assert!(named("NodeCondition") || named("C"), "nobody reports {}", condition.name());
        }
    }
}

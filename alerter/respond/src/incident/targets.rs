//! Who an item of a level means at a moment, and whether a level may be told at it.

use super::manager::Manager;
use super::open::Incident;
use crate::config::{Condition, Level};
use crate::effect::Path;
use stepwatch_model::Ts;

/// Somebody to be told, by a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Recipient {
    pub(super) receiver: String,
    pub(super) users: Vec<String>,
    pub(super) path: Option<Path>,
}

impl Recipient {
    /// One who was told before, and whom it was for.
    pub(super) fn known(receiver: String, users: Vec<String>) -> Self {
        Self { receiver, users, path: None }
    }

    /// No level names it.
    pub(super) fn instead(&mut self, why: String) {
        self.path.get_or_insert_default().chosen = vec![why];
    }

    fn of_level(receiver: String) -> Self {
        Self { receiver, users: Vec::new(), path: Some(Path::default()) }
    }

    fn chosen_by(&mut self, words: &str) {
        let chosen = &mut self.path.get_or_insert_default().chosen;
        if !chosen.iter().any(|had| had == words) {
            chosen.push(words.to_owned());
        }
    }
}

impl Manager {
    /// The receivers of a level, each once, and how they were found. Items that mean nobody leave
    /// it to the others; if they all do, whoever is nearest is told.
    pub(super) fn recipients(&self, now: Ts, i: &Incident, level: &Level) -> (Vec<Recipient>, Vec<String>) {
        let (mut all, mut found) = self.meant(now, &level.notify);
        if all.is_empty() && !level.notify.is_empty() {
            let nearest = self.nearest(now, i, |_| true);
            found.push(match nearest.to.as_slice() {
                [] => "and nobody is left who may be told".to_owned(),
                _ => format!("so {}", nearest.words),
            });
            all = nearest.to;
            for recipient in &mut all {
                recipient.path = Some(Path::default());
                found.iter().for_each(|words| recipient.chosen_by(words));
            }
        }
        (all, found)
    }

    /// Whom these items mean now.
    pub(super) fn meant(&self, now: Ts, items: &[impl AsRef<str>]) -> (Vec<Recipient>, Vec<String>) {
        let (mut all, mut found) = (Vec::<Recipient>::new(), Vec::new());
        for item in items {
            let resolution = self.oncall.resolve(item.as_ref(), now);
            let receivers: Vec<&str> = resolution.targets.iter().map(|t| t.receiver.as_str()).collect();
            let words = match (resolution.why.as_str(), receivers.is_empty()) {
                ("", _) => item.as_ref().to_owned(),
                (why, true) => why.to_owned(),
                (why, false) => format!("{why} by {}", receivers.join(", ")),
            };
            found.push(words.clone());
            for target in resolution.targets {
                let at = all.iter().position(|r| r.receiver == target.receiver).unwrap_or_else(|| {
                    all.push(Recipient::of_level(target.receiver.clone()));
                    all.len() - 1
                });
                all[at].chosen_by(&words);
                let users = &mut all[at].users;
                if let Some(user) = target.user.filter(|user| !users.contains(user)) {
                    users.push(user);
                }
            }
        }
        (all, found)
    }

    /// Dollars an hour that the incident burns, if a price is known.
    fn burns(&self, i: &Incident) -> Option<f64> {
        Some(self.config.cost_per_gpu_hour? * f64::from(i.summary.gpus))
    }

    /// What was asked, and whether a level of this condition may be told. What cannot be answered
    /// holds: nobody is left out for it.
    pub(super) fn may_tell(&self, now: Ts, i: &Incident, condition: &Condition) -> (bool, Vec<String>) {
        let mut asked = Vec::new();
        let mut all = true;
        let mut ask = |holds: Option<bool>, words: String| {
            all &= holds.unwrap_or(true);
            asked.push(match holds {
                Some(true) => words,
                Some(false) => format!("not {words}"),
                None => format!("{words}: cannot be told, counts as so"),
            });
        };
        if let Some(severity) = condition.severity {
            ask(Some(i.record.severity == severity), format!("severity {}", severity.as_str()));
        }
        if let Some(interval) = &condition.during {
            ask(self.oncall.within(interval, now), format!("during {interval}"));
        }
        if let Some(interval) = &condition.outside {
            ask(self.oncall.within(interval, now).map(|within| !within), format!("outside {interval}"));
        }
        if let Some(dollars) = condition.burn_over {
            ask(self.burns(i).map(|burns| burns > dollars), format!("burns more than ${dollars}/h"));
        }
        (all, asked)
    }
}

//! Resolves the items of a level to receivers, and evaluates the condition of a level.

use super::Dispatcher;
use super::escalation::{Due, Round};
use crate::config::{Condition, Level, ResponderConfig};
use crate::effect::Path;
use crate::incident::open::Incident;
use crate::incident::report::View;
use crate::route::{WayName, joined};
use stepwatch_model::Ts;

/// The words for why a storm takes its way.
const OF_STORM: &str = "that of the incidents in it";

/// A receiver to notify, and the users that the notification is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::incident) struct Recipient {
    pub(in crate::incident) receiver: String,
    pub(super) users: Vec<String>,
    pub(in crate::incident) path: Option<Path>,
}

/// A level to notify now, and the path that led to it. The path does not name the receivers yet.
#[derive(Debug)]
pub(in crate::incident) struct Call {
    pub(in crate::incident) level: Level,
    pub(in crate::incident) path: Path,
}

impl Recipient {
    /// A receiver that was notified before, with its users.
    pub(in crate::incident) fn known(receiver: String, users: Vec<String>) -> Self {
        Self { receiver, users, path: None }
    }

    /// Records why a receiver that no level names is notified.
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

impl Dispatcher {
    /// The level that a round notifies. If the round is passed over, `Err` has the conditions
    /// checked.
    pub(in crate::incident) fn call(
        &self,
        view: View<'_>,
        i: &Incident,
        due: &Due,
    ) -> Result<Call, Vec<String>> {
        let may_notify = |level: &Level| self.may_notify(view, i, &level.condition);
        let (level, asked) = match &due.what {
            Round::Level(level) => match may_notify(level) {
                (true, asked) => (level, asked),
                (false, asked) => return Err(asked),
            },
            Round::Reminder(levels) => {
                let may = levels.iter().rev().find(|level| may_notify(level).0);
                let level = may.or(levels.last()).ok_or_else(Vec::new)?;
                (level, may_notify(level).1)
            }
        };
        let path = self.path(view.config, i, &[&due.way]);
        let path = Path { level: due.level, again: due.repeat, asked, ..path };
        Ok(Call { level: level.clone(), path })
    }

    /// The path of these ways: the route, why it matched, and its policy.
    pub(in crate::incident) fn path(
        &self,
        config: &ResponderConfig,
        i: &Incident,
        names: &[&WayName],
    ) -> Path {
        // A reload may have removed the route.
        let way = self.router.ways(config, &i.record.labels).into_iter().find(|way| names == [&way.name]);
        // A storm takes the way of its members, to which its own labels need not lead.
        let of_others = || (if i.storm.is_some() { OF_STORM.to_owned() } else { String::new() }, None);
        let (matched, policy) = way.map_or_else(of_others, |way| (way.because, way.policy));
        Path { route: joined(names), matched, policy, ..Path::default() }
    }

    /// The receivers of a level, each once, and how they were found. If no item resolves to a
    /// receiver, the nearest receivers are notified.
    pub(in crate::incident) fn recipients(
        &self,
        view: View<'_>,
        i: &Incident,
        level: &Level,
    ) -> (Vec<Recipient>, Vec<String>) {
        let (mut all, mut found) = self.meant(view.now, &level.notify);
        if all.is_empty() && !level.notify.is_empty() {
            let nearest = self.nearest(view, i, |_| true);
            found.push(match nearest.to.as_slice() {
                [] => "and nobody is left who may be notified".to_owned(),
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

    /// Resolves items to receivers at `now`, and describes how.
    pub(super) fn meant(&self, now: Ts, items: &[impl AsRef<str>]) -> (Vec<Recipient>, Vec<String>) {
        let (mut all, mut found) = (Vec::<Recipient>::new(), Vec::new());
        for item in items {
            let resolution = self.oncall.resolve(item.as_ref(), now);
            let receivers: Vec<&str> = resolution.targets.iter().map(|t| t.receiver.as_str()).collect();
            let words = match (resolution.why, receivers.is_empty()) {
                (None, _) => item.as_ref().to_owned(),
                (Some(why), true) => why,
                (Some(why), false) => format!("{why} by {}", receivers.join(", ")),
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

    /// Whether a level of this condition may be notified, and what was checked. A condition that
    /// cannot be evaluated holds, so that nobody is left out because of it.
    fn may_notify(&self, view: View<'_>, i: &Incident, condition: &Condition) -> (bool, Vec<String>) {
        let mut asked = Vec::new();
        let mut all = true;
        let mut ask = |holds: Option<bool>, words: String| {
            all &= holds.unwrap_or(true);
            asked.push(match holds {
                Some(true) => words,
                Some(false) => format!("not {words}"),
                None => format!("{words}: cannot be notified, counts as notified"),
            });
        };
        if let Some(severity) = condition.severity {
            ask(Some(i.record.severity == severity), format!("severity {}", severity.as_str()));
        }
        if let Some(interval) = &condition.during {
            ask(self.oncall.within(interval, view.now), format!("during {interval}"));
        }
        if let Some(interval) = &condition.outside {
            ask(self.oncall.within(interval, view.now).map(|within| !within), format!("outside {interval}"));
        }
        if let Some(dollars) = condition.burn_over {
            // The cost is only known if a price is configured, and the run declared its size. What
            // hits no run costs nothing.
            let gpus = i.summary.gpus.or((!i.record.hits_a_run()).then_some(0));
            let burns = view.config.cost_per_gpu_hour.zip(gpus).map(|(cost, n)| cost * f64::from(n));
            ask(burns.map(|burns| burns > dollars), format!("burns more than ${dollars}/h"));
        }
        (all, asked)
    }
}

impl Incident {
    /// Describes who is notified by a round whose items were `found`. Receivers that refused their
    /// last notification are tried again, and listed apart. `Err` if all of them refused it.
    pub(in crate::incident) fn notified_of(
        &self,
        to: &[Recipient],
        found: &[String],
    ) -> Result<String, String> {
        let untaken = |r: &Recipient| {
            let lane = self.lanes.get(&r.receiver)?;
            Some(format!("{} ({})", r.receiver, lane.untaken.as_ref()?))
        };
        let failing: Vec<String> = to.iter().filter_map(untaken).collect();
        if failing.is_empty() {
            return Ok(found.join(", "));
        }
        let chose =
            |r: &&Recipient, words: &String| r.path.as_ref().is_some_and(|path| path.chosen.contains(words));
        // An item that resolves to nobody is listed too.
        let stays = |words: &&String| {
            let mut by = to.iter().filter(|r| chose(r, words)).peekable();
            by.peek().is_none() || by.any(|r| untaken(r).is_none())
        };
        let reached: Vec<&str> = found.iter().filter(stays).map(String::as_str).collect();
        let cannot = format!("cannot be notified: {}", failing.join(", "));
        let any = failing.len() < to.len();
        if any { Ok(format!("{}; {cannot}", reached.join(", "))) } else { Err(cannot) }
    }
}

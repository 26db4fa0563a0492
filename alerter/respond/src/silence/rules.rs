//! Decides which silences are allowed, and how a change of one is made.

use serde::{Deserialize, Serialize};

use super::{Phase, Silence, Silences};
use crate::matcher::Matcher;
use stepwatch_model::{Span, Ts};

/// The most matchers of one silence.
const MAX_MATCHERS: usize = 32;
/// The most bytes of compiled regular expressions of all silences that have not ended; plain
/// alternatives take none.
pub(super) const MAX_COMPILED: usize = 4 * 1024 * 1024;
/// The most bytes of all silences of people that have not ended, without compiled matchers. Ten
/// thousand with two matchers each take about half of it.
pub(super) const MAX_BYTES: usize = 8 << 20;
/// The most characters of a comment, and of an author.
const MAX_COMMENT: usize = 2000;
const MAX_AUTHOR: usize = 200;
const MINUTE: Span = Span::secs(60);

/// The section `silences:` of the configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SilenceConfig {
    /// The longest silence.
    pub max_duration: Span,
    /// The least number of matchers of a silence, without those that also match a missing label.
    pub min_matchers: usize,
    /// How long before the end of a silence that still suppresses something people are reminded;
    /// `0s` is never.
    pub remind_before: Span,
    /// Receivers of that reminder; if empty, those that were notified of the incident before it was
    /// silenced.
    pub remind: Vec<String>,
    /// The most silences that have not ended.
    pub max: usize,
    /// The longest silence for a planned restart; `0s` allows none.
    pub max_planned_restart: Span,
}

/// A requested silence.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// The id of the silence to change; `None` for a new one.
    pub id: Option<String>,
    pub matchers: Vec<Matcher>,
    pub starts_at: Option<Ts>,
    pub ends_at: Ts,
    pub created_by: String,
    pub comment: String,
    pub expire_on_resolve: bool,
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub silence: Silence,
    /// The silence that ends when this one begins, because the past of a silence is never
    /// rewritten.
    pub replaces: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    Unknown(String),
    Invalid(String),
    /// There are too many silences.
    Full(String),
}

impl Default for SilenceConfig {
    fn default() -> Self {
        Self {
            max_duration: Span::secs(30 * 86_400),
            min_matchers: 1,
            remind_before: Span::secs(900),
            remind: Vec::new(),
            max: 10_000,
            max_planned_restart: Span::secs(3600),
        }
    }
}

impl Refusal {
    pub fn text(&self) -> &str {
        match self {
            Self::Unknown(text) | Self::Invalid(text) | Self::Full(text) => text,
        }
    }
}

impl Silences {
    /// Plans a request at `now`; `fresh` is the id of a silence that has to be made.
    ///
    /// As in Alertmanager, a silence is changed in place unless that rewrites what it has
    /// suppressed so far. Otherwise it ends and another one follows it.
    pub fn plan(&self, wanted: Wanted, fresh: &str, now: Ts) -> Result<Plan, Refusal> {
        let starts_at = wanted.starts_at.unwrap_or(now);
        let invalid = |text: String| Err(Refusal::Invalid(text));
        if let Some(why) = self.objection(&wanted, starts_at, now) {
            return invalid(why);
        }
        let had = match &wanted.id {
            None => None,
            Some(id) => {
                Some(self.get(id).ok_or_else(|| Refusal::Unknown(format!("there is no silence {id:?}")))?)
            }
        };
        let in_place = had.filter(|had| match had.phase(now) {
            Phase::Pending => starts_at >= now,
            Phase::Active => had.matchers == wanted.matchers && had.starts_at == starts_at,
            Phase::Expired => false,
        });
        let replaces = had.filter(|had| in_place.is_none() && had.phase(now) != Phase::Expired);
        // The silences of runs take no room from those of people.
        let of_people = self.all().filter(|s| s.planned_by.is_none());
        let unended = of_people.filter(|s| s.phase(now) != Phase::Expired).count();
        if in_place.is_none() && unended - usize::from(replaces.is_some()) >= self.config.max {
            return Err(Refusal::Full(format!(
                "there are {unended} silences already, silences.max allows no more"
            )));
        }
        let replaced = in_place.or(replaces).map_or(0, Silence::cost);
        let others: usize = self.all().filter(|s| s.phase(now) != Phase::Expired).map(Silence::cost).sum();
        let cost: usize = wanted.matchers.iter().map(Matcher::cost).sum();
        if cost > 0 && others - replaced.min(others) + cost > MAX_COMPILED {
            return Err(Refusal::Full(format!(
                "the regular expressions of all silences may take {} KiB, and this one's take {} KiB more: \
                 ask for values as in \"a|b|c-.*\", which take nothing, or end other silences",
                MAX_COMPILED / 1024,
                cost.div_ceil(1024)
            )));
        }
        let silence = Silence {
            id: in_place.map_or(fresh, |had| &had.id).to_owned(),
            matchers: wanted.matchers,
            starts_at: if in_place.is_some() { starts_at } else { starts_at.max(now) },
            ends_at: wanted.ends_at,
            created_by: wanted.created_by,
            comment: wanted.comment,
            updated_at: now,
            expire_on_resolve: wanted.expire_on_resolve,
            planned_by: None,
            reminded: false,
        };
        let of_people = self.all().filter(|s| s.planned_by.is_none() && s.phase(now) != Phase::Expired);
        let had: usize = of_people.map(Silence::size).sum();
        let others = had.saturating_sub(in_place.or(replaces).map_or(0, Silence::size));
        if others + silence.size() > MAX_BYTES {
            return Err(Refusal::Full(format!(
                "all silences may take {} KiB, the others take {} KiB and this one takes {} KiB: use fewer or \
                 shorter matchers, or end other silences",
                MAX_BYTES / 1024,
                others.div_ceil(1024),
                silence.size().div_ceil(1024)
            )));
        }
        Ok(Plan { silence, replaces: replaces.map(|had| had.id.clone()) })
    }

    fn objection(&self, w: &Wanted, starts_at: Ts, now: Ts) -> Option<String> {
        let config = &self.config;
        let selective = w.matchers.iter().filter(|m| !m.holds_of_nothing()).count();
        let text = |name: &str, value: &str, max: usize| {
            let clean = !value.trim().is_empty() && value.chars().count() <= max;
            (!clean).then(|| format!("{name}: must say something, in at most {max} characters"))
        };
        if w.matchers.is_empty() || w.matchers.len() > MAX_MATCHERS {
            return Some(format!("matchers: 1 to {MAX_MATCHERS}, got {}", w.matchers.len()));
        }
        if selective == 0 {
            return Some(
                "matchers: at least one must not match the empty string, or everything is silenced".into(),
            );
        }
        if selective < config.min_matchers {
            let min = config.min_matchers;
            return Some(format!(
                "matchers: {selective} that say what it is about, silences.min_matchers asks for {min}"
            ));
        }
        if w.ends_at <= starts_at {
            return Some("the end must be after the start".into());
        }
        if w.ends_at <= now {
            return Some("the end time can't be in the past".into());
        }
        let length = w.ends_at - starts_at.max(now);
        if length > config.max_duration {
            // The length that was asked for: the delay of the request has made it a little shorter.
            let asked = Span::millis((length.0 + MINUTE.0 - 1) / MINUTE.0 * MINUTE.0);
            return Some(format!("{asked} is longer than silences.max_duration, {}", config.max_duration));
        }
        text("comment", &w.comment, MAX_COMMENT).or_else(|| text("author", &w.created_by, MAX_AUTHOR))
    }
}

//! `schedules:`: who is on call when, by layers, a calendar and overrides.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use stepwatch_model::time::Span;
use stepwatch_respond::oncall::{self, Layer, Override, Zone};

use crate::calendars::{MAX_BYTES, read_file};

/// A schedule: who is on call when.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    pub name: String,
    /// The time zone of the schedule's times.
    pub time_zone: Zone,
    /// The layers of people who take turns; a later layer overrides the earlier ones.
    #[serde(default)]
    pub layers: Vec<Layer>,
    /// A calendar, which overrides all layers.
    #[serde(default)]
    pub ical: Option<Ical>,
    #[serde(default)]
    pub overrides: Vec<Override>,
    /// Receivers or users that are notified when nobody is on call.
    #[serde(default)]
    pub fallback: Vec<String>,
}

/// A calendar in the format of RFC 5545, from one of three places.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ical {
    /// A file, which is read again when it changes.
    pub file: Option<PathBuf>,
    pub url: Option<String>,
    /// A file with the URL, if everyone with the URL may read the calendar.
    pub url_file: Option<PathBuf>,
    pub refresh: Span,
    /// The age from which a copy counts as stale. A stale copy is still used, and every message
    /// sent through it states its age.
    pub stale_after: Span,
}

impl Default for Ical {
    fn default() -> Self {
        let (refresh, stale_after) = (Span::secs(300), Span::secs(3600));
        Self { file: None, url: None, url_file: None, refresh, stale_after }
    }
}

impl Schedule {
    pub(super) fn anchor(&mut self, base: &Path) {
        let files = self.ical.iter_mut().flat_map(|i| [&mut i.file, &mut i.url_file]);
        for file in files.flatten() {
            *file = base.join(&*file);
        }
    }

    /// The text of the schedule's calendar, if it can be read without a running alerter; `None` if
    /// the schedule has no calendar.
    pub fn calendar_text(&self) -> Option<Result<String, String>> {
        let (name, file) = (&self.name, &self.ical.as_ref()?.file);
        let text = match file {
            Some(path) => read_file(path, MAX_BYTES),
            None => Err("its calendar is at a URL, which only the running alerter reads".into()),
        };
        Some(text.map_err(|e| format!("schedule {name}: {e}")))
    }

    pub(super) fn engine(&self) -> oncall::Schedule {
        oncall::Schedule {
            name: self.name.clone(),
            zone: self.time_zone.clone(),
            layers: self.layers.clone(),
            overrides: self.overrides.clone(),
            calendar: self.ical.as_ref().map(|i| i.stale_after),
            fallback: self.fallback.clone(),
        }
    }
}

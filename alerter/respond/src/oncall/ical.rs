//! Parses calendars (RFC 5545) from untrusted bytes: events with times, recurrences and people.
//!
//! Only what shifts are made of is understood. An event with anything else is left out with a
//! warning, because a shift that is read wrongly wakes the wrong person. A text that is no
//! calendar, or ends early, is refused as a whole, because the previous copy is better. Each
//! recurrence of an event with an end ends when the clock shows that time, as calendar programs
//! draw it: a week from Monday to Monday at 09:00 has no hole when the clock is set. Time zones are
//! found by name; their rules come from [`Zone`].

mod content;
mod rule;
mod value;
mod windows;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::SignedDuration;
use jiff::civil::{Date, DateTime};

use super::zone::Zone;
use content::Line;
use rule::{MAX_COUNTED_DAYS, Rule};
use stepwatch_model::{Span, Ts};
use value::{Length, When};

/// The longest plan. Longer ones are of no use and expensive.
pub const MAX_PLAN: Span = Span::secs(366 * 86_400);
/// The most events of a calendar; further ones are left out and counted.
const MAX_EVENTS: usize = 20_000;
/// The most people, further dates or exceptions of one event; an event with more is left out.
const MAX_LIST: usize = 1000;
/// The most invitations of a calendar: the sum over all events of dates (one, and the RDATEs) times
/// people, plus exceptions. A calendar with more is refused. Twenty thousand shifts of five people
/// have as many.
const MAX_INVITATIONS: usize = 100_000;
/// The most characters of a SUMMARY; an event with a longer one is left out.
const MAX_SUMMARY: usize = 1000;
/// The most components within one another; a calendar with more is refused.
const MAX_DEPTH: usize = 16;
/// The most characters of a SUMMARY in the warning about an event that is left out.
const MAX_SHOWN: usize = 100;
/// The most warnings kept, and the most characters of each.
pub(super) const MAX_WARNINGS: usize = 50;
const MAX_WARNING: usize = 300;
/// The margin for differences between time zones, and for the clock being set.
const SLACK: SignedDuration = SignedDuration::from_hours(48);

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Calendar {
    events: Vec<Event>,
    /// Warnings about what was left out.
    pub warnings: Vec<String>,
    /// Events left out.
    pub skipped: usize,
}

/// One event, or a series of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub summary: String,
    /// Mail addresses in lower case.
    pub attendees: Vec<String>,
    /// The attendees who have declined.
    pub declined: Vec<String>,
    start: When,
    length: Length,
    rule: Option<Rule>,
    /// Further dates of the event, of the same length. They are not events of their own, because
    /// each would hold a copy of all people.
    also: Vec<When>,
    except: BTreeSet<Ts>,
    except_days: BTreeSet<Date>,
    /// Times at which another event replaces it; events with the same UID share them.
    replaced: Arc<BTreeSet<Ts>>,
}

/// The properties of an event that are read.
const MATTER: &[&str] = &[
    "UID",
    "SUMMARY",
    "STATUS",
    "ATTENDEE",
    "DTSTART",
    "DTEND",
    "DURATION",
    "RRULE",
    "EXRULE",
    "RDATE",
    "EXDATE",
    "RECURRENCE-ID",
];

/// An event while it is being read.
#[derive(Debug, Default)]
struct Draft {
    uid: String,
    summary: String,
    attendees: Vec<String>,
    declined: Vec<String>,
    start: Option<When>,
    end: Option<When>,
    length: Option<Length>,
    rule: Option<String>,
    also: Vec<When>,
    except: Vec<When>,
    /// For an event that replaces one of a series: the time of the replaced one.
    instance: Option<When>,
    cancelled: bool,
    wrong: Option<String>,
}

impl Calendar {
    /// Parses a calendar. Times without a zone are in `zone`.
    pub fn parse(text: &str, zone: &Zone) -> Result<Self, String> {
        let (drafts, over) = read(text, zone)?;
        let mut calendar = Self::default();
        if over > 0 {
            calendar.warn(over, format!("{over} events are left out: there are more than {MAX_EVENTS}"));
        }
        let replaced = replacements(&drafts);
        let mut days = 0;
        for mut draft in drafts {
            let (name, cancelled) = (core::mem::take(&mut draft.uid), draft.cancelled);
            let series = draft.instance.is_none();
            let summary: String = draft.summary.chars().take(MAX_SHOWN).collect();
            match draft.finish(&mut days) {
                Ok(_) if cancelled => {}
                Ok(mut event) => {
                    if let (true, Some(instances)) = (series, replaced.get(&name)) {
                        event.replaced = Arc::clone(instances);
                    }
                    calendar.events.push(event);
                }
                Err(why) => calendar.warn(1, format!("event {summary:?} is left out: {why}")),
            }
            if days > MAX_COUNTED_DAYS {
                return Err(format!(
                    "its recurrences with COUNT need more than {MAX_COUNTED_DAYS} days looked at, which is the limit"
                ));
            }
        }
        Ok(calendar)
    }

    pub(super) fn warn(&mut self, skipped: usize, warning: String) {
        self.skipped += skipped;
        let warning: String = warning.chars().take(MAX_WARNING).collect();
        if self.warnings.len() < MAX_WARNINGS && !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    pub fn events(&self) -> &[Event] {
        &self.events
    }
}

/// The times of each series, by its UID, at which another event replaces it.
fn replacements(drafts: &[Draft]) -> BTreeMap<String, Arc<BTreeSet<Ts>>> {
    let mut moments: BTreeMap<&str, BTreeSet<Ts>> = BTreeMap::new();
    for draft in drafts {
        if let Some(instance) = &draft.instance {
            moments.entry(&draft.uid).or_default().insert(instance.at());
        }
    }
    moments.into_iter().map(|(uid, moments)| (uid.to_owned(), Arc::new(moments))).collect()
}

/// The events of a text, and how many were above the limit.
fn read(text: &str, zone: &Zone) -> Result<(Vec<Draft>, usize), String> {
    let mut zone = zone.clone();
    let (mut drafts, mut over, mut invitations) = (Vec::new(), 0, 0);
    // Components within one another; properties of alarms are not those of their event.
    let mut open: Vec<String> = Vec::new();
    let mut draft = None;
    let mut ended = false;
    for line in content::lines(text.trim_start_matches('\u{feff}')) {
        match line.name.as_str() {
            "BEGIN" => {
                let name = line.value.trim().to_ascii_uppercase();
                if open.is_empty() && name != "VCALENDAR" {
                    return Err(format!("is not a calendar: it begins with {name:.20}"));
                }
                if open.len() == MAX_DEPTH {
                    return Err(format!("has more than {MAX_DEPTH} components within one another"));
                }
                if name == "VEVENT" && open.len() == 1 {
                    draft = Some(Draft::default());
                }
                open.push(name);
            }
            "END" => {
                ended = open.pop().as_deref() == Some("VCALENDAR");
                let Some(done) = draft.take_if(|_| open.len() == 1) else { continue };
                if drafts.len() == MAX_EVENTS {
                    over += 1;
                    continue;
                }
                invitations += done.invitations();
                // Invitations above the limit are still counted, for the error message.
                if invitations <= MAX_INVITATIONS {
                    drafts.push(done);
                }
            }
            _ if open.is_empty() => {
                return Err("is not a calendar: it does not begin with BEGIN:VCALENDAR".into());
            }
            "X-WR-TIMEZONE" if open.len() == 1 => zone = windows::zone(&line.value).unwrap_or(zone),
            _ if open.len() == 2 => {
                if let Some(draft) = &mut draft {
                    draft.take(&line, &zone);
                }
            }
            _ => {}
        }
    }
    match (ended, open.is_empty()) {
        (true, true) if invitations > MAX_INVITATIONS => Err(format!(
            "its events have {invitations} invitations (dates times people) and exceptions, the limit is {MAX_INVITATIONS}"
        )),
        (true, true) => Ok((drafts, over)),
        (false, true) => Err("is not a calendar: there is no BEGIN:VCALENDAR".into()),
        _ => Err("ends early: there is no END:VCALENDAR".into()),
    }
}

impl Draft {
    /// Reads one property. The first error is kept, and reported when the event is complete.
    fn take(&mut self, line: &Line, zone: &Zone) {
        if let Err(why) = self.property(line, zone) {
            self.wrong.get_or_insert(format!("{}: {why}", line.name));
        }
    }

    /// The number of its invitations, which count against [`MAX_INVITATIONS`].
    fn invitations(&self) -> usize {
        (1 + self.also.len()) * (self.attendees.len() + self.declined.len()).max(1) + self.except.len()
    }

    fn property(&mut self, line: &Line, zone: &Zone) -> Result<(), String> {
        if line.over && MATTER.contains(&line.name.as_str()) {
            return Err(content::too_long());
        }
        let when = || When::parse(&line.value, line.parameter("TZID"), zone);
        match line.name.as_str() {
            "UID" => line.value.trim().clone_into(&mut self.uid),
            "SUMMARY" => {
                self.summary = line.text();
                let length = self.summary.chars().count();
                if length > MAX_SUMMARY {
                    self.summary = self.summary.chars().take(MAX_SUMMARY).collect();
                    return Err(format!("{length} characters, the limit is {MAX_SUMMARY}"));
                }
            }
            "STATUS" => self.cancelled = line.value.trim().eq_ignore_ascii_case("CANCELLED"),
            "ATTENDEE" if self.attendees.len() + self.declined.len() == MAX_LIST => {
                return Err(format!("more than {MAX_LIST} of them"));
            }
            "ATTENDEE" => {
                let address = line.value.trim().to_ascii_lowercase();
                let declines = line.parameter("PARTSTAT").is_some_and(|p| p.eq_ignore_ascii_case("DECLINED"));
                let list = if declines { &mut self.declined } else { &mut self.attendees };
                list.push(address.strip_prefix("mailto:").unwrap_or(&address).to_owned());
            }
            "DTSTART" => self.start = Some(when()?),
            "DTEND" => self.end = Some(when()?),
            "DURATION" => self.length = Some(Length::parse(&line.value)?),
            "RRULE" if self.rule.is_some() => return Err("two recurrences are not understood".into()),
            "RRULE" => self.rule = Some(line.value.clone()),
            "EXRULE" => return Err("is not understood".into()),
            "RDATE" if line.parameter("VALUE") == Some("PERIOD") => {
                return Err("a period is not understood".into());
            }
            "RDATE" => append(&mut self.also, When::list(line, zone)?)?,
            "EXDATE" => append(&mut self.except, When::list(line, zone)?)?,
            "RECURRENCE-ID" if line.parameter("RANGE").is_some() => {
                return Err("a change of an event and all after it is not understood".into());
            }
            "RECURRENCE-ID" => self.instance = Some(when()?),
            _ => {}
        }
        Ok(())
    }

    /// Completes the event. Adds the number of days that were searched to `days`.
    fn finish(self, days: &mut usize) -> Result<Event, String> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        let start = self.start.ok_or("it has no DTSTART")?;
        let length = match (self.length, self.end) {
            (Some(length), _) => length,
            (None, Some(end)) => Length::between(&start, &end),
            (None, None) if start.day => Length { civil: SignedDuration::from_hours(24), exact: Span::ZERO },
            (None, None) => return Err("it has no end".into()),
        };
        if length.about() <= SignedDuration::ZERO {
            return Err("it ends before it begins".into());
        }
        let rule = self.rule.map(|text| Rule::parse(&text, &start, days)).transpose()?;
        let plan = SignedDuration::from_millis(MAX_PLAN.0);
        if rule.is_some() && length.about() > plan {
            return Err("it recurs and is longer than a year".into());
        }
        let (whole, moments): (Vec<When>, Vec<When>) =
            self.except.into_iter().partition(|w| w.day && !start.day);
        Ok(Event {
            summary: self.summary,
            attendees: self.attendees,
            declined: self.declined,
            start,
            length,
            rule,
            also: self.also,
            except: moments.iter().map(When::at).collect(),
            except_days: whole.iter().map(|w| w.civil.date()).collect(),
            replaced: Arc::default(),
        })
    }
}

fn append(list: &mut Vec<When>, more: Vec<When>) -> Result<(), String> {
    if list.len() + more.len() > MAX_LIST {
        return Err(format!("more than {MAX_LIST} of them"));
    }
    list.extend(more);
    Ok(())
}

impl Event {
    /// Begin and end of every occurrence that touches a stretch of time.
    pub fn occurrences(&self, from: Ts, to: Ts) -> impl Iterator<Item = (Ts, Ts)> {
        let zone = &self.start.zone;
        let back = |civil: DateTime| civil.saturating_sub(self.length.about().saturating_add(SLACK));
        let (first, last) = (back(zone.civil(from)), zone.civil(to).saturating_add(SLACK));
        let series = self.rule.iter().flat_map(move |rule| rule.dates(self.start.civil, first, last));
        let one = self.rule.is_none().then_some(self.start.civil);
        // The single date of an event can be replaced, but not removed by an EXDATE.
        let own = series.map(move |civil| (zone, civil, true)).chain(one.map(|civil| (zone, civil, false)));
        let near = self.also.iter().filter(move |when| first <= when.civil && when.civil <= last);
        own.chain(near.map(|when| (&when.zone, when.civil, true))).filter_map(
            move |(zone, civil, excepts)| {
                let begin = zone.meant(civil);
                let end = zone.meant(civil.saturating_add(self.length.civil)) + self.length.exact;
                let gone = excepts && self.except.contains(&begin)
                    || self.except_days.contains(&civil.date())
                    || self.replaced.contains(&begin);
                (!gone && begin < end && begin < to && from < end).then_some((begin, end))
            },
        )
    }

    /// Whether an occurrence covers `at`.
    pub fn holds(&self, at: Ts) -> bool {
        self.occurrences(at, at + Span::millis(1)).next().is_some()
    }
}

#[cfg(test)]
mod tests;

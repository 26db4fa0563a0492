//! Calendars (RFC 5545): events with times, recurrences and people, out of bytes that somebody else
//! wrote.
//!
//! What is understood is what shifts are made of; an event that is not is left out with a warning,
//! because a shift that is read wrongly wakes the wrong person. A text that is no calendar, or ends
//! early, is refused as a whole: the copy before it is better. Where an event has an end, each of
//! its recurrences ends when the clock shows that time, as calendars draw it: a week from Monday to
//! Monday at 09:00 has no hole when the clock is set. Time zones go by their names; their rules
//! come from [`Zone`].

mod content;
mod rule;
mod value;
mod windows;

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use jiff::civil::{Date, DateTime};

use super::{MAX_PLAN, Zone};
use content::Line;
use rule::Rule;
use stepwatch_model::{Span, Ts};
use value::{Length, When};

/// Events of a calendar; further ones are left out and counted.
const MAX_EVENTS: usize = 20_000;
/// People, and exceptions, of one event.
const MAX_LIST: usize = 1000;
/// Warnings kept.
const MAX_WARNINGS: usize = 50;
/// Days by which a moment may be another date in another place, and the clock may be set.
const SLACK: SignedDuration = SignedDuration::from_hours(48);

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Calendar {
    events: Vec<Event>,
    /// Of what was left out.
    pub warnings: Vec<String>,
    /// Events left out.
    pub skipped: usize,
}

/// One event, or a series of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub summary: String,
    /// Addresses, in small letters.
    pub attendees: Vec<String>,
    /// Those of them who have said that they do not come.
    pub declined: Vec<String>,
    start: When,
    length: Length,
    rule: Option<Rule>,
    except: BTreeSet<Ts>,
    except_days: BTreeSet<Date>,
}

/// An event as it is read.
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
    /// Of an event that replaces one of a series: which.
    instance: Option<When>,
    cancelled: bool,
    wrong: Option<String>,
}

impl Calendar {
    /// Times without a zone are of `zone`.
    pub fn parse(text: &str, zone: &Zone) -> Result<Self, String> {
        let (drafts, over) = read(text, zone)?;
        let mut calendar = Self::default();
        if over > 0 {
            calendar.warn(over, format!("{over} events are left out: there are more than {MAX_EVENTS}"));
        }
        // What replaces one event of a series takes its place.
        let mut replaced: BTreeMap<String, BTreeSet<Ts>> = BTreeMap::new();
        for draft in &drafts {
            if let Some(instance) = &draft.instance {
                replaced.entry(draft.uid.clone()).or_default().insert(instance.at());
            }
        }
        for mut draft in drafts {
            let (name, cancelled) = (core::mem::take(&mut draft.uid), draft.cancelled);
            let series = draft.instance.is_none();
            let summary = draft.summary.clone();
            match draft.finish() {
                Ok(_) if cancelled => {}
                Ok(mut events) => {
                    if let (true, Some(instances)) = (series, replaced.get(&name)) {
                        events.iter_mut().for_each(|e| e.except.extend(instances));
                    }
                    calendar.events.append(&mut events);
                }
                Err(why) => calendar.warn(1, format!("event {summary:?} is left out: {why}")),
            }
        }
        Ok(calendar)
    }

    pub(super) fn warn(&mut self, skipped: usize, warning: String) {
        self.skipped += skipped;
        if self.warnings.len() < MAX_WARNINGS && !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    pub fn events(&self) -> &[Event] {
        &self.events
    }
}

/// Every event of a text, and how many were too many.
fn read(text: &str, zone: &Zone) -> Result<(Vec<Draft>, usize), String> {
    let mut zone = zone.clone();
    let (mut drafts, mut over) = (Vec::new(), 0);
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
                if name == "VEVENT" && open.len() == 1 {
                    draft = Some(Draft::default());
                }
                open.push(name);
            }
            "END" => {
                ended = open.pop().as_deref() == Some("VCALENDAR");
                let Some(done) = draft.take_if(|_| open.len() == 1) else { continue };
                if drafts.len() < MAX_EVENTS { drafts.push(done) } else { over += 1 }
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
        (true, true) => Ok((drafts, over)),
        (false, true) => Err("is not a calendar: there is no BEGIN:VCALENDAR".into()),
        _ => Err("ends early: there is no END:VCALENDAR".into()),
    }
}

impl Draft {
    /// Takes in one property. The first mistake is kept; it is told when the event is whole.
    fn take(&mut self, line: &Line, zone: &Zone) {
        if let Err(why) = self.property(line, zone) {
            self.wrong.get_or_insert(format!("{}: {why}", line.name));
        }
    }

    fn property(&mut self, line: &Line, zone: &Zone) -> Result<(), String> {
        let when = || When::parse(&line.value, line.parameter("TZID"), zone);
        match line.name.as_str() {
            "UID" => line.value.trim().clone_into(&mut self.uid),
            "SUMMARY" => self.summary = line.text(),
            "STATUS" => self.cancelled = line.value.trim().eq_ignore_ascii_case("CANCELLED"),
            "ATTENDEE" if self.attendees.len() + self.declined.len() < MAX_LIST => {
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

    /// The event, and one for each further date of it.
    fn finish(self) -> Result<Vec<Event>, String> {
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
        let rule = self.rule.map(|text| Rule::parse(&text, &start)).transpose()?;
        let plan = SignedDuration::from_millis(MAX_PLAN.0);
        if rule.is_some() && length.about() > plan {
            return Err("it recurs and is longer than a year".into());
        }
        let (days, moments): (Vec<When>, Vec<When>) =
            self.except.into_iter().partition(|w| w.day && !start.day);
        let mut event = Event {
            summary: self.summary,
            attendees: self.attendees,
            declined: self.declined,
            start,
            length,
            rule,
            except: moments.iter().map(When::at).collect(),
            except_days: days.iter().map(|w| w.civil.date()).collect(),
        };
        let further = |also: When| Event { start: also, rule: None, ..event.clone() };
        let mut events: Vec<Event> = self.also.into_iter().map(further).collect();
        if event.rule.is_none() {
            // Its one date can be replaced, but is no exception to itself.
            event.except.clear();
        }
        events.push(event);
        Ok(events)
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
        let series = self.rule.iter().flat_map(move |rule| {
            rule.dates(self.start.civil, back(zone.civil(from)), zone.civil(to).saturating_add(SLACK))
        });
        let one = self.rule.is_none().then_some(self.start.civil);
        series.chain(one).filter_map(move |civil| {
            let begin = zone.meant(civil);
            let end = zone.meant(civil.saturating_add(self.length.civil)) + self.length.exact;
            let kept = !self.except.contains(&begin) && !self.except_days.contains(&civil.date());
            (kept && begin < end && begin < to && from < end).then_some((begin, end))
        })
    }

    /// Whether it is on at a moment.
    pub fn holds(&self, at: Ts) -> bool {
        self.occurrences(at, at + Span::millis(1)).next().is_some()
    }
}

#[cfg(test)]
mod tests;

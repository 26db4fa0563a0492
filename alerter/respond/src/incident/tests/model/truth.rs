//! The model of one fault of one run: its state, and who must be notified of it when. It does not
//! use ladders, lanes and timers.

use super::*;

/// The configured times that decide when people are notified.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting {
    /// How long after its beginning a ticket is first notified.
    pub(super) batch_window: Span,
    pub(super) ack_timeout: Option<Span>,
}

/// An expected message: to whom, what, and why; any of these reasons will do.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Word {
    pub(super) of: Subject,
    pub(super) to: &'static str,
    pub(super) action: Action,
    pub(super) why: Vec<Reason>,
}

/// The run, and the kind of the fault.
pub(super) type Subject = (u8, Kind);

#[derive(Debug, Clone, Default)]
pub(super) struct Truth {
    pub(super) open: Option<Open>,
    /// When the last incident ended, and how often it had come back.
    pub(super) last: Option<(Ts, u32)>,
    /// Resolved by hand while it held: it reopens unless it clears, or sooner if it gets worse.
    pub(super) closed: Option<Closed>,
}

#[derive(Debug, Clone)]
pub(super) struct Closed {
    pub(super) back: Ts,
    was: Open,
}

#[derive(Debug, Clone)]
pub(super) struct Open {
    pub(super) of: Subject,
    pub(super) severity: Severity,
    /// The severity of the last finding.
    pub(super) last: Severity,
    pub(super) holds: bool,
    pub(super) acked: Option<Ts>,
    pub(super) flaps: u32,
    pub(super) ends: Option<Ts>,
    /// When the next call is due, unless something suppresses it then.
    pub(super) due: Option<Ts>,
    /// Calls since it was announced.
    pub(super) calls: u32,
    /// The highest level that was ever called.
    pub(super) level: u32,
    /// Who has been notified of it; `last_notified` is when anybody last was.
    pub(super) knows: BTreeSet<&'static str>,
    pub(super) last_notified: Option<Ts>,
    /// An update that waits, with the time at which it is due and its reason.
    pub(super) news: Option<(Ts, Reason)>,
    /// It was over before anybody was notified: nobody will be, unless it returns.
    pub(super) dropped: bool,
    /// People were notified that it flaps.
    pub(super) flapping: bool,
    /// Something suppressed it since the last call.
    pub(super) was_suppressed: bool,
}

impl Truth {
    pub(super) fn raise(
        &mut self,
        s: &Setting,
        of: Subject,
        now: Ts,
        severity: Severity,
        suppressed: bool,
    ) -> Vec<Word> {
        let Some(open) = &mut self.open else {
            if let Some(closed) = self.closed.take_if(|closed| severity > closed.was.last) {
                // A finding that is worse than it was then reopens it at once, unless it had been
                // as bad before.
                let mut open = closed.was;
                let raised = severity > open.severity;
                (open.severity, open.last) = (severity.max(open.severity), severity);
                open.last_notified = Some(now);
                open.announce(s, now);
                let why = if raised { Reason::Raised } else { Reason::Reopened };
                if !raised {
                    open.level = 0;
                }
                let words = open.call(now, suppressed, why).into_iter().collect();
                self.open = Some(open);
                return words;
            }
            if self.closed.is_none() {
                let fresh = self.last.filter(|(at, _)| now - *at < Span::secs(3600));
                let mut open = Open::new(of, severity, fresh.map_or(0, |(_, flaps)| flaps + 1));
                open.announce(s, now);
                self.open = Some(open);
            }
            return Vec::new();
        };
        let mut words = Vec::new();
        if open.ends.take().is_some() {
            open.flaps += 1;
            words.extend(open.came_back(s, now, suppressed));
        }
        (open.holds, open.last) = (true, severity);
        if severity > open.severity {
            (open.severity, open.acked) = (severity, None);
            open.announce(s, now);
            // The reason if it is notified at once.
            words.extend(open.call(now, suppressed, Reason::Raised));
        }
        words
    }

    pub(super) fn clear(&mut self, now: Ts) {
        self.closed = None;
        if let Some(open) = self.open.as_mut().filter(|open| open.holds) {
            open.holds = false;
            open.ends = Some(now + Span(HOLD.0 << open.flaps.min(5)));
        }
    }

    pub(super) fn end(&mut self, now: Ts, by_hand: bool) -> Vec<Word> {
        let Some(open) = self.open.take() else { return Vec::new() };
        self.last = Some((now, open.flaps));
        let words = open.to_all(Action::Resolve, Reason::Resolved);
        if by_hand && open.holds {
            let was = Open { acked: None, due: None, news: None, dropped: false, ..open };
            self.closed = Some(Closed { back: now + REOPEN_AFTER, was });
        }
        words
    }

    /// Reopens what a person resolved and still holds, when its time has passed.
    pub(super) fn come_back(&mut self, s: &Setting, now: Ts) -> Option<&mut Open> {
        let mut open = self.closed.take_if(|closed| closed.back <= now)?.was;
        open.last_notified = Some(now);
        open.announce(s, now);
        Some(self.open.insert(open))
    }
}

impl Open {
    fn new(of: Subject, severity: Severity, flaps: u32) -> Self {
        Self {
            of,
            severity,
            last: severity,
            holds: true,
            acked: None,
            flaps,
            ends: None,
            due: None,
            calls: 0,
            level: 0,
            knows: BTreeSet::new(),
            last_notified: None,
            news: None,
            dropped: false,
            flapping: false,
            was_suppressed: false,
        }
    }

    fn is_page(&self) -> bool {
        self.severity == Page
    }

    pub(super) fn all_levels_called(&self) -> bool {
        self.calls >= if self.is_page() { 2 } else { 1 }
    }

    fn announce(&mut self, s: &Setting, now: Ts) {
        let waits = !self.is_page() && self.level == 0;
        self.due = Some(now + if waits { s.batch_window } else { Span::ZERO });
        (self.calls, self.dropped) = (0, false);
    }

    /// The pause after the last call: five minutes to the phone, five to its repeat, then half an
    /// hour each.
    fn pause(&self) -> Option<Span> {
        let secs = match self.calls {
            0 => 0,
            1 | 2 if self.is_page() => 300,
            _ if self.is_page() => 1800,
            _ => return None,
        };
        Some(Span::secs(secs))
    }

    /// Resumes the calls one wait later.
    fn resume(&mut self, now: Ts) {
        self.due = self.pause().map(|pause| now + pause);
        self.dropped = false;
    }

    fn to_all(&self, action: Action, why: Reason) -> Vec<Word> {
        self.knows.iter().map(|to| Word { of: self.of, to, action, why: vec![why] }).collect()
    }

    pub(super) fn call_for(&mut self, now: Ts, to: &'static str, why: Vec<Reason>) -> Word {
        self.knows.insert(to);
        self.last_notified = Some(now);
        Word { of: self.of, to, action: Action::Trigger, why }
    }

    /// The next call, if it is due and not suppressed. `why` is its reason if it is not an ordinary
    /// one.
    pub(super) fn call(&mut self, now: Ts, suppressed: bool, why: Reason) -> Option<Word> {
        self.due.filter(|at| *at <= now && !suppressed)?;
        let (to, level) = if self.is_page() && self.calls > 0 { ("phone", 2) } else { ("chat", 1) };
        let again = self.calls >= if self.is_page() { 2 } else { 1 };
        let ordinary = why == Reason::StillFiring;
        let why = match self.level {
            _ if !ordinary => why,
            0 => Reason::First,
            _ if level == 1 && !again => Reason::StillFiring,
            _ if !again => Reason::Escalated,
            _ if self.calls == 2 => Reason::Repeated,
            _ => Reason::StillFiring,
        };
        let mut whys = vec![why];
        if core::mem::take(&mut self.was_suppressed) {
            whys.extend([Reason::SilenceEnded, Reason::InhibitionEnded]);
        }
        self.calls += 1;
        self.level = self.level.max(level);
        self.due = self.pause().map(|pause| now + pause);
        Some(self.call_for(now, to, whys))
    }

    /// The first message after it reopened.
    pub(super) fn reopened(&mut self, now: Ts, suppressed: bool) -> Option<Word> {
        self.level = 0;
        self.call(now, suppressed, Reason::Reopened)
    }

    fn notify(&mut self, now: Ts, suppressed: bool, why: Reason) -> Vec<Word> {
        let free = self.last_notified.map_or(now, |at| at + INTERVAL);
        if suppressed || free > now {
            self.news = (!self.knows.is_empty()).then_some((free.max(now), why));
            return Vec::new();
        }
        self.news = None;
        self.last_notified = Some(now).filter(|_| !self.knows.is_empty()).or(self.last_notified);
        self.to_all(Action::Update, why)
    }

    fn came_back(&mut self, s: &Setting, now: Ts, suppressed: bool) -> Vec<Word> {
        let Some(acked) = self.acked else {
            if self.dropped {
                self.announce(s, now);
            }
            return Vec::new();
        };
        if s.ack_timeout.is_some_and(|timeout| acked + timeout <= now) {
            return self.ack_expired(s, now, suppressed);
        }
        if self.flaps <= 3 {
            return self.notify(now, suppressed, Reason::CameBack);
        }
        if core::mem::replace(&mut self.flapping, true) {
            return Vec::new();
        }
        self.notify(now, suppressed, Reason::Flapping)
    }

    fn ack_expired(&mut self, s: &Setting, now: Ts, suppressed: bool) -> Vec<Word> {
        self.acked = None;
        self.announce(s, now);
        self.call(now, suppressed, Reason::AckExpired).into_iter().collect()
    }

    pub(super) fn ack(&mut self, now: Ts) -> Vec<Word> {
        if self.acked.is_some() {
            return Vec::new();
        }
        (self.acked, self.due, self.news) = (Some(now), None, None);
        self.last_notified = Some(now).filter(|_| !self.knows.is_empty()).or(self.last_notified);
        self.to_all(Action::Ack, Reason::Acknowledged)
    }

    pub(super) fn unack(&mut self, now: Ts) -> Vec<Word> {
        if self.acked.take().is_none() {
            return Vec::new();
        }
        self.resume(now);
        self.news = None;
        self.last_notified = Some(now).filter(|_| !self.knows.is_empty()).or(self.last_notified);
        self.to_all(Action::Update, Reason::Unacknowledged)
    }

    /// Calls now, even if something suppresses it.
    pub(super) fn escalate(&mut self, now: Ts) -> Option<Word> {
        (self.acked, self.due, self.dropped) = (None, Some(now), false);
        let was = core::mem::take(&mut self.was_suppressed);
        let word = self.call(now, false, Reason::Escalated);
        self.was_suppressed = was;
        word
    }

    /// A receiver will never accept a call.
    pub(super) fn failed(&mut self, now: Ts, suppressed: bool) -> Vec<Word> {
        if self.acked.is_some() || self.knows.is_empty() {
            return Vec::new();
        }
        if !self.all_levels_called() {
            self.due = Some(now);
            return self.call(now, suppressed, Reason::ReceiverFailed).into_iter().collect();
        }
        self.unreached(now, suppressed)
    }

    /// Notifies the receivers that had not been notified.
    pub(super) fn unreached(&mut self, now: Ts, suppressed: bool) -> Vec<Word> {
        if suppressed || self.acked.is_some() || self.knows.is_empty() {
            return Vec::new();
        }
        let not_notified: Vec<_> = RECEIVERS.into_iter().filter(|to| !self.knows.contains(to)).collect();
        not_notified.into_iter().map(|to| self.call_for(now, to, vec![Reason::ReceiverFailed])).collect()
    }

    /// Handles the deadlines that have passed.
    pub(super) fn advance(&mut self, s: &Setting, now: Ts, suppressed: bool) -> Vec<Word> {
        self.was_suppressed |= suppressed;
        let mut words = Vec::new();
        if self.ack_ends(s).is_some_and(|at| at <= now) {
            words.extend(self.ack_expired(s, now, suppressed));
        }
        if self.due.is_some_and(|at| at <= now) && !suppressed && self.level == 0 && !self.holds {
            (self.due, self.dropped) = (None, true);
        }
        words.extend(self.call(now, suppressed, Reason::StillFiring));
        if let Some((_, why)) = self.news.filter(|(at, _)| *at <= now && !suppressed) {
            words.extend(self.notify(now, suppressed, why));
        }
        words
    }

    pub(super) fn ack_ends(&self, s: &Setting) -> Option<Ts> {
        Some(self.acked.filter(|_| self.holds)? + s.ack_timeout?)
    }

    /// The times of the next deadlines.
    pub(super) fn times(&self, s: &Setting) -> impl Iterator<Item = Ts> {
        [self.ends, self.due, self.news.map(|(at, _)| at), self.ack_ends(s)].into_iter().flatten()
    }
}

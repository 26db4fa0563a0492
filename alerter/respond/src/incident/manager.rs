//! The open incidents: findings in, notifications out.
//!
//! A run, and a node, has at most one open incident a cause; what turns out to be one sickness of
//! both is one incident ([`super::kin`]). It opens with the first raised finding, follows the most
//! severe one, and resolves when every kind that raised it has been clear for the hold time. Each
//! return within the hold, and each incident that follows a resolved one of the same cause within
//! an hour, doubles the hold: a condition that comes and goes is one incident, not twenty.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::closed::Closed;
use super::dispatch::{Lane, News};
use super::escalation::Ladders;
use super::flap_history::{FLAP_MEMORY, FlapHistory};
use super::index::Index;
use super::inhibition::Inhibition;
use super::record::worse;
use super::renotify_policy::{MAX_ALERTS, is_news};
use super::storm::{Storms, Tally};
use super::{End, Ended, IncidentRecord, State, id, labels};
use crate::config::ResponderConfig;
use crate::effect::{Action, Effect, TimelineEntry};
use crate::external::{External, LabelSet};
use crate::matcher::{Labels, all_hold};
use crate::message::{Reason, Why};
use crate::oncall::OnCall;
use crate::route::Router;
use crate::silence::Silences;
use stepwatch_model::{
    Cause, Change, Context, Finding, Kind, Origin, RunSummary, Scope, Sentence, Severity, Subject, Ts,
};

/// Suspects kept an incident, and nodes.
pub(super) const MAX_SUSPECTS: usize = 8;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Incident {
    pub(crate) record: IncidentRecord,
    pub(crate) summary: RunSummary,
    /// What it answers for: what it was opened for, and what turned out to be the same sickness.
    pub(super) subjects: BTreeSet<Subject>,
    pub(super) raised: BTreeMap<(Subject, Kind), Severity>,
    /// Every kind that was ever raised in it, by its subject.
    pub(super) known: BTreeMap<Subject, BTreeSet<Kind>>,
    /// When a node last had something new to say in it.
    pub(super) node_at: Option<Ts>,
    /// When it resolves if nothing comes back.
    pub(super) resolve_at: Option<Ts>,
    pub(super) ladders: Ladders,
    pub(super) lanes: BTreeMap<String, Lane>,
    /// When anybody was told anything of it last.
    pub(super) told_at: Option<Ts>,
    pub(super) news: Option<News>,
    /// Since it was announced it has been counted among those that may make a storm.
    pub(super) counted: bool,
    /// That it comes and goes was told.
    pub(super) flapping: bool,
    /// A person stopped the run that it hit: what is left of it is nobody's emergency.
    pub(super) calm: bool,
    /// What it counts, if it stands for many.
    pub(super) storm: Option<Tally>,
    /// Runs and nodes that have paged in it: whoever acknowledged it knows of these.
    pub(super) paged: BTreeSet<Scope>,
    /// Of what counts as over because nothing was heard of it any more: when it was last heard of.
    pub(super) silent: BTreeMap<(Subject, Kind), Ts>,
    /// The alerts of other programs that were ever in it, by what makes them one.
    pub(super) alerts: BTreeSet<u64>,
    /// Its run ended, and it waits whether anybody answers.
    pub(super) outlived_its_run: bool,
    pub(crate) origin: Option<Origin>,
}

#[derive(Debug, Default)]
pub(crate) struct Manager {
    pub(crate) config: ResponderConfig,
    pub(super) router: Router,
    /// Shared with whoever shows it.
    pub(crate) oncall: Arc<OnCall>,
    pub(crate) open: BTreeMap<String, Incident>,
    /// Resolved by hand, and still firing.
    pub(crate) closed: Closed,
    pub(crate) flap_history: FlapHistory,
    pub(crate) storms: Storms,
    pub(crate) silences: Silences,
    pub(super) inhibition: Inhibition,
    pub(super) index: Index,
    pub(crate) external: External,
    /// Which incident answers for a subject.
    pub(super) by_subject: BTreeMap<Subject, String>,
    /// What is hidden by a silence or an incident.
    pub(super) hidden: BTreeMap<String, BTreeSet<String>>,
    /// Incidents that changed since the last look; gone ones are not in `open`.
    pub(crate) touched: Vec<String>,
}

impl Manager {
    pub(crate) fn new(config: ResponderConfig) -> Self {
        let mut book = Self::default();
        book.configure(config);
        book
    }

    /// The team of an alert with these labels: the one that it names, or else the first under
    /// `teams` whose matchers hold. Empty of none.
    pub(crate) fn team_of(&self, labels: &LabelSet) -> String {
        if let Some(named) = labels.get("team") {
            return named.to_owned();
        }
        let teams = self.router.teams();
        if teams.is_empty() {
            return String::new();
        }
        let labels = labels.to_labels();
        let found = teams.iter().find(|(matchers, _)| all_hold(matchers, &labels));
        found.map(|(_, team)| team.name.clone()).unwrap_or_default()
    }

    pub(crate) fn configure(&mut self, config: ResponderConfig) {
        // The alerter refuses a configuration whose matchers do not parse; a route that slipped through
        // matches nothing, and what no route matches goes to every receiver.
        Arc::make_mut(&mut self.oncall).configure(config.oncall.clone());
        self.router = Router::new(&config.routes, &config.teams).unwrap_or_default();
        self.inhibition = Inhibition::new(&config);
        self.index = Index::new(&config.group_by);
        for (id, i) in &self.open {
            self.inhibition.note(id, i);
            self.index.note(id, i);
        }
        self.silences.configure(config.silences.clone(), &config.maintenance, &config.oncall.time_intervals);
        self.external.configure(config.alerts.clone());
        self.config = config;
        // What they wait for may be another time now.
        self.touched.extend(self.open.keys().cloned());
    }

    /// Takes in an incident that was stored.
    pub(crate) fn restore(&mut self, id: String, incident: Incident) {
        if incident.record.state == State::Resolved {
            self.touched.push(id.clone());
            return self.closed.keep(id, incident);
        }
        for subject in &incident.subjects {
            self.by_subject.insert(subject.clone(), id.clone());
        }
        if let Some(quiet) = &incident.record.quiet {
            self.hidden.entry(quiet.by.clone()).or_default().insert(id.clone());
        }
        self.inhibition.note(&id, &incident);
        self.index.note(&id, &incident);
        self.touched.push(id.clone());
        self.open.insert(id, incident);
    }

    /// To be called when all that was stored is taken in.
    pub(crate) fn restored(&mut self) {
        self.inhibition.restored();
    }

    /// Why a run stands still, or is slow, if it does: the kind that is raised of it.
    pub(crate) fn standstill_or_slowness(&self, run: &str) -> Option<Kind> {
        [Cause::Progress, Cause::Speed].into_iter().find_map(|cause| {
            let subject = Subject { scope: Scope::Run(run.to_owned()), cause };
            let i = self.open.get(self.by_subject.get(&subject)?)?;
            i.raised.keys().filter(|(s, _)| *s == subject).map(|(_, kind)| *kind).min()
        })
    }

    /// The runs that an open incident is about.
    pub(crate) fn runs_of(&self, id: &str) -> BTreeSet<String> {
        let Some(i) = self.open.get(id) else { return BTreeSet::new() };
        let of_run = |subject: &Subject| match &subject.scope {
            Scope::Run(run) => Some(run.clone()),
            _ => None,
        };
        let named = Some(i.record.run.clone()).filter(|run| !run.is_empty());
        named.into_iter().chain(i.subjects.iter().filter_map(of_run)).collect()
    }

    pub(super) fn find(&self, subject: &Subject) -> Option<String> {
        self.by_subject.get(subject).cloned()
    }

    /// The labels of what a finding would open.
    pub(super) fn labels_of(&self, context: &Context, v: &Finding) -> Labels {
        labels::of(&self.blank(Ts(0), context, v, 0), &context.run, self.router.teams())
    }

    /// Brings the labels up to what is known of the incident.
    pub(super) fn relabel(&mut self, id: &str) {
        if let Some(i) = self.open.get_mut(id) {
            i.record.labels = labels::of(&i.record, &i.summary, self.router.teams());
            self.inhibition.note(id, i);
            self.index.note(id, i);
        }
    }

    pub(crate) fn finding(&mut self, now: Ts, context: &Context, v: &Finding, out: &mut Vec<Effect>) {
        self.take(now, context, v, out);
        self.explain_others(now, out);
    }

    fn take(&mut self, now: Ts, context: &Context, v: &Finding, out: &mut Vec<Effect>) {
        let subject = Subject { scope: context.scope.clone(), cause: v.kind.cause() };
        if !v.change.ends() {
            self.let_go(now, &subject, out);
        }
        let own = self.find(&subject);
        if own.is_none()
            && let Some(id) = self.closed.find(&subject)
        {
            return self.while_closed(now, &id, &subject, context, v, out);
        }
        match v.change {
            Change::Clear | Change::Lapse => {
                self.flap_history.reopen(&subject, v.kind);
                if let Some(id) = own {
                    self.clear(now, &id, &subject, context, v, out);
                }
            }
            Change::Raise | Change::Another | Change::More => {
                if let Some(id) = own.filter(|id| !self.makes_room(now, id, &subject, v, out)) {
                    return self.update(now, &id, &subject, context, v, out);
                }
                if let Some(id) = self.hang_that_was(context, v) {
                    out.push(timeline(now, &id, format!("also {}: {}", v.kind.title(), v.why)));
                } else if let Some(id) = self.kin(now, context, v) {
                    self.join(now, &id, &subject, context, v, out);
                    self.absorb(now, &id, context, out);
                } else if let Some(id) = self.grouped(context, v) {
                    // Only its labels bring it here: whoever has the rest in hand knows nothing of it.
                    let context = Context { apart: true, ..context.clone() };
                    self.join(now, &id, &subject, &context, v, out);
                    self.absorb(now, &id, &context, out);
                } else {
                    self.create(now, subject, context, v, out);
                }
            }
            Change::Note => {
                match own.or_else(|| self.hang_that_was(context, v)).or_else(|| self.kin(now, context, v)) {
                    Some(id) => {
                        out.push(timeline(now, &id, format!("also seen: {}", v.why)));
                        if let Some(i) = self.open.get_mut(&id).filter(|_| !v.suspects.is_empty()) {
                            i.record.suspect(v, false);
                        }
                        self.finish(&id, out);
                    }
                    None => self.annotate(now, context, v, out),
                }
            }
        }
    }

    /// The step that ends a hang is a long one: that is the hang, not a second sickness.
    fn hang_that_was(&self, context: &Context, v: &Finding) -> Option<String> {
        let stall = v.kind == Kind::Stall && !v.change.ends();
        let hang = Subject { scope: context.scope.clone(), cause: Cause::Progress };
        if stall { self.find(&hang).or_else(|| self.closed.find(&hang)) } else { None }
    }

    fn create(&mut self, now: Ts, subject: Subject, context: &Context, v: &Finding, out: &mut Vec<Effect>) {
        let flaps = self.flap_history.flaps(now, &subject);
        let record = self.record(now, context, v, flaps);
        let id = record.id.clone();
        let again = if flaps > 0 {
            format!(" (came back {flaps} times within {FLAP_MEMORY})")
        } else {
            String::new()
        };
        out.push(timeline(now, &id, format!("opened as {}: {}{again}", v.severity.as_str(), v.why)));
        let incident = Incident {
            raised: BTreeMap::from([((subject.clone(), v.kind), v.severity)]),
            known: BTreeMap::from([(subject.clone(), BTreeSet::from([v.kind]))]),
            node_at: context.is_node().then_some(now),
            paged: (v.severity == Severity::Page).then(|| context.scope.clone()).into_iter().collect(),
            alerts: context.came.iter().copied().take(MAX_ALERTS).collect(),
            origin: context.origin.clone(),
            ..Incident::new(record, context.run.clone(), BTreeSet::from([subject]))
        };
        self.restore(id.clone(), incident);
        self.announce(now, &id, v.ts, &Why::first(), out);
        self.finish(&id, out);
    }

    /// An incident that is over and only waits whether it comes back gives way to another trouble
    /// that is as severe: nobody who was told of the first knows of the second. True if it did.
    fn makes_room(
        &mut self,
        now: Ts,
        id: &str,
        subject: &Subject,
        v: &Finding,
        out: &mut Vec<Effect>,
    ) -> bool {
        let Some(i) = self.open.get(id) else { return false };
        let gives_way = i.resolve_at.is_some()
            && i.raised.is_empty()
            && i.is_news(subject, v.kind)
            && v.severity >= i.record.severity.max(Severity::Ticket);
        if gives_way {
            let end = i.end().unwrap_or_else(|| End::of(Ended::Clear));
            let words = format!("over; {} is another trouble", v.kind.title());
            self.resolve(now, id, "engine", end, &words, out);
        }
        gives_way
    }

    /// What was two things is one sickness: whoever knows of the incident learns of the other.
    fn join(
        &mut self,
        now: Ts,
        id: &str,
        subject: &Subject,
        context: &Context,
        v: &Finding,
        out: &mut Vec<Effect>,
    ) {
        let Some(i) = self.open.get_mut(id) else { return };
        i.subjects.insert(subject.clone());
        self.by_subject.insert(subject.clone(), id.to_owned());
        let told = |i: &Incident| i.lanes.values().map(|l| l.seq).sum::<u32>();
        let before = told(i);
        let how = if context.apart { "the same labels of group_by" } else { "one sickness" };
        out.push(timeline(now, id, format!("{} of {}: {how}", v.kind.title(), subject.scope.name())));
        self.update(now, id, subject, context, v, out);
        if self.open.get(id).is_some_and(|i| before > 0 && told(i) == before) {
            let reason = format!("also {} of {}: {}", v.kind.title(), subject.scope.name(), v.why);
            self.tell_all(now, id, Action::Update, reason, out);
            self.finish(id, out);
        }
    }

    fn annotate(&mut self, now: Ts, context: &Context, v: &Finding, out: &mut Vec<Effect>) {
        let mut record = self.record(now, context, v, 0);
        record.labels = labels::of(&record, &context.run, self.router.teams());
        record.state = State::Resolved;
        record.resolved_at = Some(now);
        record.end_step = Some(v.step);
        record.end = Some(End::of(Ended::Clear));
        // It is not open, but its number is used up.
        self.touched.push(record.id.clone());
        out.push(timeline(now, &record.id, format!("noted: {}", v.why)));
        out.push(Effect::Incident(Box::new(record)));
    }

    fn record(&mut self, now: Ts, context: &Context, v: &Finding, flaps: u32) -> IncidentRecord {
        self.flap_history.counter += 1;
        self.blank(now, context, v, flaps)
    }

    fn blank(&self, now: Ts, context: &Context, v: &Finding, flaps: u32) -> IncidentRecord {
        let mut suspects = v.suspects.clone();
        suspects.truncate(MAX_SUSPECTS);
        IncidentRecord {
            id: id::new(now, context.scope.name(), v.kind.cause(), self.flap_history.counter),
            run: context.run.name.clone(),
            nodes: sick(context, v),
            cause: v.kind.cause(),
            kind: v.kind,
            severity: v.severity,
            state: State::Open,
            signal: v.signal.clone().into_owned(),
            start_step: v.start_step,
            opened_step: v.step,
            detected_step: v.step,
            end_step: None,
            value: v.value,
            expected: v.expected,
            score: v.score,
            summary: v.why.clone(),
            suspects,
            opened_at: now,
            resolved_at: None,
            acked_by: None,
            acked_at: None,
            level: 0,
            next_at: None,
            flaps,
            labels: Labels::new(),
            quiet: None,
            end: None,
            named: None,
        }
    }

    pub(super) fn update(
        &mut self,
        now: Ts,
        id: &str,
        subject: &Subject,
        context: &Context,
        v: &Finding,
        out: &mut Vec<Effect>,
    ) {
        let weighed = !context.is_node() || self.standstill_or_slowness(&context.run.name).is_some();
        let Some(i) = self.open.get_mut(id) else { return };
        let another = i.is_of_another_device(subject, context, v)
            || i.pages_at_last(subject, v)
            || context.apart && !i.known.contains_key(subject)
            || v.change == Change::Another && i.knows_less_than(subject, context) && !i.is_back(context);
        let elsewhere = v.severity == Severity::Page && i.pages_anew(context, v);
        let more = v.change.says_more() && i.known.contains_key(subject) && i.resolve_at.is_none();
        i.hears_of(context);
        i.meet(now, context, v);
        let news = another || i.is_news(subject, v.kind);
        self.holds(now, id, subject, context, v, out);
        let Some(i) = self.open.get_mut(id) else { return };
        let (had_severity, had_kind) = (i.record.severity, i.record.kind);
        let leads = (v.severity, worse(v.kind)) >= (had_severity, worse(had_kind));
        i.record.suspect(v, leads || weighed && !(context.is_node() && i.falls()));
        let fabric = i.fabric(context, v);
        if leads {
            i.record.follow(v, fabric.as_ref().map(Sentence::from));
        } else if v.kind != had_kind {
            out.push(timeline(now, id, format!("also {}: {}", v.kind.title(), v.why)));
        }
        if let Some(why) = fabric.filter(|_| !weighed) {
            i.record.suspect_fabric(why);
        }
        if v.severity > had_severity {
            self.raise(now, id, had_severity, v, out);
        } else if (news || elsewhere) && v.severity == Severity::Page && i.record.state == State::Acknowledged
        {
            // An acknowledgement covers what was known, and this was not.
            i.record.reopen();
            let what = if another || elsewhere { v.why.what() } else { v.kind.title() };
            let words = format!("after it was acknowledged: {what}");
            self.announce(now, id, v.ts, &Why::new(Reason::News, words), out);
        } else if (another || more) && v.severity == had_severity {
            let words = format!("also {}", v.why.what());
            self.tell_all(now, id, Action::Update, Why::new(Reason::News, words), out);
        } else if news && !leads && v.severity == had_severity {
            let words = format!("also {}: {}", v.kind.title(), v.why);
            self.tell_all(now, id, Action::Update, words, out);
        } else if leads && v.kind != had_kind {
            out.push(timeline(now, id, format!("{} became {}: {}", had_kind.title(), v.kind.title(), v.why)));
            let words = format!("{} became {}", had_kind.title(), v.kind.title());
            self.tell_all(now, id, Action::Update, Why::new(Reason::Changed, words), out);
        } else if leads {
            out.push(timeline(now, id, v.why.to_string()));
        }
        self.finish(id, out);
    }

    /// Worse than what was told, and perhaps acknowledged: someone has to look again.
    fn raise(&mut self, now: Ts, id: &str, had: Severity, v: &Finding, out: &mut Vec<Effect>) {
        let Some(i) = self.open.get_mut(id) else { return };
        let raised = format!("raised from {} to {}", had.as_str(), v.severity.as_str());
        out.push(timeline(now, id, format!("{raised}: {}", v.why)));
        i.record.reopen();
        if had == Severity::Info {
            i.record.opened_step = v.step;
        }
        self.announce(now, id, v.ts, &Why::new(Reason::Raised, raised), out);
    }

    /// It was over, and is not. Whoever has it hears of it, until it has come and gone so often
    /// that this is what there is to say.
    pub(super) fn came_back(&mut self, now: Ts, id: &str, v: &Finding, out: &mut Vec<Effect>) {
        let Some(i) = self.open.get(id) else { return };
        if i.record.state != State::Acknowledged {
            if i.record.level == 0 && i.ladders.is_empty() && v.severity <= i.record.severity {
                // It was over before anybody was told; what is worse now is told as that.
                self.announce(now, id, v.ts, &Why::first(), out);
            }
            return;
        }
        if self.ack_ends(i).is_some_and(|at| at <= now) {
            return self.ack_expired(now, id, out);
        }
        let Some(i) = self.open.get_mut(id) else { return };
        let why = if i.record.flaps <= self.config.flapping_after {
            Why::new(Reason::CameBack, "it came back")
        } else if !core::mem::replace(&mut i.flapping, true) {
            let words =
                format!("flapping: it came back {} times; further returns are not told", i.record.flaps);
            Why::new(Reason::Flapping, words)
        } else {
            return;
        };
        self.tell_all(now, id, Action::Update, why, out);
    }

    fn clear(
        &mut self,
        now: Ts,
        id: &str,
        subject: &Subject,
        context: &Context,
        v: &Finding,
        out: &mut Vec<Effect>,
    ) {
        let hold_base = self.config.resolve_after;
        let Some(i) = self.open.get_mut(id) else { return };
        if i.raised.remove(&(subject.clone(), v.kind)).is_none() {
            return;
        }
        // Not before: what is learned is stored only with an incident that changes.
        i.learn(&context.run);
        let hold = i.hold(hold_base);
        let key = (subject.clone(), v.kind);
        let over = if v.change == Change::Lapse {
            i.silent.insert(key, v.ts);
            format!("{} stale: {}", v.kind.title(), v.why)
        } else {
            i.silent.remove(&key);
            format!("{} over: {}", v.kind.title(), v.why)
        };
        if i.raised.is_empty() {
            i.resolve_at = Some(now + hold);
            i.record.end_step = Some(v.step);
            out.push(timeline(now, id, format!("{over}; resolves if it stays so for {hold}")));
        } else if i.raised.keys().all(|(s, _)| s != subject) {
            self.flap_history.resolved(now, subject, i.record.flaps);
            let then = if i.falls() {
                i.resolve_at = Some(now + hold);
                format!(", which is told as a ticket if it stays so for {hold}")
            } else {
                String::new()
            };
            out.push(timeline(now, id, format!("{over}; what is left is {}{then}", i.left())));
        }
        self.finish(id, out);
    }

    pub(crate) fn tick(&mut self, now: Ts, id: &str, out: &mut Vec<Effect>) {
        let Some(i) = self.open.get(id) else { return self.come_back(now, id, out) };
        if i.resolve_at.is_some_and(|at| at <= now) {
            if i.falls() {
                return self.fall(now, id, out);
            }
            let (end, lasted) = (i.end(), now - i.record.opened_at);
            let (end, words) = match end {
                Some(end) => (end.clone(), end.after(lasted)),
                None => (End::of(Ended::Clear), format!("resolved by itself after {lasted}")),
            };
            self.resolve(now, id, "engine", end, &words, out);
            return;
        }
        if self.ack_expires(i).is_some_and(|at| at <= now) {
            self.ack_expired(now, id, out);
        }
        match self.open.get(id).filter(|i| i.record.next_at.is_some_and(|at| at <= now)) {
            Some(i) if i.record.quiet.is_some() => self.look_again(now, id, out),
            Some(_) => {
                self.climb_if_it_holds(now, id, out);
                self.finish(id, out);
            }
            None => {}
        }
        self.tell_news(now, id, out);
    }

    pub(super) fn finish(&mut self, id: &str, out: &mut Vec<Effect>) {
        self.relabel(id);
        if let Some(i) = self.open.get(id) {
            out.push(Effect::Incident(Box::new(i.record.clone())));
        }
        self.touched.push(id.to_owned());
    }
}

impl Incident {
    /// Whether `kind` is another trouble than any that this incident has been about.
    fn is_news(&self, subject: &Subject, kind: Kind) -> bool {
        self.known.get(subject).is_some_and(|known| is_news(kind, known))
    }

    pub(super) fn new(record: IncidentRecord, summary: RunSummary, subjects: BTreeSet<Subject>) -> Self {
        Self {
            record,
            summary,
            subjects,
            raised: BTreeMap::new(),
            known: BTreeMap::new(),
            node_at: None,
            resolve_at: None,
            ladders: Ladders::default(),
            lanes: BTreeMap::new(),
            told_at: None,
            news: None,
            counted: false,
            flapping: false,
            calm: false,
            storm: None,
            paged: BTreeSet::new(),
            silent: BTreeMap::new(),
            alerts: BTreeSet::new(),
            outlived_its_run: false,
            origin: None,
        }
    }
}

pub(crate) fn timeline(at: Ts, incident: &str, what: String) -> Effect {
    by_actor(at, incident, "engine", what)
}

pub(crate) fn by_actor(at: Ts, incident: &str, actor: &str, what: String) -> Effect {
    Effect::Timeline(TimelineEntry { incident: incident.to_owned(), at, actor: actor.to_owned(), what })
}

/// The nodes that are at fault themselves.
pub(super) fn sick(context: &Context, v: &Finding) -> Vec<String> {
    let sick = match &context.scope {
        Scope::Node(node) => return vec![node.clone()],
        Scope::Alert(_) => &context.nodes,
        Scope::Run(_) if v.kind == Kind::SourceLost => &context.lost,
        Scope::Run(_) if v.kind.cause() == Cause::Progress => &context.dark,
        _ => return Vec::new(),
    };
    sick.iter().take(MAX_SUSPECTS).cloned().collect()
}

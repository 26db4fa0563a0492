//! Copies of the durable silences, overrides of on-call schedules and alerts of other programs, for
//! readers. They also see overrides by which pages are decided before they are durable.
//!
//! The runtime writes them in the order of its commits and before it answers the request, so that
//! the next read includes the change. Readers share the entries and hold the lock only while they
//! count references, so that many dashboards do not delay a page.
//!
//! Readers use the wall clock, and the runtime its own clock. While they differ, times are
//! converted when they are read.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use arc_swap::ArcSwap;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::effect::Effect;
use stepwatch_respond::external::Firing;
use stepwatch_respond::matcher::{Labels, all_hold};
use stepwatch_respond::oncall::{OverrideRecord, Overrides};
use stepwatch_respond::route::Router;
use stepwatch_respond::silence::{Phase, Silence, crowded_out};

use crate::clock::Clock;
use crate::run_snapshot::RunSnapshot;

/// How long an ended silence is listed, as in Alertmanager.
const SHOWN_FOR: Span = Span::secs(5 * 86_400);

#[derive(Debug, Default)]
pub struct ReadModel {
    inner: RwLock<Inner>,
    routing: ArcSwap<Routing>,
    /// The configuration in force, without secrets.
    configuration: ArcSwap<String>,
    clock: Clock,
}

/// The routing of the configuration in force.
#[derive(Debug, Default)]
pub struct Routing {
    pub config: ResponderConfig,
    pub(crate) router: Router,
}

#[derive(Debug, Default)]
struct Inner {
    silences: BTreeMap<String, Arc<Silence>>,
    /// Those that are durable.
    overrides: Arc<Overrides>,
    /// Those by which the engine decides, of which the newest may not be durable.
    deciding: Arc<Overrides>,
    alerts: BTreeMap<u64, Firing>,
}

impl ReadModel {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, ..Self::default() }
    }

    /// Applies effects that have just become durable.
    pub(crate) fn apply<'a>(&self, effects: impl IntoIterator<Item = &'a Effect>) {
        let mut effects = effects
            .into_iter()
            .filter(|e| {
                matches!(
                    e,
                    Effect::Silence(_) | Effect::Override(_) | Effect::Alert(_) | Effect::AlertOver(_)
                )
            })
            .peekable();
        if effects.peek().is_none() {
            return;
        }
        let mut inner = self.write();
        for effect in effects {
            match effect {
                Effect::Silence(s) => {
                    inner.silences.retain(|_, old| s.updated_at - old.ends_at < SHOWN_FOR);
                    for spent in inner.silences.values_mut().filter(|old| old.is_spent(s.updated_at)) {
                        Arc::make_mut(spent).unload();
                    }
                    inner.silences.insert(s.id.clone(), Arc::new((**s).clone()));
                    for id in crowded_out(inner.silences.values().map(Arc::as_ref), s.updated_at) {
                        inner.silences.remove(&id);
                    }
                }
                Effect::Override(record) => {
                    Arc::make_mut(&mut inner.overrides).put(Arc::clone(record), record.changed_at());
                }
                Effect::Alert(firing) => drop(inner.alerts.insert(firing.alert.fingerprint, firing.clone())),
                Effect::AlertOver(fingerprint) => drop(inner.alerts.remove(fingerprint)),
                _ => {}
            }
        }
    }

    /// Updates alerts that were sent again and only have a new end.
    pub(crate) fn saw(&self, seen: Vec<Firing>) {
        if seen.is_empty() {
            return;
        }
        let mut inner = self.write();
        inner.alerts.extend(seen.into_iter().map(|firing| (firing.alert.fingerprint, firing)));
    }

    pub(crate) fn reroute(&self, config: ResponderConfig) {
        let router = Router::new(&config.routes, &config.teams).unwrap_or_default();
        self.routing.store(Arc::new(Routing { config, router }));
    }

    /// Stores a configuration without its secrets.
    pub(crate) fn show(&self, configuration: String) {
        self.configuration.store(Arc::new(configuration));
    }

    pub fn configuration(&self) -> Arc<String> {
        self.configuration.load_full()
    }

    /// How far the wall clock is ahead of the engine's clock.
    fn skew(&self) -> Span {
        // The wall clock may have been set since the last reading.
        self.clock.now();
        self.clock.skew()
    }

    fn shown(&self, silence: &Arc<Silence>) -> Arc<Silence> {
        let skew = self.skew();
        if skew == Span::ZERO { Arc::clone(silence) } else { Arc::new((**silence).clone().moved(skew)) }
    }

    pub fn routing(&self) -> Arc<Routing> {
        self.routing.load_full()
    }

    /// All silences that have not ended long ago, by id.
    pub fn silences(&self, wall: Ts) -> Vec<Arc<Silence>> {
        let now = wall.earlier(self.skew());
        let inner = self.read();
        inner.silences.values().filter(|s| now - s.ends_at < SHOWN_FOR).map(|s| self.shown(s)).collect()
    }

    pub fn silence(&self, id: &str) -> Option<Arc<Silence>> {
        self.read().silences.get(id).map(|s| self.shown(s))
    }

    /// Takes in the overrides by which the engine decides, before they are durable.
    pub(crate) fn decide(&self, overrides: &Arc<Overrides>) {
        self.write().deciding = Arc::clone(overrides);
    }

    /// The overrides of on-call schedules by which pages are decided, with those that are not yet
    /// stored. Their times are those of the schedules, by the calendar, and are shown as they are.
    pub fn overrides(&self) -> Arc<Overrides> {
        Arc::clone(&self.read().deciding)
    }

    /// Whether an override is durable as it is.
    pub fn is_stored(&self, record: &OverrideRecord) -> bool {
        self.read().overrides.get(&record.id).is_some_and(|stored| **stored == *record)
    }

    /// The silences that are in force.
    pub fn active(&self, wall: Ts) -> Vec<Arc<Silence>> {
        let now = wall.earlier(self.skew());
        let inner = self.read();
        inner.silences.values().filter(|s| s.phase(now) == Phase::Active).map(|s| self.shown(s)).collect()
    }

    /// The firing alerts of other programs, in the order of their fingerprints.
    pub fn alerts(&self, wall: Ts) -> Vec<Firing> {
        let (skew, now) = (self.skew(), wall.earlier(self.skew()));
        self.read().alerts.values().filter(|f| f.ends_at > now).map(|f| f.clone().moved(skew)).collect()
    }

    pub fn alert_count(&self) -> usize {
        self.read().alerts.len()
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Routing {
    /// The labels of a run, with its team.
    pub fn labels(&self, run: &RunSnapshot) -> Labels {
        let mut labels = run.labels.clone();
        labels.insert("run".into(), run.run.clone());
        self.with_team(labels)
    }

    /// Adds the team label: that of the first team whose matchers match, unless the labels have
    /// one.
    pub fn with_team(&self, mut labels: Labels) -> Labels {
        if !labels.contains_key("team")
            && let Some((_, team)) =
                self.router.teams().iter().find(|(matchers, _)| all_hold(matchers, &labels))
        {
            labels.insert("team".into(), team.name.clone());
        }
        labels
    }

    /// All receivers that may be notified for these labels, on any level of any route, each once
    /// and in the order of levels.
    pub fn receivers(&self, labels: &Labels) -> Vec<String> {
        self.router.reached(&self.config, labels).into_iter().map(str::to_owned).collect()
    }
}

//! The known series, and the outcome of each of their samples.
//!
//! A series without a meaning takes a key and eight bytes. A series with a meaning also has an
//! entry. The key is the series as it was sent, so that the labels of a known series are not read
//! again.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use stepwatch_detect::series::{SeriesName, SeriesReading};
use stepwatch_model::time::{Span, Ts};

use crate::Key;
use crate::config::Config;
use crate::decode::{Malformed, Sample, Series};
use crate::hash::Secrets;
use crate::meaning;
use crate::report::{Reported, Scraped};
use crate::scrapes::Scrapes;
use crate::selector::NAME;
use crate::signal::{Generic, Meaning};
use crate::xids::Conclusion;

/// The greatest age of a sample that is evaluated: people are notified only about the present.
pub const MAX_AGE: Span = Span::secs(300);
/// The most time that a sample may be ahead of our clock, as in Prometheus itself.
pub const MAX_AHEAD: Span = Span::secs(600);
/// The most labels of a series, and the most bytes of a label value.
const MAX_LABELS: usize = 64;
const MAX_VALUE: usize = 2048;
/// The most tenants; samples of more tenants are counted and dropped.
pub const MAX_TENANTS: usize = 256;
/// The most reports and readings of one request. The rest of the request is not taken, and the
/// answer asks the sender to retry.
const MAX_REPORTS: usize = 20_000;
const MAX_READINGS: usize = 100_000;
/// Average bytes of labels per watched series, which limits their total.
const LABEL_BYTES: usize = 512;
/// Minutes after which a series that was not sent is dropped.
const FORGET_MINUTES: u16 = 60;
/// The interval of the sweep for such series, and the shortest interval if there is no room.
const SWEEP_EVERY: Span = Span::secs(600);
const SWEEP_AT_MOST: Span = Span::secs(60);
/// After a series found no room or the rules changed, a series that is new here may have existed
/// before. This is the time until the next scrape settles that.
const SETTLES: Span = Span::secs(300);
/// Marks a series without an entry, which is only counted.
const COUNTED: u32 = u32::MAX;

#[derive(Debug)]
pub struct Registry {
    config: Config,
    by_key: HashMap<Key, Known, BuildHasherDefault<KeyHasher>>,
    watched: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// The entry of a series by its sorted labels, for series that are sent in several ways.
    by_labels: HashMap<Key, u32, BuildHasherDefault<KeyHasher>>,
    secrets: Secrets,
    seed: u64,
    /// The label bytes of all watched series.
    label_bytes: usize,
    tenants: Tenants,
    scrapes: Scrapes,
    swept_at: Ts,
    /// The time of the last request.
    now: Ts,
    /// Until this time, not all series of any tenant are known.
    settles_at: Ts,
    pub counts: Counts,
}

/// The state of every series.
#[derive(Debug, Clone, Copy)]
struct Known {
    watched: u32,
    tenant: u16,
    /// The low bits of the minute in which the series was last sent.
    minute: u16,
}

/// The state of a series that has a meaning.
#[derive(Debug)]
struct Entry {
    labels: Key,
    /// The size of its labels.
    bytes: usize,
    meaning: Use,
    last_ms: i64,
    last: f64,
    /// The number of keys that refer to this entry.
    keys: u32,
}

/// The use of a series.
#[derive(Debug)]
enum Use {
    /// The value of the series, or its rate, is watched under its own name.
    Watched {
        name: Arc<SeriesName>,
        counter: bool,
    },
    Told(Box<Meaning>),
}

#[derive(Debug, Default)]
struct Tenants {
    by_name: BTreeMap<String, u16>,
    series: Vec<usize>,
    /// By tenant number: until this time, not all series of the tenant are known.
    settle_at: BTreeMap<u16, Ts>,
}

/// Counters since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub samples: u64,
    /// Samples of series that have a meaning.
    pub watched_samples: u64,
    pub stale_markers: u64,
    /// Samples that are not newer than the last one of their series.
    pub out_of_order: u64,
    pub too_old: u64,
    pub too_far_ahead: u64,
    /// Samples of series beyond a limit.
    pub over_series: u64,
    pub over_watched: u64,
    pub over_tenant: u64,
    /// Samples of series with invalid labels.
    pub invalid: u64,
}

/// The result of one request.
#[derive(Debug, Default)]
pub struct Batch {
    /// The reports of instances, in order.
    pub reports: Vec<Reported>,
    /// Values of series that are watched under their own names.
    pub readings: Vec<SeriesReading>,
    /// The request has more than one batch can hold: the sender must repeat it.
    pub full: bool,
    /// The number of samples that are refused permanently, and the reason for the first.
    pub refused: u64,
    pub why: Option<String>,
}

/// A tenant, as [`Registry::tenant`] numbers it.
#[derive(Debug, Clone, Copy)]
pub struct Tenant {
    number: u16,
    /// The hash of the tenant's name, so that keys of two tenants never collide.
    hash: [u64; 2],
}

/// A pass-through hasher: the keys are hashes already.
#[derive(Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, half: u64) {
        self.0 ^= half;
    }

    fn write_usize(&mut self, _: usize) {}
}

fn minutes(now: Ts) -> u16 {
    (now.0 / 60_000) as u16
}

impl Registry {
    /// `seed` must be random: a sender who knows it can make two series share a key.
    pub fn new(config: Config, seed: u64) -> Self {
        Self {
            config,
            by_key: HashMap::default(),
            watched: Vec::new(),
            free: Vec::new(),
            by_labels: HashMap::default(),
            secrets: Secrets::new(seed),
            seed,
            label_bytes: 0,
            tenants: Tenants::default(),
            scrapes: Scrapes::default(),
            swept_at: Ts(0),
            now: Ts(0),
            settles_at: Ts(0),
            counts: Counts::default(),
        }
    }

    /// Applies a new configuration: the meaning of each series is decided again.
    pub fn configure(&mut self, config: Config) {
        if config != self.config {
            let (counts, scrapes) = (self.counts, core::mem::take(&mut self.scrapes));
            let (now, settles_at) = (self.now, self.now + SETTLES);
            *self = Self { scrapes, now, settles_at, counts, ..Self::new(config, self.seed) };
        }
    }

    /// The number of a tenant; `None` if there are too many.
    pub fn tenant(&mut self, name: &str) -> Option<Tenant> {
        let number = self.tenants.number(name)?;
        let mut hash = [0, u64::from(number)];
        for half in &mut hash {
            // The halves of any two numbers must differ in many bits (splitmix64).
            *half = u64::from(number).wrapping_add(*half).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        Some(Tenant { number, hash })
    }

    /// Adds one series of a request.
    pub fn take(&mut self, series: &Series<'_, '_>, tenant: Tenant, now: Ts, batch: &mut Batch) {
        let samples = series.samples();
        let count = samples.len() as u64;
        self.now = now;
        batch.full |= batch.reports.len() >= MAX_REPORTS || batch.readings.len() >= MAX_READINGS;
        if batch.full {
            return;
        }
        self.counts.samples += count;
        let Key([low, high]) = series.key();
        let key = Key([low ^ tenant.hash[0], high ^ tenant.hash[1]]);
        let minute = minutes(now);
        let at = match self.by_key.get_mut(&key) {
            Some(known) => {
                known.minute = minute;
                known.watched
            }
            None => match self.admit(key, series, tenant, now) {
                Ok(Some(at)) => at,
                Ok(None) => return,
                Err(why) => {
                    self.counts.invalid += count;
                    batch.refused += count;
                    batch.why.get_or_insert(why);
                    return;
                }
            },
        };
        if at == COUNTED {
            return;
        }
        self.counts.watched_samples += count;
        let settles_at = self.tenants.settle_at.get(&tenant.number).copied().unwrap_or_default();
        let settled = now >= settles_at.max(self.settles_at);
        for sample in samples {
            batch.full |= batch.reports.len() >= MAX_REPORTS || batch.readings.len() >= MAX_READINGS;
            if batch.full {
                return;
            }
            self.sample(at, sample, (now, settled), batch);
        }
    }

    /// Adds to `batch` what the requests so far have completed.
    pub fn finish_request(&mut self, batch: &mut Batch) {
        self.scrapes.finish_request(&mut batch.reports);
    }

    /// Adds to `batch` what has waited long enough. Called about once a second.
    pub fn tick(&mut self, now: Ts, batch: &mut Batch) {
        self.scrapes.tick(now, &mut batch.reports);
        if now - self.swept_at >= SWEEP_EVERY {
            self.sweep(now);
        }
    }

    /// The number of known series.
    pub fn series(&self) -> usize {
        self.by_key.len()
    }

    /// The number of known series that have a meaning.
    pub fn watched(&self) -> usize {
        self.by_labels.len()
    }

    /// The number of samples of runs and devices beyond the limit of scrapes that are assembled.
    pub fn over_groups(&self) -> u64 {
        self.scrapes.over_limit()
    }

    /// Admits a new series: returns the number of its entry, or `None` if there is no room.
    fn admit(
        &mut self,
        key: Key,
        series: &Series<'_, '_>,
        tenant: Tenant,
        now: Ts,
    ) -> Result<Option<u32>, String> {
        let count = series.samples().len() as u64;
        if self.by_key.len() >= self.config.max_series && now - self.swept_at >= SWEEP_AT_MOST {
            self.sweep(now);
        }
        if self.by_key.len() >= self.config.max_series {
            self.counts.over_series += count;
            self.settles_at = now + SETTLES;
            return Ok(None);
        }
        if tenant.number > 0 && self.tenants.held(tenant.number) >= self.config.max_series_per_tenant {
            self.counts.over_tenant += count;
            self.tenants.settle_at.insert(tenant.number, now + SETTLES);
            return Ok(None);
        }
        let labels = read(series)?;
        let watched = match meaning::of(&labels, &self.config) {
            None => COUNTED,
            Some(meaning) => {
                let is_xid = matches!(meaning, Meaning::Xid { .. });
                let Some(at) = self.watch(meaning, &labels, tenant) else {
                    // The series is examined again when it is next sent, because there may be room
                    // by then.
                    self.counts.over_watched += count;
                    if is_xid {
                        self.settles_at = now + SETTLES;
                    }
                    return Ok(None);
                };
                at
            }
        };
        self.tenants.add(tenant.number);
        self.by_key.insert(key, Known { watched, tenant: tenant.number, minute: minutes(now) });
        Ok(Some(watched))
    }

    /// Adds the entry of a series that has a meaning.
    fn watch(&mut self, meaning: Meaning, labels: &[(&str, &str)], tenant: Tenant) -> Option<u32> {
        let of = self.tenants.name(tenant.number);
        let identity = identity(of, labels);
        let key = self.secrets.labels(&identity);
        if let Some(at) = self.by_labels.get(&key) {
            if let Some(entry) = self.watched.get_mut(*at as usize).and_then(Option::as_mut) {
                entry.keys += 1;
            }
            return Some(*at);
        }
        let bytes = identity.len();
        let room = self.config.max_watched.saturating_mul(LABEL_BYTES);
        if self.by_labels.len() >= self.config.max_watched || self.label_bytes + bytes > room {
            return None;
        }
        self.label_bytes += bytes;
        let meaning = match meaning {
            Meaning::Generic(g) => {
                let counter = g.counter;
                Use::Watched { name: Arc::new(name_of(*g, of)), counter }
            }
            told => Use::Told(Box::new(told)),
        };
        let entry = Entry { labels: key, bytes, meaning, last_ms: i64::MIN, last: f64::NAN, keys: 1 };
        let at = self.free.pop().unwrap_or_else(|| {
            self.watched.push(None);
            (self.watched.len() - 1) as u32
        });
        *self.watched.get_mut(at as usize)? = Some(entry);
        self.by_labels.insert(key, at);
        Some(at)
    }

    /// Takes a sample of a series that has a meaning. `settled`: all series were known before.
    fn sample(&mut self, at: u32, sample: Sample, (now, settled): (Ts, bool), batch: &mut Batch) {
        let Some(entry) = self.watched.get_mut(at as usize).and_then(Option::as_mut) else { return };
        let Sample { ts_ms, value } = sample;
        if ts_ms <= entry.last_ms {
            self.counts.out_of_order += 1;
            return;
        }
        if ts_ms > now.0.saturating_add(MAX_AHEAD.0) {
            self.counts.too_far_ahead += 1;
            batch.refused += 1;
            batch.why.get_or_insert_with(|| {
                format!("a sample is more than {MAX_AHEAD} ahead of this machine's clock: check the clocks")
            });
            return;
        }
        let before = core::mem::replace(&mut entry.last_ms, ts_ms);
        let old = ts_ms < now.0.saturating_sub(MAX_AGE.0);
        let stale = sample.is_stale();
        self.counts.too_old += u64::from(old);
        self.counts.stale_markers += u64::from(stale);
        let scraped = Scraped { ts_ms, value, stale };
        let told = match &entry.meaning {
            Use::Told(told) => told,
            Use::Watched { name, counter } => {
                let had = if stale { f64::NAN } else { core::mem::replace(&mut entry.last, value) };
                if old || stale {
                    return;
                }
                let value = if *counter { rate(had, value, before, ts_ms) } else { Some(value) };
                if let Some(value) = value {
                    let (name, ts) = (Arc::clone(name), Ts(ts_ms));
                    batch.readings.push(SeriesReading { id: at, name, ts, value });
                }
                return;
            }
        };
        match &**told {
            Meaning::Generic(_) => {}
            Meaning::Xid { instance, gpu, series } => {
                let tells = match (old, settled) {
                    (true, _) => Conclusion::Nothing,
                    (false, false) => Conclusion::Rise,
                    (false, true) => Conclusion::Appearance,
                };
                let of = (instance, gpu, *series);
                self.scrapes.xid(now, of, scraped, tells, &mut batch.reports);
            }
            _ if old => {}
            Meaning::Run { instance, run, rank, signal } => {
                let of = (instance, run);
                self.scrapes.run(now, of, (*rank, signal), scraped, &mut batch.reports);
            }
            Meaning::Device { instance, device, name, scale } => {
                let what = (*name, *scale);
                self.scrapes.device(now, (instance, device), what, scraped, &mut batch.reports);
            }
            Meaning::Up { instance } => self.scrapes.up(now, instance, scraped, &mut batch.reports),
        }
    }

    /// Drops the series that were not sent for an hour.
    fn sweep(&mut self, now: Ts) {
        self.swept_at = now;
        let minute = minutes(now);
        let (watched, free, by_labels, tenants) =
            (&mut self.watched, &mut self.free, &mut self.by_labels, &mut self.tenants);
        let label_bytes = &mut self.label_bytes;
        self.by_key.retain(|_, known| {
            let keeps = minute.wrapping_sub(known.minute) < FORGET_MINUTES;
            if !keeps {
                tenants.remove(known.tenant);
                if let Some(place) = watched.get_mut(known.watched as usize)
                    && let Some(entry) = place.as_mut()
                {
                    entry.keys -= 1;
                    if entry.keys == 0 {
                        by_labels.remove(&entry.labels);
                        *label_bytes = label_bytes.saturating_sub(entry.bytes);
                        free.push(known.watched);
                        *place = None;
                    }
                }
            }
            keeps
        });
        if self.by_key.len() < self.by_key.capacity() / 4 {
            self.by_key.shrink_to_fit();
        }
    }
}

/// The rate of a counter per second; `None` for the first sample and after a counter reset.
fn rate(had: f64, value: f64, from_ms: i64, to_ms: i64) -> Option<f64> {
    let seconds = to_ms.saturating_sub(from_ms) as f64 / 1e3;
    (had.is_finite() && value >= had && seconds > 0.0).then(|| (value - had) / seconds)
}

/// The tenant and the labels of a series, each prefixed with its length.
fn identity(tenant: &str, labels: &[(&str, &str)]) -> Vec<u8> {
    let labels = meaning::identity(labels);
    let words = labels.iter().flat_map(|(name, value)| [*name, *value]);
    let mut bytes = Vec::new();
    for word in core::iter::once(tenant).chain(words) {
        bytes.extend((word.len() as u64).to_le_bytes());
        bytes.extend(word.as_bytes());
    }
    bytes
}

fn name_of(g: Generic, tenant: &str) -> SeriesName {
    SeriesName {
        text: g.text.into(),
        metric: g.metric.into(),
        job: g.job.into(),
        tenant: tenant.into(),
        run: g.run.into(),
        node: g.node.into(),
    }
}

/// The sorted labels of a series, or the reason why they are invalid.
fn read<'a>(series: &Series<'a, '_>) -> Result<Vec<(&'a str, &'a str)>, String> {
    let labels: Result<Vec<_>, Malformed> = series.labels().collect();
    let mut labels = labels.map_err(|e| e.to_string())?;
    labels.sort_unstable();
    let (count, quoted) = (labels.len(), |text: &str| stepwatch_wire::words::line(text).into_owned());
    if count > MAX_LABELS {
        return Err(format!("a series has {count} labels; at most {MAX_LABELS} are taken"));
    }
    if let Some((name, value)) = labels.iter().find(|(_, value)| value.len() > MAX_VALUE) {
        let bytes = value.len();
        return Err(format!("label {:?} has {bytes} bytes; at most {MAX_VALUE} are taken", quoted(name)));
    }
    if labels.iter().any(|(name, _)| name.is_empty()) {
        return Err("a label has no name".into());
    }
    if let Some(twice) = labels.windows(2).find_map(|pair| match pair {
        [(a, _), (b, _)] if a == b => Some(*a),
        _ => None,
    }) {
        return Err(format!("label {:?} is there twice", quoted(twice)));
    }
    if !labels.iter().any(|(name, value)| *name == NAME && !value.is_empty()) {
        return Err(format!("a series has no label {NAME}"));
    }
    Ok(labels)
}

impl Tenants {
    fn number(&mut self, name: &str) -> Option<u16> {
        if name.is_empty() {
            return Some(0);
        }
        if let Some(number) = self.by_name.get(name) {
            return Some(*number);
        }
        if self.by_name.len() >= MAX_TENANTS {
            return None;
        }
        let number = self.by_name.len() as u16 + 1;
        self.by_name.insert(name.to_owned(), number);
        Some(number)
    }

    fn name(&self, number: u16) -> &str {
        self.by_name.iter().find(|(_, of)| **of == number).map_or("", |(name, _)| name)
    }

    fn held(&self, number: u16) -> usize {
        self.series.get(usize::from(number)).copied().unwrap_or(0)
    }

    fn add(&mut self, number: u16) {
        let at = usize::from(number);
        if at >= self.series.len() {
            self.series.resize(at + 1, 0);
        }
        if let Some(held) = self.series.get_mut(at) {
            *held += 1;
        }
    }

    fn remove(&mut self, number: u16) {
        if let Some(held) = self.series.get_mut(usize::from(number)) {
            *held = held.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests;

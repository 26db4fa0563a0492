//! Finds XIDs of GPUs in counters of our exporter and in the gauge of NVIDIA's DCGM exporter.
//!
//! A counter of our exporter appears with its first XID, because the exporter omits zeros unless it
//! is configured to write them. So a counter that appears shows a new XID, but only if an earlier
//! complete page lacked it: a page from before the exporter read the log lacks all XIDs. A page is
//! complete if it says how much of the log was read, or that NVML reports them
//! ([`XidSeries::Read`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stepwatch_model::time::{Span, Ts};
use stepwatch_wire::conditions::Remedy;
use stepwatch_wire::names::hw;
use stepwatch_wire::xid::{self, Level};
use stepwatch_wire::{Event, Kind, Value};

use crate::report::{Report, Reported, Scraped};
use crate::signal::{Instance, XidSeries};

/// The most GPUs that are followed at once, and the most codes of one GPU.
const MAX_GPUS: usize = 100_000;
const MAX_CODES: usize = 512;
/// How long an XID waits for the rest of its scrape, which may have the counter that shows it as
/// harmless.
const WAIT: Span = Span::secs(2);
/// The time by which a page must be earlier to be another one. Each Prometheus of a pair scrapes on
/// its own, and their samples may arrive some seconds apart.
const EARLIER_MS: i64 = 10_000;
const FORGET: Span = Span::secs(3600);

/// The conclusion that a sample allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Conclusion {
    /// The sample is too old to be evaluated: later ones are compared with it.
    Nothing,
    /// An increase is new. A series that appears may have existed before.
    Rise,
    /// A series that appears did not exist before.
    Appearance,
}

#[derive(Debug, Default)]
pub(crate) struct Xids {
    /// The GPUs by the address of their instance and the label of the GPU.
    gpus: BTreeMap<(Arc<str>, Arc<str>), Gpu>,
    readers: BTreeMap<Arc<str>, Reader>,
    pub(crate) over_limit: u64,
}

/// An exporter that counts XIDs: the times of its first and last page, without a gap between them.
#[derive(Debug, Clone, Copy)]
struct Reader {
    since_ms: i64,
    last_ms: i64,
    heard: Ts,
}

#[derive(Debug)]
struct Gpu {
    node: Arc<str>,
    /// The time of the scrape that is being assembled, and when it began to arrive.
    at_ms: i64,
    since: Ts,
    codes: BTreeMap<u32, Code>,
    last: LastCode,
}

#[derive(Debug, Default)]
struct Code {
    all: Counter,
    harmless: Counter,
}

#[derive(Debug, Default, Clone, Copy)]
struct Counter {
    value: Option<f64>,
    last_ms: i64,
    /// The time of the first page without the counter.
    ended: Option<i64>,
    /// The increase in this scrape.
    rise: f64,
    appeared: bool,
}

/// The last codes of a GPU. DCGM keeps only the last one, so a change is a new XID. There are
/// several if the GPU is partitioned, or if the code is a label of the series.
#[derive(Debug, Default)]
struct LastCode {
    before: Option<BTreeSet<u32>>,
    now: BTreeSet<u32>,
}

impl Reader {
    /// Whether a page at or after `ms` exists that is earlier than the page at `before_ms`.
    fn has_page(self, ms: i64, before_ms: i64) -> bool {
        let from = self.since_ms.max(ms);
        from <= self.last_ms && from <= before_ms.saturating_sub(EARLIER_MS)
    }
}

impl Counter {
    fn take(&mut self, v: Scraped, tells: Conclusion, reader: Option<Reader>) {
        if self.value.is_some() && v.ts_ms <= self.last_ms {
            return;
        }
        if v.stale {
            self.ended.get_or_insert(v.ts_ms);
            return;
        }
        let absent = |since_ms: i64| reader.is_some_and(|reader| reader.has_page(since_ms, v.ts_ms));
        // A counter that fell was reset. So was a counter that was absent from a page, even if it
        // has its old value: after a reboot, the first XID is a 1 again.
        let (from, appeared) = match (self.value, self.ended) {
            (Some(_), Some(ended)) if absent(ended) => (0.0, true),
            (Some(had), _) => (if v.value < had { 0.0 } else { had }, false),
            (None, _) if tells == Conclusion::Appearance && absent(i64::MIN) => (0.0, true),
            (None, _) => (v.value, false),
        };
        if tells > Conclusion::Nothing {
            self.rise += v.value - from;
            self.appeared |= appeared;
        }
        (self.value, self.last_ms, self.ended) = (Some(v.value), v.ts_ms, None);
    }

    /// Whether the scrape at `ms` is the first without the counter.
    fn ends_at(&self, ms: i64) -> bool {
        self.last_ms < ms && self.ended.is_none_or(|ended| ended > ms.saturating_sub(EARLIER_MS))
    }

    /// The increase since the last call.
    fn rise(&mut self) -> f64 {
        self.appeared = false;
        core::mem::take(&mut self.rise)
    }
}

impl LastCode {
    fn take(&mut self, v: Scraped, tells: Conclusion) {
        // Codes fit 16 bits; DCGM reports unknown ones as larger values.
        if v.stale || !(0.0..=f64::from(u16::MAX)).contains(&v.value) {
            return;
        }
        let code = v.value as u32;
        if tells == Conclusion::Nothing {
            self.before = Some(BTreeSet::from([code]));
        } else if self.now.len() < MAX_CODES {
            self.now.insert(code);
        }
    }

    /// The codes that the last scrape lacked; empty for the first scrape.
    fn changes(&mut self) -> BTreeSet<u32> {
        if self.now.is_empty() {
            return BTreeSet::new();
        }
        let now = core::mem::take(&mut self.now);
        let new = |before: BTreeSet<u32>| now.iter().copied().filter(|c| !before.contains(c)).collect();
        let changes: BTreeSet<u32> = self.before.take().map(new).unwrap_or_default();
        self.before = Some(now);
        changes
    }
}

impl Xids {
    pub(crate) fn take(
        &mut self,
        now: Ts,
        (instance, gpu, series): (&Instance, &Arc<str>, XidSeries),
        v: Scraped,
        tells: Conclusion,
        out: &mut Vec<Reported>,
    ) {
        if !v.stale && !v.value.is_finite() {
            return;
        }
        if series == XidSeries::Read {
            self.read(now, instance, v);
            return;
        }
        let key = (Arc::clone(&instance.address), Arc::clone(gpu));
        if !v.stale && self.gpus.get(&key).is_some_and(|gpu| v.ts_ms > gpu.at_ms) {
            self.flush(&key, out);
        }
        if self.gpus.len() >= MAX_GPUS && !self.gpus.contains_key(&key) {
            self.over_limit += 1;
            return;
        }
        let reader = self.readers.get(&instance.address).copied();
        let of = self.gpus.entry(key).or_insert_with(|| Gpu::new(instance, v.ts_ms, now));
        if !v.stale && v.ts_ms > of.at_ms {
            (of.at_ms, of.since, of.node) = (v.ts_ms, now, Arc::clone(&instance.node));
        }
        match series {
            XidSeries::Counter { code, harmless } => {
                if of.codes.len() >= MAX_CODES && !of.codes.contains_key(&code) {
                    self.over_limit += 1;
                    return;
                }
                let code = of.codes.entry(code).or_default();
                let counter = if harmless { &mut code.harmless } else { &mut code.all };
                counter.take(v, tells, reader);
            }
            XidSeries::LastCode => of.last.take(v, tells),
            XidSeries::Read => {}
        }
    }

    fn read(&mut self, now: Ts, instance: &Instance, v: Scraped) {
        let fresh = || Reader { since_ms: i64::MAX, last_ms: v.ts_ms, heard: now };
        let reader = self.readers.entry(Arc::clone(&instance.address)).or_insert_with(fresh);
        reader.heard = now;
        if v.stale {
            reader.since_ms = i64::MAX;
        } else {
            reader.since_ms = reader.since_ms.min(v.ts_ms);
            reader.last_ms = reader.last_ms.max(v.ts_ms);
        }
    }

    /// Reports what has waited long enough, and drops GPUs and exporters without samples for an
    /// hour.
    pub(crate) fn tick(&mut self, now: Ts, out: &mut Vec<Reported>) {
        let waited = self.gpus.iter().filter(|(_, gpu)| gpu.has_news() && now - gpu.since >= WAIT);
        let waited: Vec<_> = waited.map(|(key, _)| key.clone()).collect();
        for key in waited {
            self.flush(&key, out);
        }
        self.gpus.retain(|_, gpu| now - gpu.since < FORGET);
        self.readers.retain(|_, reader| now - reader.heard < FORGET);
    }

    /// Reports the XIDs of a scrape that is complete.
    fn flush(&mut self, key: &(Arc<str>, Arc<str>), out: &mut Vec<Reported>) {
        let (address, name) = key;
        let moved = self.moved_to(key);
        let Some(gpu) = self.gpus.get_mut(key) else { return };
        let mut found: Vec<(u32, bool)> = Vec::new();
        for (number, code) in &mut gpu.codes {
            let had = moved.get(number).copied().unwrap_or_default();
            let (all, harmless) = (code.all.rise() - had, code.harmless.rise());
            // If a harmful XID of this code was counted, the harmless ones are not reported.
            if all > harmless {
                found.push((*number, false));
            } else if harmless > 0.0 {
                found.push((*number, true));
            }
        }
        found.extend(gpu.last.changes().into_iter().filter(|code| *code != 0).map(|code| (code, false)));
        for (code, harmless) in found {
            let event = gpu.event(name, code, harmless);
            out.push((Arc::clone(address), Report::Event(Box::new(event))));
        }
    }

    /// The counts, by code, under the PCI address of a GPU from before its UUID was known. Its
    /// counters appear under the UUID when those of the address end.
    fn moved_to(&mut self, (address, name): &(Arc<str>, Arc<str>)) -> BTreeMap<u32, f64> {
        let mut moved = BTreeMap::new();
        let Some(gpu) = self.gpus.get(&(Arc::clone(address), Arc::clone(name))) else { return moved };
        let at_ms = gpu.at_ms;
        let appeared = gpu.codes.iter().filter(|(_, code)| code.all.appeared).map(|(number, _)| *number);
        let appeared: Vec<u32> = appeared.collect();
        if appeared.is_empty() || is_address(name) {
            return moved;
        }
        let from = (Arc::clone(address), Arc::from(""));
        let of_instance = self.gpus.range_mut(from..).take_while(|((of, _), _)| of == address);
        for (_, gpu) in of_instance.filter(|((_, name), _)| is_address(name)) {
            for number in &appeared {
                if let Some(counter) = gpu.codes.get_mut(number).map(|code| &mut code.all)
                    && counter.ends_at(at_ms)
                {
                    *moved.entry(*number).or_default() += counter.value.take().unwrap_or_default();
                }
            }
        }
        moved
    }
}

/// Whether the label is a PCI address, which the exporter writes if it does not know the UUID.
fn is_address(gpu: &str) -> bool {
    gpu.contains(':')
}

impl Gpu {
    fn new(instance: &Instance, at_ms: i64, now: Ts) -> Self {
        let node = Arc::clone(&instance.node);
        Self { node, at_ms, since: now, codes: BTreeMap::new(), last: LastCode::default() }
    }

    fn has_news(&self) -> bool {
        let rose = |code: &Code| code.all.rise != 0.0 || code.harmless.rise != 0.0;
        !self.last.now.is_empty() || self.codes.values().any(rose)
    }

    /// An event with the fields of the exporter's own event, as far as the series provide them.
    fn event(&self, gpu: &str, code: u32, harmless: bool) -> Event {
        let known = xid::find(code);
        let (level, action) =
            if harmless { (Level::Warn, Remedy::None) } else { (known.level, known.action) };
        let of = match gpu {
            "" => "a GPU".to_owned(),
            address if is_address(address) => format!("GPU {address}"),
            uuid => uuid.to_owned(),
        };
        let mut event = Event {
            ts: Some(self.at_ms as f64 / 1e3),
            node: Some(self.node.to_string()),
            name: Some("xid".into()),
            code: Some(code.into()),
            level: Some(level.as_str().into()),
            text: Some(format!("XID {code} ({}) of {of}: {}", known.name, known.hint)),
            ..Event::new(Kind::Xid)
        };
        let place = if is_address(gpu) { "pci" } else { "gpu" };
        let words =
            [(hw::KNOWN_AS, known.name), (hw::HINT, known.hint), ("action", action.as_str()), (place, gpu)];
        for (key, word) in words.into_iter().filter(|(_, word)| !word.is_empty()) {
            event.extra.insert(key.into(), Value::Text(word.into()));
        }
        event
    }
}

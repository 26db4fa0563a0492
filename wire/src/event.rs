//! The event and its JSON format.

use core::fmt;
use std::collections::BTreeMap;

use crate::cursor::Cursor;
use crate::json::{JsonError, JsonReader, Value, write_string};
use crate::metrics::{MAX_METRICS, Metrics};
use crate::names::metric;
use crate::num;
use crate::words;

mod clean;

/// The most bytes of an event: one packet, or one line.
pub const MAX_EVENT_BYTES: usize = 8 * 1024;
/// The most bytes of a stream record: an event with the fields that the exporter added.
pub const MAX_RECORD_BYTES: usize = 2 * MAX_EVENT_BYTES;
/// The most unknown keys kept; the rest is dropped and counted.
pub const MAX_EXTRA: usize = 32;
/// The most values kept in the lists and maps of all unknown keys together, and in each of `m`, `q`
/// and `t` before names are checked; the rest is dropped and counted.
const MAX_NESTED: usize = 256;
const MAX_NUMBERS: usize = 4 * MAX_METRICS;
/// The most characters kept of a run name or text.
pub const MAX_TEXT: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Hello,
    Step,
    Eval,
    Ckpt,
    Phase,
    Hb,
    Event,
    Bye,
    Xid,
    Link,
    Hw,
    Health,
    /// The reader's cursor is no longer in the ring: `lost` records are gone.
    Gap,
}

impl Kind {
    pub const ALL: &[Self] = &[
        Self::Hello,
        Self::Step,
        Self::Eval,
        Self::Ckpt,
        Self::Phase,
        Self::Hb,
        Self::Event,
        Self::Bye,
        Self::Xid,
        Self::Link,
        Self::Hw,
        Self::Health,
        Self::Gap,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Step => "step",
            Self::Eval => "eval",
            Self::Ckpt => "ckpt",
            Self::Phase => "phase",
            Self::Hb => "hb",
            Self::Event => "event",
            Self::Bye => "bye",
            Self::Xid => "xid",
            Self::Link => "link",
            Self::Hw => "hw",
            Self::Health => "health",
            Self::Gap => "gap",
        }
    }

    fn parse(s: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|k| k.as_str() == s)
    }
}

/// An edge of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    Begin,
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CkptPhase {
    Start,
    End,
    Fail,
}

/// The words for an edge; the first one for each edge is the one that is written.
const EDGES: &[(&str, Edge)] = &[
    ("begin", Edge::Begin),
    ("start", Edge::Begin),
    ("enter", Edge::Begin),
    ("end", Edge::End),
    ("stop", Edge::End),
    ("exit", Edge::End),
];

/// The words for the phase of a checkpoint.
const CKPT_PHASES: &[(&str, CkptPhase)] = &[
    ("start", CkptPhase::Start),
    ("begin", CkptPhase::Start),
    ("end", CkptPhase::End),
    ("done", CkptPhase::End),
    ("success", CkptPhase::End),
    ("saved", CkptPhase::End),
    ("fail", CkptPhase::Fail),
    ("failed", CkptPhase::Fail),
    ("error", CkptPhase::Fail),
];

#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub kind: Kind,
    /// The Unix time in seconds at which the value was true, or was read if the source gives no
    /// time.
    pub ts: Option<f64>,
    pub run: Option<String>,
    pub rank: Option<u32>,
    pub world: Option<u32>,
    pub step: Option<i64>,
    /// Metrics of the step or the evaluation, by the names of [`crate::names::metric`] or custom
    /// ones.
    pub m: Metrics,
    /// The resolution of printed values in `m`: the difference of two neighbouring values, in the
    /// same unit. A smaller change is due to the printer, not to the training. Absent if the value
    /// kept all its digits. The JSON key is `q`: `"q":{"loss":0.01}`.
    pub q: Metrics,
    /// Seconds of the step that each phase took.
    pub t: Metrics,
    /// The host that received the event; set by the exporter.
    pub node: Option<String>,
    /// The uid that owns the run or the job on that host. The exporter sets it on every event of a
    /// run and on `health` of a job.
    pub uid: Option<u32>,
    /// The number of restarts of the job, counted by the exporter. Steps are only comparable within
    /// an attempt.
    pub attempt: Option<u32>,
    /// The name of the phase, the evaluation set, or the event.
    pub name: Option<String>,
    pub text: Option<String>,
    pub level: Option<String>,
    /// The exit code of a `bye`, or the number of an `xid`.
    pub code: Option<i64>,
    pub edge: Option<Edge>,
    pub ckpt: Option<CkptPhase>,
    /// Metrics that this step's line should have but lacks: Megatron omits a NaN loss in this way.
    pub missing: Vec<String>,
    /// The number of records lost, in a gap.
    pub lost: Option<u64>,
    pub cursor: Option<Cursor>,
    /// Unknown keys, and the keys of certain kinds (`model`, `job`, `path`, ...).
    pub extra: BTreeMap<String, Value>,
    /// The number of entries dropped because of a limit.
    pub dropped: u32,
}

/// The reason why a packet is not an event. `field` is the JSON key, or `$` for the whole packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventError {
    pub field: String,
    pub reason: String,
}

impl fmt::Display for EventError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field == "$" {
            write!(f, "{}", self.reason)
        } else {
            write!(f, "field {:?}: {}", self.field, self.reason)
        }
    }
}

impl core::error::Error for EventError {}

impl From<JsonError> for EventError {
    fn from(e: JsonError) -> Self {
        Self { field: "$".into(), reason: format!("not JSON: {e}") }
    }
}

pub(crate) fn clip(s: &str) -> String {
    s.chars().take(MAX_TEXT).collect()
}

fn wrong(field: &str, want: &str, got: &Value) -> EventError {
    let mut text = String::new();
    got.write(&mut text);
    let got = words::into_line(clip(&text));
    EventError { field: words::line(field).into(), reason: format!("must be {want}, got {got}") }
}

impl Event {
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            ts: None,
            run: None,
            rank: None,
            world: None,
            step: None,
            m: Metrics::default(),
            q: Metrics::default(),
            t: Metrics::default(),
            node: None,
            uid: None,
            attempt: None,
            name: None,
            text: None,
            level: None,
            code: None,
            edge: None,
            ckpt: None,
            missing: Vec::new(),
            lost: None,
            cursor: None,
            extra: BTreeMap::new(),
            dropped: 0,
        }
    }

    /// Creates a step event.
    pub fn step(run: &str, step: i64) -> Self {
        Self { run: Some(run.to_owned()), step: Some(step), ..Self::new(Kind::Step) }
    }

    /// Parses an event of a trainer, of at most [`MAX_EVENT_BYTES`].
    pub fn parse(bytes: &[u8]) -> Result<Self, EventError> {
        Self::parse_within(bytes, MAX_EVENT_BYTES)
    }

    /// Parses a record of the stream, of at most [`MAX_RECORD_BYTES`].
    pub fn parse_record(bytes: &[u8]) -> Result<Self, EventError> {
        Self::parse_within(bytes, MAX_RECORD_BYTES)
    }

    fn parse_within(bytes: &[u8], limit: usize) -> Result<Self, EventError> {
        if bytes.len() > limit {
            let reason = format!("{} bytes, the limit is {limit}", bytes.len());
            return Err(EventError { field: "$".into(), reason });
        }
        let mut e = Self::new(Kind::Event);
        let mut kind = None;
        let mut r = JsonReader::new(bytes);
        let mut nested = MAX_NESTED;
        r.object(|key, r| {
            // Cleaned before it is matched: a control character would otherwise hide a field until
            // it is written.
            let key = &*words::line(key);
            let numbers = matches!(key, "m" | "q" | "t");
            let (v, left, dropped) = r.value_within(if numbers { MAX_NUMBERS } else { nested })?;
            nested = if numbers { nested } else { left };
            e.dropped = e.dropped.saturating_add(dropped);
            if key == "k" {
                let known = v.as_str().and_then(Kind::parse);
                kind = Some(known.ok_or_else(|| wrong("k", &format!("one of {}", kinds()), &v))?);
                return Ok(());
            }
            e.take(key, v)
        })?;
        r.end().map_err(EventError::from)?;
        let missing = |field: &str| EventError { field: field.into(), reason: "is required".into() };
        e.kind = kind.ok_or_else(|| missing("k"))?;
        e.settle()?;
        if e.kind == Kind::Step && e.step.is_none() {
            return Err(missing("step"));
        }
        Ok(e)
    }

    fn take(&mut self, key: &str, v: Value) -> Result<(), EventError> {
        if v == Value::Null {
            self.null(key); // otherwise null is absent, here and in `m`
            return Ok(());
        }
        match key {
            "v" => {
                if v.as_f64() != Some(1.0) {
                    return Err(wrong("v", "1", &v));
                }
            }
            "ts" => self.ts = Some(finite("ts", "Unix seconds", &v)?),
            "run" => self.run = Some(text("run", &v)?).filter(|s| !s.is_empty()),
            "rank" => self.rank = Some(small("rank", &v)?),
            "world" => self.world = Some(small("world", &v)?),
            "attempt" => self.attempt = Some(small("attempt", &v)?),
            "step" => self.step = Some(step(&v)?),
            "m" => {
                if let Value::Map(map) = &v {
                    map.iter().filter(|(_, v)| **v == Value::Null).for_each(|(name, _)| self.null(name));
                }
                self.dropped += metrics("m", v, &mut self.m)?;
            }
            // A number in `"q":0.7` is a custom metric.
            "q" if matches!(v, Value::Map(_)) => self.quanta(&v),
            "t" => self.dropped += metrics("t", v, &mut self.t)?,
            // An invalid uid is ignored, because the exporter sets this field itself.
            "uid" => self.uid = small("uid", &v).ok(),
            "node" => self.node = Some(text("node", &v)?),
            "name" => self.name = Some(text("name", &v)?),
            "text" => self.text = Some(text("text", &v)?),
            "level" => self.level = Some(text("level", &v)?),
            "code" => self.code = Some(integer("code", &v)?),
            "lost" => self.lost = Some(integer("lost", &v)?.max(0) as u64),
            "c" => {
                let cursor = v.as_str().and_then(|s| s.parse().ok());
                self.cursor = Some(cursor.ok_or_else(|| wrong("c", "<boot>:<seq>", &v))?);
            }
            "missing" => {
                let Value::List(items) = v else { return Err(wrong("missing", "a list of names", &v)) };
                let names = items.iter().filter_map(Value::as_str).take(MAX_EXTRA).map(clip);
                for name in names {
                    if !self.missing.contains(&name) {
                        self.missing.push(name);
                    }
                }
            }
            _ => {
                if self.extra.len() < MAX_EXTRA {
                    self.extra.insert(clip(key), v);
                } else {
                    self.dropped += 1;
                }
            }
        }
        Ok(())
    }

    /// Ignores resolutions that are not positive numbers.
    fn quanta(&mut self, v: &Value) {
        let Value::Map(map) = v else { return };
        for (name, v) in map {
            if let Some(quantum) = v.as_f64().filter(|q| q.is_finite() && *q > 0.0) {
                self.dropped += u32::from(!self.q.set(name, quantum));
            }
        }
    }

    /// Takes a null loss as missing: strict writers turn the NaN of a diverged step into null.
    fn null(&mut self, name: &str) {
        if matches!(name, metric::LOSS | metric::GRAD_NORM) && self.missing.iter().all(|m| m != name) {
            self.missing.push(name.to_owned());
        }
    }

    /// Interprets the fields whose meaning depends on the kind, which may be anywhere in the
    /// object.
    fn settle(&mut self) -> Result<(), EventError> {
        if self.kind != Kind::Step {
            // A null is only meaningful in a step, whose line should have the number.
            self.missing.clear();
        }
        match self.kind {
            Kind::Phase => {
                for key in ["phase", "edge"] {
                    self.edge = one_of(&mut self.extra, key, EDGES)?.or(self.edge);
                }
                for (key, edge) in [("begin", Edge::Begin), ("end", Edge::End)] {
                    if self.edge.is_none() && self.extra.remove(key).is_some() {
                        self.edge = Some(edge);
                    }
                }
            }
            Kind::Ckpt => self.ckpt = one_of(&mut self.extra, "phase", CKPT_PHASES)?,
            // Accepts flat metrics: `curl -d '{"k":"step","step":1,"loss":2.5}'`.
            Kind::Step | Kind::Eval => {
                let numbers: Vec<_> =
                    self.extra.iter().filter_map(|(k, v)| Some((k.clone(), v.as_f64()?))).collect();
                for (k, v) in numbers {
                    if self.m.get(&k).is_none() && self.m.set(&k, v) {
                        self.extra.remove(&k);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub fn to_json(&self) -> String {
        let mut out = String::with_capacity(256);
        self.write_json(&mut out);
        out
    }

    /// Appends the event as one line of JSON without the newline. [`Event::parse`] returns an equal
    /// event.
    pub fn write_json(&self, out: &mut String) {
        let mut o = Object::open(out);
        if let Some(c) = &self.cursor {
            o.text("c", &c.to_string());
        }
        self.write_members(o);
    }

    /// As [`Self::write_json`], but with this cursor instead of the event's.
    pub fn write_record(&self, boot: &str, seq: u64, out: &mut String) {
        let mut o = Object::open(out);
        let cursor = o.key("c");
        cursor.push('"');
        // The boot id is alphanumeric, so it needs no escapes.
        cursor.push_str(boot);
        cursor.push(':');
        num::write_json(cursor, seq as f64);
        cursor.push('"');
        self.write_members(o);
    }

    fn write_members(&self, mut o: Object<'_>) {
        o.number("v", 1.0);
        o.text("k", self.kind.as_str());
        for (key, v) in [("ts", self.ts)] {
            if let Some(v) = v {
                o.number(key, v);
            }
        }
        for (key, v) in [("run", &self.run), ("node", &self.node)] {
            if let Some(v) = v {
                o.text(key, v);
            }
        }
        for (key, v) in
            [("rank", self.rank), ("world", self.world), ("attempt", self.attempt), ("uid", self.uid)]
        {
            if let Some(v) = v {
                o.number(key, f64::from(v));
            }
        }
        for (key, v) in [("step", self.step), ("code", self.code), ("lost", self.lost.map(|n| n as i64))] {
            if let Some(v) = v {
                o.number(key, v as f64);
            }
        }
        for (key, v) in [("name", &self.name), ("text", &self.text), ("level", &self.level)] {
            if let Some(v) = v {
                o.text(key, v);
            }
        }
        match (self.edge, self.ckpt) {
            (Some(Edge::Begin), _) => o.text("phase", "begin"),
            (Some(Edge::End), _) => o.text("phase", "end"),
            (None, Some(CkptPhase::Start)) => o.text("phase", "start"),
            (None, Some(CkptPhase::End)) => o.text("phase", "end"),
            (None, Some(CkptPhase::Fail)) => o.text("phase", "fail"),
            (None, None) => {}
        }
        for (key, m) in [("m", &self.m), ("q", &self.q), ("t", &self.t)] {
            if !m.is_empty() {
                let mut inner = Object::open(o.key(key));
                for (name, v) in m.iter() {
                    inner.number(name, v);
                }
                inner.close();
            }
        }
        if !self.missing.is_empty() {
            Value::List(self.missing.iter().cloned().map(Value::Text).collect()).write(o.key("missing"));
        }
        for (key, v) in &self.extra {
            v.write(o.key(key));
        }
        o.close();
    }
}

/// Writes the members of one JSON object.
struct Object<'a> {
    out: &'a mut String,
    first: bool,
}

impl<'a> Object<'a> {
    fn open(out: &'a mut String) -> Self {
        out.push('{');
        Self { out, first: true }
    }

    fn key(&mut self, key: &str) -> &mut String {
        if !self.first {
            self.out.push(',');
        }
        self.first = false;
        write_string(self.out, key);
        self.out.push(':');
        self.out
    }

    fn text(&mut self, key: &str, v: &str) {
        write_string(self.key(key), v);
    }

    fn number(&mut self, key: &str, v: f64) {
        num::write_json(self.key(key), v);
    }

    fn close(self) {
        self.out.push('}');
    }
}

fn kinds() -> String {
    Kind::ALL.iter().map(|k| k.as_str()).collect::<Vec<_>>().join(" ")
}

fn finite(field: &str, want: &str, v: &Value) -> Result<f64, EventError> {
    v.as_f64().filter(|n| n.is_finite()).ok_or_else(|| wrong(field, want, v))
}

fn integer(field: &str, v: &Value) -> Result<i64, EventError> {
    let n = finite(field, "an integer", v)?;
    if n.trunc() == n && n.abs() <= 9_007_199_254_740_992.0 {
        Ok(n as i64)
    } else {
        Err(wrong(field, "an integer", v))
    }
}

fn step(v: &Value) -> Result<i64, EventError> {
    let want = "an integer of at least 0";
    integer("step", v).ok().filter(|n| *n >= 0).ok_or_else(|| wrong("step", want, v))
}

/// Removes the value at `key` from `extra` and parses it. An unknown word is an error, because a
/// default could turn a failure into a success.
fn one_of<T: Copy>(
    extra: &mut BTreeMap<String, Value>,
    key: &str,
    words: &[(&str, T)],
) -> Result<Option<T>, EventError> {
    let Some(v) = extra.remove(key) else { return Ok(None) };
    let named = v.as_str().and_then(|s| words.iter().find(|(word, _)| word.eq_ignore_ascii_case(s)));
    let want = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" ");
    named.map(|(_, meaning)| Some(*meaning)).ok_or_else(|| wrong(key, &format!("one of {}", want()), &v))
}

fn small(field: &str, v: &Value) -> Result<u32, EventError> {
    u32::try_from(integer(field, v)?).map_err(|_| wrong(field, "an integer of at least 0", v))
}

fn text(field: &str, v: &Value) -> Result<String, EventError> {
    match v {
        Value::Text(t) => Ok(clip(t)),
        Value::Number(n) => {
            let mut s = String::new();
            num::write_json(&mut s, *n);
            Ok(s)
        }
        _ => Err(wrong(field, "a string", v)),
    }
}

/// Reads the members of `m` or `t`. Returns the number of members that the limit dropped.
fn metrics(field: &str, v: Value, into: &mut Metrics) -> Result<u32, EventError> {
    let Value::Map(map) = v else { return Err(wrong(field, "an object of numbers", &v)) };
    let mut dropped = 0;
    for (name, v) in map {
        match v {
            Value::Null => {}
            Value::Bool(b) => dropped += u32::from(!into.set(&name, f64::from(u8::from(b)))),
            v => {
                let n = v.as_f64().ok_or_else(|| wrong(&format!("{field}.{name}"), "a number", &v))?;
                dropped += u32::from(!into.set(&name, n));
            }
        }
    }
    Ok(dropped)
}

#[cfg(test)]
mod tests;

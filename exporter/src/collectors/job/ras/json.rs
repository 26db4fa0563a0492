//! Parses the JSON of a status, which lists every rank of every communicator. It is read one
//! communicator at a time, and only the distance between its ranks is kept.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::status::{
    Communicator, Format, MAX_COLLECTIVES, MAX_COMMUNICATORS, Member, Status, clipped, fingerprint,
};

/// The most ranks of a communicator, and the most processes of a job; real ones have fewer.
const MAX_ENTRIES: usize = 32_768;
/// The most bytes of a string, or between two strings.
const MAX_TEXT: usize = 4 << 10;
/// Result codes of NCCL: success, and in progress.
const SUCCESS: i64 = 0;
const IN_PROGRESS: i64 = 7;

#[derive(serde::Deserialize)]
struct Raw {
    nccl_version: String,
    communicators: AllSeen,
    #[serde(default)]
    ras: Ras,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Ras {
    collection_time_sec: Option<f64>,
    timeouts_count: u64,
}

/// A reduced communicator, the progress of each of its processes, and the host of its lowest rank.
struct Seen {
    communicator: Communicator,
    processes: Vec<(u64, u64)>,
    first: Option<(u32, String)>,
}

#[derive(serde::Deserialize)]
struct RawCommunicator {
    hash: String,
    #[serde(default)]
    secondary_hash: String,
    size: u32,
    ranks: List<RawRank>,
    #[serde(default)]
    missing_ranks: List<RawMissing>,
}

#[derive(serde::Deserialize)]
struct RawRank {
    rank: u32,
    #[serde(default)]
    host: String,
    #[serde(default)]
    pid: i64,
    nvml_dev: Option<i64>,
    #[serde(default)]
    status: RawStatus,
    #[serde(default)]
    collective_counts: Counts,
}

/// The number of launched collectives by kind.
#[derive(Default, PartialEq, Eq, Hash)]
struct Counts(Vec<(Box<str>, u64)>);

/// All communicators, and for each process a value that changes when it launches anything.
struct AllSeen {
    communicators: Vec<Communicator>,
    processes: BTreeMap<u64, u64>,
    /// The size of the largest communicator, and the host of its lowest rank.
    first: Option<(u32, Option<String>)>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct RawStatus {
    init_state: i64,
    async_error: i64,
    unresponsive: bool,
    considered_dead: bool,
}

#[derive(serde::Deserialize)]
struct RawMissing {
    rank: u32,
    #[serde(default)]
    host: String,
    #[serde(default)]
    pid: i64,
    nvml_dev: Option<i64>,
    #[serde(default)]
    status: RawStatus,
}

/// A list of a bounded length.
struct List<T>(Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = List<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX_ENTRIES}")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
                let mut all = Vec::new();
                while let Some(entry) = entries.next_element()? {
                    if all.len() >= MAX_ENTRIES {
                        return Err(serde::de::Error::custom("a list is too long"));
                    }
                    all.push(entry);
                }
                Ok(List(all))
            }
        }

        deserializer.deserialize_seq(Entries(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Counts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Counts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("counts by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Counts, A::Error> {
                let mut all = Vec::new();
                while let Some((name, count)) = entries.next_entry::<String, u64>()? {
                    if all.len() < MAX_COLLECTIVES {
                        all.push((clipped(&name).into_boxed_str(), count));
                    }
                }
                all.sort();
                all.shrink_to_fit();
                Ok(Counts(all))
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

impl Counts {
    fn get(&self, name: &str) -> u64 {
        self.0.iter().find(|(known, _)| **known == *name).map_or(0, |(_, count)| *count)
    }
}

impl<'de> Deserialize<'de> for AllSeen {
    /// Reduces each communicator before it reads the next one.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = AllSeen;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX_COMMUNICATORS}")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<AllSeen, A::Error> {
                let mut all = AllSeen { communicators: Vec::new(), processes: BTreeMap::new(), first: None };
                while let Some(seen) = entries.next_element::<Seen>()? {
                    if all.communicators.len() >= MAX_COMMUNICATORS {
                        return Err(serde::de::Error::custom("a list is too long"));
                    }
                    all.add(seen);
                }
                Ok(all)
            }
        }

        deserializer.deserialize_seq(Entries)
    }
}

impl AllSeen {
    fn add(&mut self, mut seen: Seen) {
        seen.communicator.forget_names();
        let size = seen.communicator.size;
        if self.first.as_ref().is_none_or(|(largest, _)| size > *largest) {
            self.first = Some((size, seen.first.map(|(_, host)| host)));
        }
        self.communicators.push(seen.communicator);
        for (process, counts) in seen.processes {
            if self.processes.len() < MAX_ENTRIES || self.processes.contains_key(&process) {
                let sum = self.processes.entry(process).or_default();
                *sum = sum.wrapping_add(counts);
            }
        }
    }
}

impl<'de> Deserialize<'de> for Seen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        RawCommunicator::deserialize(deserializer).map(Self::from_raw)
    }
}

pub(super) fn parse(reader: impl Read) -> serde_json::Result<Status> {
    let reader = ShortTexts { reader, length: 0, escaped: false };
    let raw = Raw::deserialize(&mut serde_json::Deserializer::from_reader(reader))?;
    let AllSeen { mut communicators, processes, first } = raw.communicators;
    communicators.sort_by_key(|c| std::cmp::Reverse(c.size));
    let first_host = first.and_then(|(_, host)| host);
    Ok(Status {
        processes,
        format: Format::Json,
        version: clipped(&raw.nccl_version),
        communicators,
        seconds: raw.ras.collection_time_sec.filter(|s| s.is_finite()),
        timeouts: raw.ras.timeouts_count,
        first_host,
        summary: String::new(),
    })
}

/// Limits the length of strings, because the parser holds a whole one in memory.
struct ShortTexts<R> {
    reader: R,
    /// Bytes since the last quotation mark that begins or ends a string.
    length: usize,
    escaped: bool,
}

impl<R: Read> Read for ShortTexts<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.reader.read(buffer)?;
        for byte in buffer.iter().take(n) {
            let ends = *byte == b'"' && !self.escaped;
            self.escaped = *byte == b'\\' && !self.escaped;
            self.length = if ends { 0 } else { self.length + 1 };
            if self.length > MAX_TEXT {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
        }
        Ok(n)
    }
}

impl Seen {
    fn from_raw(raw: RawCommunicator) -> Self {
        let (mut ranks, missing) = (raw.ranks.0, raw.missing_ranks.0);
        ranks.sort_by_key(|r| r.rank);
        let mut communicator = Communicator {
            id: if raw.secondary_hash.is_empty() {
                clipped(&raw.hash)
            } else {
                format!("{}:{}", clipped(&raw.hash), clipped(&raw.secondary_hash))
            },
            size: raw.size,
            fingerprint: fingerprint((
                ranks.iter().map(|r| (r.rank, &r.collective_counts)).collect::<Vec<_>>(),
                missing.iter().map(|m| (m.rank, m.status.unresponsive)).collect::<Vec<_>>(),
            )),
            ..Communicator::default()
        };
        for rank in &ranks {
            let states = [rank.status.init_state, rank.status.async_error];
            communicator.errors += u64::from(states.iter().any(|s| ![SUCCESS, IN_PROGRESS].contains(s)));
            for (name, count) in &rank.collective_counts.0 {
                if communicator.spreads.len() < MAX_COLLECTIVES || communicator.spreads.contains_key(&**name)
                {
                    let spread = communicator.spreads.entry(name.to_string()).or_default();
                    spread.most = spread.most.max(*count);
                }
            }
        }
        for (name, spread) in &mut communicator.spreads {
            spread.least = spread.most;
            for rank in &ranks {
                let count = rank.collective_counts.get(name);
                spread.least = spread.least.min(count);
                if count < spread.most {
                    spread.behind.add(|| member(rank.rank, &rank.host, rank.pid, rank.nvml_dev));
                }
            }
        }
        for rank in &missing {
            // A rank that answered but is not a member now, before or after its membership, is not
            // missing.
            if rank.status.unresponsive {
                communicator.missing.add(|| member(rank.rank, &rank.host, rank.pid, rank.nvml_dev));
            }
            communicator.dead += u64::from(rank.status.considered_dead);
        }
        let first = ranks.first().map(|r| (r.rank, clipped(&r.host)));
        let process = |r: &RawRank| {
            let member = member(r.rank, &r.host, r.pid, r.nvml_dev);
            (member.process(), fingerprint((&communicator.id, r.rank, &r.collective_counts)))
        };
        Self { processes: ranks.iter().map(process).collect(), communicator, first }
    }
}

fn member(rank: u32, host: &str, pid: i64, gpu: Option<i64>) -> Member {
    Member {
        rank,
        host: clipped(host),
        pid: u32::try_from(pid).ok().filter(|pid| *pid > 0),
        gpu: gpu.and_then(|gpu| u32::try_from(gpu).ok()),
    }
}

//! The JSON of a status, which lists every rank of every communicator: read one communicator at a
//! time, and kept as how far apart its ranks are.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};

use super::status::{Communicator, Format, Member, Status, fingerprint};

/// Entries of any list: more ranks, or communicators, than one job has.
const MAX_ENTRIES: usize = 65_536;
/// Kinds of collectives.
const MAX_COLLECTIVES: usize = 32;
/// What NCCL returns for success, and for what still goes on.
const SUCCESS: i64 = 0;
const IN_PROGRESS: i64 = 7;

#[derive(serde::Deserialize)]
struct Raw {
    nccl_version: String,
    communicators: List<Seen>,
    #[serde(default)]
    ras: Ras,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Ras {
    collection_time_sec: Option<f64>,
    timeouts_count: u64,
}

/// A communicator as it is kept, how far each of its processes is, and where its lowest rank is.
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
    collective_counts: BTreeMap<String, u64>,
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

impl<'de> Deserialize<'de> for Seen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        RawCommunicator::deserialize(deserializer).map(Self::of)
    }
}

pub(super) fn parse(reader: impl Read) -> serde_json::Result<Status> {
    let raw = Raw::deserialize(&mut serde_json::Deserializer::from_reader(reader))?;
    let mut seen = raw.communicators.0;
    seen.sort_by_key(|s| std::cmp::Reverse(s.communicator.size));
    let first_host = seen.first().and_then(|s| s.first.clone()).map(|(_, host)| host);
    let mut processes = BTreeMap::<u64, u64>::new();
    for (process, counts) in seen.iter_mut().flat_map(|s| s.processes.drain(..)) {
        let sum = processes.entry(process).or_default();
        *sum = sum.wrapping_add(counts);
    }
    Ok(Status {
        processes,
        format: Format::Json,
        version: raw.nccl_version,
        communicators: seen.into_iter().map(|s| s.communicator).collect(),
        seconds: raw.ras.collection_time_sec.filter(|s| s.is_finite()),
        timeouts: raw.ras.timeouts_count,
        first_host,
        summary: String::new(),
    })
}

impl Seen {
    fn of(raw: RawCommunicator) -> Self {
        let (mut ranks, missing) = (raw.ranks.0, raw.missing_ranks.0);
        ranks.sort_by_key(|r| r.rank);
        let mut communicator = Communicator {
            id: if raw.secondary_hash.is_empty() {
                raw.hash
            } else {
                format!("{}:{}", raw.hash, raw.secondary_hash)
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
            for (name, count) in &rank.collective_counts {
                if communicator.spreads.len() < MAX_COLLECTIVES || communicator.spreads.contains_key(name) {
                    let spread = communicator.spreads.entry(name.clone()).or_default();
                    spread.most = spread.most.max(*count);
                }
            }
        }
        for (name, spread) in &mut communicator.spreads {
            spread.least = spread.most;
            for rank in &ranks {
                let count = rank.collective_counts.get(name).copied().unwrap_or(0);
                spread.least = spread.least.min(count);
                if count < spread.most {
                    spread.behind.add(|| member(rank.rank, &rank.host, rank.pid, rank.nvml_dev));
                }
            }
        }
        for rank in &missing {
            // One that answered, and is only not a member yet or any more, is not missed.
            if rank.status.unresponsive {
                communicator.missing.add(|| member(rank.rank, &rank.host, rank.pid, rank.nvml_dev));
            }
            communicator.dead += u64::from(rank.status.considered_dead);
        }
        let first = ranks.first().map(|r| (r.rank, r.host.clone()));
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
        host: host.to_owned(),
        pid: u32::try_from(pid).ok().filter(|pid| *pid > 0),
        gpu: gpu.and_then(|gpu| u32::try_from(gpu).ok()),
    }
}

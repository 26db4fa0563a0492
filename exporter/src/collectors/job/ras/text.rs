//! Parses the text of a status, for NCCL before 2.28.7. It is made for people: it lists ranks only
//! if they differ, and names only those that deviate.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, BufRead, Read as _};

use super::status::{
    Communicator, Format, MAX_COLLECTIVES, MAX_COMMUNICATORS, Member, Members, Spread, Status, clipped,
};

/// The most bytes of a line of a status.
const MAX_LINE: u64 = 16 << 10;
/// The kind that NCCL before 2.26 counts, which does not distinguish kinds.
const ANY: &str = "any";

/// The state of the parser: the section of the current line.
#[derive(Default)]
struct RasTextParser {
    communicators: BTreeMap<String, Section>,
    at: Option<String>,
    collective: Option<String>,
    dead: u64,
    timeouts: u64,
    seconds: Option<f64>,
    version: String,
    summary: bool,
    /// The row with the numbers of nodes, processes and GPUs of the job.
    job: String,
    sizes: Vec<(u32, u32)>,
}

#[derive(Default)]
struct Section {
    group: Option<usize>,
    /// Groups of ranks with the same count, for each kind of collective.
    groups: BTreeMap<String, Vec<Group>>,
    missing: Members,
    errors: u64,
    /// A hash of the lines about it, to detect changes.
    said: DefaultHasher,
    part: Part,
}

#[derive(Default, Clone, Copy, PartialEq)]
enum Part {
    Incomplete,
    Error,
    Mismatch,
    #[default]
    Other,
}

struct Group {
    count: u64,
    ranks: u64,
    named: Vec<Member>,
}

/// Parses a status; `None` if it is not one.
pub(super) fn parse(mut text: impl BufRead) -> io::Result<Option<Status>> {
    let mut reader = RasTextParser::default();
    let mut line = Vec::new();
    while text.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? > 0 {
        if line.len() as u64 >= MAX_LINE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is too long"));
        }
        reader.line(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
    Ok(reader.summary.then(|| reader.status()))
}

impl RasTextParser {
    fn line(&mut self, line: &str) {
        let indented = line.starts_with(' ');
        let text = line.trim();
        if let Some(version) = line.strip_prefix("NCCL version ") {
            self.version = clipped(version.split_whitespace().next().unwrap_or_default());
        } else if let Some(rest) = line.strip_prefix("Communicators...") {
            self.summary = true;
            self.seconds = rest.trim().trim_matches(['(', ')']).trim_end_matches('s').parse().ok();
        } else if let Some(rest) = line.strip_prefix('#') {
            self.header(rest);
        } else if !indented && !text.is_empty() {
            // The line is a title, or a heading about more than one communicator.
            (self.at, self.collective) = (None, None);
        } else if self.at.is_some() {
            self.detail(text);
        } else if text.contains("considered dead") {
            self.dead = first_number(text).unwrap_or(0);
        } else if let Some(rest) = text.strip_prefix("Encountered ") {
            self.timeouts = first_number(rest).unwrap_or(0);
        } else {
            self.row(text);
        }
    }

    /// Parses `0-0 (27a079b828ff1a75) MISMATCH`.
    fn header(&mut self, rest: &str) {
        let mut words = rest.split_whitespace();
        let (place, hash, what) = (words.next(), words.next(), words.next());
        let hash = hash.and_then(|h| h.strip_prefix('(')?.strip_suffix(')'));
        let (Some(place), Some(hash), Some(what)) = (place, hash, what) else { return };
        (self.at, self.collective) = (None, None);
        let hash = clipped(hash);
        if self.communicators.len() >= MAX_COMMUNICATORS && !self.communicators.contains_key(&hash) {
            return;
        }
        let section = self.communicators.entry(hash.clone()).or_default();
        section.group = place.split_once('-').and_then(|(group, _)| group.parse().ok());
        section.part = match what {
            "INCOMPLETE" => Part::Incomplete,
            "ERROR" => Part::Error,
            "MISMATCH" => Part::Mismatch,
            _ => Part::Other,
        };
        self.at = Some(hash);
    }

    /// Parses `4 8 1 32 32` of the job, above the communicators, and `0 8 4 1 4 32 RUNNING OK` of a
    /// group: its number, the number of its communicators, and fifth the ranks of each.
    fn row(&mut self, text: &str) {
        let words: Vec<&str> = text.split_whitespace().collect();
        if let ([nodes, ..], 5, false) = (&words[..], words.len(), self.summary) {
            if nodes.bytes().all(|b| b.is_ascii_digit()) {
                self.job = clipped(&words.join(" "));
            }
        }
        let [group, count, _, _, size, _, _, _] = words[..] else { return };
        let (Ok(group), Ok(count), Ok(size)) = (group.parse::<usize>(), count.parse(), size.parse()) else {
            return;
        };
        if group == self.sizes.len() && group < MAX_COMMUNICATORS {
            self.sizes.push((count, size));
        }
    }

    fn detail(&mut self, text: &str) {
        let Some(section) = self.at.as_ref().and_then(|at| self.communicators.get_mut(at)) else { return };
        text.hash(&mut section.said);
        match section.part {
            Part::Incomplete => section.incomplete(text),
            Part::Error => {
                section.errors += first_number(text).filter(|_| text.contains(" reported ")).unwrap_or(0)
            }
            Part::Mismatch => section.mismatch(text, &mut self.collective),
            Part::Other => {}
        }
    }

    fn status(self) -> Status {
        let size =
            |group: Option<usize>| group.and_then(|group| self.sizes.get(group)).map_or(0, |(_, size)| *size);
        let mut communicators: Vec<Communicator> =
            self.communicators.iter().map(|(id, s)| s.communicator(id, size(s.group))).collect();
        // Communicators without a line of their own have no differences; nothing else is known of
        // them.
        let listed: BTreeMap<usize, u32> =
            self.communicators.values().filter_map(|s| s.group).fold(BTreeMap::new(), |mut listed, group| {
                *listed.entry(group).or_default() += 1;
                listed
            });
        for (group, (count, size)) in self.sizes.iter().enumerate() {
            let silent = count.saturating_sub(listed.get(&group).copied().unwrap_or(0)) as usize;
            let room = MAX_COMMUNICATORS.saturating_sub(communicators.len());
            let each = (0..silent.min(room)).map(|i| Communicator {
                id: format!("#{group}-{i}"),
                size: *size,
                ..Communicator::default()
            });
            communicators.extend(each);
        }
        communicators.sort_by_key(|c| std::cmp::Reverse(c.size));
        if let Some(largest) = communicators.first_mut() {
            largest.dead = self.dead;
        }
        Status {
            format: Format::Text,
            version: self.version,
            communicators,
            seconds: self.seconds,
            timeouts: self.timeouts,
            first_host: None,
            processes: BTreeMap::new(),
            summary: self.job,
        }
    }
}

impl Section {
    /// Parses `Missing communicator data from 1 rank`, and then `The missing rank: 21` or the ranks
    /// with their processes.
    fn incomplete(&mut self, text: &str) {
        if let Some(rest) = text.strip_prefix("Missing communicator data from ") {
            self.missing.count = first_number(rest).unwrap_or(0);
        } else if let Some(member) = member(text) {
            self.name_missing(member);
        } else if let Some((_, ranks)) = text.split_once(':').filter(|_| text.starts_with("The missing rank"))
        {
            for rank in ranks.split(',').filter_map(|r| r.trim().parse().ok()) {
                self.name_missing(Member { rank, host: String::new(), pid: None, gpu: None });
            }
        }
    }

    fn name_missing(&mut self, member: Member) {
        if self.missing.named.len() < super::status::MAX_NAMED {
            self.missing.named.push(member);
        }
    }

    /// Parses `Communicator ranks have different AllReduce operation counts`, then groups of ranks
    /// by count, and ranks by name.
    fn mismatch(&mut self, text: &str, collective: &mut Option<String>) {
        if let Some(rest) = text.strip_prefix("Communicator ranks have different ") {
            *collective = rest.strip_suffix("operation counts").map(|name| {
                let name = name.trim();
                if name == "collective" || name.is_empty() { ANY.to_owned() } else { clipped(name) }
            });
            return;
        }
        let Some(collective) = collective else { return };
        let launched = |text: &str| match text.split_once("has launched up to operation ") {
            Some((_, rest)) => first_number(rest),
            None => text.contains("has not launched any operations").then_some(0),
        };
        let of_many = text.split_once(" ranks have ").and_then(|(ranks, rest)| {
            let count = match rest.strip_prefix("launched up to operation ") {
                Some(rest) => first_number(rest)?,
                None => rest.starts_with("not launched any").then_some(0)?,
            };
            Some(Group { count, ranks: ranks.parse().ok()?, named: Vec::new() })
        });
        if self.groups.len() >= MAX_COLLECTIVES && !self.groups.contains_key(collective) {
            return;
        }
        let groups = self.groups.entry(collective.clone()).or_default();
        if groups.len() >= super::status::MAX_NAMED {
            return;
        }
        if let Some(group) = of_many {
            groups.push(group);
        } else if let Some(member) = member(text) {
            match (launched(text), groups.last_mut()) {
                (Some(count), _) => groups.push(Group { count, ranks: 1, named: vec![member] }),
                (None, Some(last)) if last.named.len() < super::status::MAX_NAMED => last.named.push(member),
                _ => {}
            }
        }
    }

    fn communicator(&self, id: &str, size: u32) -> Communicator {
        let spread = |groups: &Vec<Group>| {
            let most = groups.iter().map(|g| g.count).max().unwrap_or(0);
            let mut behind = Members::default();
            for group in groups.iter().filter(|g| g.count < most) {
                behind.count += group.ranks;
                let room = super::status::MAX_NAMED - behind.named.len();
                behind.named.extend(group.named.iter().take(room).cloned());
            }
            Spread { most, least: groups.iter().map(|g| g.count).min().unwrap_or(0), behind }
        };
        Communicator {
            id: id.to_owned(),
            size,
            spreads: self.groups.iter().map(|(name, groups)| (name.clone(), spread(groups))).collect(),
            missing: self.missing.clone(),
            dead: 0,
            errors: self.errors,
            fingerprint: self.said.finish(),
        }
    }
}

/// Parses `Rank 2 -- GPU 2 managed by process 483074 on node 172.16.64.210`. There may be text
/// before the dashes, and `(NVML 3)` after a GPU with two numbers.
fn member(text: &str) -> Option<Member> {
    let rest = text.strip_prefix("Rank ")?;
    let rank = first_number(rest).and_then(|rank| u32::try_from(rank).ok())?;
    let (_, process) = rest.split_once(" -- ")?;
    let after = |key: &str| process.split_once(key).map(|(_, rest)| rest);
    let number = |text: &str| first_number(text).and_then(|n| u32::try_from(n).ok());
    let gpu = after("(NVML ").or_else(|| after("GPU ")).and_then(number);
    Some(Member {
        rank,
        host: clipped(after("on node ").and_then(|t| t.split_whitespace().next()).unwrap_or_default()),
        pid: after("managed by process ").and_then(number),
        gpu,
    })
}

fn first_number(text: &str) -> Option<u64> {
    let digits = text.trim_start();
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

//! Turns records of the log into counts, and into the events that are worth publishing.

use std::collections::{BTreeMap, HashMap};

use stepwatch_wire::Event;
use stepwatch_wire::conditions::NodeCondition;

use super::counts::{Counts, Held};
use super::events::{self, LogLine, Oom};
use super::first_seen::KnownMessages;
use super::lines::{self, Facts, Found};
use super::nvidia::{Line, Severity};
use super::patterns::{Pattern, Report};
use super::record::Record;
use crate::roots::Roots;

/// Records within which the lines of one message of the driver stand.
const WINDOW: u64 = 3;
/// Records of a priority below this one (warnings and worse) are checked for messages that this
/// node has never logged before.
const WORST: usize = 5;
/// Events of one kind of one device that are published within [`BURST_SECONDS`]; further ones are
/// only counted.
const BURST: u32 = 10;
const BURST_SECONDS: f64 = 60.0;
/// Pairs of kind and device whose events are limited separately.
const MAX_BURSTS: usize = 1024;
/// A value of [`Tracker::publish_from`]: no record is published yet, because this is the first
/// start since the boot.
pub(super) const NOT_YET: u64 = u64::MAX;
/// A condition that still holds is published again at this interval.
const AGAIN_SECONDS: f64 = 600.0;
/// A condition that the kernel has not logged again for this long is over. The kernel logs no end
/// when the waiting process was killed, when a file system was unmounted by force or when its disk
/// was taken out, and it drops lines in a storm. An incident must not stay open until the next
/// boot. A server is seldom away for longer. Other collectors report, for as long as it lasts, a
/// mount that does not answer, a Lustre connection that is down and a file system that cannot be
/// written.
pub(super) const HOLDS_SECONDS: f64 = 6.0 * 3600.0;
/// The condition of a Lustre target that cannot be reached.
pub(super) const LUSTRE: &str = NodeCondition::LustreStall.name();

#[derive(Debug, Default)]
pub(super) struct Tracker {
    pub(super) counts: Counts,
    pub(super) known: KnownMessages,
    /// New messages are learned without being counted.
    pub(super) learning: bool,
    /// Records from this sequence number on are published. Those before it were published already,
    /// or are too old.
    pub(super) publish_from: u64,
    pub(super) events: Vec<Event>,
    /// An XID named a PCI address that belongs to no known GPU.
    pub(super) stranger: bool,
    overwritten: bool,
    oom: Option<Oom>,
    /// Which GPU the lines of the driver are about, and up to which record.
    about: Option<(String, u64)>,
    /// When the burst of each key began, and how many of its events were published.
    bursts: HashMap<String, (f64, u32)>,
}

impl Tracker {
    /// Continues from `counts`, and publishes records from `publish_from` on.
    pub(super) fn new(counts: Counts, publish_from: u64) -> Self {
        Self { counts, publish_from, ..Self::default() }
    }

    /// The log was overwritten before it was read; the next record shows by how much.
    pub(super) fn overwritten(&mut self) {
        self.overwritten = true;
    }

    /// Takes in what the log gave; one that was taken in before does nothing.
    pub(super) fn take(&mut self, bytes: &[u8], roots: &Roots, time: impl FnOnce(u64) -> f64) {
        let Some(record) = Record::parse(bytes) else {
            // In a plain file, continuation lines come as separate records.
            self.counts.malformed += u64::from(!bytes.starts_with(b" ") && !bytes.is_empty());
            return;
        };
        let expected = self.counts.next.unwrap_or(record.sequence);
        if record.sequence < expected {
            return;
        }
        let missing = record.sequence - expected;
        let missing = missing.max(u64::from(std::mem::take(&mut self.overwritten)));
        self.counts.lost = self.counts.lost.saturating_add(missing);
        self.counts.next = Some(record.sequence.saturating_add(1));
        self.counts.read += 1;
        let ts = time(record.micros);
        let mut understood = false;
        for line in lines::lines(&record.text) {
            understood |= self.line(LogLine { text: line.trim_end(), sequence: record.sequence, ts, roots });
        }
        if !understood {
            self.novelty(&record);
        }
    }

    /// Whether the line means something.
    fn line(&mut self, at: LogLine<'_>) -> bool {
        let Some(found) = lines::recognise(at.text) else { return false };
        match found {
            Found::Nvidia(found) => self.nvidia(found, at),
            Found::OomContext { pid, cgroup, constraint } => {
                self.oom = Some(Oom { pid, cgroup: cgroup.to_owned(), constraint: constraint.to_owned() });
            }
            Found::Pattern(pattern, facts) => self.pattern(pattern, &facts, at),
        }
        true
    }

    fn nvidia(&mut self, found: Line<'_>, at: LogLine<'_>) {
        match found {
            Line::Xid(xid) => {
                self.counts.event(Pattern::Xid);
                self.counts.xid(at.ts, &xid);
                let known = self.counts.knows(&xid.pci);
                self.stranger |= !known;
                let gpu = known.then(|| self.counts.gpu(&xid.pci));
                let event = events::xid(at.ts, &xid, gpu);
                self.publish(event, at);
            }
            Line::Sxid(sxid) => {
                self.counts.sxid(&sxid);
                let Some(event) = events::sxid(at.ts, &sxid) else { return };
                self.counts.event(match sxid.severity {
                    Severity::Fatal => Pattern::SxidFatal,
                    Severity::NonFatal => Pattern::SxidNonfatal,
                    Severity::Correctable | Severity::Unknown => Pattern::SxidUnknown,
                });
                self.publish(event, at);
            }
            Line::SxidData => {}
            Line::Identity { pci, uuid } => self.counts.learn(&pci, uuid),
            Line::About { pci } => self.about = Some((pci, at.sequence.saturating_add(WINDOW))),
            Line::FallenOff { pci } => self.fallen_off(&pci, at),
            Line::AboutFallenOff => {
                let about = self.about.take().filter(|(_, until)| at.sequence <= *until);
                self.fallen_off(&about.unwrap_or_default().0, at);
            }
            Line::RxDetect => self.pattern(Pattern::NvlinkRxDetect, &Facts::default(), at),
        }
    }

    fn fallen_off(&mut self, pci: &str, at: LogLine<'_>) {
        let facts = Facts { pci, ..Facts::default() };
        self.pattern(Pattern::GpuFallenOff, &facts, at);
    }

    fn pattern(&mut self, pattern: Pattern, facts: &Facts<'_>, at: LogLine<'_>) {
        self.counts.event(pattern);
        if pattern == Pattern::CperPreviousBoot {
            return self.previous_boot(facts, at);
        }
        let oom = self.oom.take_if(|oom| pattern == Pattern::OomKill && facts.pid == Some(oom.pid));
        let fresh = at.sequence >= self.publish_from;
        // A condition keeps its text even if its beginning is not published.
        if !fresh && !matches!(pattern.report(), Report::Begin { .. } | Report::End { .. }) {
            return;
        }
        let Some(mut event) = events::pattern(pattern.report(), facts, at, oom.as_ref()) else { return };
        let pci = super::nvidia::address(facts.pci).filter(|pci| self.counts.knows(pci));
        if let Some(pci) = pci {
            events::of_gpu(&mut event, self.counts.gpu(&pci));
        }
        match pattern.report() {
            // A condition without a device cannot be matched with its end: it would never be over.
            Report::Begin { .. } if facts.device.is_empty() => {}
            Report::Begin { condition, .. } => {
                if let Some(held) = self.counts.holds(condition.name(), facts.device) {
                    held.said = Some(at.ts);
                    facts.server.clone_into(&mut held.server);
                    return;
                }
                let held = Held {
                    name: condition.name().to_owned(),
                    device: facts.device.to_owned(),
                    level: event.level.clone().unwrap_or_default(),
                    text: event.text.clone().unwrap_or_default(),
                    told: (self.publish_from != NOT_YET).then_some(at.ts),
                    server: facts.server.to_owned(),
                    said: Some(at.ts),
                };
                if !self.counts.hold(held) {
                    self.counts.suppressed += 1;
                    return;
                }
            }
            Report::End { condition, .. } => {
                for held in self.counts.end(condition.name(), facts.device, facts.server) {
                    let facts = Facts { device: &held.device, ..facts.clone() };
                    let event = events::pattern(pattern.report(), &facts, at, None);
                    event.into_iter().for_each(|event| self.publish(event, at));
                }
                return;
            }
            _ => {}
        }
        self.publish(event, at);
    }

    /// Publishes the hardware error that ended the previous boot. The kernel logs it before any
    /// program can read the log, so it is published on the first start too. Several are published
    /// as one.
    fn previous_boot(&mut self, facts: &Facts<'_>, at: LogLine<'_>) {
        let pattern = Pattern::CperPreviousBoot;
        let published = self.publish_from != NOT_YET && at.sequence < self.publish_from;
        if !published && self.counts.events.get(pattern.as_str()) == Some(&1) {
            self.events.extend(events::pattern(pattern.report(), facts, at, None));
        }
    }

    /// Publishes the event, unless it was published before or the limit of its burst is reached.
    fn publish(&mut self, event: Event, at: LogLine<'_>) {
        if at.sequence < self.publish_from {
            return;
        }
        let of = |key: &str| event.extra.get(key).and_then(|v| v.as_str()).unwrap_or_default();
        let name = event.name.as_deref().unwrap_or_default();
        let code = event.code.unwrap_or_default();
        let key = format!("{} {name} {code} {} {}", event.kind.as_str(), of("pci"), of("device"));
        if self.bursts.len() >= MAX_BURSTS {
            self.bursts.retain(|_, (began, _)| at.ts - *began < BURST_SECONDS);
        }
        if self.bursts.len() >= MAX_BURSTS && !self.bursts.contains_key(&key) {
            self.counts.suppressed += 1;
            return;
        }
        let (began, published) = self.bursts.entry(key).or_insert((at.ts, 0));
        if at.ts - *began >= BURST_SECONDS {
            (*began, *published) = (at.ts, 0);
        }
        *published += 1;
        if *published > BURST {
            self.counts.suppressed += 1;
        } else {
            self.events.push(event);
        }
    }

    /// Counts a message of the kernel itself that this node has never logged before.
    fn novelty(&mut self, record: &Record<'_>) {
        let priority = usize::from(record.priority);
        if priority >= WORST || record.facility != 0 {
            return;
        }
        let message = record.text.split('\n').next().unwrap_or_default();
        if self.known.learn(message) && !self.learning {
            self.counts.unknown[priority] += 1;
            // A kernel that logs new messages without end must not fill our log as well.
            if !self.known.full() {
                tracing::info!(
                    message = message.trim(),
                    "the kernel logged a message that is new on this node"
                );
            }
        }
    }

    /// Publishes again the conditions that still hold, and ends those not logged for too long.
    pub(super) fn again(&mut self, now: f64) {
        let Self { counts, events, .. } = self;
        counts.held.retain_mut(|held| {
            let said = *held.said.get_or_insert(now);
            if now - said >= HOLDS_SECONDS {
                let why = format!("the kernel has not logged it again for {:.0} h", HOLDS_SECONDS / 3600.0);
                // A condition that was never reported needs no end event.
                events.extend(held.told.map(|_| events::over(now, held, &why)));
                return false;
            }
            if held.told.is_none_or(|at| now - at >= AGAIN_SECONDS) {
                held.told = Some(now);
                events.push(events::again(now, held));
            }
            true
        });
    }

    /// Takes in which imports of the Lustre client were up at `asked`, by their names in the log.
    pub(super) fn imports(&mut self, now: f64, asked: f64, up: &BTreeMap<String, bool>) {
        let Self { counts, events, .. } = self;
        counts.held.retain_mut(|held| {
            let Some(up) = up.get(&held.device).filter(|_| held.name == LUSTRE) else { return true };
            // What was logged after the question is newer than the answer.
            if *up && held.said.is_some_and(|said| said < asked) {
                let why = "the connection to the Lustre server is back";
                events.extend(held.told.map(|_| events::over(now, held, why)));
                return false;
            }
            if !*up {
                held.said = Some(held.said.map_or(asked, |said| said.max(asked)));
            }
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepwatch_wire::Kind;

    /// Takes lines in as records from `first` on, a second apart.
    fn take(tracker: &mut Tracker, first: u64, lines: &[&str]) -> Vec<Event> {
        for (sequence, line) in (first..).zip(lines) {
            let record = format!("4,{sequence},{},-;{line}\n", sequence * 1_000_000);
            tracker.take(record.as_bytes(), &Roots::default(), |micros| 1e9 + micros as f64 / 1e6);
        }
        tracker.events.drain(..).collect()
    }

    fn names(events: &[Event]) -> Vec<(&str, i64)> {
        events.iter().map(|e| (e.name.as_deref().unwrap(), e.code.unwrap())).collect()
    }

    #[test]
    fn a_gpu_that_falls_off_in_three_lines_and_is_known_by_name() {
        let mut t = Tracker::default();
        let events = take(
            &mut t,
            1,
            &[
                "NVRM: GPU at PCI:0000:b3:00: GPU-2f3c",
                "NVRM: The NVIDIA GPU 0000:b3:00.0",
                "NVRM: (PCI ID: 10de:2330) installed in this system has",
                "NVRM: fallen off the bus and is not responding to commands.",
                r"NVRM: The NVIDIA GPU 0000:b3:00.0\x0aNVRM: fallen off the bus and is not responding to commands.",
                "NVRM: Xid (PCI:0000:b3:00): 45, pid=7, name=x, Ch 1 caused by previous Xid 79",
            ],
        );
        assert_eq!(names(&events), [("gpu_lost", 1), ("gpu_lost", 1), ("xid", 45)]);
        let text = |e: &Event, key: &str| e.extra.get(key).and_then(|v| v.as_str().map(str::to_owned));
        assert!(events.iter().all(|e| text(e, "gpu").as_deref() == Some("GPU-2f3c")), "{events:?}");
        assert_eq!(events[2].extra["caused_by"].as_f64(), Some(79.0));
        assert_eq!(events[0].ts, Some(1e9 + 4.0));
    }

    #[test]
    fn what_was_taken_in_is_not_taken_in_again_and_gaps_are_losses() {
        let mut t = Tracker::default();
        let line = "NVRM: Xid (PCI:0000:3b:00): 79, x";
        take(&mut t, 10, &[line, line]);
        assert!(take(&mut t, 10, &[line, line]).is_empty());
        assert_eq!((t.counts.events["gpu_xid"], t.counts.lost, t.counts.next), (2, 0, Some(12)));
        t.overwritten();
        take(&mut t, 15, &[line]);
        assert_eq!(t.counts.lost, 3);
        t.overwritten();
        take(&mut t, 16, &[line]);
        assert_eq!(t.counts.lost, 4, "something was lost, or the log would not be marked as overwritten");
        t.take(b"garbage", &Roots::default(), |_| 0.0);
        t.take(b" KEY=value", &Roots::default(), |_| 0.0);
        assert_eq!((t.counts.malformed, t.counts.read), (1, 4));
    }

    #[test]
    fn a_stall_begins_ends_and_is_published_again_while_it_lasts() {
        let mut t = Tracker::default();
        let stall = "nfs: server a not responding, still trying";
        assert_eq!(names(&take(&mut t, 1, &[stall, stall, "nfs: server b OK"])), [("nfs_stall", 1)]);
        t.again(1e9 + 2.0);
        assert!(t.events.is_empty());
        t.again(1e9 + 602.0);
        let again = t.events.pop().unwrap();
        assert!(again.extra.contains_key("again") && again.extra["device"].as_str() == Some("a"));
        assert_eq!(names(&take(&mut t, 4, &["nfs: server a OK", "nfs: server a OK"])), [("nfs_stall", 0)]);
        // What began before events were published is published at the first chance.
        t.publish_from = NOT_YET;
        assert!(take(&mut t, 6, &[stall]).is_empty());
        t.again(1e9 + 7.0);
        assert_eq!(t.events.len(), 1);
    }

    #[test]
    fn a_timeout_of_a_soft_mount_is_published_once() {
        let mut t = Tracker::default();
        let events = take(&mut t, 1, &["nfs: server a not responding, timed out"]);
        assert_eq!(names(&events), [("nfs_timeout", 1)]);
        assert!(events[0].extra.contains_key("once"), "its end is not logged");
        t.again(1e9 + 1000.0);
        assert!(t.events.is_empty() && t.counts.held.is_empty());
        // A condition without a device has no end either.
        let events = take(&mut t, 2, &["Remounting filesystem read-only"]);
        assert!(events[0].extra.contains_key("once") && t.counts.held.is_empty());
    }

    #[test]
    fn a_stall_of_which_nothing_more_is_heard_is_over() {
        let stall = "nfs: server a not responding, still trying";
        let mut t = Tracker::default();
        take(&mut t, 1, &[stall]);
        let published = |t: &mut Tracker, at: f64| {
            t.again(1e9 + at);
            t.events.drain(..).map(|e| e.code.unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(published(&mut t, HOLDS_SECONDS), [1], "a long stall is one");
        // The kernel logs it again.
        let last = HOLDS_SECONDS as u64;
        assert!(take(&mut t, last, &[stall]).is_empty());
        assert_eq!(published(&mut t, 2.0 * HOLDS_SECONDS - 1.0), [1]);
        t.again(1e9 + 2.0 * HOLDS_SECONDS);
        let over = t.events.pop().unwrap();
        assert_eq!((over.code, over.level.as_deref()), (Some(0), Some("info")));
        assert_eq!(over.extra["device"].as_str(), Some("a"));
        let said = "over: the kernel has not logged it again for 6 h (the NFS server does not answer: a)";
        assert_eq!(over.text.as_deref(), Some(said));
        assert!(published(&mut t, 3.0 * HOLDS_SECONDS).is_empty());
        // A condition that was over before events were published is not published; nor is one
        // whose time an older version did not store.
        t.publish_from = NOT_YET;
        take(&mut t, last + 1, &[stall]);
        assert!(published(&mut t, 3.0 * HOLDS_SECONDS).is_empty() && t.counts.held.is_empty());
        t.counts = serde_json::from_str(
            r#"{"held":[{"name":"nfs_stall","device":"a","level":"warn","text":"x","told":1e9}]}"#,
        )
        .unwrap();
        assert_eq!(published(&mut t, HOLDS_SECONDS), [1]);
        assert_eq!(published(&mut t, 2.0 * HOLDS_SECONDS), [0]);
    }

    fn lost(target: &str, server: &str) -> String {
        format!(
            "Lustre: {target}-osc-ffff9d8a1: Connection to {target} (at {server}) was lost; in progress operations using this service will wait for recovery to complete"
        )
    }

    fn restored(target: &str, server: &str) -> String {
        format!("Lustre: {target}-osc-ffff9d8a1: Connection restored to {target} (at {server})")
    }

    fn devices(events: &[Event]) -> Vec<(&str, i64)> {
        events.iter().map(|e| (e.extra["device"].as_str().unwrap(), e.code.unwrap())).collect()
    }

    #[test]
    fn of_the_targets_of_a_server_that_is_back_one_is_all_that_is_heard_of() {
        let mut t = Tracker::default();
        let (a, b) = ("10.0.0.1@tcp", "10.0.0.2@tcp");
        let all = [lost("s-OST1", a), lost("s-OST2", a), lost("s-OST3", b)];
        let began = take(&mut t, 1, &all.each_ref().map(String::as_str));
        assert_eq!(devices(&began), [("s-OST1-osc", 1), ("s-OST2-osc", 1), ("s-OST3-osc", 1)]);
        // A line of its management server does not mean that its targets are back.
        let mgc = format!("Lustre: MGC{a}: Connection restored to {a} (at {a})");
        assert!(take(&mut t, 4, &[&mgc, "Lustre: Skipped 7 previous similar messages"]).is_empty());
        // A target whose loss was not logged.
        let over = take(&mut t, 6, &[&restored("s-OST7", a)]);
        assert_eq!(devices(&over), [("s-OST1-osc", 0), ("s-OST2-osc", 0)]);
        // A server whose place another one took.
        take(&mut t, 7, &[&lost("s-OST4", b)]);
        let over = take(&mut t, 8, &[&restored("s-OST3", a)]);
        assert_eq!(devices(&over), [("s-OST3-osc", 0), ("s-OST4-osc", 0)]);
        assert!(t.counts.held.is_empty());
    }

    #[test]
    fn the_lustre_client_knows_what_the_log_left_out() {
        let mut t = Tracker::default();
        let all = [lost("s-OST1", "a@tcp"), lost("s-OST2", "b@tcp"), lost("s-OST3", "c@tcp")];
        take(&mut t, 1, &all.each_ref().map(String::as_str));
        let up = BTreeMap::from([("s-OST1-osc".to_owned(), true), ("s-OST2-osc".to_owned(), false)]);
        t.imports(1e9 + 1.0, 1e9 + 0.5, &up);
        assert!(t.events.is_empty(), "what was logged after the question is newer than the answer");
        let late = HOLDS_SECONDS - 60.0;
        t.imports(1e9 + late, 1e9 + late - 1.0, &up);
        let over: Vec<Event> = t.events.drain(..).collect();
        assert_eq!(devices(&over), [("s-OST1-osc", 0)]);
        let text = over[0].text.as_deref().unwrap();
        assert!(text.starts_with("over: the connection to the Lustre server is back ("), "{text}");
        // A connection known to be down lasts; there is no news of the third.
        t.again(1e9 + HOLDS_SECONDS + 3.0);
        let published: Vec<Event> = t.events.drain(..).collect();
        assert_eq!(devices(&published), [("s-OST2-osc", 1), ("s-OST3-osc", 0)]);
    }

    #[test]
    fn errors_of_switches_are_published_unless_they_are_harmless() {
        let mut t = Tracker::default();
        let sxid = |said: &str| format!("nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): {said}");
        let lines = [
            "10007, IO failure",
            "10005, Thermal slowdown Disengaged",
            "14017, Correctable, Link 03 ingress ECC limit",
            "20034, Fatal, Link 28 LTSSM Fault Up",
            "20034, Severity 1 Engine instance 28 Sub-engine instance 00",
        ]
        .map(sxid);
        let events = take(&mut t, 1, &lines.each_ref().map(String::as_str));
        let published: Vec<_> =
            events.iter().map(|e| (e.code.unwrap(), e.level.as_deref().unwrap())).collect();
        assert_eq!(published, [(10007, "error"), (20034, "error")]);
        let counted = |pattern: &str| t.counts.events.get(pattern).copied().unwrap_or_default();
        let patterns = ["nvswitch_sxid_unknown", "nvswitch_sxid_fatal", "nvswitch_sxid_non_fatal"];
        assert_eq!(patterns.map(counted), [1, 1, 0]);
        let mut page = crate::samples::Samples::default();
        t.counts.write(&mut page);
        for (code, severity) in [("10007", "unknown"), ("10005", "unknown"), ("14017", "correctable")] {
            assert_eq!(page.get(&super::super::SXIDS, &["0", code, severity]), Some(1.0), "{code}");
        }
    }

    #[test]
    fn corrected_machine_checks_are_counted_and_the_others_are_errors() {
        let mut t = Tracker::default();
        let logged = "mce: [Hardware Error]: Machine check events logged";
        assert!(
            take(&mut t, 1, &[logged, "[Hardware Error]: Corrected error, no action required."]).is_empty()
        );
        assert_eq!(t.counts.events.get("mce_logged"), Some(&1));
        for line in [
            "mce: [Hardware Error]: CPU 4: Machine Check Exception: 5 Bank 7: be00004000010090",
            "[Hardware Error]: Uncorrected, software restartable error.",
        ] {
            let next = t.counts.next.unwrap();
            let published = take(&mut t, next, &[line]);
            assert_eq!((names(&published), published[0].level.as_deref()), (vec![("mce", 1)], Some("error")));
        }
    }

    #[test]
    fn errors_from_before_the_boot_are_published_once_even_at_the_first_start() {
        let numbered = "{1}[Hardware Error]: event severity: fatal";
        let lines = [
            "BERT: Error records from previous boot:",
            "[Hardware Error]: event severity: fatal",
            "[Hardware Error]:  Error 0, type: fatal",
            "[Hardware Error]: event severity: fatal",
            numbered,
        ];
        for (publish_from, expected) in [(NOT_YET, 1), (0, 2), (3, 1)] {
            let mut t = Tracker { publish_from, ..Tracker::default() };
            let published = take(&mut t, 1, &lines);
            let previous =
                published.iter().filter(|e| e.name.as_deref() == Some("hardware_error_previous_boot"));
            let previous: Vec<_> = previous.map(|e| e.level.as_deref()).collect();
            assert_eq!(previous, vec![Some("warn"); usize::from(publish_from != 3)], "{publish_from}");
            assert_eq!(published.len(), expected, "{publish_from}");
            let counted =
                ["cper_previous_boot", "cper_fatal", "mce"].map(|pattern| t.counts.events.get(pattern));
            assert_eq!(counted, [Some(&2), Some(&1), None]);
        }
    }

    #[test]
    fn a_kill_knows_its_cgroup() {
        let mut t = Tracker::default();
        let events = take(
            &mut t,
            1,
            &[
                "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task_memcg=/slurm/job_7,task=python3,pid=42,uid=0",
                "Memory cgroup out of memory: Killed process 42 (python3) total-vm:10kB",
            ],
        );
        let [event] = &events[..] else { panic!("{events:?}") };
        assert_eq!((event.kind, event.extra["cgroup"].as_str()), (Kind::Hw, Some("/slurm/job_7")));
        assert_eq!(
            event.text.as_deref(),
            Some("killed for want of memory: process python3 (pid 42), in cgroup /slurm/job_7")
        );
    }

    #[test]
    fn a_storm_is_counted_in_full_and_published_in_part() {
        let mut t = Tracker::default();
        let lines: Vec<String> =
            (0..100).map(|i| format!("NVRM: Xid (PCI:0000:3b:00): 45, Ch {i}")).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        // A second apart: one full minute and two thirds of another.
        assert_eq!(take(&mut t, 1, &lines).len(), 2 * BURST as usize);
        assert_eq!((t.counts.events["gpu_xid"], t.counts.suppressed), (100, 80));
    }

    #[test]
    fn what_was_never_said_before() {
        let mut t = Tracker { learning: true, ..Tracker::default() };
        take(&mut t, 1, &["foo: number 1 broke"]);
        t.learning = false;
        take(
            &mut t,
            2,
            &["foo: number 2 broke", "bar: odd", "bar: odd", "NVRM: Xid (PCI:0000:3b:00): 79, x"],
        );
        assert_eq!(t.counts.unknown, [0, 0, 0, 0, 1]);
        let user = b"12,9,9,-;said by a program\n";
        t.take(user, &Roots::default(), |_| 0.0);
        assert_eq!(t.counts.unknown, [0, 0, 0, 0, 1]);
    }
}

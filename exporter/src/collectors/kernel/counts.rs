//! The counts since boot, and the position in the log. Both are saved and loaded together, because
//! they are only correct together: records after the last save are read again and counted from
//! there, so none is lost or counted twice.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::catalogue;
use super::families::{
    EVENTS, LAST_XID, LOGGED_RECOVERY, LOST, MALFORMED, MIG_XIDS, NONFATAL_XIDS, READ, SUPPRESSED, SXIDS,
    UNKNOWN, XIDS,
};
use super::nvidia::{Sxid, Xid};
use super::patterns::Pattern;
use super::record::PRIORITIES;
use super::recovery_action;
use crate::samples::Samples;

/// The most series of one family from the log; above it, codes are counted as `other`.
const MAX_SERIES: usize = 2048;
/// The most GPUs kept.
const MAX_GPUS: usize = 64;
/// The most conditions that hold at a time.
const MAX_HELD: usize = 64;
/// The code under which codes over the limit are counted.
const OTHER: u32 = u32::MAX;

/// Counts by code.
type Codes = BTreeMap<u32, u64>;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Counts {
    /// Id of the boot that the counts belong to.
    pub(super) boot: String,
    /// The sequence number of the next record; `None` before the first.
    pub(super) next: Option<u64>,
    pub(super) read: u64,
    pub(super) lost: u64,
    pub(super) malformed: u64,
    pub(super) suppressed: u64,
    pub(super) events: BTreeMap<String, u64>,
    /// Counts by priority, in the order of [`PRIORITIES`].
    pub(super) unknown: [u64; 5],
    /// The key is the GPU.
    xids: BTreeMap<String, Codes>,
    /// The key is GPU, GPU instance and compute instance, separated by spaces.
    mig: BTreeMap<String, Codes>,
    /// The key is NVSwitch and severity, separated by a space.
    sxids: BTreeMap<String, Codes>,
    /// The harmless ones among `xids`.
    nonfatal: BTreeMap<String, Codes>,
    /// The Unix time of the last harmful error, by GPU and code.
    last: BTreeMap<String, BTreeMap<u32, f64>>,
    /// The number of the last recovery action that the driver requested, by GPU; the number of none
    /// means that it requests nothing.
    recovery: BTreeMap<String, u32>,
    /// UUID by PCI address, also for GPUs that have left the node.
    gpus: BTreeMap<String, String>,
    /// The conditions that hold.
    pub(super) held: Vec<Held>,
}

/// A condition whose beginning was logged and whose end was not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) name: String,
    pub(super) device: String,
    pub(super) level: String,
    pub(super) text: String,
    /// The Unix time when it was last published; `None` if never.
    pub(super) told: Option<f64>,
    /// The address of its server, if the line contains one.
    #[serde(default)]
    pub(super) server: String,
    /// The Unix time when the kernel last logged it, or another source confirmed it.
    #[serde(default)]
    pub(super) said: Option<f64>,
}

impl Counts {
    pub(super) fn of_boot(boot: &str) -> Self {
        Self { boot: boot.to_owned(), ..Self::default() }
    }

    pub(super) fn event(&mut self, pattern: Pattern) {
        *self.events.entry(pattern.as_str().to_owned()).or_default() += 1;
    }

    /// Counts an XID error at Unix time `ts`.
    pub(super) fn xid(&mut self, ts: f64, xid: &Xid<'_>) {
        let gpu = self.gpu(&xid.pci).to_owned();
        if let Some(instance) = xid.gpu_instance {
            let compute = xid.compute_instance.map(|ci| ci.to_string()).unwrap_or_default();
            count(&mut self.mig, &format!("{gpu} {instance} {compute}"), xid.code);
        }
        count(&mut self.xids, &gpu, xid.code);
        // A code over the limit of `xids` is not kept here either.
        if self.xids.get(&gpu).is_none_or(|codes| !codes.contains_key(&xid.code)) {
            return;
        }
        match xid.recovery() {
            Some(recovery_action::NONE) => _ = self.recovery.remove(&gpu),
            Some(wanted) => _ = self.recovery.insert(gpu.clone(), wanted),
            None => {}
        }
        if xid.is_nonfatal() {
            count(&mut self.nonfatal, &gpu, xid.code);
        } else {
            let last = self.last.entry(gpu).or_default().entry(xid.code).or_insert(ts);
            *last = last.max(ts);
        }
    }

    pub(super) fn sxid(&mut self, sxid: &Sxid<'_>) {
        count(&mut self.sxids, &format!("{} {}", sxid.nvswitch, sxid.severity.as_str()), sxid.code);
    }

    /// The UUID of the GPU at this address, or the address itself while the UUID is unknown.
    pub(super) fn gpu<'a>(&'a self, pci: &'a str) -> &'a str {
        self.gpus.get(pci).map_or(pci, String::as_str)
    }

    pub(super) fn knows(&self, pci: &str) -> bool {
        self.gpus.contains_key(pci)
    }

    /// Records which GPU is at this address. Counts under the address become the GPU's.
    pub(super) fn learn(&mut self, pci: &str, uuid: &str) {
        if self.gpus.get(pci).is_some_and(|known| known == uuid) {
            return;
        }
        if self.gpus.len() < MAX_GPUS || self.gpus.contains_key(pci) {
            self.gpus.insert(pci.to_owned(), uuid.to_owned());
        }
        for counted in [&mut self.xids, &mut self.nonfatal] {
            if let Some(codes) = counted.remove(pci) {
                add(counted.entry(uuid.to_owned()).or_default(), codes);
            }
        }
        for (code, ts) in self.last.remove(pci).unwrap_or_default() {
            let last = self.last.entry(uuid.to_owned()).or_default().entry(code).or_insert(ts);
            *last = last.max(ts);
        }
        if let Some(wanted) = self.recovery.remove(pci) {
            self.recovery.entry(uuid.to_owned()).or_insert(wanted);
        }
        let of_address: Vec<String> =
            self.mig.keys().filter(|key| key.split(' ').next() == Some(pci)).cloned().collect();
        for key in of_address {
            let codes = self.mig.remove(&key).unwrap_or_default();
            add(self.mig.entry(key.replacen(pci, uuid, 1)).or_default(), codes);
        }
    }

    /// Adds a condition; false if there are too many.
    pub(super) fn hold(&mut self, held: Held) -> bool {
        let room = self.held.len() < MAX_HELD;
        if room {
            self.held.push(held);
        }
        room
    }

    /// The condition, if it is held.
    pub(super) fn holds(&mut self, name: &str, device: &str) -> Option<&mut Held> {
        self.held.iter_mut().find(|h| h.name == name && h.device == device)
    }

    /// The conditions that end when the log reports the end for a device: its own, and all with the
    /// same server. The kernel drops repeated lines, so of many devices that return with their
    /// server, it may log only one.
    pub(super) fn end(&mut self, name: &str, device: &str, server: &str) -> Vec<Held> {
        let of_device = self.held.iter().find(|h| h.name == name && h.device == device);
        // The server may have returned at another address, to which all devices of the old one
        // moved.
        let old = of_device.map(|h| h.server.clone()).unwrap_or_default();
        let same = |h: &Held| !h.server.is_empty() && (h.server == server || h.server == old);
        self.held.extract_if(.., |h| h.name == name && (h.device == device || same(h))).collect()
    }

    /// Writes all counters, starting at zero: `increase()` misses the first rise of a counter that
    /// appears with a value above zero.
    pub(super) fn write(&self, out: &mut Samples) {
        out.set(&READ, &[], self.read);
        out.set(&LOST, &[], self.lost);
        out.set(&MALFORMED, &[], self.malformed);
        out.set(&SUPPRESSED, &[], self.suppressed);
        for pattern in Pattern::ALL {
            let label = pattern.as_str();
            out.set(&EVENTS, &[label], self.events.get(label).copied().unwrap_or_default());
        }
        for (priority, count) in PRIORITIES.iter().zip(&self.unknown) {
            out.set(&UNKNOWN, &[priority], *count);
        }
        let none = Codes::new();
        let mut gpus: Vec<&str> = self.gpus.values().chain(self.xids.keys()).map(String::as_str).collect();
        gpus.sort_unstable();
        gpus.dedup();
        for gpu in gpus {
            let counted = self.xids.get(gpu).unwrap_or(&none);
            for xid in catalogue::all() {
                let count = counted.get(&xid.code).copied().unwrap_or_default();
                out.set(&XIDS, &[gpu, &xid.code.to_string()], count);
            }
            let unknown = counted.iter().filter(|(code, _)| !catalogue::knows(**code));
            unknown.for_each(|(code, count)| out.set(&XIDS, &[gpu, &label(*code)], *count));
        }
        for (gpu, codes) in &self.nonfatal {
            codes.iter().for_each(|(code, count)| out.set(&NONFATAL_XIDS, &[gpu, &label(*code)], *count));
        }
        for (gpu, codes) in &self.last {
            codes.iter().for_each(|(code, ts)| out.set(&LAST_XID, &[gpu, &label(*code)], *ts));
        }
        for (gpu, wanted) in &self.recovery {
            out.set(&LOGGED_RECOVERY, &[gpu, &recovery_action::name(*wanted)], 1u64);
        }
        for (key, codes) in &self.mig {
            let mut parts = key.split(' ');
            let [gpu, gi, ci] = [(); 3].map(|()| parts.next().unwrap_or_default());
            codes.iter().for_each(|(code, count)| out.set(&MIG_XIDS, &[gpu, gi, ci, &label(*code)], *count));
        }
        for (key, codes) in &self.sxids {
            let (nvswitch, severity) = key.split_once(' ').unwrap_or_default();
            codes
                .iter()
                .for_each(|(code, count)| out.set(&SXIDS, &[nvswitch, &label(*code), severity], *count));
        }
    }
}

/// The exported series and the counts that they show. Hundreds of series that hardly change in a
/// day are written only when they change.
#[derive(Debug, Default)]
pub(super) struct Said(Option<(Counts, Samples)>);

impl Said {
    pub(super) fn write(&mut self, counts: &Counts, out: &mut Samples) {
        if self.0.as_ref().is_none_or(|(of, _)| of != counts) {
            let mut samples = Samples::default();
            counts.write(&mut samples);
            self.0 = Some((counts.clone(), samples.into_sealed()));
        }
        self.0.iter().for_each(|(_, samples)| out.extend(samples));
    }
}

fn count(all: &mut BTreeMap<String, Codes>, key: &str, code: u32) {
    let series: usize = all.values().map(Codes::len).sum();
    let known = all.get(key).is_some_and(|codes| codes.contains_key(&code));
    let (key, code) = match () {
        () if known || series < MAX_SERIES => (key, code),
        // Uses a known key if possible, because the number of keys is limited too.
        () if all.contains_key(key) => (key, OTHER),
        () => ("other", OTHER),
    };
    *all.entry(key.to_owned()).or_default().entry(code).or_default() += 1;
}

fn add(to: &mut Codes, from: Codes) {
    for (code, count) in from {
        *to.entry(code).or_default() += count;
    }
}

fn label(code: u32) -> String {
    if code == OTHER { "other".to_owned() } else { code.to_string() }
}

#[cfg(test)]
mod tests {
    use super::super::lines::{Found, recognise};
    use super::super::nvidia::Line;
    use super::*;

    const PCI: &str = "0000:3b:00.0";

    fn xid(counts: &mut Counts, line: &str) {
        xid_at(counts, 1.0, line);
    }

    fn xid_at(counts: &mut Counts, ts: f64, line: &str) {
        let Some(Found::Nvidia(Line::Xid(xid))) = recognise(line) else { panic!("{line}") };
        counts.xid(ts, &xid);
    }

    fn page(counts: &Counts) -> Samples {
        let mut out = Samples::default();
        counts.write(&mut out);
        out
    }

    #[test]
    fn a_gpu_is_there_from_zero_and_its_address_becomes_its_name() {
        let mut counts = Counts::of_boot("b");
        xid(&mut counts, "NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:01): 94, x");
        assert_eq!(page(&counts).get(&XIDS, &[PCI, "94"]), Some(1.0));
        counts.learn(PCI, "GPU-1");
        xid(&mut counts, "NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, x");
        xid(&mut counts, "NVRM: Xid (PCI:0000:3b:00): 4711, x");
        let out = page(&counts);
        assert_eq!(
            (out.get(&XIDS, &["GPU-1", "94"]), out.get(&XIDS, &["GPU-1", "79"])),
            (Some(2.0), Some(0.0))
        );
        assert_eq!(out.get(&XIDS, &["GPU-1", "4711"]), Some(1.0));
        assert_eq!(out.get(&XIDS, &[PCI, "94"]), None);
        assert_eq!(out.get(&MIG_XIDS, &["GPU-1", "5", "1", "94"]), Some(1.0));
        assert_eq!(out.get(&MIG_XIDS, &["GPU-1", "5", "", "94"]), Some(1.0));
        let text = serde_json::to_string(&counts).unwrap();
        assert_eq!(serde_json::from_str::<Counts>(&text).unwrap(), counts);
    }

    #[test]
    fn when_each_was_last_and_which_were_not_fatal() {
        let line = |slot: &str, what: &str| format!("NVRM: Xid (PCI:0000:{slot}:00): {what}");
        let mut counts = Counts::of_boot("b");
        counts.learn("0000:3c:00.0", "GPU-2");
        xid_at(&mut counts, 20.0, &line("3b", "95, x"));
        xid_at(&mut counts, 30.0, &line("3c", "95, x"));
        xid_at(&mut counts, 40.0, &line("3b", "145, RLW_RXPIPE Nonfatal XC0 i0 Link 08 (0x004505c6)"));
        xid_at(&mut counts, 50.0, &line("3c", "145, RLW_RXPIPE Fatal   XC0 i0 Link 08 (0x004505c6)"));
        xid_at(&mut counts, 60.0, &line("3c", "145, RLW_RXPIPE Nonfatal XC0 i0 Link 08 (0x004505c6)"));
        let text = serde_json::to_string(&counts).unwrap();
        let mut counts: Counts = serde_json::from_str(&text).unwrap();
        counts.learn(PCI, "GPU-1");
        xid_at(&mut counts, 10.0, &line("3b", "95, x"));
        let out = page(&counts);
        let of = |family, gpu: &str| ["95", "145"].map(|code| out.get(family, &[gpu, code]));
        assert_eq!(of(&XIDS, "GPU-1"), [Some(2.0), Some(1.0)]);
        assert_eq!(of(&XIDS, "GPU-2"), [Some(1.0), Some(2.0)]);
        assert_eq!(of(&NONFATAL_XIDS, "GPU-1"), [None, Some(1.0)]);
        assert_eq!(of(&NONFATAL_XIDS, "GPU-2"), [None, Some(1.0)]);
        assert_eq!(of(&LAST_XID, "GPU-1"), [Some(20.0), None]);
        assert_eq!(of(&LAST_XID, "GPU-2"), [Some(30.0), Some(50.0)]);
        assert_eq!((of(&LAST_XID, PCI), of(&NONFATAL_XIDS, PCI)), ([None; 2], [None; 2]));
        let old: Counts = serde_json::from_str(r#"{"boot":"b","xids":{"GPU-1":{"95":1}}}"#).unwrap();
        assert_eq!(page(&old).get(&LAST_XID, &["GPU-1", "95"]), None);
    }

    #[test]
    fn the_action_that_the_log_asks_for_lasts_until_it_is_taken_back() {
        let mut counts = Counts::of_boot("b");
        let line = |to: &str| {
            format!("NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to {to}")
        };
        let wanted = |counts: &Counts| {
            let page = page(counts);
            let rows = page.rows(&LOGGED_RECOVERY);
            rows.map(|row| format!("{} {}", row.label("gpu"), row.label("action"))).collect::<Vec<_>>()
        };
        xid(&mut counts, &line("0x2 (Node Reboot Required)"));
        assert_eq!(wanted(&counts), ["0000:3b:00.0 node_reboot"]);
        counts.learn(PCI, "GPU-1");
        assert_eq!(wanted(&counts), ["GPU-1 node_reboot"]);
        xid(&mut counts, &line("0x5 (Recover IMEX Domain)"));
        xid(&mut counts, "NVRM: Xid (PCI:0000:3b:00): 154, cut off");
        let text = serde_json::to_string(&counts).unwrap();
        let mut counts: Counts = serde_json::from_str(&text).unwrap();
        assert_eq!(wanted(&counts), ["GPU-1 recover_imex_domain"]);
        xid(&mut counts, &line("0x0 (None)"));
        assert_eq!(wanted(&counts), Vec::<String>::new());
    }

    #[test]
    fn codes_without_end_are_one_series() {
        let mut counts = Counts::of_boot("b");
        for code in 1000..1000 + MAX_SERIES + 5 {
            xid(&mut counts, &format!("NVRM: Xid (PCI:0000:3b:00): {code}, x"));
        }
        xid(&mut counts, "NVRM: Xid (PCI:0000:3c:00): 79, x");
        let out = page(&counts);
        assert_eq!(out.get(&XIDS, &[PCI, "other"]), Some(5.0));
        assert_eq!(out.get(&XIDS, &["other", "other"]), Some(1.0));
        assert_eq!(out.rows(&LAST_XID).count(), MAX_SERIES);
    }
}

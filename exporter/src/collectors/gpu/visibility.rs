//! Determines which GPUs of the node belong to this process, and which of those cannot be used.
//!
//! In a container, or a control group of Slurm, the list of the kernel driver names all GPUs of the
//! node, and NVML some: it does not count the others, or counts them without permission. A GPU
//! whose device may not be opened here belongs to others and is not lost; one that fell off the bus
//! still has a device that may be opened. But a container's runtime creates devices for the GPUs
//! that NVML lists when the container starts. So a GPU that was ours, and that the driver can no
//! longer initialise, was given to nobody, and is lost. Which of the other GPUs a runtime left out,
//! and which it gave to other containers, cannot be distinguished, except by a configuration that
//! expects all GPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stepwatch_sys::nvml::Error;

use super::families::{INFO, LOST, RECOVERY, UNUSABLE};
use super::pass::Reading;
use super::{GpuReader, read};
use crate::gpus;
use crate::nvml::Identity;
use crate::roots::Roots;
use crate::samples::{Row, Samples, Value};

/// The GPUs of a node that belong to this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Devices {
    /// The GPUs whose devices it may open: a container may have only some of the node's GPUs.
    Visible,
    /// All GPUs: one whose device it may not open counts as missing.
    All,
    /// The visible GPUs of a job. GPUs that the node's exporter has had do not count.
    #[serde(skip)]
    Job,
}

/// A GPU of this process that NVML counts but gives no handle for.
struct Unusable<'a> {
    index: String,
    /// Empty, as is the UUID, if it is unknown which of several GPUs it is.
    pci: &'a str,
    uuid: &'a str,
    error: String,
    needs_reset: bool,
}

impl GpuReader {
    /// PCI addresses of the GPUs whose devices this process may not open, among the listed ones and
    /// those that this node has had.
    pub(super) fn withheld(&self, roots: &Roots, listed: &[String]) -> BTreeSet<String> {
        let mut withheld = BTreeSet::new();
        if self.config.devices != Devices::All && !listed.is_empty() {
            let had = self.known.gpus().values().map(|id| &id.pci).filter(|pci| !listed.contains(pci));
            withheld.extend(had.filter(|pci| gpus::has_driver(roots, pci)).cloned());
            withheld.append(&mut gpus::withheld(roots, listed));
        }
        withheld
    }

    /// Determines the GPUs of others. Without a reading, the known ones stay.
    pub(super) fn find_others(&mut self) {
        if self.config.devices == Devices::All {
            return;
        }
        let withheld = |pci: &str| self.listed.withheld.contains(pci) && !self.is_faulty(pci);
        let Some(reading) = &self.reading else {
            let withheld: Vec<String> =
                self.listed.withheld.iter().filter(|pci| withheld(pci)).cloned().collect();
            self.others.extend(withheld);
            return;
        };
        let unread = self.unread(reading);
        let refused = reading.unusable.iter().filter(|(_, error)| error.not_ours()).count();
        // NVML gives no address for a GPU that it may not use. So GPUs of others are distinguished
        // from lost ones only if NVML refuses all missing ones.
        let all = refused >= unread.len();
        self.others = unread.into_iter().filter(|pci| all || withheld(pci)).map(str::to_owned).collect();
    }

    /// Whether this exporter has had the GPU and the driver cannot initialise it: then no other
    /// container has it.
    fn is_faulty(&self, pci: &str) -> bool {
        let had = || self.known.gpus().values().any(|id| id.pci == pci);
        self.config.devices == Devices::Visible && self.listed.unborn.contains(pci) && had()
    }

    /// Whether NVML refuses a GPU because it belongs to others.
    fn is_others(&self, error: &Error) -> bool {
        self.config.devices != Devices::All && error.not_ours()
    }

    /// PCI addresses of the GPUs that the kernel driver lists, or that this node has had, and for
    /// which NVML gives no values.
    fn unread<'a>(&'a self, reading: &Reading) -> BTreeSet<&'a str> {
        let listed = self.listed.addresses.iter().map(String::as_str);
        let all = listed.chain(self.known.gpus().values().map(|id| id.pci.as_str()));
        let read = |pci: &str| reading.gpus.iter().any(|gpu| gpu.id.pci == pci);
        all.filter(|pci| !pci.is_empty() && !read(pci)).collect()
    }

    /// The GPUs that this node has had, without those that belong to others now.
    pub(super) fn had(&self) -> impl Iterator<Item = &Arc<Identity>> {
        self.known.gpus().values().filter(|id| !self.others.contains(&id.pci))
    }

    /// The GPUs of this process by UUID, and their addresses in the list of the kernel driver.
    pub(super) fn ours(&self) -> (BTreeMap<String, Arc<Identity>>, Vec<String>) {
        let had = self.had().map(|id| (id.uuid.clone(), Arc::clone(id))).collect();
        let listed = self.listed.addresses.iter().filter(|pci| !self.others.contains(*pci));
        (had, listed.cloned().collect())
    }

    /// The expected number of GPUs.
    pub(super) fn expected(&self) -> usize {
        let listed = self.most.iter().filter(|pci| !self.others.contains(*pci)).count();
        let most = listed.max(self.had().count()).max(self.listed.idle);
        self.config.expected.unwrap_or(most)
    }

    /// Writes the GPUs that are missing, and those that NVML lists but cannot use.
    pub(super) fn write_missing(&self, out: &mut Samples) {
        let read = |uuid: &str| self.reading.iter().flat_map(|r| &r.gpus).any(|gpu| gpu.id.uuid == uuid);
        let listed = |uuid: &str| self.listed.gpus.iter().any(|gpu| gpu.uuid == uuid);
        for id in self.had().filter(|id| !read(&id.uuid)) {
            out.set(&LOST, &[&id.uuid], true);
            if !listed(&id.uuid) {
                let Identity { uuid, name, pci, serial, vbios, minor, .. } = &**id;
                out.set(&INFO, &[uuid, "", pci, name, serial, vbios, "", "", minor], 1u64);
            }
        }
        for gpu in self.unusable() {
            out.set(&UNUSABLE, &[gpu.uuid, &gpu.index, gpu.pci, &gpu.error], 1u64);
            if gpu.needs_reset && !gpu.uuid.is_empty() {
                read::wants_reset(gpu.uuid, out);
            }
        }
    }

    fn unusable(&self) -> Vec<Unusable<'_>> {
        let Some(reading) = &self.reading else { return Vec::new() };
        let broken: Vec<_> = reading.unusable.iter().filter(|(_, error)| !self.is_others(error)).collect();
        let mut places: Vec<&str> = self.unread(reading).into_iter().collect();
        places.retain(|pci| !self.others.contains(*pci));
        // NVML numbers GPUs by their addresses.
        let known = places.len() == broken.len();
        let place = |nth: usize| places.get(nth).copied().filter(|_| known).unwrap_or_default();
        let unusable = |(nth, (index, error)): (usize, &&(u32, Error))| Unusable {
            index: index.to_string(),
            pci: place(nth),
            uuid: self.uuid_at(place(nth)),
            error: error.name(),
            needs_reset: error.needs_reset(),
        };
        broken.iter().enumerate().map(unusable).collect()
    }

    fn uuid_at(&self, pci: &str) -> &str {
        let listed = self.listed.gpus.iter().map(|gpu| (&gpu.pci, &gpu.uuid));
        let mut all = listed.chain(self.known.gpus().values().map(|id| (&id.pci, &id.uuid)));
        all.find(|(place, _)| *place == pci).map_or("", |(_, uuid)| uuid)
    }

    /// Adds the recovery action of GPUs that do not answer until they are reset, because they
    /// cannot report it themselves.
    pub(super) fn want_resets(&mut self, reading: &Reading) {
        for gpu in reading.gpus.iter().filter(|gpu| gpu.needs_reset && !gpu.lost) {
            let uuid = &gpu.id.uuid;
            let slow = self.slow.entry(uuid.clone()).or_default();
            let wants = |row: Row<'_>| row.value == 1.0 && row.label("action") != "none";
            if slow.rows(&RECOVERY).any(wants) {
                continue;
            }
            let mut rewritten = Samples::default();
            for sample in slow.iter().filter(|sample| sample.family.name != RECOVERY.name) {
                if let Value::Number(value) = sample.value {
                    rewritten.set(sample.family, &sample.labels.iter().collect::<Vec<_>>(), value);
                }
            }
            read::wants_reset(uuid, &mut rewritten);
            *slow = rewritten.into_sealed();
            self.slow_new = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use stepwatch_wire::Event;

    use super::super::events::Inventory;
    use super::super::families::{COUNT, EXPECTED};
    use super::super::pass::GpuReading;
    use super::super::tests::{read as gpu, reading};
    use super::super::{Collector as _, Config, kernel};
    use super::*;
    use crate::testing::Bench;

    fn code(code: u32) -> Error {
        Error::Code { function: "nvmlDeviceGetHandleByIndex_v2", code }
    }

    const NO_PERMISSION: u32 = 4;
    const RESET_REQUIRED: u32 = 16;
    const OPERATING_SYSTEM: u32 = 17;

    /// A node of eight GPUs of which a process may open some, and the output of its exporter.
    struct Host {
        dir: tempfile::TempDir,
        bench: Bench,
        reader: GpuReader,
    }

    impl Host {
        fn new(given: std::ops::Range<u32>) -> Self {
            Self::with(given, Devices::Visible)
        }

        fn with(given: std::ops::Range<u32>, devices: Devices) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let write = |path: PathBuf, text: &str| {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            };
            for i in 0..8 {
                let id = gpu(i).id;
                let text = format!(
                    "Model: \t {}\nGPU UUID: \t {}\nBus Location: \t {}\nDevice Minor: \t {i}\n",
                    id.name, id.uuid, id.pci
                );
                write(dir.path().join("proc/driver/nvidia/gpus").join(&id.pci).join("information"), &text);
            }
            given.for_each(|i| write(dir.path().join(format!("dev/nvidia{i}")), ""));
            let bench = Bench::new(Roots {
                procfs: dir.path().join("proc"),
                dev: dir.path().join("dev"),
                sysfs: dir.path().join("sys"),
                state: Some(dir.path().into()),
                nvml_library: Some("/nonexistent/libnvidia-ml.so.1".into()),
                ..Roots::default()
            });
            let config = Config { devices, ..Config::default() };
            Self { dir, bench, reader: GpuReader::new(&config, &kernel::Config::default()) }
        }

        /// Restarts the exporter in a container without this GPU.
        fn restart_without(&mut self, index: u32, devices: Devices) {
            std::fs::remove_file(self.dir.path().join(format!("dev/nvidia{index}"))).unwrap();
            self.reader =
                GpuReader::new(&Config { devices, ..Config::default() }, &kernel::Config::default());
        }

        /// Lets the driver fail to initialise the GPU.
        fn break_gpu(&self, index: u32) {
            let id = gpu(index).id;
            let file = self.dir.path().join("proc/driver/nvidia/gpus").join(&id.pci).join("information");
            let text = std::fs::read_to_string(&file).unwrap();
            std::fs::write(file, text.replace(&id.uuid, "GPU-????????-????-????-????-????????????")).unwrap();
        }

        /// The samples and events if NVML answers for these GPUs only.
        fn look(&mut self, gpus: Vec<GpuReading>, unusable: Vec<(u32, Error)>) -> (Samples, Vec<Event>) {
            let cx = self.bench.context();
            self.reader.probe(&cx).unwrap();
            self.reader.take(Ok(Reading { unusable, ..reading(gpus) }), &cx);
            let mut out = Samples::default();
            self.reader.write(&mut out);
            let ((had, listed), expected) = (self.reader.ours(), self.reader.expected());
            let reading = self.reader.reading.as_ref().unwrap();
            self.reader.watch.look(&cx, reading, &Inventory { seen: had, listed, expected });
            (out, self.bench.published())
        }
    }

    /// Checks that only the answering GPUs are published.
    fn all_is_well((out, events): &(Samples, Vec<Event>), answering: f64) {
        assert_eq!((out.get(&COUNT, &[]), out.get(&EXPECTED, &[])), (Some(answering), Some(answering)));
        assert_eq!(out.rows(&INFO).count() as f64, answering);
        assert_eq!(out.rows(&LOST).filter(|row| row.value != 0.0).count(), 0);
        assert_eq!(out.rows(&UNUSABLE).count(), 0);
        assert!(events.is_empty(), "{events:?}");
    }

    #[test]
    fn gpus_of_the_node_that_a_container_was_not_given_are_not_lost() {
        let mut host = Host::new(0..4);
        all_is_well(&host.look((0..4).map(gpu).collect(), Vec::new()), 4.0);
        // A GPU that was in use here before, and belongs to another container now.
        std::fs::remove_file(host.dir.path().join("dev/nvidia3")).unwrap();
        all_is_well(&host.look((0..3).map(gpu).collect(), Vec::new()), 3.0);
    }

    #[test]
    fn gpus_that_nvml_counts_and_may_not_open_are_not_lost() {
        for no in [NO_PERMISSION, OPERATING_SYSTEM] {
            let refused = (4..8).map(|index| (index, code(no))).collect();
            all_is_well(&Host::new(0..8).look((0..4).map(gpu).collect(), refused), 4.0);
        }
        // Slurm refuses both.
        let refused = (4..8).map(|index| (index, code(NO_PERMISSION))).collect();
        all_is_well(&Host::new(0..4).look((0..4).map(gpu).collect(), refused), 4.0);
    }

    #[test]
    fn one_that_fell_off_the_bus_is_missed_on_the_host_and_among_those_that_were_given() {
        for (given, answering) in [(0..8, 7), (0..4, 3)] {
            let expected = given.len() as f64;
            let mut host = Host::new(given);
            let (out, events) = host.look((0..answering).map(gpu).collect(), Vec::new());
            assert_eq!(out.get(&EXPECTED, &[]), Some(expected));
            assert_eq!(out.get(&COUNT, &[]), Some(expected - 1.0));
            let lost = gpu(answering).id.pci.clone();
            let published: Vec<_> = events.iter().map(|e| (e.name.as_deref(), &e.extra["pci"])).collect();
            assert_eq!(published, [(Some("gpu_lost"), &stepwatch_wire::Value::Text(lost))]);
        }
    }

    /// Seven of eight answer, and the fourth is reported as lost.
    fn one_is_lost((out, events): &(Samples, Vec<Event>)) {
        assert_eq!((out.get(&COUNT, &[]), out.get(&EXPECTED, &[])), (Some(7.0), Some(8.0)));
        assert_eq!(out.get(&LOST, &["GPU-3"]), Some(1.0));
        let published: Vec<_> = events.iter().map(|e| (e.name.as_deref(), &e.extra["gpu"])).collect();
        assert_eq!(published, [(Some("gpu_lost"), &stepwatch_wire::Value::Text("GPU-3".into()))]);
    }

    fn without_the_fourth() -> Vec<GpuReading> {
        (0..8).filter(|index| *index != 3).map(gpu).collect()
    }

    #[test]
    fn one_that_a_container_was_not_given_is_lost_where_all_are_meant() {
        let mut host = Host::with(0..8, Devices::All);
        all_is_well(&host.look((0..8).map(gpu).collect(), Vec::new()), 8.0);
        host.restart_without(3, Devices::All);
        one_is_lost(&host.look(without_the_fourth(), Vec::new()));
        let (out, _) = host.look(without_the_fourth(), vec![(3, code(NO_PERMISSION))]);
        let pci = gpu(3).id.pci.clone();
        assert_eq!(out.get(&UNUSABLE, &["GPU-3", "3", &pci, "no_permission"]), Some(1.0), "which, and why");
    }

    #[test]
    fn gpus_that_a_containers_runtime_hides_are_not_lost_and_one_that_left_the_bus_is() {
        let mut host = Host::new(0..8);
        all_is_well(&host.look((0..8).map(gpu).collect(), Vec::new()), 8.0);
        for index in 4..8 {
            let pci = gpu(index).id.pci.clone();
            std::fs::remove_dir_all(host.dir.path().join("proc/driver/nvidia/gpus").join(&pci)).unwrap();
            let device = host.dir.path().join("sys/bus/pci/devices").join(&pci);
            std::fs::create_dir_all(&device).unwrap();
            std::os::unix::fs::symlink("../../../../bus/pci/drivers/nvidia", device.join("driver")).unwrap();
        }
        for devices in [Devices::Visible, Devices::Job] {
            host.reader =
                GpuReader::new(&Config { devices, ..Config::default() }, &kernel::Config::default());
            all_is_well(&host.look((0..4).map(gpu).collect(), Vec::new()), 4.0);
        }
        let left = host.dir.path().join("sys/bus/pci/devices").join(&gpu(6).id.pci);
        std::fs::remove_dir_all(left).unwrap();
        let (out, _) = host.look((0..4).map(gpu).collect(), Vec::new());
        assert_eq!((out.get(&COUNT, &[]), out.get(&EXPECTED, &[])), (Some(4.0), Some(5.0)));
        assert_eq!(out.get(&LOST, &["GPU-6"]), Some(1.0));
    }

    #[test]
    fn one_that_was_ours_and_that_the_driver_cannot_bring_up_is_nobody_elses() {
        let mut host = Host::new(0..8);
        all_is_well(&host.look((0..8).map(gpu).collect(), Vec::new()), 8.0);
        host.restart_without(3, Devices::Visible);
        all_is_well(&host.look(without_the_fourth(), Vec::new()), 7.0);
        host.break_gpu(3);
        one_is_lost(&host.look(without_the_fourth(), Vec::new()));
        // GPUs that the node's exporter has had do not count for a job.
        host.reader = GpuReader::new(
            &Config { devices: Devices::Job, ..Config::default() },
            &kernel::Config::default(),
        );
        assert_eq!(host.look(without_the_fourth(), Vec::new()).0.get(&EXPECTED, &[]), Some(7.0));
        // A GPU that never belonged to this process is not reported.
        let mut host = Host::new(0..4);
        host.break_gpu(7);
        all_is_well(&host.look((0..4).map(gpu).collect(), Vec::new()), 4.0);
    }

    #[test]
    fn one_that_needs_a_reset_reports_it_with_or_without_a_handle() {
        let mut host = Host::new(0..8);
        let broken = vec![(7, code(RESET_REQUIRED))];
        let (out, events) = host.look((0..7).map(gpu).collect(), broken);
        let pci = gpu(7).id.pci.clone();
        assert_eq!(out.get(&UNUSABLE, &["GPU-7", "7", &pci, "reset_required"]), Some(1.0));
        let wants =
            |out: &Samples| ["none", "gpu_reset"].map(|action| out.get(&RECOVERY, &["GPU-7", action]));
        assert_eq!(wants(&out), [Some(0.0), Some(1.0)]);
        assert!(events[0].text.as_deref().is_some_and(|t| t.contains("needs a reset")), "{events:?}");
        let mut slow = Samples::default();
        slow.set(&RECOVERY, &["GPU-7", "none"], 1u64);
        slow.set(&super::super::families::NVLINK_UP, &["GPU-7", "0"], 1u64);
        let slow = slow.into_sealed();
        let read = |needs_reset: bool| GpuReading { needs_reset, slow: Some(slow.clone()), ..gpu(7) };
        let (out, _) = host.look((0..7).map(gpu).chain([read(false)]).collect(), Vec::new());
        assert_eq!(wants(&out), [Some(1.0), None]);
        let (out, _) = host.look((0..7).map(gpu).chain([read(true)]).collect(), Vec::new());
        assert_eq!(wants(&out), [Some(0.0), Some(1.0)]);
        assert_eq!(out.get(&super::super::families::NVLINK_UP, &["GPU-7", "0"]), Some(1.0), "the rest stays");
    }

    #[test]
    fn which_of_several_is_broken_is_not_guessed() {
        let mut host = Host::new(0..8);
        let broken = vec![(6, code(RESET_REQUIRED))];
        let (out, _) = host.look((0..6).map(gpu).collect(), broken);
        assert_eq!(out.get(&UNUSABLE, &["", "6", "", "reset_required"]), Some(1.0));
        assert_eq!(out.rows(&RECOVERY).count(), 0);
    }
}

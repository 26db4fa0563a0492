//! Twenty-four hours in miniature: the collector of GPUs, driven as fast as it can be, with all
//! that happens to a driver in between, takes no more memory at the end than at the beginning.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::time::{Duration, Instant};

use stepwatch_exporter::collector::{Collector as _, Context};
use stepwatch_exporter::collectors::gpu::{Config, GpuReader};
use stepwatch_exporter::collectors::kernel;
use stepwatch_exporter::hub::{Hub, Parts};
use stepwatch_exporter::nvml::Nvml;
use stepwatch_exporter::roots::Roots;
use stepwatch_exporter::samples::Samples;
use stepwatch_exporter::stream::Limits;
use stepwatch_exporter::training::mfu::Convention;
use stepwatch_exporter::training::{Archive, Options};
use stepwatch_fake_nvml::{Code, Effect, Fault, Fleet, Quantity, SCRIPT, Script, Stage, calls, library};

/// A collection a second for twelve days, where there is time for it; else for a working day.
const LONG: usize = 1_000_000;
const ORDINARY: usize = 16_000;
/// Until caches, the ring buffer of the stream and the allocator have reached their size.
const WARM_UP: usize = 4_000;
/// How often the world changes.
const CHANGE: usize = 500;
/// How often in all the library is let go of and loaded anew, which leaves a little in the loader
/// each time.
const REOPEN: usize = 4;
/// The thread of NVML may not be done yet with the last collection.
const TRIES: usize = 50;
/// Pages of the allocator come and go; a leak of a hundred bytes a collection is more than this,
/// even in the ordinary run.
const SLACK: u64 = 2 << 20;

const PATIENCE: Duration = Duration::from_secs(30);

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn hub() -> Hub {
    Hub::new(Parts {
        node: "n1".into(),
        boot: "b00t".into(),
        ring: Limits { records: 16, bytes: 1 << 20 },
        training: Options {
            max_runs: 1,
            new_per_minute: 1.0,
            shared: Vec::new(),
            max_ranks: 1,
            max_custom: 1,
            forget_after: 1.0,
            linger: 1.0,
            convention: Convention::Full,
            gpu: None,
        },
        archive: Archive::default(),
        keep: None,
    })
}

/// The worlds that take turns.
fn worlds() -> Vec<Script> {
    let healthy = || Script { count: Some(1), ..Script::for_fleet(Fleet::H100) };
    let mut failing = healthy();
    failing.faults.push(Fault::new("nvmlDeviceGetPowerUsage", Effect::Fail(Code::Unknown)));
    failing.faults.push(Fault::field(186, Effect::Fail(Code::Timeout)));
    vec![
        healthy(),
        healthy().without("utilization.gpu").all("energy", u64::MAX).all("nvlink.state.3", 0u64),
        Script { lost: vec![0], ..healthy() },
        healthy()
            .all("ecc.corrected.volatile.dram", Quantity::growing(0.0, 17_600.0))
            .all("throttle.reasons", 0x48u64),
        failing,
        healthy().all("remapped.pending", 1u64).all("recovery_action", 1u64),
        Script { count: Some(1), ..Script::for_fleet(Fleet::H200Mig) },
    ]
}

struct Day {
    hub: Hub,
    nvml: Nvml,
    roots: Roots,
    reader: GpuReader,
    stage: Stage,
    worlds: Vec<Script>,
    passes: usize,
    /// After how many the library is loaded anew.
    reopen: usize,
}

impl Day {
    fn pass(&mut self) -> Samples {
        let mut out = Samples::default();
        if self.passes.is_multiple_of(CHANGE) {
            let turn = self.passes / CHANGE % self.worlds.len();
            self.stage.set(&self.worlds[turn]).unwrap();
        }
        if self.passes.is_multiple_of(self.reopen) {
            assert!(self.nvml.release(PATIENCE, PATIENCE));
            self.collect(&mut out);
            self.nvml.acquire();
        }
        // One that found the thread busy was none.
        let asked = |day: &Self| day.nvml.costs().iter().map(|(_, cost)| cost.total).sum::<Duration>();
        let before = asked(self);
        for _ in 0..TRIES {
            self.collect(&mut out);
            if asked(self) != before {
                break;
            }
            std::thread::yield_now();
        }
        self.passes += 1;
        out
    }

    fn collect(&mut self, out: &mut Samples) {
        *out = Samples::default();
        // A failure is one of the things that happen.
        let _ = self.reader.collect(
            &Context { roots: &self.roots, hub: &self.hub, nvml: &self.nvml, families: Vec::new },
            out,
        );
    }

    fn run(&mut self, passes: usize) -> u64 {
        (0..passes).for_each(|_| drop(self.pass()));
        resident()
    }
}

#[test]
fn memory_is_flat() {
    let dir = tempfile::tempdir().unwrap();
    let stage = Stage::new(dir.path(), &Script::default()).unwrap();
    #[expect(
        clippy::disallowed_methods,
        reason = "the library is configured by its environment, as in a program"
    )]
    // SAFETY: this is the one test of its process, and nothing else runs yet.
    unsafe {
        std::env::set_var(SCRIPT, stage.path());
    }
    let passes = if std::env::var_os("STEPWATCH_LONG").is_some() { LONG } else { ORDINARY };
    let roots = Roots {
        sysfs: dir.path().to_owned(),
        procfs: dir.path().to_owned(),
        nvml_library: Some(library().unwrap()),
        ..Roots::default()
    };
    let config = Config { slow_interval: "5ms".parse().unwrap(), ..Config::default() };
    let mut day = Day {
        hub: hub(),
        nvml: Nvml::default(),
        roots,
        reader: GpuReader::new(&config, &kernel::Config::default()),
        stage,
        worlds: worlds(),
        passes: 0,
        reopen: passes / REOPEN,
    };
    let began = Instant::now();
    let first = day.run(WARM_UP);
    let quarters: Vec<u64> = (0..4).map(|_| day.run(passes / 4)).collect();
    let calls = day.stage.calls().unwrap();
    // Past the capture of the test runner.
    let figure = format!(
        "figure: {passes} collections in {:.0?}: {} KiB resident after {WARM_UP}, then {:?} KiB at each quarter; {} calls into NVML",
        began.elapsed(),
        first / 1024,
        quarters.iter().map(|q| q / 1024).collect::<Vec<_>>(),
        calls.count(calls::ALL),
    );
    writeln!(std::io::stderr().lock(), "{figure}").unwrap();
    assert!(quarters[3] < first + SLACK, "{first} {quarters:?}");
    assert!(calls.count("nvmlInit_v2") >= REOPEN as u64, "it was let go of");
    assert!(calls.count(calls::ALL) > 10 * passes as u64, "it was asked");
    assert_eq!(calls.count(calls::MISUSE), 0);
    assert!(calls.count(calls::SAMPLES) <= 8 && calls.count(calls::SETS) <= 1, "{calls:?}");
    drop(day);
}

use std::io::Write as _;

use super::families::*;
use super::nvidia::tests::written;
use super::*;
use crate::testing::Bench;
use stepwatch_wire::{Event, Kind};

const UUID: &str = "GPU-3c6e8a4b-9d2f-4a51-8e07-5b1f2c3d4e5f";

/// A node whose system files are in a directory.
struct Machine {
    dir: tempfile::TempDir,
    sequence: u64,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let gpu = dir.path().join("proc/driver/nvidia/gpus/0000:3b:00.0");
        for made in [&gpu, &dir.path().join("proc/sys/kernel/random"), &dir.path().join("state")] {
            std::fs::create_dir_all(made).unwrap();
        }
        let text = format!("Model: \t\t NVIDIA H100\nGPU UUID: \t {UUID}\nBus Location: \t 0000:3b:00.0\n");
        std::fs::write(gpu.join("information"), text).unwrap();
        let mut machine = Self { dir, sequence: 0 };
        machine.boot("first");
        machine
    }

    fn boot(&mut self, id: &str) {
        std::fs::write(self.dir.path().join("proc/sys/kernel/random/boot_id"), id).unwrap();
        std::fs::write(self.dir.path().join("proc/uptime"), "1000.00 1.0\n").unwrap();
        std::fs::write(self.dir.path().join("kmsg"), "").unwrap();
        self.sequence = 0;
    }

    fn log(&mut self, line: &str) {
        let path = self.dir.path().join("kmsg");
        let mut file = File::options().append(true).open(path).unwrap();
        self.sequence += 1;
        writeln!(file, "4,{},{},-;{line}\n SUBSYSTEM=test", self.sequence, self.sequence * 1_000_000)
            .unwrap();
    }

    fn xid(&mut self, code: u32) {
        self.log(&format!("NVRM: Xid (PCI:0000:3b:00): {code}, pid=7, name=python3, x"));
    }

    fn bench(&self) -> Bench {
        let path = |name: &str| self.dir.path().join(name);
        Bench::new(Roots {
            procfs: path("proc"),
            sysfs: path("sys"),
            kmsg: path("kmsg"),
            state: Some(path("state")),
            ..Roots::default()
        })
    }
}

/// Starts an exporter whose passes do not wait.
fn start(bench: &Bench) -> KernelLogReader {
    let mut reader = KernelLogReader::new(&Config { interval: Period::millis(0), ..Config::default() });
    assert!(matches!(reader.probe(&bench.context()).unwrap(), Support::Supported(_)));
    reader
}

/// Waits until the state of the reader is on disk.
fn saved(reader: &mut KernelLogReader, bench: &Bench) {
    let open = reader.open.as_mut().unwrap();
    (open.saved, open.unsaved) = (None, true);
    let _ = open.saving.finished(Duration::from_mins(1));
    open.save(&bench.context());
    assert!(matches!(open.saving.finished(Duration::from_mins(1)), Some(Ok(()))));
}

fn xids(events: &[Event]) -> Vec<i64> {
    events.iter().filter(|e| e.kind == Kind::Xid).map(|e| e.code.unwrap()).collect()
}

#[test]
fn records_before_the_first_start_are_counted_and_later_ones_published() {
    let mut m = Machine::new();
    m.xid(31);
    let bench = m.bench();
    let mut reader = start(&bench);
    let out = bench.collect(&mut reader);
    assert_eq!(out.get(&XIDS, &[UUID, "31"]), Some(1.0));
    assert_eq!(out.get(&XIDS, &[UUID, "79"]), Some(0.0), "there before it happens");
    assert_eq!(out.get(&EVENTS, &["oom_kill"]), Some(0.0));
    assert!(bench.published().is_empty());
    m.xid(79);
    let out = bench.collect(&mut reader);
    assert_eq!(out.get(&XIDS, &[UUID, "79"]), Some(1.0));
    let published = bench.published();
    let [event] = &published[..] else { panic!("{published:?}") };
    assert_eq!(
        (event.code, event.extra["gpu"].as_str(), event.level.as_deref()),
        (Some(79), Some(UUID), Some("error"))
    );
}

#[test]
fn what_the_firmware_kept_over_the_boot_is_published_at_the_first_start() {
    let mut m = Machine::new();
    m.xid(31);
    m.log("[Hardware Error]: event severity: fatal");
    let (first, second) = (m.bench(), m.bench());
    let mut reader = start(&first);
    let out = first.collect(&mut reader);
    let counted = |event: &str| out.get(&EVENTS, &[event]);
    assert_eq!((counted("cper_previous_boot"), counted("cper_fatal")), (Some(1.0), Some(0.0)));
    let published = first.published();
    let [event] = &published[..] else { panic!("{published:?}") };
    assert_eq!(event.name.as_deref(), Some("hardware_error_previous_boot"));
    assert_eq!((event.level.as_deref(), event.code), (Some("warn"), Some(1)));
    saved(&mut reader, &first);
    drop(reader);
    second.collect(&mut start(&second));
    assert!(second.published().is_empty(), "once a boot");
}

#[test]
fn a_restart_neither_loses_nor_doubles() {
    let mut m = Machine::new();
    let (first, second) = (m.bench(), m.bench());
    let mut reader = start(&first);
    first.collect(&mut reader);
    m.xid(31);
    first.collect(&mut reader);
    saved(&mut reader, &first);
    drop(reader);
    // These are logged while no exporter runs.
    m.xid(79);
    m.xid(45);
    let mut reader = start(&second);
    let out = second.collect(&mut reader);
    let published = second.published();
    assert_eq!(xids(&published), [79, 45], "31 was published before the restart");
    let age = unix_now() - published[0].ts.unwrap();
    assert!((990.0..1000.0).contains(&age), "with its own time, {age} seconds ago");
    for code in ["31", "79", "45"] {
        assert_eq!(out.get(&XIDS, &[UUID, code]), Some(1.0), "{code}");
    }
    assert_eq!((out.get(&READ, &[]), out.get(&LOST, &[])), (Some(3.0), Some(0.0)));
}

#[test]
fn a_crash_before_the_save_counts_again_from_there() {
    let mut m = Machine::new();
    let (first, second) = (m.bench(), m.bench());
    let mut reader = start(&first);
    m.xid(31);
    first.collect(&mut reader);
    saved(&mut reader, &first);
    m.xid(79);
    assert_eq!(first.collect(&mut reader).get(&XIDS, &[UUID, "79"]), Some(1.0));
    std::mem::forget(reader.open.as_mut().unwrap().lock.take());
    drop(reader);
    // The lock ends with the process.
    std::fs::remove_file(m.dir.path().join("state").join(LOCK_FILE)).unwrap();
    let mut reader = start(&second);
    let out = second.collect(&mut reader);
    assert_eq!((out.get(&XIDS, &[UUID, "79"]), out.get(&XIDS, &[UUID, "31"])), (Some(1.0), Some(1.0)));
}

#[test]
fn a_gpu_that_is_gone_keeps_its_name_and_a_boot_begins_anew() {
    let mut m = Machine::new();
    let (first, second, third) = (m.bench(), m.bench(), m.bench());
    let mut reader = start(&first);
    m.xid(79);
    m.log("nfs: server a not responding, still trying");
    first.collect(&mut reader);
    saved(&mut reader, &first);
    drop(reader);
    std::fs::remove_dir_all(m.dir.path().join("proc/driver")).unwrap();
    m.xid(45);
    let mut reader = start(&second);
    let out = second.collect(&mut reader);
    assert_eq!(out.get(&XIDS, &[UUID, "45"]), Some(1.0));
    saved(&mut reader, &second);
    drop(reader);
    m.boot("second");
    m.xid(8);
    let mut reader = start(&third);
    let out = third.collect(&mut reader);
    assert_eq!((out.get(&READ, &[]), out.get(&XIDS, &[UUID, "79"])), (Some(1.0), None));
    assert_eq!(out.get(&XIDS, &["0000:3b:00.0", "8"]), Some(1.0));
    assert!(third.published().is_empty(), "old lines of a new boot, and the stall is over with the old one");
}

#[test]
fn a_condition_that_holds_at_the_first_start_is_published_as_one_that_holds() {
    let mut m = Machine::new();
    m.log("EXT4-fs (nvme0n1p2): Remounting filesystem read-only");
    let bench = m.bench();
    let mut reader = start(&bench);
    bench.collect(&mut reader);
    bench.collect(&mut reader);
    let published = bench.published();
    let [event] = &published[..] else { panic!("{published:?}") };
    assert_eq!(event.name.as_deref(), Some("filesystem_readonly"));
    assert!(event.extra.contains_key("again"));
}

#[test]
fn a_connection_of_lustre_that_is_back_is_over_even_if_the_log_never_contains_it() {
    let mut m = Machine::new();
    let bench = m.bench();
    let mut reader = start(&bench);
    bench.collect(&mut reader);
    m.log("Lustre: s-OST1-osc-ffff9d8a1: Connection to s-OST1 (at 10.0.0.1@tcp) was lost; in progress operations using this service will wait");
    bench.collect(&mut reader);
    assert_eq!(bench.published().len(), 1);
    let import = m.dir.path().join("sys/fs/lustre/osc/s-OST1-osc-ffff9d8a1");
    std::fs::create_dir_all(&import).unwrap();
    let mut asks = |state: &str| {
        std::fs::write(import.join("state"), format!("current_state: {state}\n")).unwrap();
        let open = reader.open.as_mut().unwrap();
        let settled = unix_now() + 1.0;
        open.imports = Imports::default();
        open.imports.ask(&mut open.tracker, m.bench().context().roots, settled, Duration::from_mins(1));
        bench.collect(&mut reader);
        bench.published()
    };
    assert!(asks("DISCONN").is_empty());
    let published = asks("FULL");
    let [event] = &published[..] else { panic!("{published:?}") };
    assert_eq!((event.name.as_deref(), event.code), (Some("lustre_stall"), Some(0)));
    assert!(asks("FULL").is_empty());
}

#[test]
fn what_is_new_to_the_node_is_counted_once_and_known_after_a_restart() {
    let mut m = Machine::new();
    let (first, second) = (m.bench(), m.bench());
    m.log("usual trouble of device 1");
    let mut reader = start(&first);
    first.collect(&mut reader);
    m.log("usual trouble of device 2");
    m.log("unheard-of trouble 17");
    assert_eq!(first.collect(&mut reader).get(&UNKNOWN, &["warning"]), Some(1.0));
    saved(&mut reader, &first);
    drop(reader);
    m.log("unheard-of trouble 18");
    let mut reader = start(&second);
    let out = second.collect(&mut reader);
    assert_eq!((out.get(&UNKNOWN, &["warning"]), out.get(&KNOWN, &[])), (Some(1.0), Some(2.0)));
    let text = std::fs::read_to_string(m.dir.path().join("state").join(KNOWN_FILE)).unwrap();
    assert_eq!(text, "unheard-of trouble #\nusual trouble of device #\n");
    for entry in std::fs::read_dir(m.dir.path().join("state")).unwrap() {
        use std::os::unix::fs::PermissionsExt as _;
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
    }
}

#[test]
fn no_log_is_unsupported_and_one_that_may_not_be_read_reports_what_to_do() {
    let m = Machine::new();
    let bench = |kmsg: PathBuf| Bench::new(Roots { kmsg, ..Roots::default() });
    let mut reader = KernelLogReader::new(&Config::default());
    let absent = reader.probe(&bench(m.dir.path().join("absent")).context()).unwrap();
    assert!(matches!(absent, Support::Unsupported(why) if why.contains("mount that of the host")));
    // The kernel gives this error to a process without the capability; root, who runs some tests,
    // has it.
    let error = io::Error::from(rustix::io::Errno::PERM);
    let said = refused(Path::new("/dev/kmsg"), error).unwrap_err().to_string();
    let helps = ["/dev/kmsg", "CAP_SYSLOG", "privileged: true"];
    assert!(helps.iter().all(|what| said.contains(what)), "{said}");
}

#[test]
fn the_next_reader_waits_until_the_last_one_is_done() {
    let mut m = Machine::new();
    let (first, second) = (m.bench(), m.bench());
    let mut reader = start(&first);
    first.collect(&mut reader);
    let path = m.dir.path().join("state").join(LOCK_FILE);
    let free = || {
        let file = File::open(&path).unwrap();
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
    };
    assert!(!free(), "a reload may start the next one while this one still reads");
    m.xid(79);
    first.collect(&mut reader);
    saved(&mut reader, &first);
    drop(reader);
    assert!(free());
    let mut reader = start(&second);
    assert_eq!(second.collect(&mut reader).get(&XIDS, &[UUID, "79"]), Some(1.0));
    assert!(second.published().is_empty(), "it was published before");
}

#[test]
fn a_pipe_is_waited_for() {
    let m = Machine::new();
    let path = m.dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::from(0o600), 0)
        .unwrap();
    let roots = Roots { kmsg: path.clone(), procfs: m.dir.path().join("proc"), ..Roots::default() };
    let bench = Bench::new(roots);
    let mut reader = KernelLogReader::new(&Config { interval: Period::secs(60), ..Config::default() });
    reader.probe(&bench.context()).unwrap();
    let mut pipe = File::options().write(true).open(&path).unwrap();
    bench.collect(&mut reader);
    let writer = std::thread::spawn(move || {
        pipe.write_all(b"4,9,5,-;NVRM: Xid (PCI:0000:3b:00): 79, x\n").unwrap();
        // The end of the process hangs up the pipe, which ends the pass.
    });
    let out = bench.collect(&mut reader);
    writer.join().unwrap();
    assert_eq!(out.get(&XIDS, &[UUID, "79"]), Some(1.0));
    assert_eq!(xids(&bench.published()), [79]);
}

proptest::proptest! {
    /// A message of several lines is one record, with further fields in lines of their own.
    #[test]
    fn every_error_of_a_record_of_several_lines_is_counted(
        xids in proptest::collection::vec(written(), 0..5),
        between in "[a-z ]{0,9}",
        belongs in proptest::collection::vec("[A-Z]{1,9}=[+a-z0-9:.]{0,12}", 0..3),
    ) {
        // The kernel escapes unprintable bytes and its own escape character like this.
        let escaped = |line: String| {
            let byte = |b: u8| match b {
                b' '..=b'~' if b != b'\\' => char::from(b).to_string(),
                _ => format!("\\x{b:02x}"),
            };
            line.bytes().map(byte).collect::<String>()
        };
        let lines: Vec<String> = xids.iter().flat_map(|xid| [xid.line(), between.clone()]).map(escaped).collect();
        let said = format!("4,1,1000000,-;{}", lines.join("\\x0a"));
        let record = std::iter::once(said).chain(belongs).collect::<Vec<_>>().join("\n ") + "\n";
        let mut t = Tracker::default();
        t.take(record.as_bytes(), &Roots::default(), |_| 1e9);
        let codes: Vec<i64> = xids.iter().map(|xid| i64::from(xid.code)).collect();
        proptest::prop_assert_eq!(t.counts.events.get("gpu_xid").copied().unwrap_or_default(), xids.len() as u64);
        proptest::prop_assert_eq!(t.events.iter().filter_map(|e| e.code).collect::<Vec<_>>(), codes);
        proptest::prop_assert_eq!((t.counts.read, t.counts.malformed), (1, 0));
    }
}

use super::*;
use crate::lock::Locked as _;
use crate::origin::Origin;
use crate::principal::Principal;
use crate::roots::Roots;
use crate::testing;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use stepwatch_wire::{Event, Value};

const GB: u64 = 1_000_000_000;
const TABLE: &str = "22 1 259:1 / / rw - ext4 /dev/nvme0n1p2 rw,errors=remount-ro\n23 22 259:2 / /scratch rw - xfs /dev/md0 rw\n\
    24 22 0:50 / /mnt/nfs rw - nfs4 srv:/ckpt rw\n25 22 0:24 / /dev/shm rw - tmpfs tmpfs rw\n\
    26 22 0:25 / /run rw - tmpfs tmpfs rw\n27 22 259:2 / /pods/volume rw - xfs /dev/md0 rw\n";

type Rooms = Arc<Mutex<BTreeMap<PathBuf, Look>>>;

struct Node {
    dir: tempfile::TempDir,
    bench: testing::Bench,
    reader: DiskReader,
    rooms: Rooms,
    start: f64,
}

impl Node {
    fn new(config: &Config) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots {
            procfs: dir.path().into(),
            sysfs: dir.path().join("sys"),
            state: Some(dir.path().join("state")),
            ..Roots::default()
        };
        let state = dir.path().join("state").to_string_lossy().into_owned();
        std::fs::create_dir(&state).unwrap();
        let (rooms, reader) = (Rooms::default(), DiskReader::new(config));
        let mut node = Self { dir, bench: testing::Bench::new(roots), reader, rooms, start: unix_now() };
        node.restart(config);
        node.mount(TABLE);
        for (path, free) in [("/", 100), ("/scratch", 1000), ("/dev/shm", 50)] {
            node.room(path, path, free);
        }
        node.room(&state, "/var/lib/stepwatch-exporter", 100);
        node
    }

    fn restart(&mut self, config: &Config) {
        let answers = Arc::clone(&self.rooms);
        self.reader = DiskReader::new(config);
        self.reader.prober = Prober::new(move |asked: &Directory| {
            answers.locked().get(&asked.path).cloned().unwrap_or_default()
        });
    }

    fn boot(&self, id: &str) {
        let dir = self.dir.path().join("sys/kernel/random");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("boot_id"), id).unwrap();
    }

    fn mount(&mut self, table: &str) {
        std::fs::create_dir_all(self.dir.path().join("self")).unwrap();
        std::fs::write(self.dir.path().join("self/mountinfo"), table).unwrap();
    }

    /// Sets the free gigabytes of a terabyte.
    fn room(&self, path: &str, real: &str, free: u64) {
        let (size, free) = (1000 * GB, free * GB);
        let room = Room { size, free, used: size - free, inodes: Some((1000, 500)) };
        self.rooms.locked().insert(path.into(), Some((room, real.into())));
    }

    /// The exposition once every file system has answered.
    fn page(&mut self, mounts: usize) -> Samples {
        for _ in 0..100 {
            let page = self.bench.collect(&mut self.reader);
            if page.rows(&SIZE).count() == mounts {
                return page;
            }
        }
        panic!("file systems did not answer");
    }

    /// A checkpoint of the run llama, at these seconds from the start of the test.
    fn checkpoint(&self, path: &str, step: i64, at: f64, bytes: u64) {
        let mut event = Event {
            run: Some("llama".into()),
            step: Some(step),
            ts: Some(self.start + at),
            ckpt: Some(stepwatch_wire::CkptPhase::End),
            ..Event::new(stepwatch_wire::Kind::Ckpt)
        };
        event.extra.insert("path".into(), Value::Text(path.into()));
        event.extra.insert("bytes".into(), Value::Number(bytes as f64));
        self.bench.hub.publish(Origin::Datagram(Principal::Exporter), event);
    }

    fn published(&self) -> Vec<(String, i64, String)> {
        let events = self.bench.published();
        let nodes = events.into_iter().filter(|e| e.kind == stepwatch_wire::Kind::Hw);
        nodes.map(|e| (e.name.unwrap(), e.code.unwrap(), e.text.unwrap())).collect()
    }
}

#[test]
fn file_systems_each_once_and_where_checkpoints_go() {
    let mut node = Node::new(&Config::default());
    node.checkpoint("/ckpt/llama/iter_100", 100, -600.0, 200 * GB);
    node.checkpoint("/ckpt/llama/iter_200", 200, 0.0, 200 * GB);
    // The path is a symbolic link: the directory is on the network.
    node.room("/ckpt/llama", "/mnt/nfs/llama", 500);
    let page = node.page(4);
    for (family, labels, want) in [
        (&FREE, &["/"][..], Some(1e11)),
        (&FREE, &["/scratch"], Some(1e12)),
        (&FREE, &["/pods/volume"], None),
        (&FREE, &["/dev/shm"], Some(5e10)),
        (&FREE, &["/run"], None),
        (&FREE, &["/mnt/nfs"], Some(5e11)),
        (&FREE_INODES, &["/"], Some(500.0)),
        (&READ_ONLY, &["/mnt/nfs"], Some(0.0)),
        (&INFO, &["/mnt/nfs", "nfs4", "srv:/ckpt"], Some(1.0)),
        (&DIRECTORY, &["llama", "/mnt/nfs", "/ckpt/llama"], Some(1.0)),
        (&CHECKPOINTS_LEFT, &["llama", "/mnt/nfs"], Some(2.0)),
        (&CHECKPOINTS_LAST, &["llama", "/mnt/nfs"], Some(1800.0)),
        (&FILL, &["/"], None),
    ] {
        assert_eq!(page.get(family, labels), want, "{} {labels:?}", family.name);
    }
    assert!(node.published().is_empty());
}

#[test]
fn a_checkpoint_that_will_not_fit_is_reported_until_it_does() {
    let mut node = Node::new(&Config::default());
    node.checkpoint("/scratch/ckpt/iter_100", 100, -600.0, 200 * GB);
    node.room("/scratch/ckpt", "/scratch/ckpt", 199);
    node.room("/scratch", "/scratch", 199);
    node.page(3);
    let text = "the next checkpoint of llama (200.0 GB) does not fit on /scratch: 199.0 GB are free";
    assert_eq!(node.published(), [("disk_filling".into(), 1, text.into())]);
    node.room("/scratch", "/scratch", 400);
    // Either answer may come first, because both are about one file system.
    node.room("/scratch/ckpt", "/scratch/ckpt", 400);
    for _ in 0..100 {
        node.page(3);
        if node.reader.conditions.keys(stepwatch_wire::conditions::NodeCondition::DiskFilling).is_empty() {
            break;
        }
    }
    assert_eq!(node.published()[0].1, 0);
}

#[test]
fn a_disk_that_fills_is_reported_before_it_is_full() {
    let config = Config { window: Period::secs(3600), ..Config::default() };
    let mut node = Node::new(&config);
    let start = Instant::now();
    let mut at = |minutes: u64, free: u64| {
        node.room("/scratch", "/scratch", free);
        let table = table::read(node.bench.context().roots).unwrap();
        let now = start + Duration::from_secs(minutes * 60);
        // The previous answer may come once more.
        let fresh =
            |disks: &BTreeMap<String, Disk>| disks.get("/scratch").is_some_and(|d| d.room.free == free * GB);
        for _ in 0..100 {
            let disks = node.reader.look(now, &table, &[]).disks;
            if fresh(&disks) {
                node.reader.report_filling(&node.bench.context(), &disks);
                return (disks["/scratch"].rate, node.published());
            }
        }
        panic!("no answer");
    };
    assert_eq!(at(0, 900), (None, vec![]));
    let (rate, published) = at(10, 810);
    assert!(
        (rate.unwrap().bytes_per_second - 0.15 * GB as f64).abs() < 1.0 && published.is_empty(),
        "{rate:?}"
    );
    let (_, published) = at(30, 630);
    let text = "/scratch will be full in 70 min: 630.0 GB are free, and 150.0 MB more are used every second";
    assert_eq!(published, [("disk_filling".into(), 1, text.into())]);
    assert!(at(60, 630).1.is_empty(), "still too fast");
    let (_, published) = at(120, 630);
    assert_eq!(published, [("disk_filling".into(), 0, "/scratch has room again".into())]);
    let (_, published) = at(121, 5);
    assert_eq!(published[0].2, "/scratch is full: 5.0 GB are free, 0.5 %");
    // Around the limit it is not full and well by turns.
    assert!(at(122, 12).1.is_empty() && at(123, 9).1.is_empty() && at(124, 15).1.is_empty());
    let (_, published) = at(300, 900);
    assert_eq!(published, [("disk_filling".into(), 0, "/scratch has room again".into())]);
}

#[test]
fn file_systems_that_turn_read_only() {
    let mut node = Node::new(&Config::default());
    node.page(3);
    node.mount(&TABLE.replace("rw,errors", "ro,errors"));
    let page = node.page(3);
    assert_eq!((page.get(&READ_ONLY, &["/"]), page.get(&READ_ONLY, &["/scratch"])), (Some(1.0), Some(0.0)));
    let published = node.published();
    assert_eq!((published.len(), &*published[0].0, published[0].1), (1, "filesystem_readonly", 1));
    assert!(published[0].2.contains("/dev/nvme0n1p2"), "{published:?}");
    node.mount(TABLE);
    node.page(3);
    assert_eq!(node.published()[0].1, 0);
    // A person remounted it while the exporter ran: it was writable, and is not any more.
    node.mount(&TABLE.replace("/scratch rw - xfs /dev/md0 rw", "/scratch ro - xfs /dev/md0 ro"));
    node.page(3);
    assert_eq!(
        node.published()[0].2,
        "/scratch (xfs on /dev/md0) turned read-only: the kernel does that after an error"
    );
    node.mount("22 1 259:1 / / rw - ext4 /dev/nvme0n1p2 rw\n");
    node.page(1);
    assert_eq!(node.published()[0].2, "/scratch is not watched any more");
}

/// A hardened unit and a container see read-only mounts of file systems that are writable.
#[test]
fn mounts_that_are_read_only_for_the_exporter_alone() {
    let mut node = Node::new(&Config::default());
    node.boot("one");
    let hardened = |table: &str| table.replace(" rw - ", " ro,nosuid,relatime - ");
    node.mount(&hardened(TABLE));
    node.room("/scratch", "/scratch", 5);
    let page = node.page(3);
    assert_eq!((page.get(&READ_ONLY, &["/"]), page.get(&READ_ONLY, &["/scratch"])), (Some(0.0), Some(0.0)));
    let published = node.published();
    assert_eq!(published, [("disk_filling".into(), 1, "/scratch is full: 5.0 GB are free, 0.5 %".into())]);
    node.mount(&hardened(&TABLE.replace("rw,errors", "ro,errors")));
    let page = node.page(3);
    assert_eq!(page.get(&READ_ONLY, &["/"]), Some(1.0));
    let published = node.published();
    assert_eq!(
        (published.len(), &*published[0].0, published[0].1),
        (1, "filesystem_readonly", 1),
        "{published:?}"
    );
    let fell = |node: &mut Node| {
        node.restart(&Config::default());
        node.page(3);
        node.published().iter().filter(|published| published.0 == "filesystem_readonly").count()
    };
    assert_eq!(fell(&mut node), 1, "a restart cures nothing");
    node.boot("another");
    assert_eq!(fell(&mut node), 0, "it may have been mounted so");
}

#[test]
fn an_image_that_is_full_is_as_it_should_be() {
    let mut node = Node::new(&Config::default());
    node.mount("22 1 7:0 / / rw,relatime - squashfs /dev/loop0 ro,errors=continue\n");
    node.room("/", "/", 0);
    let page = node.page(1);
    assert_eq!(page.get(&READ_ONLY, &["/"]), Some(1.0));
    assert!(node.published().is_empty());
}

#[test]
fn an_nvme_drive_that_is_not_live_twice() {
    let mut node = Node::new(&Config::default());
    let state = |state: &str| {
        let dir = node.dir.path().join("sys/class/nvme/nvme0");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("state"), state).unwrap();
    };
    state("live\n");
    let mut reader = DiskReader::new(&Config::default());
    let bench = &node.bench;
    let mut look = || {
        let controllers = devices::nvme(bench.context().roots, &mut Samples::default());
        reader.report_nvme(&bench.context(), controllers);
        bench.published().into_iter().map(|e| (e.code.unwrap(), e.text.unwrap())).collect::<Vec<_>>()
    };
    assert!(look().is_empty());
    state("resetting\n");
    assert!(look().is_empty(), "it may pass");
    assert_eq!(look(), [(1, "NVMe drive nvme0 is resetting".into())]);
    state("live\n");
    assert_eq!(look(), [(0, "NVMe drive nvme0 is live again".into())]);
    state("dead\n");
    assert_eq!(look(), [(1, "NVMe drive nvme0 is dead".into())]);
    std::fs::remove_dir_all(node.dir.path().join("sys")).unwrap();
    assert_eq!(look(), [(0, "NVMe drive nvme0 is not there any more".into())]);
    node.page(3);
}

#[test]
fn room_of_a_directory_that_is_not_there_yet() {
    let dir = tempfile::tempdir().unwrap();
    let directory = Directory { path: dir.path().join("not/there"), named_by: Principal::Exporter };
    let (room, real) = rooms::look(&directory).unwrap();
    assert!(room.size > 0 && room.free <= room.size);
    assert_eq!(real, std::fs::canonicalize(dir.path()).unwrap());
}

#[test]
fn where_a_directory_leads_is_not_shown_to_a_user_who_may_not_enter_it() {
    let dir = tempfile::tempdir().unwrap();
    let mode = |path: &Path, bits| {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(bits)).unwrap();
    };
    mode(dir.path(), 0o755);
    let (target, private) = (dir.path().join("target"), dir.path().join("private"));
    std::fs::create_dir_all(target.join("there")).unwrap();
    std::fs::create_dir(&private).unwrap();
    std::os::unix::fs::symlink(&target, private.join("link")).unwrap();
    let own = rustix::process::geteuid().as_raw();
    let real = |path: &str, user: u32| {
        let directory = Directory { path: dir.path().join(path), named_by: Principal::User(user) };
        rooms::look(&directory).unwrap().1
    };
    let canonical = |path: &Path| std::fs::canonicalize(path).unwrap();
    for bits in [0o755, 0o700] {
        mode(&private, bits);
        assert_eq!(real("private/link/there", own), canonical(&target.join("there")));
    }
    assert_eq!(real("private/link/there", own + 4711), canonical(dir.path()));
    assert_eq!(real("target/there", own + 4711), canonical(&target.join("there")));
}

#[test]
fn the_directories_of_one_user_leave_room_for_those_of_others() {
    let node = Node::new(&Config::default());
    let place = |user: u32, n: usize| CheckpointPlace {
        run: format!("r{n}"),
        path: Some(format!("/{user}/{n}/step").into()),
        principal: Principal::User(user),
        ..CheckpointPlace::default()
    };
    let mut runs: Vec<_> = (0..200).map(|n| place(1002, n)).collect();
    runs.push(place(2000, 0));
    let all = directories(&node.bench.context(), &runs);
    assert_eq!(all.len(), rooms::MAX_DIRECTORIES);
    assert!(all.iter().any(|dir| dir.path == Path::new("/2000/0")), "{all:?}");
}

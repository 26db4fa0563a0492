use std::fs;
use std::path::Path;

use super::*;
use crate::origin::Peer;
use crate::roots::Roots;
use crate::testing::Bench;

/// The line of a socket of user 1001 in the table of a machine whose words begin with the lowest
/// byte: from 10.0.0.2 to the port 29500 of 10.0.0.1.
fn socket(state: &str) -> String {
    format!(
        "   1: 0200000A:C001 0100000A:733C {state} 00000000:00000000 00:00000000 00000000  1001        0 7 1 0 0\n"
    )
}

struct Node {
    dir: tempfile::TempDir,
    bench: Bench,
    reader: RendezvousReader,
    start: Instant,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // The node booted as long ago as its processes are given as ticks.
        fs::write(dir.path().join("stat"), format!("btime {}\n", unix_now() as u64 - 1000)).unwrap();
        let bench = Bench::new(Roots { procfs: dir.path().into(), ..Roots::default() });
        Self { dir, bench, reader: RendezvousReader::new(&Config::default()), start: Instant::now() }
    }

    fn path(&self, pid: u32, file: &str) -> std::path::PathBuf {
        self.dir.path().join(format!("{pid}/{file}"))
    }

    /// A process that began so many seconds after the boot, which was 1000 seconds ago.
    fn process(&self, pid: u32, began: u32, environ: &[&str]) {
        fs::create_dir_all(self.path(pid, "net")).unwrap();
        fs::create_dir_all(self.path(pid, "ns")).unwrap();
        let stat = format!("{pid} (python) S 1 {}{} 0 0\n", "0 ".repeat(17), began * 100);
        let environ = [environ, &["TORCHELASTIC_RUN_ID=llama"]].concat().join("\0");
        for (file, text) in [
            ("stat", stat.as_str()),
            ("environ", &environ),
            ("cmdline", "python\0train.py\0"),
            ("status", "Uid:\t1001\t1001\t1001\t1001\n"),
            ("ns/net", ""),
            ("net/tcp", "  sl  local_address rem_address   st\n"),
        ] {
            fs::write(self.path(pid, file), text).unwrap();
        }
    }

    fn rank(&self, pid: u32, began: u32, rank: u32) {
        let variables = [
            format!("RANK={rank}"),
            format!("LOCAL_RANK={}", rank % 4),
            "LOCAL_WORLD_SIZE=4".to_owned(),
            "WORLD_SIZE=8".to_owned(),
            "MASTER_ADDR=10.0.0.1".to_owned(),
            "MASTER_PORT=29500".to_owned(),
        ];
        self.process(pid, began, &variables.each_ref().map(String::as_str));
        // All ranks of a node share its network.
        if pid != 100 {
            fs::remove_file(self.path(pid, "ns/net")).unwrap();
            fs::hard_link(self.path(100, "ns/net"), self.path(pid, "ns/net")).unwrap();
        }
    }

    fn sockets(&self, lines: &[String]) {
        fs::write(self.path(100, "net/tcp"), lines.concat()).unwrap();
    }

    /// The events of a pass so many seconds after the first one, and its metrics.
    fn at(&mut self, seconds: u64) -> (Vec<Event>, Samples) {
        let mut out = Samples::default();
        self.reader.look(&self.bench.context(), self.start + Duration::from_secs(seconds), &mut out);
        (self.bench.published(), out)
    }
}

fn text(event: &Event, key: &str) -> String {
    event.extra.get(key).map_or_else(String::new, |value| {
        let mut text = String::new();
        value.write(&mut text);
        text
    })
}

fn run_of(event: &Event) -> String {
    text(event, hw::RUNS).trim_matches(['[', ']', '"']).to_owned()
}

#[cfg(target_endian = "little")]
#[test]
fn a_node_that_waits_for_an_answer_of_the_master() {
    let mut node = Node::new();
    for (pid, rank) in (100..).zip(4..8) {
        node.rank(pid, 900, rank);
    }
    node.sockets(&[socket("02")]);
    let (events, page) = node.at(0);
    assert_eq!(events.len(), 1, "{events:?}");
    let e = &events[0];
    assert_eq!(
        (e.kind, e.name.as_deref(), e.uid, e.code),
        (Kind::Health, Some("rendezvous"), Some(1001), Some(1))
    );
    assert_eq!(
        ["ranks", "master", "link", "seconds", "absent", "listens"].map(|key| text(e, key)),
        ["[4,5,6,7]", "\"10.0.0.1:29500\"", "\"syn_sent\"", "0", "", ""]
    );
    let run = run_of(e);
    assert!(run.contains("llama"), "{run}");
    assert_eq!(page.get(&RANKS, &[&run, "here"]), Some(4.0));
    assert_eq!(page.get(&CONNECTIONS, &[&run, "syn_sent"]), Some(1.0));
    // Between two attempts there is none. What has not changed is repeated once a minute.
    node.sockets(&[]);
    assert!(node.at(30).0.is_empty());
    let (events, _) = node.at(61);
    assert_eq!(["link", "seconds"].map(|key| text(&events[0], key)), ["\"none\"", "61"]);
    node.sockets(&[socket("01")]);
    let (events, _) = node.at(70);
    assert_eq!(["link", "seconds"].map(|key| text(&events[0], key)), ["\"established\"", "0"]);
}

#[test]
fn ranks_without_a_process_are_absent_once_the_launcher_has_had_time() {
    let mut node = Node::new();
    for (pid, rank) in [(100, 4), (101, 5), (102, 7)] {
        node.rank(pid, 980, rank);
    }
    // A worker of a rank has its variables.
    node.rank(110, 999, 5);
    assert_eq!(text(&node.at(0).0[0], "absent"), "", "they are 20 s old");
    let mut node = Node::new();
    for (pid, rank) in [(100, 4), (101, 5), (102, 7)] {
        node.rank(pid, 900, rank);
    }
    let (events, page) = node.at(0);
    assert_eq!((text(&events[0], "absent"), text(&events[0], "ranks")), ("[6]".into(), "[4,5,7]".into()));
    assert_eq!(page.get(&RANKS, &[&run_of(&events[0]), "absent"]), Some(1.0));
}

#[test]
fn nothing_is_looked_at_once_a_step_was_made_or_the_ranks_are_gone() {
    let mut node = Node::new();
    node.rank(100, 900, 4);
    let (events, _) = node.at(0);
    let run = run_of(&events[0]);
    let sender = Origin::Peer(Peer { connection: 1, pid: None, uid: 1001 });
    node.bench.hub.publish(sender, Event { rank: Some(4), ..Event::step(&run, 7) });
    node.bench.published();
    let (events, page) = node.at(10);
    assert_eq!((events.len(), events[0].code), (1, Some(0)), "{events:?}");
    assert!(page.get(&RANKS, &[&run, "here"]).is_none());
    assert!(node.at(20).0.is_empty(), "said once");
    // It starts again.
    fs::remove_dir_all(node.dir.path().join("100")).unwrap();
    node.rank(100, 950, 4);
    let (events, _) = node.at(30);
    assert_eq!((events.len(), events[0].code), (1, Some(1)), "{events:?}");
    fs::remove_dir_all(node.dir.path().join("100")).unwrap();
    let (events, _) = node.at(40);
    assert_eq!((events.len(), events[0].code), (1, Some(0)), "{events:?}");
}

#[test]
fn a_run_of_another_user_is_not_taken_over_by_its_name() {
    let mut node = Node::new();
    node.rank(100, 900, 4);
    let run = run_of(&node.at(0).0[0]);
    let other = Origin::Peer(Peer { connection: 1, pid: None, uid: 1002 });
    node.bench.hub.publish(other, Event::step(&run, 1));
    node.bench.published();
    let (events, page) = node.at(10);
    assert_eq!((events.len(), events[0].code, page.rows(&RANKS).count()), (1, Some(0), 0), "{events:?}");
}

#[test]
fn a_process_alone_and_what_is_no_rank_are_left_out() {
    let mut node = Node::new();
    node.process(100, 900, &["RANK=0", "LOCAL_RANK=0", "WORLD_SIZE=1"]);
    node.process(101, 900, &["HOME=/root"]);
    assert!(node.at(0).0.is_empty());
    // A launcher whose pod has a rank number, and the ranks that it starts.
    node.process(102, 900, &["RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=m-0", "MASTER_PORT=23456"]);
    node.rank(103, 900, 4);
    let (events, _) = node.at(10);
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(text(&events[0], "ranks"), "[4]");
}

#[test]
fn processes_that_are_old_are_not_watched() {
    let mut node = Node::new();
    fs::write(node.dir.path().join("stat"), format!("btime {}\n", unix_now() as u64 - 5000 - 4 * 3600))
        .unwrap();
    node.rank(100, 900, 4);
    let (events, page) = node.at(0);
    assert!(events.is_empty() && page.rows(&RANKS).count() == 0, "{events:?}");
}

#[test]
fn a_start_that_hangs_is_watched_past_its_page() {
    let mut node = Node::new();
    fs::write(node.dir.path().join("stat"), format!("btime {}\n", unix_now() as u64 - 9000)).unwrap();
    node.rank(100, 900, 4);
    let (events, page) = node.at(0);
    assert_eq!((events.len(), page.rows(&RANKS).count()), (1, 2), "{events:?}");
}

#[test]
fn a_node_without_tables_of_sockets_is_unsupported() {
    let node = Node::new();
    let cx = node.bench.context();
    assert!(matches!(RendezvousReader::new(&Config::default()).probe(&cx), Ok(Support::Unsupported(_))));
    fs::create_dir(node.dir.path().join("net")).unwrap();
    fs::write(Path::new(node.dir.path()).join("net/tcp"), "").unwrap();
    assert!(matches!(RendezvousReader::new(&Config::default()).probe(&cx), Ok(Support::Supported(_))));
}

#[test]
fn a_script_that_becomes_a_rank_is_seen() {
    let mut node = Node::new();
    node.process(100, 900, &["HOME=/root"]);
    assert!((0..4).all(|pass| node.at(10 * pass).0.is_empty()));
    node.rank(100, 900, 4);
    let told = (4..9).find_map(|pass| node.at(10 * pass).0.pop());
    assert_eq!(["ranks", "world_size"].map(|key| text(told.as_ref().unwrap(), key)), ["[4]", "8"]);
}

#[test]
fn of_a_user_with_too_many_processes_no_rank_is_absent() {
    let mut node = Node::new();
    for (pid, rank) in [(100, 4), (101, 5), (102, 7)] {
        node.rank(pid, 900, rank);
    }
    (1000..1256).for_each(|worker| node.rank(worker, 910, 5));
    let (events, page) = node.at(0);
    assert_eq!((text(&events[0], "absent"), text(&events[0], "ranks")), (String::new(), "[4,5,7]".into()));
    assert_eq!(page.get(&RANKS, &[&run_of(&events[0]), "absent"]), Some(0.0));
}

//! Helpers that the unit tests of several modules share.

use std::cell::RefCell;
use std::io::Write as _;
use std::sync::{Arc, Mutex};

use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::{Event, Kind};

use crate::collector::{Collector, Context};
use crate::hub::{Hub, Parts};
use crate::lock::Locked as _;
use crate::nvml::Nvml;
use crate::roots::Roots;
use crate::samples::Samples;
use crate::stream::{Limits, Read};
use crate::training::{self, mfu::Convention};
use crate::training::{Archive, Options};

pub(crate) const OPTIONS: Options = Options {
    max_runs: 64,
    new_per_minute: 60.0,
    shared: Vec::new(),
    max_ranks: 1024,
    max_custom: 256,
    forget_after: 900.0,
    linger: 60.0,
    convention: Convention::Full,
    gpu: None,
};

/// Whether the test may act as other users. If not, `cargo verify` reports what was not tested: the
/// line bypasses the output capture of the test runner.
pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        let _ = writeln!(std::io::stderr().lock(), "!!! NOT TESTED: other users: this needs root");
    }
    root
}

/// The log lines that `what` writes on this thread.
pub(crate) fn logged(what: impl FnOnce()) -> String {
    let log = Arc::new(Mutex::new(Vec::new()));
    let writer = {
        let log = Arc::clone(&log);
        move || Log(Arc::clone(&log))
    };
    let subscriber = tracing_subscriber::fmt().with_writer(writer).with_ansi(false).finish();
    tracing::subscriber::with_default(subscriber, what);
    String::from_utf8(log.locked().clone()).unwrap()
}

struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.0.locked().write(line)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub(crate) fn hub() -> Hub {
    Hub::new(Parts {
        node: "n1".into(),
        boot: "b00t".into(),
        ring: Limits::default(),
        training: OPTIONS,
        archive: Archive::default(),
        keep: None,
    })
}

/// All events in the ring, oldest first.
pub(crate) fn published(hub: &Hub) -> Vec<Event> {
    let (mut all, mut after) = (Vec::new(), 0);
    while let Read::Records { chunk, last } = hub.ring().read(after) {
        let text = String::from_utf8(chunk.to_vec()).unwrap();
        all.extend(text.lines().map(|l| Event::parse(l.as_bytes()).unwrap()));
        after = last;
    }
    all.iter().filter(|event| event.kind == Kind::Hw).for_each(is_in_the_table);
    all
}

/// Checks the name of an event that was published without a [`crate::condition::Conditions`].
fn is_in_the_table(event: &Event) {
    let name = event.name.as_deref().unwrap_or_default();
    assert!(NodeCondition::parse(name).is_some(), "{name:?} has no row in wire/src/conditions.rs");
}

/// The surroundings of a collector.
pub(crate) struct Bench {
    roots: Roots,
    pub(crate) hub: Hub,
    pub(crate) nvml: Nvml,
    seen: RefCell<usize>,
}

impl Bench {
    pub(crate) fn new(roots: Roots) -> Self {
        Self { roots, hub: hub(), nvml: Nvml::default(), seen: RefCell::new(0) }
    }

    pub(crate) fn context(&self) -> Context<'_> {
        Context {
            roots: &self.roots,
            hub: &self.hub,
            nvml: &self.nvml,
            families: || training::FAMILIES.to_vec(),
        }
    }

    pub(crate) fn collect(&self, collector: &mut dyn Collector) -> Samples {
        let mut out = Samples::default();
        collector.collect(&self.context(), &mut out).unwrap();
        out
    }

    /// Events since the last call.
    pub(crate) fn published(&self) -> Vec<Event> {
        let all = published(&self.hub);
        let seen = self.seen.replace(all.len());
        all[seen..].to_vec()
    }
}

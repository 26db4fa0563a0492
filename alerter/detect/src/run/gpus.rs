//! The number of GPUs of a run. All that is counted in GPUs, or priced by them, uses it.

use serde::{Deserialize, Serialize};
use stepwatch_wire::names::hello;
use stepwatch_wire::{Event, Value};

/// No job has more devices: a larger number is a mistake.
const MAX_DEVICES: u32 = 1 << 20;

const FRAMEWORK: &str = "framework";
/// What the name of a part of a GPU begins with.
const PART: &str = "MIG-";

/// What is known of the GPUs of a run beside the number of its processes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct KnownGpus {
    /// What rank 0 said last, and what any other rank did.
    said: [Said; 2],
    /// What the jobs of the run hold, if the exporters of all its nodes report it.
    held: Option<u32>,
    /// One process of its framework has all GPUs of its node.
    has_several: bool,
}

/// What a process says of its GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Said {
    /// Devices of the whole job.
    devices: Option<u32>,
    /// GPUs that the process sees.
    visible: Option<u32>,
}

/// The number of GPUs in `CUDA_VISIBLE_DEVICES`. CUDA ignores what follows an invalid index.
pub(super) fn visible(list: &str) -> u32 {
    let gpus = list.split(',').map(str::trim).take_while(|gpu| !gpu.starts_with('-'));
    gpus.filter(|gpu| !gpu.is_empty()).count() as u32
}

/// The same of a process that may be counted by it: one that has a part of a GPU has no whole one.
fn visible_whole(list: &str) -> u32 {
    let has_part = list.split(',').any(|gpu| gpu.trim().starts_with(PART));
    if has_part { 0 } else { visible(list) }
}

impl KnownGpus {
    /// Takes what a process says in its `hello`. Whoever only describes a process does not know.
    pub(super) fn take(&mut self, rank: u32, e: &Event, devices: Option<u32>) {
        let is_told = e.extra.contains_key(hello::SOURCE) || e.extra.contains_key(hello::ROLE);
        // What lies beside a run on JAX may name another framework.
        if let Some(framework) = e.extra.get(FRAMEWORK).and_then(Value::as_str) {
            self.has_several = hello::has_several_gpus(framework) || is_told && self.has_several;
        }
        if is_told {
            return;
        }
        let list = e.extra.get(hello::VISIBLE_GPUS).and_then(Value::as_str);
        let said = Said {
            devices: devices.filter(|devices| (1..=MAX_DEVICES).contains(devices)),
            visible: list.map(visible_whole),
        };
        let [first, other] = &mut self.said;
        *(if rank == 0 { first } else { other }) = said;
    }

    /// Notes what the jobs of the run hold; true if that is news.
    pub(crate) fn hold(&mut self, held: Option<u32>) -> bool {
        core::mem::replace(&mut self.held, held) != held
    }
}

/// The processes of a run, of which each has one GPU or several.
pub(super) struct Processes<'a> {
    pub(super) world: Option<u32>,
    /// Whether at least so many processes were heard on each node.
    pub(super) fill_nodes: &'a dyn Fn(u32) -> bool,
}

impl KnownGpus {
    /// The number of GPUs of the run; see [`super::RunState::gpus`].
    pub(super) fn of(&self, all: &Processes<'_>) -> Option<u32> {
        let [first, other] = self.said_by(all);
        let devices = first.devices.or(other.devices);
        // All ranks say the same, and each has one at least. Otherwise they count something else.
        let is_of_job = |devices: &u32| {
            other.devices.is_none_or(|other| other == *devices)
                && all.world.is_none_or(|world| *devices >= world)
        };
        let of_processes = || all.world.filter(|_| devices.is_none() && self.has_one_each(all));
        devices.filter(is_of_job).or(self.held).or_else(of_processes)
    }

    fn said_by(&self, all: &Processes<'_>) -> [Said; 2] {
        let [first, other] = self.said;
        // A single process has no others: what they said was of an earlier attempt.
        [first, if all.world == Some(1) { Said::default() } else { other }]
    }

    /// Whether each process has one GPU. The processes of a node that see the same GPUs share them.
    fn has_one_each(&self, all: &Processes<'_>) -> bool {
        let world = all.world.unwrap_or(0);
        let [first, other] = self.said_by(all);
        match first.visible.max(other.visible) {
            None => world > 1 && !self.has_several,
            Some(0) => false,
            Some(1) => world > 0,
            Some(seen) => (all.fill_nodes)(seen),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::RunState;
    use stepwatch_model::time::Ts;

    /// A run of so many processes, each of which says `more`, on nodes of `here` processes.
    fn run(world: u32, here: u32, more: &str) -> RunState {
        let mut f = RunState::new("r", Ts(0));
        (0..world).for_each(|rank| say(&mut f, rank, world, here, more));
        f
    }

    fn say(f: &mut RunState, rank: u32, world: u32, here: u32, more: &str) {
        let node = rank / here;
        let hello =
            format!(r#"{{"k":"hello","run":"r","rank":{rank},"world":{world},"node":"n{node}"{more}}}"#);
        let e = Event::parse(hello.as_bytes()).unwrap();
        f.heard(Ts(0), "n:1", &e);
        f.hello(&e);
    }

    #[test]
    fn a_process_for_each_node_has_the_devices_that_the_job_declares() {
        // JAX: 4 processes, each with the 8 GPUs of its node.
        let mut f = run(4, 1, r#","devices":32"#);
        assert_eq!((f.gpus(), f.gpus_each(), f.node_count()), (Some(32), 8, Some(4)));
        assert_eq!(run(1, 1, r#","devices":8"#).gpus(), Some(8));
        // A restart with half the nodes: all of them say so in the end.
        say(&mut f, 1, 2, 1, r#","devices":16"#);
        assert_eq!(f.gpus(), None, "ranks do not agree");
        say(&mut f, 0, 2, 1, r#","devices":16"#);
        assert_eq!(f.gpus(), Some(16));
        say(&mut f, 0, 1, 1, r#","devices":8"#);
        assert_eq!(f.gpus(), Some(8), "a single process has no others");
    }

    #[test]
    fn a_number_of_devices_that_is_not_that_of_the_job_is_not_used() {
        assert_eq!(run(16, 8, r#","devices":8"#).gpus(), None, "those of a node");
        for odd in ["0", "-8", "2.5", "1e9", "null"] {
            assert_eq!(run(1, 1, &format!(r#","devices":{odd}"#)).gpus(), None, "{odd}");
        }
        let mut f = run(1, 1, r#","devices":8"#);
        say(&mut f, 0, 1, 1, r#","source":"discover""#);
        assert_eq!(f.gpus(), Some(8), "who describes a process does not know");
    }

    #[test]
    fn processes_are_counted_where_each_has_one_gpu() {
        let seen = |list: &str| format!(r#","cuda_visible_devices":"{list}""#);
        assert_eq!(run(8, 8, "").gpus(), Some(8));
        assert_eq!(run(1, 1, "").gpus(), None, "it may have all GPUs of its node");
        assert_eq!(run(1, 1, &seen("3")).gpus(), Some(1));
        assert_eq!(run(1, 1, &seen("0,1,2,3")).gpus(), None, "it may use any of them");
        assert_eq!(run(1, 1, &seen("-1")).gpus(), None);
        for framework in ["jax", "JAX", "maxtext"] {
            let said = format!(r#","framework":"{framework}""#);
            let mut f = run(4, 1, &said);
            assert_eq!(f.gpus(), None, "each may have all GPUs of its node");
            say(&mut f, 0, 4, 1, r#","source":"discover""#);
            say(&mut f, 0, 4, 1, r#","source":"config.json","framework":"transformers""#);
            assert_eq!(f.gpus(), None, "who describes it does not know");
            say(&mut f, 0, 4, 1, r#","framework":"megatron""#);
            assert_eq!(f.gpus(), Some(4));
        }
        let part = seen("MIG-4f8c0a0e-1111-5a3c-9d5e-1a2b3c4d5e6f");
        assert_eq!((run(1, 1, &part).gpus(), run(2, 2, &part).gpus()), (None, None), "parts of a GPU");
        // Each of 8 processes of a node sees the 8 GPUs that they share.
        assert_eq!(run(16, 8, &seen("0,1,2,3,4,5,6,7")).gpus(), Some(16));
        assert_eq!(run(4, 2, &seen("0,1,2,3")).gpus(), None, "each may have two");
    }

    #[test]
    fn what_the_jobs_hold_counts_more_than_processes_and_less_than_the_trainers_word() {
        let mut f = run(1, 1, "");
        assert!(f.known_gpus.hold(Some(8)) && !f.known_gpus.hold(Some(8)));
        assert_eq!(f.gpus(), Some(8));
        say(&mut f, 0, 1, 1, r#","devices":4"#);
        assert_eq!(f.gpus(), Some(4));
    }
}

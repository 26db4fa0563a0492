//! The number of GPUs of a run, by which its speed and its MFU are those of one GPU.

use stepwatch_wire::names::hello;
use stepwatch_wire::{Event, Value};

use super::run::Run;

/// No job has more devices: a larger number is a mistake.
const MAX_DEVICES: f64 = 1_048_576.0;

#[derive(Debug, Clone, Default)]
pub(super) struct SaidGpus {
    /// What rank 0 said last, and what any other rank did.
    said: [Said; 2],
    /// One process of its framework has all GPUs of its node.
    has_several: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Said {
    /// Devices of the whole job.
    devices: Option<u32>,
    /// It sees more GPUs than one.
    sees_several: bool,
}

impl SaidGpus {
    /// Takes the framework that an event names. What lies beside a run on JAX may name another one.
    pub(super) fn describe(&mut self, event: &Event) {
        let is_told = event.extra.contains_key(hello::SOURCE);
        if let Some(framework) = event.extra.get("framework").and_then(Value::as_str) {
            self.has_several = hello::has_several_gpus(framework) || is_told && self.has_several;
        }
    }

    /// Takes what a process says in its `hello`. Whoever only describes a process does not know.
    pub(super) fn take(&mut self, rank: u32, event: &Event) {
        if event.extra.contains_key(hello::SOURCE) {
            return;
        }
        let devices = event.extra.get(hello::DEVICES).and_then(Value::as_f64);
        let devices = devices.filter(|n| n.fract() == 0.0 && (1.0..=MAX_DEVICES).contains(n));
        let list = event.extra.get(hello::VISIBLE_GPUS).and_then(Value::as_str).unwrap_or_default();
        let [first, other] = &mut self.said;
        let said = if rank == 0 { first } else { other };
        *said = Said { devices: devices.map(|n| n as u32), sees_several: list.contains(',') };
    }

    /// Takes over what was said of the same run under another name.
    pub(super) fn join(&mut self, other: &Self) {
        self.has_several |= other.has_several;
        for (ours, theirs) in self.said.iter_mut().zip(other.said) {
            if *ours == Said::default() {
                *ours = theirs;
            }
        }
    }

    /// The devices that the trainer declares; without them the processes, unless they may have
    /// several each.
    fn of(&self, world: Option<u32>) -> Option<u32> {
        let [first, other] = self.said;
        // A single process has no others: what they said was of an earlier attempt.
        let other = if world == Some(1) { Said::default() } else { other };
        let Some(devices) = first.devices.or(other.devices) else {
            let sees_several = world == Some(1) && first.sees_several;
            return world.filter(|_| !sees_several && !self.has_several);
        };
        // All ranks say the same, and each has one at least. Otherwise they count something else.
        let is_of_job = other.devices.is_none_or(|other| other == devices);
        Some(devices).filter(|devices| is_of_job && world.is_none_or(|world| *devices >= world))
    }
}

impl Run {
    pub(super) fn gpus(&self) -> Option<u32> {
        self.said_gpus.of(self.world)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(framework: &str, world: u32, said: &[(u32, &str)]) -> Option<u32> {
        let mut all = SaidGpus::default();
        let beside = r#","source":"config.json","framework":"transformers""#;
        let framework = format!(r#","framework":"{framework}""#);
        for (rank, more) in [(0, &*framework)].iter().chain(said).chain(&[(0, beside)]) {
            let hello = format!(r#"{{"k":"hello","run":"r"{more}}}"#);
            let hello = Event::parse(hello.as_bytes()).unwrap();
            all.describe(&hello);
            all.take(*rank, &hello);
        }
        all.of(Some(world))
    }

    #[test]
    fn processes_count_unless_the_trainer_knows_better() {
        assert_eq!((gpus("megatron", 16, &[]), gpus("", 1, &[])), (Some(16), Some(1)));
        assert_eq!(gpus("jax", 4, &[(0, r#","devices":32"#), (1, r#","devices":32"#)]), Some(32));
        assert_eq!(gpus("jax", 1, &[(0, r#","devices":8"#)]), Some(8));
        assert_eq!(
            gpus("jax", 1, &[(3, r#","devices":32"#), (0, r#","devices":8"#)]),
            Some(8),
            "an attempt before"
        );
        let shared = r#","cuda_visible_devices":"0,1,2,3""#;
        assert_eq!(gpus("megatron", 4, &[(0, shared)]), Some(4), "one each of those that all see");
    }

    #[test]
    fn a_number_that_may_be_another_is_none() {
        assert_eq!((gpus("jax", 4, &[]), gpus("MaxText", 1, &[])), (None, None));
        assert_eq!(gpus("", 1, &[(0, r#","cuda_visible_devices":"0,1""#)]), None);
        assert_eq!(gpus("jax", 4, &[(0, r#","devices":32"#), (1, r#","devices":16"#)]), None, "they differ");
        assert_eq!(gpus("jax", 16, &[(0, r#","devices":8"#)]), None, "those of a node");
        for odd in ["0", "-8", "2.5", "1e9", "null"] {
            assert_eq!(gpus("jax", 1, &[(0, &format!(r#","devices":{odd}"#))]), None, "{odd}");
        }
        let found = r#","source":"discover","devices":8"#;
        assert_eq!(gpus("jax", 1, &[(0, found)]), None, "who finds a process does not know");
    }
}

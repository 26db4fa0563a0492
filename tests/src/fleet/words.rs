//! Events as Stepwatch's exporters and clients write them.

use stepwatch_wire::names::{exporter_event, hw as keys};
use stepwatch_wire::{CkptPhase, Edge, Event, Kind, Value};

use super::layout::{GPUS, Node};
use super::noise::Noise;

/// The limits of an H100: clock in hertz, power in watts, rates in bytes per second.
const MAX_CLOCK: f64 = 1.98e9;
const LIMIT: f64 = 700.0;
const RATE: f64 = 50e9;

pub(super) fn text(value: &str) -> Value {
    Value::Text(value.to_owned())
}

fn said(kind: Kind, name: &str, level: &str, words: String) -> Event {
    Event { name: Some(name.into()), level: Some(level.into()), text: Some(words), ..Event::new(kind) }
}

fn with(mut e: Event, extra: &[(&str, &str)]) -> Event {
    e.extra.extend(extra.iter().map(|(key, value)| ((*key).to_owned(), text(value))));
    e
}

pub(super) fn pci(gpu: usize) -> String {
    format!("0000:{:02x}:00.0", 0x1b + 0x10 * gpu)
}

/// The number, name, level, action and hint of an XID, from the catalogue.
pub(super) type Xid = (i64, &'static str, &'static str, &'static str, &'static str);

pub(super) fn xid(node: &Node, gpu: usize, (code, name, level, action, hint): Xid) -> Event {
    let at = pci(gpu);
    let e = said(Kind::Xid, "xid", level, format!("XID {code} ({name}) of GPU {at}: {hint}"));
    let e = with(e, &[(keys::KNOWN_AS, name), (keys::HINT, hint)]);
    Event { code: Some(code), ..with(e, &[("gpu", &node.gpus[gpu]), ("pci", &at), ("action", action)]) }
}

pub(super) fn hw(name: &str, level: &str, words: &str, extra: &[(&str, &str)]) -> Event {
    Event { code: Some(1), ..with(said(Kind::Hw, name, level, words.to_owned()), extra) }
}

/// Marks an event that has no end.
pub(super) fn once(mut e: Event) -> Event {
    e.extra.insert("once".into(), Value::Bool(true));
    e
}

/// Whether the event reports a condition that lasts until its end is reported.
pub(super) fn holds(e: &Event) -> bool {
    e.kind == Kind::Hw && e.code == Some(1) && !e.extra.contains_key("once")
}

/// The event that ends the condition.
pub(super) fn over(mut e: Event) -> Event {
    e.code = Some(i64::from(e.kind == Kind::Link));
    e.level = Some("info".into());
    e
}

pub(super) fn device(gpu: usize) -> String {
    format!("mlx5_{gpu}/1")
}

pub(super) fn link(name: &str, medium: &str, state: &str, level: &str, words: &str) -> Event {
    let title = if medium == "infiniband" { "InfiniBand port" } else { "Ethernet link" };
    let e = said(Kind::Link, name, level, format!("{title} {name} {words}"));
    Event { code: Some(i64::from(state == "up")), ..with(e, &[("medium", medium), ("state", state)]) }
}

pub(super) fn of_run(kind: Kind, run: &str, rank: u32, attempt: u32) -> Event {
    Event { run: Some(run.into()), rank: Some(rank), attempt: Some(attempt), ..Event::new(kind) }
}

pub(super) fn bye(run: &str, rank: u32, attempt: u32, code: i64, words: &str) -> Event {
    let said = (!words.is_empty()).then(|| words.to_owned());
    Event { code: Some(code), text: said, ..of_run(Kind::Bye, run, rank, attempt) }
}

pub(super) fn rank_dead(run: &str, rank: u32, attempt: u32, step: i64, pid: u32) -> Event {
    let words = format!(
        "process {pid} of rank {rank} closed its socket without a goodbye after step {step}; it is gone, and its exit status cannot be seen from here"
    );
    let mut e = Event {
        name: Some(exporter_event::RANK_DEAD.into()),
        level: Some("error".into()),
        text: Some(words),
        step: Some(step),
        ..of_run(Kind::Event, run, rank, attempt)
    };
    e.extra.insert("pid".into(), Value::Number(f64::from(pid)));
    e.extra.insert("process".into(), text("gone"));
    e
}

pub(super) const STUCK: &str = "ras_stuck";

/// NCCL's own report of ranks that did not join.
pub(super) fn ras_stuck(rank: u32, host: &str, size: usize, operation: i64, seconds: i64) -> Event {
    let words = format!(
        "NCCL hangs: nothing moved for {seconds} s, and 1 rank has not joined AllReduce {operation} of a communicator of {size} (rank {rank} on {host})"
    );
    let mut e = hw(STUCK, "error", &words, &[("collective", "AllReduce")]);
    e.extra.insert("ranks".into(), Value::List(vec![Value::Number(f64::from(rank))]));
    e.extra.insert("hosts".into(), Value::List(vec![text(host)]));
    e
}

pub(super) fn phase(run: &str, rank: u32, attempt: u32, name: &str, edge: Edge) -> Event {
    Event { name: Some(name.into()), edge: Some(edge), ..of_run(Kind::Phase, run, rank, attempt) }
}

pub(super) fn ckpt(run: &str, attempt: u32, step: i64, phase: CkptPhase, seconds: f64) -> Event {
    let mut e = Event { step: Some(step), ckpt: Some(phase), ..of_run(Kind::Ckpt, run, 0, attempt) };
    e.extra.insert("path".into(), text(&format!("/ckpt/{run}/{step}")));
    if phase == CkptPhase::End {
        e.extra.insert("duration".into(), Value::Number(seconds));
    }
    e
}

/// The load of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    Idle,
    Train,
    /// Waiting in a collective that does not end: busy by the driver's count, and cool.
    Spin,
}

/// Adds a reading of one GPU to `e`.
pub(super) fn read_gpu(e: &mut Event, node: &Node, gpu: usize, load: Load, noise: &mut Noise) {
    let h = &node.health;
    let (clock, power, used, tensor) = match load {
        Load::Idle => (0.17, 0.1, 0.0, 0.0),
        Load::Train => (0.89 * h.clock[gpu], 0.86 * h.watts[gpu] * h.clock[gpu], 0.99, 0.42 * h.clock[gpu]),
        Load::Spin => (0.99, 0.24, 1.0, 0.0),
    };
    let jitter = 1.0 + 0.004 * noise.normal();
    let heat = 28.0 + 45.0 * power + h.warmth[gpu] + 0.7 * noise.normal();
    for (name, v) in [
        ("sm_clock_hertz", (MAX_CLOCK * (clock * jitter).min(1.0) / 15e6).round() * 15e6),
        ("sm_clock_max_hertz", MAX_CLOCK),
        ("memory_clock_hertz", 2.619e9),
        ("power_watts", LIMIT * power * (1.0 + 0.02 * noise.normal())),
        ("power_limit_watts", LIMIT),
        ("temperature_celsius", heat.round()),
        ("memory_temperature_celsius", (heat + 8.0).round()),
        ("utilization_ratio", used),
        ("tensor_active_ratio", tensor * jitter),
        ("ecc_corrected", h.corrected[gpu].floor()),
    ] {
        e.m.set(name, v);
    }
    let reason = h.reason.filter(|(of, _)| *of == gpu && load == Load::Train);
    for name in REASONS {
        e.m.set(name, f64::from(u8::from(reason.is_some_and(|(_, r)| r == name))));
    }
    e.extra.insert("gpu".into(), text(&node.gpus[gpu]));
    e.extra.insert("index".into(), Value::Number(gpu as f64));
}

pub(super) const REASONS: [&str; 2] = ["throttle_hw_thermal_slowdown", "throttle_hw_power_brake"];

/// Adds a reading of one network device to `e`.
pub(super) fn read_nic(e: &mut Event, node: &Node, device: usize, load: Load, now: f64, noise: &mut Noise) {
    let busy = if load == Load::Train { 0.35 } else { 0.001 };
    let moved = RATE * busy * now % 9e15;
    for (name, v) in [
        ("rate_bytes_per_second", RATE * node.health.rate[device]),
        ("receive_bytes", moved.floor()),
        ("transmit_bytes", (moved * (1.0 + 0.001 * noise.unit())).floor()),
        ("errors", node.health.errors_seen[device].floor()),
        ("link_downed", node.health.downs[device]),
        ("symbol_errors", (0.2 * node.health.errors_seen[device]).floor()),
    ] {
        e.m.set(name, v);
    }
    e.extra.insert("device".into(), text(&format!("mlx5_{device}")));
}

/// The setup of a node, which is the same for all.
pub(super) fn setup() -> Event {
    let e = Event { name: Some("config".into()), ..Event::new(Kind::Health) };
    let keys = [
        ("fingerprint", "5f0c1d9ab2e4"),
        ("driver", "570.86.15"),
        ("cuda", "12.8"),
        ("nccl", "2.25.1"),
        ("kernel", "6.8.0-51-generic"),
        ("torch", "2.6.0"),
    ];
    with(e, &keys)
}

pub(super) fn reading(name: &str) -> Event {
    Event { name: Some(name.into()), ..Event::new(Kind::Health) }
}

const _: () = assert!(GPUS == 8, "an HGX board");

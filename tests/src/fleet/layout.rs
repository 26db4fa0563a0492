//! The nodes of the fleet, their switches, and the runs on them.

use stepwatch_wire::Event;

use super::job::Job;
use super::noise::Noise;

pub(super) const GPUS: usize = 8;
/// The prefix of node names.
pub(super) const PREFIX: &str = "gpu-";
/// The number of nodes per leaf switch.
const LEAF: usize = 16;
/// The number of nodes of the smallest run.
const SMALLEST: usize = 8;
/// One in this many nodes is used by no run.
const IDLE: usize = 16;

const NAMES: [&str; 12] = [
    "llama-405b",
    "moe-1t",
    "llama-70b",
    "mixtral-8x22b",
    "qwen-72b",
    "vision-30b",
    "code-34b",
    "speech-7b",
    "math-32b",
    "embed-3b",
    "reward-8b",
    "draft-1b",
];

#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) source: String,
    pub(super) gpus: [String; GPUS],
    pub(super) leaf: usize,
    /// The run that uses the node, and the node's slot in it.
    pub(super) at: Option<(usize, usize)>,
    pub(super) up: bool,
    /// Whether the node is not waiting for repair.
    pub(super) fit: bool,
    /// The GPUs for which the driver has logged an error.
    pub(super) marked: Vec<usize>,
    /// The present conditions of the node.
    pub(super) holds: Vec<Event>,
    /// The usual latency of its events in milliseconds.
    pub(super) latency: i64,
    /// The error of its clock in seconds.
    pub(super) skew: f64,
    pub(super) health: Health,
}

/// The state behind a node's readings.
#[derive(Debug, Clone)]
pub(super) struct Health {
    /// The share of the usual clock of each GPU, and its degrees and watts independent of load.
    pub(super) clock: [f64; GPUS],
    pub(super) warmth: [f64; GPUS],
    pub(super) watts: [f64; GPUS],
    pub(super) corrected: [f64; GPUS],
    /// The driver's reason for a throttled GPU.
    pub(super) reason: Option<(usize, &'static str)>,
    /// The errors per second of each network device.
    pub(super) errors: [f64; GPUS],
    pub(super) errors_seen: [f64; GPUS],
    /// The number of times that each link went down.
    pub(super) downs: [f64; GPUS],
    /// The share of the usual rate.
    pub(super) rate: [f64; GPUS],
}

impl Health {
    fn new(noise: &mut Noise) -> Self {
        let mut spread = |sigma: f64| core::array::from_fn(|_| 1.0 + sigma * noise.normal());
        let (clock, watts) = (spread(0.008), spread(0.02));
        Self {
            clock,
            watts,
            warmth: core::array::from_fn(|_| 4.0 * noise.normal()),
            corrected: [0.0; GPUS],
            reason: None,
            errors: [0.0; GPUS],
            errors_seen: [0.0; GPUS],
            downs: [0.0; GPUS],
            rate: [1.0; GPUS],
        }
    }

    /// Replaces the faulty part.
    pub(super) fn mend(&mut self, noise: &mut Noise) {
        *self = Self {
            errors_seen: self.errors_seen,
            downs: self.downs,
            corrected: self.corrected,
            ..Self::new(noise)
        };
    }
}

pub(super) fn nodes(n: usize, noise: &mut Noise) -> Vec<Node> {
    let node = |i: usize| {
        let name = format!("{PREFIX}{i:04}");
        Node {
            source: format!("{name}:9765"),
            gpus: core::array::from_fn(|g| {
                format!("GPU-{:08x}-5a17-4c2e-9d31-{:012x}", i * 40_503 + g * 7, i * GPUS + g)
            }),
            leaf: i / LEAF,
            at: None,
            up: true,
            fit: true,
            marked: Vec::new(),
            holds: Vec::new(),
            latency: 5 + noise.exponential(12.0) as i64,
            skew: 0.002 * noise.normal(),
            health: Health::new(noise),
            name,
        }
    };
    (0..n).map(node).collect()
}

/// Assigns the nodes to runs: half of them train one model, a quarter the next, and so on.
pub(super) fn jobs(nodes: &mut [Node], step_seconds: f64, noise: &mut Noise) -> Vec<Job> {
    let mut free = (nodes.len() - (nodes.len() / IDLE).max(1)).max(1);
    let (mut jobs, mut next) = (Vec::new(), 0);
    while free > 0 && jobs.len() < NAMES.len() && (free >= SMALLEST || jobs.is_empty()) {
        let half = (free / 2).max(SMALLEST.min(free));
        let n = if half >= 8 { half / 8 * 8 } else { half };
        let slots: Vec<usize> = (next..next + n).collect();
        for (slot, node) in slots.iter().enumerate() {
            nodes[*node].at = Some((jobs.len(), slot));
        }
        jobs.push(Job::new(NAMES[jobs.len()], slots, step_seconds, noise.fork()));
        next += n;
        free -= n;
    }
    jobs
}

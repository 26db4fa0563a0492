//! Which nodes there are, what hangs on which switch, and which run is where.

use stepwatch_wire::Event;

use super::job::Job;
use super::noise::Noise;

pub(super) const GPUS: usize = 8;
/// Node names begin with it.
pub(super) const PREFIX: &str = "gpu-";
/// Nodes on one leaf switch.
const LEAF: usize = 16;
/// The smallest run, in nodes.
const SMALLEST: usize = 8;
/// Share of the nodes that no run uses.
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
    /// The run that uses it, and where in that run it is.
    pub(super) at: Option<(usize, usize)>,
    pub(super) up: bool,
    /// Not waiting for repair.
    pub(super) fit: bool,
    /// GPUs of which the driver has logged an error.
    pub(super) marked: Vec<usize>,
    /// Conditions of it that hold.
    pub(super) holds: Vec<Event>,
    /// Milliseconds that its events usually take to us.
    pub(super) latency: i64,
    /// Seconds that its clock is off.
    pub(super) skew: f64,
    pub(super) health: Health,
}

/// What its readings show.
#[derive(Debug, Clone)]
pub(super) struct Health {
    /// Share of the usual clock, degrees and watts of each GPU apart from load.
    pub(super) clock: [f64; GPUS],
    pub(super) warmth: [f64; GPUS],
    pub(super) watts: [f64; GPUS],
    pub(super) corrected: [f64; GPUS],
    /// What holds a GPU down, by the driver.
    pub(super) reason: Option<(usize, &'static str)>,
    /// Errors a second of each network device.
    pub(super) errors: [f64; GPUS],
    pub(super) errors_seen: [f64; GPUS],
    /// How often each went down.
    pub(super) downs: [f64; GPUS],
    /// Share of the usual rate.
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

    /// The faulty part is replaced.
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

/// Half of the nodes train one model, a quarter the next, and so on.
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

//! The names that more than one program writes or reads. All other names are declared next to their
//! source.

/// The keys of `m` in a step event. Any other key is a custom metric.
pub mod metric {
    pub const LOSS: &str = "loss";
    pub const GRAD_NORM: &str = "grad_norm";
    pub const LR: &str = "lr";
    /// Seconds that the step took.
    pub const STEP_TIME: &str = "step_time";
    /// Tokens of the whole job in this step.
    pub const TOKENS: &str = "tokens";
    /// Tokens per second of the whole job.
    pub const TOKENS_PER_SECOND: &str = "tokens_per_second";
    pub const TOKENS_PER_SECOND_PER_GPU: &str = "tokens_per_second_per_gpu";
    /// MFU as a ratio, computed by the exporter from `model` and the table of peak FLOP/s.
    pub const MFU: &str = "mfu";
    /// MFU as a ratio, as the framework printed it, with the framework's convention and peak.
    pub const MFU_REPORTED: &str = "mfu_reported";
    /// Model TFLOP/s per GPU as the framework printed it.
    pub const TFLOPS_REPORTED: &str = "tflops_reported";
    pub const LOSS_SCALE: &str = "loss_scale";
    /// Skipped iterations in the interval of this line.
    pub const SKIPPED: &str = "skipped";
    /// Iterations with a non-finite value in the interval of this line.
    pub const NAN_ITERATIONS: &str = "nan_iterations";
    pub const SAMPLES: &str = "samples";
    pub const EPOCH: &str = "epoch";
    pub const NUM_ZEROS: &str = "num_zeros";
    pub const PARAMS_NORM: &str = "params_norm";
    /// The sum of the squared lengths of the step's documents: the cost of attention when sequences
    /// are packed.
    pub const SEQLEN_SQUARED_SUM: &str = "seqlen_squared_sum";

    /// All names above. The parser borrows them instead of allocating.
    pub const ALL: &[&str] = &[
        LOSS,
        GRAD_NORM,
        LR,
        STEP_TIME,
        TOKENS,
        TOKENS_PER_SECOND,
        TOKENS_PER_SECOND_PER_GPU,
        MFU,
        MFU_REPORTED,
        TFLOPS_REPORTED,
        LOSS_SCALE,
        SKIPPED,
        NAN_ITERATIONS,
        SAMPLES,
        EPOCH,
        NUM_ZEROS,
        PARAMS_NORM,
        SEQLEN_SQUARED_SUM,
    ];
}

/// The values of `name` in events of kind `event` that the exporter writes.
pub mod exporter_event {
    /// A process of a rank closed its socket without `bye`.
    pub const RANK_DEAD: &str = "rank_dead";
    /// A process that started a rank closed its socket without `bye`.
    pub const LAUNCHER_DEAD: &str = "launcher_dead";
    /// The step went backwards: the job restarted from an earlier checkpoint.
    pub const RESTART: &str = "restart";
}

/// The keys that an exporter publishes about its node.
pub mod hw {
    /// The affected runs, if not every run of the node is affected.
    pub const RUNS: &str = "runs";
    /// The name and the advice of an XID in the vendor's catalogue.
    pub const KNOWN_AS: &str = "known_as";
    pub const HINT: &str = "hint";
    /// The reasons why the hardware slows a GPU down: NVML's names, separated by commas.
    pub const REASON: &str = "reason";
    /// A kernel message without the parts that differ between occurrences.
    pub const TEMPLATE: &str = "template";
    /// The node that a condition is about, if it is not the one whose exporter reports it: what a
    /// scheduler says of its nodes.
    pub const ABOUT: &str = "about";
}

/// The keys and values of `ckpt`.
pub mod ckpt {
    /// The stage of a checkpoint; absent for `save`, which blocks the step.
    pub const STAGE: &str = "stage";
    pub const SAVE: &str = "save";
    /// Written asynchronously, while the run makes steps.
    pub const WRITE: &str = "write";
    pub const UPLOAD: &str = "upload";
    pub const DURABLE: &str = "durable";
    pub const LOAD: &str = "load";
    /// `true` if whoever reports sees the checkpoint itself, on disk, and not whether the steps
    /// wait for it.
    pub const SEEN: &str = "seen";
    /// `true` if a checkpoint that was whole on disk was removed. Such an event has no phase.
    pub const GONE: &str = "gone";
    /// The bytes that a user without privileges can still write to its file system.
    pub const FREE_BYTES: &str = "free_bytes";
    /// Where the checkpoint is.
    pub const PATH: &str = "path";
    /// The `event` of a trainer that begins a save before the last one is written.
    pub const BACKLOG: &str = "checkpoint_backlog";
}

/// The keys of `hello` and `bye` that change their meaning.
pub mod hello {
    /// The role of the sender, if it is not the training process.
    pub const ROLE: &str = "role";
    /// The process that starts the training process, and outlives it.
    pub const LAUNCHER: &str = "launcher";
    /// A command that sends one event and ends, which is no death of a rank.
    pub const COMMAND: &str = "command";
    /// The kind of source that reports for the trainer; absent for the trainer itself.
    pub const SOURCE: &str = "source";
    /// A kind of source: the configuration of a tail.
    pub const CONFIGURED: &str = "tail";
    /// Two kinds of source: a `config.json` beside a checkpoint, or a log that prints its model.
    /// They describe the model, and do not mean that a process sent `hello`.
    pub const MODEL_CONFIG: &str = "config.json";
    pub const PRINTED: &str = "printed";
    /// Which of its saves a log prints, as far as its framework is known: all, or all but some
    /// sorts of them. Absent if it may print none.
    pub const SAVES: &str = "saves_printed";
    pub const ALL: &str = "all";
    pub const MOST: &str = "most";
    /// `true` in a file: a new process, which resumed the run, wrote the lines that follow.
    pub const RESUMED: &str = "resumed";
    /// The part of the rule of [`crate::run_name`] that named the run; absent if the name was
    /// given.
    pub const RUN_BY: &str = "run_by";
    /// The rule's reason for the name, for people.
    pub const RUN_WHY: &str = "run_why";
    /// The name that the rule would use without a given name.
    pub const RUN_UNNAMED: &str = "run_unnamed";
    /// The id of the job.
    pub const JOB: &str = "job";
    /// The number of restarts of the process that launchers and schedulers declare.
    pub const RESTARTS: &str = "attempt_hint";
    /// The Unix times in seconds when the job was submitted, and when it was given its nodes.
    pub const SUBMITTED: &str = "submitted";
    pub const ALLOCATED: &str = "allocated";
    /// The Unix time in seconds when the process began. An exporter that can ask the kernel
    /// replaces what the process says.
    pub const STARTED: &str = "started";
    /// A kind of source: an exporter that found the process, which may be no trainer.
    pub const DISCOVERED: &str = "discover";
    /// The number of GPUs, or other devices, of the whole job: every rank says the same.
    pub const DEVICES: &str = "devices";
    /// The list of the GPUs that the process sees, as `CUDA_VISIBLE_DEVICES` has it.
    pub const VISIBLE_GPUS: &str = "cuda_visible_devices";
    /// `true` if the process had made its process group before it said hello.
    pub const INITIALISED: &str = "initialised";
    /// Frameworks on JAX, as `framework` has them.
    const ON_JAX: [&str; 5] = ["jax", "flax", "maxtext", "axlearn", "levanter"];

    /// Whether one process of the framework usually has all GPUs of its node, as with JAX.
    pub fn has_several_gpus(framework: &str) -> bool {
        ON_JAX.iter().any(|of| of.eq_ignore_ascii_case(framework))
    }
}

/// The names of `phase` before the first step of an attempt. Other phases explain a pause at any
/// time; these only say how far a start has come.
pub mod start {
    /// The launchers of the nodes wait for each other.
    pub const RENDEZVOUS: &str = "rendezvous";
    /// The ranks make their first process group, or the communicator of all of them.
    pub const INIT: &str = "init";
    /// The first step, which often compiles.
    pub const FIRST_STEP: &str = "first_step";

    pub const ALL: &[&str] = &[RENDEZVOUS, INIT, FIRST_STEP];
    /// The key of `init`: the ranks of the communicator.
    pub const RANKS: &str = "nranks";
}

/// The keys and values of `health` with this name: what a node shows of ranks that start on it. Its
/// `code` is 0 once that is over.
pub mod rendezvous {
    pub const NAME: &str = "rendezvous";
    /// Distinguishes those of one node.
    pub const KEY: &str = "key";
    /// Where the ranks meet: the address and the port of the store, as the environment has them.
    pub const MASTER: &str = "master";
    /// The ranks that have a process on the node, and those of the node that have none.
    pub const RANKS: &str = "ranks";
    pub const ABSENT: &str = "absent";
    /// How many ranks there are by their launcher: those of a launcher of launchers are not those
    /// of the run.
    pub const WORLD: &str = "world_size";
    /// `true` if a process of the node listens at the port.
    pub const LISTENS: &str = "listens";
    /// Whether the node is connected to the master, and for how many seconds it is so or not.
    /// Absent if that is unknown.
    pub const LINK: &str = "link";
    pub const ESTABLISHED: &str = "established";
    /// The master does not answer.
    pub const SYN_SENT: &str = "syn_sent";
    pub const NONE: &str = "none";
    pub const SECONDS: &str = "seconds";
    /// The other hosts that are connected to the node, if it listens: their number, and some of
    /// their addresses.
    pub const PEERS: &str = "peers";
    pub const ADDRESSES: &str = "addresses";
}

/// The keys of `health` with this name: ranks of which NCCL's RAS has nothing. Its `code` is 0 once
/// all answer.
pub mod ras {
    pub const NAME: &str = "ras";
    /// Distinguishes those of one node.
    pub const KEY: &str = "key";
    /// The ranks of the largest communicator, by which its ranks are those of the run or not.
    pub const SIZE: &str = "comm_size";
    /// How many ranks do not answer, and some of them.
    pub const UNANSWERED: &str = "unanswered";
    pub const RANKS: &str = "ranks";
    /// Where those are, in the same order; an empty text where that is unknown.
    pub const HOSTS: &str = "hosts";
    pub const SECONDS: &str = "seconds";
}

/// The keys of `health` with this name: the times of a pod on another node ([`hw::ABOUT`]), which
/// an exporter that reads the cluster tells, besides those of [`hello`].
pub mod pod {
    pub const NAME: &str = "pod";
    /// Its namespace and name, by which its node calls the job.
    pub const POD: &str = "pod";
    /// The Unix time in seconds when the last of its containers started.
    pub const CONTAINERS: &str = "containers_started";
}

/// The special values of settings that an exporter publishes for a run.
pub mod setting {
    /// The ranks of a node have different values. The value depends on the ranks of a node, so
    /// nodes must not be compared by it.
    pub const DIFFERS_BY_RANK: &str = "(differs by rank)";
    /// An argument whose value is not shown, because it could be a secret or is long.
    pub const SET: &str = "set";
}

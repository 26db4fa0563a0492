//! The names that more than one program writes or reads. Everything else is declared beside its
//! source.

/// Keys of `m` in a step event. Anything else is a custom metric.
pub mod metric {
    pub const LOSS: &str = "loss";
    pub const GRAD_NORM: &str = "grad_norm";
    pub const LR: &str = "lr";
    /// Seconds the step took.
    pub const STEP_TIME: &str = "step_time";
    /// Tokens of the whole job in this step.
    pub const TOKENS: &str = "tokens";
    /// Tokens per second of the whole job.
    pub const TOKENS_PER_SECOND: &str = "tokens_per_second";
    pub const TOKENS_PER_SECOND_PER_GPU: &str = "tokens_per_second_per_gpu";
    /// MFU as a ratio, computed by the exporter from `model` and the peak table.
    pub const MFU: &str = "mfu";
    /// MFU as the framework printed it (ratio); its convention and peak are its own.
    pub const MFU_REPORTED: &str = "mfu_reported";
    /// Model TFLOP/s per GPU as the framework printed it.
    pub const TFLOPS_REPORTED: &str = "tflops_reported";
    pub const LOSS_SCALE: &str = "loss_scale";
    /// Iterations skipped in the interval that this line covers.
    pub const SKIPPED: &str = "skipped";
    /// Iterations with a non-finite value in the interval that this line covers.
    pub const NAN_ITERATIONS: &str = "nan_iterations";
    pub const SAMPLES: &str = "samples";
    pub const EPOCH: &str = "epoch";
    pub const NUM_ZEROS: &str = "num_zeros";
    pub const PARAMS_NORM: &str = "params_norm";
    /// Sum over the step's documents of their length squared: what attention costs when sequences
    /// are packed.
    pub const SEQLEN_SQUARED_SUM: &str = "seqlen_squared_sum";

    /// Every name above: parsing borrows these instead of allocating.
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

/// Values of `name` in an event of kind `event` that the exporter itself writes.
pub mod exporter_event {
    /// The process of a rank closed its socket without `bye`.
    pub const RANK_DEAD: &str = "rank_dead";
    /// The process that started a rank closed its socket without `bye`.
    pub const LAUNCHER_DEAD: &str = "launcher_dead";
    /// Steps went backwards: the job restarted from an earlier checkpoint.
    pub const RESTART: &str = "restart";
}

/// Keys that an exporter publishes about its node.
pub mod hw {
    /// Runs that it is about, where it is not about every run of the node.
    pub const RUNS: &str = "runs";
    /// The name of an XID in the vendor's catalogue, and the catalogue's advice.
    pub const KNOWN_AS: &str = "known_as";
    pub const HINT: &str = "hint";
    /// Why hardware slows a GPU down: NVML's names of the reasons, separated by commas.
    pub const REASON: &str = "reason";
    /// A message of the kernel without what differs from one occurrence to the next.
    pub const TEMPLATE: &str = "template";
}

/// Keys of `ckpt`.
pub mod ckpt {
    /// Which part of a checkpoint's life it is about; absent for `save`, which blocks the step.
    pub const STAGE: &str = "stage";
    pub const SAVE: &str = "save";
    /// Asynchronously, while the run makes steps.
    pub const WRITE: &str = "write";
    pub const UPLOAD: &str = "upload";
    pub const DURABLE: &str = "durable";
    pub const LOAD: &str = "load";
}

/// Keys of `hello` and `bye` that change what they mean.
pub mod hello {
    /// Who reports, where it is not the process that trains.
    pub const ROLE: &str = "role";
    /// The process that starts the training process, and outlives it.
    pub const LAUNCHER: &str = "launcher";
    /// What kind of source reports on the trainer's behalf; absent for the trainer itself.
    pub const SOURCE: &str = "source";
    /// A source of that kind: the configuration of a tail.
    pub const CONFIGURED: &str = "tail";
    /// And a `config.json` beside a checkpoint, or a log with its model: it describes the model,
    /// and no process has sent `hello`.
    pub const MODEL_CONFIG: &str = "config.json";
    pub const PRINTED: &str = "printed";
    /// `true` from a file: what follows was written by a new process, which went on with the run.
    pub const RESUMED: &str = "resumed";
    /// By which part of the rule of [`crate::run_name`] the run has its name; absent where the name
    /// was given.
    pub const RUN_BY: &str = "run_by";
    /// The reason that the rule gives for that, for people.
    pub const RUN_WHY: &str = "run_why";
    /// The rule's name without a given name.
    pub const RUN_UNNAMED: &str = "run_unnamed";
    /// Id of the job.
    pub const JOB: &str = "job";
    /// How often launchers and schedulers declare that they restarted the process.
    pub const RESTARTS: &str = "attempt_hint";
}

/// Values of settings that an exporter publishes for a run.
pub mod setting {
    /// Of one that the ranks of a node do not agree on: whichever rank is where, so nodes are not
    /// to be compared by it.
    pub const DIFFERS_BY_RANK: &str = "(differs by rank)";
}

//! What a setting of a run can explain, by its name. The names are those that exporters publish
//! (`driver`, `env.NCCL_ALGO`, `arg.lr`, `file.llama.yaml`), and those that trainers declare.

/// What a difference in a setting can explain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// The number of processes or GPUs.
    Devices,
    /// How a step is computed: attention, precision, compilation.
    Kernel,
    /// Versions of software, drivers and firmware, and the kinds of devices.
    Platform,
    /// How the software runs: variables of NCCL, CUDA and PyTorch, settings of the kernel.
    Runtime,
    /// How much work a step is: batch size, model, parallelism, configuration files.
    Work,
    /// What is learned, and from what: learning rate, optimizer, seed, data.
    Recipe,
    /// Unknown: it may matter.
    Other,
    /// Where and under which name the run lives: paths, ports, hosts, ids, times.
    Place,
}

/// The prefix of arguments of the command line.
pub const ARGUMENT: &str = "arg.";
/// The prefix of variables.
pub const VARIABLE: &str = "env.";
/// The number of GPUs that a process is given.
pub const VISIBLE_GPUS: &str = "visible_gpus";
/// Its value for a process that is given all GPUs of a node whose number is not known.
pub const ALL_VISIBLE: &str = "all";
/// The prefix of hashes of files.
pub const FILE: &str = "file.";

/// The names of settings whose topic no word tells.
const NAMED: &[(&str, Topic)] = &[
    ("processes", Topic::Devices),
    (VISIBLE_GPUS, Topic::Devices),
    // They follow from the processes.
    ("nodes", Topic::Other),
    ("cpu_governor", Topic::Runtime),
    ("smt", Topic::Runtime),
    ("cpus", Topic::Runtime),
    ("cpu_model", Topic::Platform),
    ("cuda", Topic::Platform),
    ("cudart", Topic::Platform),
    ("cublas", Topic::Platform),
    ("cudnn", Topic::Platform),
    ("driver", Topic::Platform),
    ("driver_flavour", Topic::Platform),
    ("driver_parameters", Topic::Runtime),
    ("efa_driver", Topic::Platform),
    ("framework", Topic::Platform),
    ("gdrcopy_driver", Topic::Platform),
    ("gds_driver", Topic::Platform),
    ("gpus", Topic::Platform),
    ("gsp_firmware", Topic::Platform),
    ("kernel", Topic::Platform),
    ("libfabric", Topic::Platform),
    ("libibverbs", Topic::Platform),
    ("nccl", Topic::Platform),
    ("nccl_net", Topic::Platform),
    ("nvshmem", Topic::Platform),
    ("ofed", Topic::Platform),
    ("peermem_driver", Topic::Platform),
    ("rdma_firmware", Topic::Platform),
    ("torch", Topic::Platform),
    ("transformer_engine", Topic::Platform),
    ("ucx", Topic::Platform),
    ("version", Topic::Platform),
    ("client", Topic::Place),
    ("python", Topic::Other),
    // The name of a configuration that is no file beside the script.
    ("arg.cfg", Topic::Work),
    ("arg.conf", Topic::Work),
    ("arg.config", Topic::Work),
    ("arg.config-name", Topic::Work),
    ("arg.config_name", Topic::Work),
    // Settings of any kind together.
    ("arg.hparams", Topic::Work),
    ("arg.hyperparameters", Topic::Work),
    ("arg.opts", Topic::Work),
    ("arg.override", Topic::Work),
    ("arg.overrides", Topic::Work),
    ("arg.set", Topic::Work),
];
/// Prefixes of settings of a node that change how fast it is.
const OF_NODES: &[&str] = &["sysctl.", "cmdline.", "transparent_hugepage."];
/// Prefixes of variables by which launchers hand their own settings on: their names are those of
/// arguments.
const OF_LAUNCHERS: &[&str] = &["ACCELERATE_", "FSDP_"];
/// Words of arguments that watch or record what a step does, which costs time, and the words that
/// make them the name of a place.
const OF_DEBUGGING: &[&str] = &["anomaly", "debug", "profile", "profiler", "profiling"];
const OF_FOLDERS: &[&str] = &["dir", "file", "folder", "name", "out", "output", "path"];
/// Words of arguments by which a step becomes larger as the run goes on.
const GROWS: &[&str] = &["curriculum", "ramp", "rampup"];
/// The values with which such an argument does nothing.
const OFF: &[&str] = &["0", "false", "no", "none", "null", "off"];
/// Words in the names of variables that name a place, and that change how a step is computed.
const VARIABLE_PLACES: &[&str] =
    &["ADDR", "CACHE", "DIR", "FILE", "HOST", "HOSTID", "LIBRARY", "LOG", "PATH", "PORT", "URI", "URL"];
const VARIABLE_KERNELS: &[&str] = &[
    "ALLOW",
    "ATTENTION",
    "ATTN",
    "BF16",
    "COMPILE",
    "DETERMINISTIC",
    "FLASH",
    "FP8",
    "FUSED",
    "OVERRIDE",
    "PRECISION",
    "TF32",
    "WORKSPACE",
];

/// Words in the names of arguments and of what trainers declare, in the order in which they decide.
const WORDS: &[(Topic, &[&str])] = &[
    // Before `rank`, which is that of a process.
    (Topic::Work, &["lora", "qlora"]),
    (
        Topic::Place,
        &[
            "addr",
            "address",
            "date",
            "email",
            "endpoint",
            "host",
            "hostname",
            "log",
            "logger",
            "logging",
            "logs",
            "master",
            "mlflow",
            "notes",
            "out",
            "output",
            "pid",
            "port",
            "rank",
            "rdzv",
            "save",
            "tensorboard",
            "timestamp",
            "tmp",
            "uri",
            "url",
            "user",
            "uuid",
            "wandb",
        ],
    ),
    (
        Topic::Kernel,
        &[
            "4bit",
            "8bit",
            "activation",
            "activations",
            "amp",
            "async",
            "attention",
            "attn",
            "autocast",
            "backend",
            "bf16",
            "bnb",
            "bucket",
            "checkpointing",
            "compile",
            "cudagraph",
            "cudagraphs",
            "cudnn",
            "deterministic",
            "dtype",
            "eager",
            "flash",
            "flex",
            "fp16",
            "fp32",
            "fp8",
            "fuse",
            "fused",
            "fusion",
            "graph",
            "graphs",
            "half",
            "impl",
            "implementation",
            "inductor",
            "kernel",
            "kernels",
            "liger",
            "matmul",
            "offload",
            "offloading",
            "overlap",
            "precision",
            "quantization",
            "quantize",
            "recompute",
            "sdpa",
            "tf32",
            "triton",
            "xformers",
        ],
    ),
    (
        Topic::Work,
        &[
            "accum",
            "accumulation",
            "arch",
            "batch",
            "batches",
            "block",
            "bs",
            "bsz",
            "channels",
            "context",
            "cp",
            "depth",
            "dim",
            "dp",
            "embd",
            "embed",
            "ep",
            "expert",
            "experts",
            "ffn",
            "frames",
            "fsdp",
            "head",
            "heads",
            "hidden",
            "image",
            "layer",
            "layers",
            "len",
            "length",
            "micro",
            "microbatch",
            "model",
            "moe",
            "parallel",
            "parallelism",
            "params",
            "patch",
            "pp",
            "preset",
            "resolution",
            "rollout",
            "seq",
            "seqlen",
            "sequence",
            "sharding",
            "stage",
            "strategy",
            "tp",
            "vocab",
            "width",
            "workers",
            "zero",
        ],
    ),
    (
        Topic::Recipe,
        &[
            "beta",
            "beta1",
            "beta2",
            "betas",
            "blend",
            "clip",
            "corpus",
            "data",
            "dataset",
            "datasets",
            "decay",
            "dropout",
            "epochs",
            "eps",
            "epsilon",
            "init",
            "learning",
            "loss",
            "lr",
            "mixture",
            "momentum",
            "optim",
            "optimizer",
            "rate",
            "schedule",
            "scheduler",
            "seed",
            "shuffle",
            "split",
            "tokenizer",
            "warmup",
        ],
    ),
    (
        Topic::Place,
        &[
            "attempt",
            "by",
            "cfg",
            "checkpoint",
            "ckpt",
            "cluster",
            "conf",
            "config",
            "device",
            "devices",
            "dir",
            "entity",
            "exp",
            "experiment",
            "folder",
            "hint",
            "id",
            "job",
            "load",
            "local",
            "machine",
            "name",
            "nnodes",
            "node",
            "nodes",
            "nproc",
            "owner",
            "partition",
            "path",
            "project",
            "queue",
            "restarts",
            "resume",
            "role",
            "run",
            "socket",
            "source",
            "step",
            "steps",
            "tag",
            "tags",
            "team",
            "time",
            "unnamed",
            "why",
            "workdir",
            "worker",
            "yaml",
        ],
    ),
];

/// Words in the names of arguments that change what is learned and never how much work a step is.
const NO_WORK: &[&str] = &[
    "beta", "beta1", "beta2", "betas", "clip", "decay", "epochs", "eps", "epsilon", "learning", "lr",
    "momentum", "seed", "steps", "warmup",
];

/// Whether runs with different values of this setting may do a different amount of work in a step.
/// In doubt they do: a comparison of unlike runs is a false alarm.
pub fn is_of_work(key: &str) -> bool {
    let topic = topic(key);
    let Some(name) = key.strip_prefix(ARGUMENT) else {
        return topic == Topic::Work || key == VISIBLE_GPUS;
    };
    let name = name.to_ascii_lowercase();
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    match topic {
        Topic::Kernel | Topic::Runtime | Topic::Place => false,
        Topic::Recipe | Topic::Other => !words.any(|word| NO_WORK.contains(&word)),
        Topic::Devices | Topic::Platform | Topic::Work => true,
    }
}

/// Whether the steps of a run with this setting become larger as it goes on.
pub fn grows_work(key: &str, value: &str) -> bool {
    let name = key.to_ascii_lowercase();
    let is_off = OFF.iter().any(|off| value.trim().eq_ignore_ascii_case(off));
    !is_off && name.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| GROWS.contains(&word))
}

/// What a difference in this setting can explain.
pub fn topic(key: &str) -> Topic {
    if let Some((_, topic)) = NAMED.iter().find(|(name, _)| *name == key) {
        return *topic;
    }
    if OF_NODES.iter().any(|prefix| key.starts_with(prefix)) {
        return Topic::Runtime;
    }
    if let Some(name) = key.strip_prefix(VARIABLE) {
        return of_variable(name);
    }
    if let Some(name) = key.strip_prefix(FILE) {
        return if name == "nccl.conf" { Topic::Runtime } else { Topic::Work };
    }
    of_words(key.strip_prefix(ARGUMENT).unwrap_or(key))
}

fn of_words(name: &str) -> Topic {
    let name = name.to_ascii_lowercase();
    let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let has = |of: &[&str]| words.iter().any(|word| of.contains(word));
    // A probability is no log.
    if has(&["log"]) && has(&["prob", "probs"]) {
        return Topic::Work;
    }
    match has(OF_FOLDERS) {
        true if has(&["cache"]) => return Topic::Place,
        false if has(OF_DEBUGGING) => return Topic::Runtime,
        _ => {}
    }
    let is_of = |(_, of): &&(Topic, &[&str])| has(of);
    WORDS.iter().find(is_of).map_or(Topic::Other, |(topic, _)| *topic)
}

fn of_variable(name: &str) -> Topic {
    match name {
        "PYTHONHASHSEED" => return Topic::Recipe,
        "CUDA_VISIBLE_DEVICES" => return Topic::Place,
        _ => {}
    }
    if OF_LAUNCHERS.iter().any(|prefix| name.starts_with(prefix)) {
        return of_words(name);
    }
    let has = |words: &[&str]| name.split('_').any(|word| words.contains(&word));
    if name.ends_with("VISIBLE_DEVICES") || has(VARIABLE_PLACES) {
        return Topic::Place;
    }
    if has(VARIABLE_KERNELS) { Topic::Kernel } else { Topic::Runtime }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topic_of_a_setting() {
        for (topic_of, keys) in [
            (Topic::Devices, "processes visible_gpus"),
            (
                Topic::Kernel,
                "arg.attention-backend attn_implementation arg.bf16 dtype env.NVTE_FLASH_ATTN \
                 env.TORCH_ALLOW_TF32_CUBLAS_OVERRIDE arg.use-flash-attn arg.recompute-granularity \
                 config.mixed_precision env.CUBLAS_WORKSPACE_CONFIG arg.transformer-impl \
                 arg.overlap-grad-reduce arg.ddp-bucket-size arg.optimizer-cpu-offload \
                 env.ACCELERATE_MIXED_PRECISION env.ACCELERATE_DYNAMO_BACKEND arg.load_in_4bit arg.kv_cache_dtype",
            ),
            (Topic::Platform, "torch nccl cuda driver gpus kernel transformer_engine version"),
            (
                Topic::Runtime,
                "env.NCCL_P2P_DISABLE env.NCCL_IB_HCA env.TORCH_NCCL_BLOCKING_WAIT env.OMP_NUM_THREADS \
                 env.PYTORCH_CUDA_ALLOC_CONF sysctl.vm.swappiness cpu_governor file.nccl.conf env.LD_PRELOAD \
                 arg.profile arg.use-pytorch-profiler arg.detect_anomaly arg.debug",
            ),
            (
                Topic::Work,
                "arg.global-batch-size arg.micro_batch_size seq_len arg.seq-length model.n_params \
                 arg.tensor-model-parallel-size file.llama.yaml file.train.py arg.num-workers arg.model arg.tokenizer-model \
                 arg.config arg.config-name arg.hparams env.FSDP_SHARDING_STRATEGY \
                 env.ACCELERATE_GRADIENT_ACCUMULATION_STEPS arg.lora_rank arg.model.q_lora_rank arg.strategy \
                 arg.rollout.log_prob_micro_batch_size_per_gpu",
            ),
            (
                Topic::Recipe,
                "arg.lr learning_rate arg.optimizer.lr arg.seed arg.data-path dataset arg.weight-decay \
                 arg.adam-beta1 tokenizer env.PYTHONHASHSEED",
            ),
            (
                Topic::Place,
                "arg.output-dir arg.save arg.save-interval arg.master_port arg.node_rank hostname \
                 arg.wandb-project job_name arg.load arg.config-path env.CUDA_VISIBLE_DEVICES arg.local-rank \
                 env.LD_LIBRARY_PATH arg.data-cache-path run_id master_addr arg.log-dir env.TRITON_CACHE_DIR team owner \
                 arg.profile-dir arg.profiling.save_traces_folder arg.save_strategy",
            ),
            (Topic::Other, "arg.frobnicate arg.1 nodes python"),
        ] {
            for key in keys.split_whitespace() {
                assert_eq!(topic(key), topic_of, "{key}");
            }
        }
    }

    #[test]
    fn the_work_of_a_run_is_what_may_change_how_long_a_step_is() {
        for key in "arg.arch arg.resolution arg.block_size arg.n_embd arg.dim arg.bs arg.bsz arg.image_size \
                    arg.num_frames arg.max_len arg.depth arg.preset arg.rollout_n arg.dataset arg.data-path \
                    arg.global-batch-size arg.optimizer arg.frobnicate arg.1 visible_gpus file.llama.yaml"
            .split_whitespace()
        {
            assert!(is_of_work(key), "{key}");
        }
        for key in "arg.lr arg.min-lr arg.seed arg.weight-decay arg.max_steps arg.epochs arg.adam-beta1 \
                    arg.attention-backend arg.bf16 arg.transformer-impl arg.output-dir env.NCCL_ALGO torch nccl \
                    env.CUDA_LAUNCH_BLOCKING file.nccl.conf driver"
            .split_whitespace()
        {
            assert!(!is_of_work(key), "{key}");
        }
        assert!(is_of_work("env.ACCELERATE_GRADIENT_ACCUMULATION_STEPS"));
    }

    #[test]
    fn a_batch_that_is_ramped_up_grows() {
        assert!(
            grows_work("arg.rampup-batch-size", "32 32 9") && grows_work("arg.data.curriculum.on", "True")
        );
        assert!(!grows_work("arg.trampoline", "1") && !grows_work("arg.warmup", "1"));
        assert!(!grows_work("rampup_batch_size", "None") && !grows_work("arg.curriculum", "false"));
    }
}

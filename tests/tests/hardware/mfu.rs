//! MFU without a word of configuration: `discover: {}`, a driver that names its GPUs, and a real
//! process that prints or keeps what its trainer does. The FLOPs that are expected are worked out
//! by hand beside each.
#![allow(clippy::format_push_string, reason = "a log is put together line by line")]

use std::fs::File;
use std::path::Path;
use std::process::Stdio;

use stepwatch_fake_nvml::{Fleet, Script, Stage};
use stepwatch_tests::daemon::command;
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Exporter, Machine, exposition, poll_until};
use tokio::process::{Child, ChildStdin};

use crate::bench::with_gpus;

/// Dense, of an H100 SXM in BF16.
const PEAK: f64 = 989.4e12;
/// Llama-3-8B, of a token: each of 32 layers has 4096 x 128 x 2 x (32 + 8) weights of attention and
/// 3 x 4096 x 14336 of its feed-forward part, and 128,256 x 4096 are the logits'.
const WEIGHTS: f64 = 32.0 * (4096.0 * 128.0 * 2.0 * 40.0 + 3.0 * 4096.0 * 14_336.0) + 128_256.0 * 4096.0;
/// Six for each weight, and twelve for each number of each head of each layer and each of 8192
/// tokens.
const FULL: f64 = 6.0 * WEIGHTS + 12.0 * 32.0 * 4096.0 * 8192.0;

/// A process that computes on the first GPU, works in a directory of its own and prints what it is
/// given into a file there.
struct Job {
    exporter: Exporter,
    process: Child,
    /// Open while it is to live.
    _stdin: Option<ChildStdin>,
    dir: tempfile::TempDir,
}

impl Job {
    async fn start(name: &str, log: &str, keep: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::Builder::new().prefix("stepwatch").tempdir().unwrap();
        let work = dir.path().join("work");
        std::fs::create_dir_all(&work).unwrap();
        std::fs::write(dir.path().join("said"), log).unwrap();
        let mut sh = command("sh");
        sh.args(["-c", "cat \"$1\"; read -r _", "sh"]).arg(dir.path().join("said")).current_dir(&work);
        sh.env("STEPWATCH_RUN", name).stdin(Stdio::piped()).kill_on_drop(true);
        sh.stdout(File::create(work.join("train.log")).unwrap());
        let mut process = sh.spawn().unwrap();
        keep(&work);
        let script = Script::for_fleet(Fleet::H100).all("processes", 0u64).one(0, "processes", 1u64).one(
            0,
            "processes.pid",
            u64::from(process.id().unwrap()),
        );
        let stage = Stage::new(dir.path(), &script).unwrap();
        let machine = with_gpus(Machine::default(), &stage);
        let source = "sources:\n  - discover: {interval: 200ms}\n";
        let exporter = Exporter::start_on(machine, &dir.path().join("exporter"), "", source).await.unwrap();
        let stdin = process.stdin.take();
        Self { exporter, process, _stdin: stdin, dir }
    }

    /// Waits until the page has it.
    async fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let mut page = String::new();
        let found = poll_until(name, PATIENCE, async || {
            page = self.exporter.metrics().await.ok()?;
            exposition::value(&page, name, labels)
        });
        let found = found.await;
        let of_runs = || page.lines().filter(|l| l.starts_with("train_")).collect::<Vec<_>>().join("\n");
        found.unwrap_or_else(|err| {
            panic!("{err}: {name} {labels:?}\n{}\n{}", of_runs(), self.exporter.daemon.log().join("\n"))
        })
    }

    async fn mfu(&self, run: &str, convention: &str) -> f64 {
        self.value("train_mfu_ratio", &[("run", run), ("convention", convention)]).await
    }
}

fn near(ours: f64, want: f64) {
    assert!((ours / want - 1.0).abs() < 0.01, "{ours} {want}");
}

/// What Megatron-LM prints on its first rank, as far as it matters, and on its last.
fn megatron(arguments: &[(&str, &str)]) -> String {
    let usual = [
        ("bf16", "True"),
        ("decoder_seq_length", "None"),
        ("ffn_hidden_size", "14336"),
        ("fp16", "False"),
        ("fp8", "None"),
        ("global_batch_size", "128"),
        ("group_query_attention", "True"),
        ("hidden_size", "4096"),
        ("hybrid_attention_ratio", "0.0"),
        ("kv_channels", "128"),
        ("kv_lora_rank", "32"),
        ("mamba_state_dim", "128"),
        ("mtp_num_layers", "None"),
        ("multi_latent_attention", "False"),
        ("num_attention_heads", "32"),
        ("num_experts", "None"),
        ("num_layers", "32"),
        ("num_query_groups", "8"),
        ("padded_vocab_size", "None"),
        ("seq_length", "8192"),
        ("swiglu", "True"),
        ("vocab_size", "None"),
        ("world_size", "16"),
    ];
    let mut text = String::from("using world size: 16, data-parallel size: 16\n");
    text += "------------------------ arguments ------------------------\n";
    for (key, value) in usual {
        let value = arguments.iter().find(|(k, _)| *k == key).map_or(value, |(_, v)| v);
        text += &format!("  {key} {} {value}\n", ".".repeat(48 - key.len()));
    }
    text += "-------------------- end of arguments ---------------------\n";
    text += "> building HuggingFaceTokenizer tokenizer ...\n";
    text += " > padded vocab (size: 128256) with 0 dummy tokens (new size: 128256)\n";
    for step in [10, 20] {
        text += &format!(
            " [2026-11-22 22:00:{step}] iteration       {step}/     300 | consumed samples:         {} | elapsed time per iteration (ms): 7000.0 | \
             throughput per GPU (TFLOP/s/GPU): 481.9 | learning rate: 1.1E-05 | global batch size:   128 | lm loss: 2.504590E+00 | \
             loss scale: 1.0 | grad norm: 0.623 | number of skipped iterations:   0 | number of nan iterations:   0 |\n",
            step * 128
        );
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_megatron() {
    let mut job = Job::start("llama-8b", &megatron(&[]), |_| ()).await;
    // 128 sequences of 8192 tokens in seven seconds, on 16 GPUs.
    let speed = 128.0 * 8192.0 / 7.0 / 16.0;
    near(job.mfu("llama-8b", "full").await, speed * FULL / PEAK);
    let exact = 6.0 * WEIGHTS + 6.0 * 32.0 * 4096.0 * 8192.0;
    near(job.mfu("llama-8b", "exact").await, speed * exact / PEAK);
    assert_eq!(job.value("train_world_size", &[("run", "llama-8b")]).await, 16.0);
    // The same by what Megatron itself counted: 481.9 TFLOP/s.
    near(job.mfu("llama-8b", "exact").await, 481.9e12 / PEAK);
    // The arguments are at the beginning of the log, which is not read twice.
    job.exporter.daemon.kill().await.unwrap();
    let log = std::fs::OpenOptions::new().append(true).open(job.dir.path().join("work/train.log"));
    let later = megatron(&[]).lines().last().unwrap().replace("  20/", "  30/");
    std::io::Write::write_all(&mut log.unwrap(), format!("{later}\n").as_bytes()).unwrap();
    job.exporter.restart().await.unwrap();
    near(job.mfu("llama-8b", "full").await, speed * FULL / PEAK);
    assert!(job.process.try_wait().unwrap().is_none(), "the job still runs");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_a_formula_says_why() {
    let mut job = Job::start("t5", &megatron(&[("decoder_seq_length", "128")]), |_| ()).await;
    job.value("train_tokens_per_second_per_gpu", &[("run", "t5")]).await;
    let remark = "an encoder and a decoder: their FLOPs depend on two lengths, and one is given";
    assert_eq!(job.value("train_mfu_remark", &[("run", "t5"), ("remark", remark)]).await, 1.0);
    let page = job.exporter.metrics().await.unwrap();
    assert!(!page.contains("train_mfu_ratio{"), "{page}");
    job.exporter.daemon.logged(|line| line.contains(remark)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_torchtitan() {
    let p = "[rank0]:[titan] 2026-08-21 10:00:00,000 - root - INFO - ";
    let mut log = String::new();
    for line in [
        "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1, ep=1",
        "Building llama3 8B",
        "\u{1b}[34mModel llama3 8B \u{1b}[31msize: 8,030,261,248 total parameters\u{1b}[39m",
        "Peak FLOPS used for computing MFU: 9.890e+14",
        "Trainer is initialized with 65536 tokens per DP rank, 524288 tokens per train step, gradient accumulation steps 1, \
         maximum context length 8192, total steps 1000 (warmup 200)",
        "Training starts at step 1",
        "step:  1  loss: 12.24650  grad_norm:  4.5253  memory: 33.21GiB(34.95%)  tps: 86  tflops: 4.98  mfu: 0.50%",
        "step: 10  loss: 10.23910  grad_norm: 16.1413  memory: 44.84GiB(47.19%)  tps: 7,503  tflops: 434.53  mfu: 43.94%",
    ] {
        log += &format!("{p}{line}\n");
    }
    let job = Job::start("titan", &log, |_| ()).await;
    near(job.mfu("titan", "torchtitan").await, 434.53e12 / PEAK);
    near(job.mfu("titan", "full").await, 7503.0 * FULL / PEAK);
    // By its own figure, with a peak of 989 TFLOP/s.
    near(job.mfu("titan", "full").await, 0.4394);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_json_beside_a_checkpoint() {
    // As transformers writes it: sorted, so that what it is comes late.
    const CONFIG: &str = r#"{
  "architectures": [
    "LlamaForCausalLM"
  ],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "bos_token_id": 128000,
  "dtype": "bfloat16",
  "eos_token_id": 128001,
  "head_dim": 128,
  "hidden_act": "silu",
  "hidden_size": 4096,
  "initializer_range": 0.02,
  "intermediate_size": 14336,
  "max_position_embeddings": 8192,
  "mlp_bias": false,
  "model_type": "llama",
  "num_attention_heads": 32,
  "num_hidden_layers": 32,
  "num_key_value_heads": 8,
  "pretraining_tp": 1,
  "rms_norm_eps": 1e-05,
  "rope_theta": 500000.0,
  "tie_word_embeddings": false,
  "transformers_version": "5.2.0",
  "use_cache": false,
  "vocab_size": 128256
}
"#;
    let mut log = String::new();
    for step in 1..40 {
        log += &format!(
            "{{'loss': 1.5, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'num_tokens': {}.0, 'tokens_per_second_per_gpu': 8000.0, 'step': {step}, 'epoch': 0.1}}\n",
            step * 65_536
        );
    }
    let keep = |work: &Path| {
        let checkpoint = work.join("out/checkpoint-10");
        std::fs::create_dir_all(&checkpoint).unwrap();
        std::fs::write(checkpoint.join("config.json"), CONFIG).unwrap();
    };
    let job = Job::start("sft", "", keep).await;
    job.value("train_run_info", &[("run", "sft"), ("model", "LlamaForCausalLM")]).await;
    let file = std::fs::OpenOptions::new().append(true).open(job.dir.path().join("work/train.log"));
    std::io::Write::write_all(&mut file.unwrap(), log.as_bytes()).unwrap();
    near(job.mfu("sft", "6n").await, 8000.0 * 6.0 * WEIGHTS / PEAK);
}

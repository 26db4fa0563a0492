//! Training loops of the frameworks themselves, on the processor, which do not use Stepwatch: the
//! exporter finds the process by `discover`, and what it streams is what the trainer remembers of
//! its steps.
//!
//! A loop is a script in `loops/`. Its output goes to a file, as under Slurm; what else it writes
//! is up to the framework. `broken` gives it a learning rate that no model survives: that must be
//! seen as a number that is not finite.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use stepwatch_tests::daemon::command;
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Exporter, poll_until, trainer};
use stepwatch_wire::Event;
use tokio::process::Child;

use crate::seen::Seen;
use crate::writer::{has_torch, script};

/// Steps of every loop.
const STEPS: usize = 6;
/// Importing the frameworks takes half a minute of a core that has nothing else to do.
const WITHIN: Duration = Duration::from_mins(10);
/// Four digits are printed.
const PRINTED: f64 = 1e-3;

/// A loop to follow.
struct Loop {
    script: &'static str,
    args: &'static [&'static str],
    /// What it imports.
    needs: &'static [&'static str],
    /// Its metrics of ours, and what the trainer calls them.
    metrics: &'static [(&'static str, &'static str)],
    /// Steps that are not finite when it breaks.
    bad: usize,
}

const USUAL: &[(&str, &str)] = &[("loss", "loss"), ("grad_norm", "grad_norm"), ("lr", "learning_rate")];

const HF: Loop = Loop {
    script: "hf_trainer.py",
    args: &[],
    needs: &["torch", "transformers", "accelerate"],
    metrics: USUAL,
    bad: 5,
};
const SFT: Loop =
    Loop { script: "trl_sft.py", args: &[], needs: &["torch", "trl", "datasets"], metrics: USUAL, bad: 5 };
const DPO: Loop = Loop { script: "trl_dpo.py", ..SFT };
const GRPO: Loop = Loop {
    script: "trl_grpo.py",
    metrics: &[("loss", "loss"), ("grad_norm", "grad_norm"), ("lr", "learning_rate"), ("reward", "reward")],
    bad: 1,
    ..SFT
};
const LIGHTNING_CSV: Loop = Loop {
    script: "lightning_loop.py",
    args: &["csv"],
    needs: &["torch", "lightning"],
    metrics: USUAL,
    bad: 5,
};
const LIGHTNING_TENSORBOARD: Loop =
    Loop { args: &["tensorboard"], needs: &["torch", "lightning", "tensorboard"], ..LIGHTNING_CSV };
const ACCELERATE: Loop = Loop {
    script: "accelerate_loop.py",
    args: &[],
    needs: &["torch", "accelerate", "tensorboard"],
    metrics: USUAL,
    bad: 1,
};

/// A loop that was followed to its end.
struct Followed {
    steps: Vec<Event>,
    /// What the trainer remembers of its steps.
    truth: Vec<Value>,
}

impl Followed {
    /// Every number under our name at the step at which the trainer had it, each once and in order.
    fn is_published(&self, l: &Loop) {
        assert_eq!(self.truth.len(), STEPS, "{:?}", self.truth);
        for (ours, theirs) in l.metrics {
            let published: Vec<_> = self.column(ours);
            let expected: Vec<_> =
                self.truth.iter().map(|row| (row["step"].as_i64().unwrap(), number(&row[*theirs]))).collect();
            assert_eq!(published.len(), expected.len(), "{ours}: {published:?} and not {expected:?}");
            for (a, b) in published.iter().zip(&expected) {
                let same =
                    a.1 == b.1 || a.1.is_nan() && b.1.is_nan() || (a.1 - b.1).abs() <= PRINTED * b.1.abs();
                assert!(a.0 == b.0 && same, "{ours}: {published:?} and not {expected:?}");
            }
        }
    }

    fn column(&self, name: &str) -> Vec<(i64, f64)> {
        self.steps.iter().filter_map(|e| Some((e.step?, e.m.get(name)?))).collect()
    }
}

/// Python's JSON has NaN and infinities bare, which are put in quotes before it is read.
fn number(v: &Value) -> f64 {
    v.as_f64().or_else(|| v.as_str()?.parse().ok()).unwrap()
}

fn truth(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let text = text
        .replace(": NaN", ": \"NaN\"")
        .replace(": Infinity", ": \"inf\"")
        .replace(": -Infinity", ": \"-inf\"");
    serde_json::from_str(&text).unwrap_or_default()
}

/// Runs a loop below an exporter that is given nothing but the control group in which jobs are.
/// `None` where a package is absent.
async fn follow(l: &Loop, broken: bool) -> Option<Followed> {
    if !has_torch(l.needs).await {
        return None;
    }
    let dir = tempfile::Builder::new().prefix("stepwatch").tempdir().unwrap();
    let (work, group) = (dir.path().join("run"), dir.path().join("cgroup"));
    std::fs::create_dir(&work).unwrap();
    std::fs::create_dir(&group).unwrap();
    let source = format!("sources:\n  - discover: {{interval: 200ms, cgroups: [\"{}\"]}}\n", group.display());
    let exporter = Exporter::start(&dir.path().join("exporter"), &source).await.unwrap();
    let seen = Seen::default();
    seen.follow(&exporter);
    let mut child = start(l, broken, &work);
    std::fs::write(group.join("cgroup.procs"), format!("{}\n", child.id().unwrap())).unwrap();
    let status = tokio::time::timeout(WITHIN, child.wait()).await.expect("the loop ends").unwrap();
    let log = std::fs::read_to_string(work.join("train.log")).unwrap();
    let tail: String = log.chars().rev().take(3000).collect::<Vec<_>>().into_iter().rev().collect();
    assert!(status.success(), "{}: {status}\n{tail}", l.script);
    let truth = truth(&dir.path().join("truth.json"));
    let names = l.metrics.iter().map(|(ours, _)| *ours);
    let published = |steps: &[Event], name| steps.iter().filter(|e| e.m.get(name).is_some()).count() >= STEPS;
    let whole = |steps: &[Event]| names.clone().all(|name| published(steps, name));
    seen.all_steps("every step with its numbers", whole).await;
    // The exporter has looked again since the end: what other files repeat has come as well, and
    // must not be published twice.
    let gone =
        async || exporter.metrics().await.ok().filter(|page| !page.contains("\njob_discovered_processes{"));
    poll_until("the process to be gone from the page", PATIENCE, gone).await.unwrap();
    Some(Followed { steps: seen.all_steps("them", |_| true).await, truth })
}

fn start(l: &Loop, broken: bool, work: &Path) -> Child {
    let log = File::create(work.join("train.log")).unwrap();
    let mut python = command(trainer::torch_python());
    python
        .arg(script("loops").join(l.script))
        .arg(work)
        .args(l.args)
        .args(broken.then_some("broken"))
        .current_dir(work);
    python.env("PYTHONDONTWRITEBYTECODE", "1").env("CUDA_VISIBLE_DEVICES", "");
    python.stdout(log.try_clone().unwrap()).stderr(log).kill_on_drop(true).spawn().unwrap()
}

async fn healthy(l: &Loop) {
    if let Some(followed) = follow(l, false).await {
        followed.is_published(l);
    }
}

/// The same with a model that breaks: no finite value is made up for it, and somebody is notified.
async fn broken(l: &Loop) {
    let Some(followed) = follow(l, true).await else { return };
    followed.is_published(l);
    let bad = |name: &str| followed.column(name).iter().filter(|(_, n)| !n.is_finite()).count();
    let worst = l.metrics.iter().map(|(ours, _)| bad(ours)).max().unwrap();
    assert!(worst >= l.bad, "{:?}", followed.steps);
}

macro_rules! loops {
    ($($name:ident, $broken:ident: $l:ident;)*) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                healthy(&$l).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn $broken() {
                broken(&$l).await;
            }
        )*
    };
}

loops! {
    transformers_trainer, transformers_trainer_that_breaks: HF;
    trl_sft, trl_sft_that_breaks: SFT;
    trl_dpo, trl_dpo_that_breaks: DPO;
    trl_grpo, trl_grpo_that_breaks: GRPO;
    lightning_csv, lightning_csv_that_breaks: LIGHTNING_CSV;
    lightning_tensorboard, lightning_tensorboard_that_breaks: LIGHTNING_TENSORBOARD;
    accelerate, accelerate_that_breaks: ACCELERATE;
}

//! Derives the run from a file's path, and detects rotated copies.

use std::fs;
use std::path::{Component, Path};

use crate::identity;
use crate::roots::{self, Roots};

/// Names that every job gives its files and directories, so that a parent directory has to name the
/// run.
const GENERIC: &[&str] = &[
    "log",
    "logs",
    "logging",
    "main",
    "metrics",
    "out",
    "output",
    "progress",
    "stderr",
    "stdout",
    "train",
    "trainer_log",
    "trainer_state",
    "training",
    "run",
    "runs",
    "error",
    "latest_checkpointed_iteration",
    "checkpoints",
    "ckpt",
    "ckpts",
    "csv_logs",
    "lightning_logs",
    "structured_logs",
    "tb",
    "tb_logs",
    "tensorboard",
    "wandb",
];

/// Words followed by a number that every job counts alike: `version_3`, `checkpoint-500`,
/// `attempt_0`.
const COUNTED: &[&str] =
    &["version", "checkpoint", "attempt", "rank", "global_rank", "worker", "node", "log", "epoch", "step"];

/// A part of the name of every event file.
const TFEVENTS: &str = "tfevents";

/// Usual names of the scalars in a group.
const GROUPED: &[&str] = &["train", "training", "val", "valid", "validation", "test", "eval"];

/// The most entries of a directory that are searched for the event file of a run.
const MAX_ENTRIES: usize = 4096;

/// The resolution in seconds of the time of creation in event files.
const SECOND: f64 = 1.0;

/// The most characters of the name of a run.
const MAX_CHARS: usize = 128;

/// The run of a file without a given one: its name without extension, or that of the nearest parent
/// directory whose name is not generic. TensorBoard's event files belong to their directory, as
/// TensorBoard shows them.
pub(super) fn run_of(path: &Path) -> String {
    let stem = path.file_stem().map(|s| s.to_string_lossy()).unwrap_or_default();
    let bare = stem.strip_suffix(".log").unwrap_or(&stem);
    let wandb = path.extension().is_some_and(|e| e == "wandb");
    let name = if wandb {
        bare.strip_prefix("run-").unwrap_or(bare).to_owned()
    } else if says_nothing(bare) || is_events(path) || bare.starts_with("training.global_rank_") {
        beside_group(path).or(path.parent()).and_then(directory).unwrap_or_else(|| bare.to_owned())
    } else {
        bare.to_owned()
    };
    name.chars().take(MAX_CHARS).collect()
}

fn is_events(path: &Path) -> bool {
    path.file_name().is_some_and(|n| n.to_string_lossy().contains(TFEVENTS))
}

/// The nearest directory whose name is not generic, or else the nearest one. Lightning numbers the
/// launches of one logger, which may run at the same time, so each is a run of its own.
fn directory(path: &Path) -> Option<String> {
    let mut version: Option<String> = None;
    let mut nearest: Option<String> = None;
    for component in path.components().rev() {
        let Component::Normal(name) = component else { continue };
        let name = name.to_string_lossy().into_owned();
        if !says_nothing(&name) {
            nearest = Some(name);
            break;
        }
        if version.is_none() && is_version(&name) {
            version = Some(name);
        } else {
            nearest.get_or_insert(name);
        }
    }
    match (nearest, version) {
        (Some(name), Some(version)) => {
            let room = MAX_CHARS.saturating_sub(version.chars().count() + 1);
            Some(format!("{}.{version}", name.chars().take(room).collect::<String>()))
        }
        (name, version) => name.or(version),
    }
}

fn is_version(name: &str) -> bool {
    name.rsplit_once('_').is_some_and(|(word, _)| word.eq_ignore_ascii_case("version"))
}

/// The directory of the run to whose group of scalars this event file belongs. PyTorch's
/// `add_scalars` makes a directory `loss_val` beside the event file of the same process.
fn beside_group(path: &Path) -> Option<&Path> {
    let directory = path.parent()?;
    let name = directory.file_name()?.to_str().filter(|n| n.contains('_') && !says_nothing(n))?;
    let file = path.file_name()?.to_str()?;
    let (writer, process) = writer_of(file)?;
    // tensorboardX writes only the host, which does not suffice.
    let plain = name.rsplit_once('_').is_some_and(|(_, n)| GROUPED.iter().any(|g| g.eq_ignore_ascii_case(n)));
    let run = directory.parent().filter(|_| process || plain)?;
    let mut beside = fs::read_dir(run).ok()?.flatten().take(MAX_ENTRIES).map(|e| e.file_name());
    beside.any(|n| n.to_str().and_then(writer_of) == Some((writer, process))).then_some(run)
}

/// The host and process in the name of an event file, and whether there is a process:
/// `events.out.tfevents.<time>.<host>.<pid>.<n>`.
fn writer_of(file: &str) -> Option<(&str, bool)> {
    let (_, behind) = file.split_once(TFEVENTS)?;
    let (_, writer) = behind.strip_prefix('.')?.split_once('.')?;
    let number = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let ends = writer.match_indices('.').map(|(at, _)| at).rev();
    let mut process = ends.filter(|at| {
        let last = writer[at + 1..].split('.').next().is_some_and(number);
        last && writer[..*at].rsplit_once('.').is_some_and(|(_, pid)| number(pid))
    });
    Some(process.next().map_or((writer, false), |at| (&writer[..at], true)))
}

/// The process of this node that an event file names as its writer. TensorBoard reopens its file
/// for every record, so no process has it open.
pub(super) fn writer(path: &Path, roots: &Roots) -> Option<u32> {
    let file = path.file_name()?.to_str()?;
    let (writer, _) = writer_of(file).filter(|(_, process)| *process)?;
    let (host, pid) = writer.rsplit_once('.')?;
    let (_, behind) = file.split_once(TFEVENTS)?;
    let created: f64 = behind.strip_prefix('.')?.split_once('.')?.0.parse().ok()?;
    let here = roots::read(&roots.proc("sys/kernel/hostname"))?;
    let pid = pid.parse().ok().filter(|_| host == here)?;
    // A later process may have got the pid.
    (identity::started(roots, pid)? <= created + SECOND).then_some(pid)
}

fn says_nothing(name: &str) -> bool {
    let generic = GENERIC.iter().any(|g| name.eq_ignore_ascii_case(g));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let counted = name
        .rsplit_once(['_', '-'])
        .is_some_and(|(word, n)| digits(n) && COUNTED.iter().any(|c| word.eq_ignore_ascii_case(c)));
    // A short number is a rank or attempt; a longer one is the id of a job.
    let short = name.len() <= 3 && digits(name);
    generic || counted || short || name.is_empty() || is_date(name)
}

/// Whether a name is a date: `20261121-0612`, `2026-11-21_06-12-00`, or that of PyTorch's writer
/// with a host, `Nov21_06-12-00_node017`.
fn is_date(name: &str) -> bool {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let stamp =
        |s: &str| s.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'-' | b'_' | b':' | b'.' | b'T'));
    let day = name.get(..3).filter(|m| MONTHS.contains(m)).and_then(|_| name.get(3..14));
    let pytorch = day.is_some_and(|d| stamp(d) && d.as_bytes()[2] == b'_' && name[14..].starts_with('_'));
    let century = name.starts_with("20") && name.bytes().filter(u8::is_ascii_digit).count() >= 8;
    pytorch || (century && stamp(name) && name.contains(['-', '_', 'T']))
}

/// Whether a file is a rotated copy: `run.log.1`, `run.log-20261121` beside a `run.log`, and
/// compressed files. Their content was read under the other name.
pub(super) fn is_rotated(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|n| n.to_str()) else { return false };
    if [".gz", ".zst", ".xz", ".bz2", ".lz4"].iter().any(|end| name.ends_with(end)) {
        return true;
    }
    let base = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let Some(base) = base.strip_suffix(['.', '-']).filter(|b| b.len() + 1 < name.len()) else { return false };
    !base.is_empty() && path.with_file_name(base).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_named_after_files_or_their_directory() {
        for (path, run) in [
            ("/logs/llama-70b.log", "llama-70b"),
            ("/logs/slurm-123456.out", "slurm-123456"),
            ("/out/qwen-sft/trainer_log.jsonl", "qwen-sft"),
            ("/out/qwen-sft/stdout.log", "qwen-sft"),
            ("/out/qwen-sft/0/stderr.log", "qwen-sft"),
            ("/logs/a.log.1", "a"),
            ("/logs/123456.log", "123456"),
            ("/run.log", "run"),
            ("/logs/train.log", "logs"),
        ] {
            assert_eq!(run_of(Path::new(path)), run, "{path}");
        }
    }

    #[test]
    fn runs_are_named_as_their_framework_lays_them_out() {
        for (path, run) in [
            ("/data/runs/exp1/events.out.tfevents.1780026765.n1.7.0", "exp1"),
            (
                "/home/me/exp2/lightning_logs/version_3/events.out.tfevents.1780026765.n1.7.0",
                "exp2.version_3",
            ),
            ("/home/me/exp2/lightning_logs/version_3/metrics.csv", "exp2.version_3"),
            ("/nemo/tb_logs/gpt-7b/version_0/events.out.tfevents.1780026765.n1.7.0", "gpt-7b.version_0"),
            ("/version_0/metrics.csv", "version_0"),
            ("/lightning_logs/version_0/metrics.csv", "lightning_logs.version_0"),
            ("/exp2/version_0/checkpoints/trainer_state.json", "exp2.version_0"),
            ("/out/sft/runs/Nov21_06-12-00_node017/events.out.tfevents.1780026765.node017.7.0", "sft"),
            ("/out/sft/checkpoint-500/trainer_state.json", "sft"),
            ("/titan/tb/20261121-0612/rank_0/events.out.tfevents.1780026765.n1.7.0", "titan"),
            ("/titan/structured_logs/training.global_rank_3.20261121-061200-abc123.jsonl", "titan"),
            ("/gpt/tensorboard/events.out.tfevents.1780026765.n1.7.0", "gpt"),
            ("/gpt/checkpoints/latest_checkpointed_iteration.txt", "gpt"),
            ("/me/wandb/run-20261121_061200-a1b2c3/run-a1b2c3.wandb", "a1b2c3"),
            ("/runs/events.out.tfevents.1780026765.n1.7.0", "runs"),
            ("events.out.tfevents.1780026765.n1.7.0", "events.out.tfevents.1780026765.n1.7"),
        ] {
            assert_eq!(run_of(Path::new(path)), run, "{path}");
        }
    }

    #[test]
    fn versions_of_one_logger_are_runs_of_their_own() {
        let dir = "/logs/".to_owned() + &"x".repeat(MAX_CHARS);
        let run = |n| run_of(Path::new(&format!("{dir}/lightning_logs/version_{n}/metrics.csv")));
        assert_ne!(run(0), run(1), "however long the name above is");
        assert!(run(123_456).chars().count() <= MAX_CHARS);
    }

    #[test]
    fn groups_of_scalars_are_of_the_run_beside() {
        let dir = tempfile::tempdir().unwrap();
        let run = |path: &str| run_of(&dir.path().join(path));
        let write = |path: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        let group = "exp1/loss_val/events.out.tfevents.1780026767.n1.7.2";
        assert_eq!(run(group), "loss_val", "nothing is beside it");
        write("exp1/events.out.tfevents.1780026765.n2.7.0");
        assert_eq!(run(group), "loss_val", "another process's");
        write("exp1/events.out.tfevents.1780026765.n1.7.0");
        assert_eq!(run(group), "exp1");
        assert_eq!(run("exp1/trial/events.out.tfevents.1780026767.n1.7.2"), "trial", "no name of a group");
        assert_eq!(run("exp1/loss_val/train.log"), "loss_val");
        // tensorboardX does not name the process.
        write("exp2/events.out.tfevents.1780026765.n1.local");
        assert_eq!(run("exp2/loss_val/events.out.tfevents.1780026767.n1.local"), "exp2");
        assert_eq!(run("exp2/lr_sweep/events.out.tfevents.1780026767.n1.local"), "lr_sweep");
        write("exp3/version_1/events.out.tfevents.1780026765.n1.7.0");
        assert_eq!(run("exp3/version_1/loss_val/events.out.tfevents.1780026767.n1.7.2"), "exp3.version_1");
    }

    #[test]
    fn dates_are_no_names() {
        for date in ["20261121-0612", "2026-11-21_06-12-00", "2026-11-21T06:12:00", "Nov21_06-12-00_node017"]
        {
            assert!(is_date(date), "{date}");
        }
        for name in ["2048-moe", "20b", "20261121", "November", "Nov21_06-12-00", "Novembre-2026_run1", "Noé"]
        {
            assert!(!is_date(name), "{name}");
        }
    }

    #[test]
    fn rotated_copies_are_known_by_their_sibling() {
        let dir = tempfile::tempdir().unwrap();
        let rotated = |name: &str| is_rotated(&dir.path().join(name));
        assert!(!rotated("run.log.1"));
        fs::write(dir.path().join("run.log"), "").unwrap();
        assert!(rotated("run.log.1") && rotated("run.log-20261121") && rotated("x.log.gz"));
        assert!(!rotated("run.log") && !rotated("other.log.1") && !rotated("run"));
    }

    proptest::proptest! {
        #[test]
        fn any_path_has_a_name(path: String) {
            proptest::prop_assert!(run_of(Path::new(&path)).chars().count() <= MAX_CHARS);
        }
    }
}

//! Reads the rank of a process from the variables of launchers in its environment. Only the
//! variables named here are read, because the rest may hold secrets.
//!
//! Rank, world and local rank come from one launcher, the nearest: `mpirun` inside an `sbatch`
//! script inherits Slurm's variables of the one batch process. If they were mixed, eight ranks
//! would all be rank 0.

use std::collections::BTreeMap;
use std::path::PathBuf;

use stepwatch_wire::words;

/// The variables of rank, world and local rank; the nearest launcher first.
const LAUNCHERS: &[(&str, &[&str], &[&str])] = &[
    ("RANK", &["WORLD_SIZE"], &["LOCAL_RANK"]), // torchrun, accelerate, DeepSpeed, Kubeflow
    ("OMPI_COMM_WORLD_RANK", &["OMPI_COMM_WORLD_SIZE"], &["OMPI_COMM_WORLD_LOCAL_RANK"]),
    ("MV2_COMM_WORLD_RANK", &["MV2_COMM_WORLD_SIZE"], &["MV2_COMM_WORLD_LOCAL_RANK"]),
    ("PMI_RANK", &["PMI_SIZE"], &["MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"]),
    ("PMIX_RANK", &["PMIX_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"], &["SLURM_LOCALID"]),
    ("SLURM_PROCID", &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"], &["SLURM_LOCALID"]),
];
/// Ours are for schedulers that set none. Slurm sets its own since version 22.05.
const SUBMITTED: &[&str] = &["STEPWATCH_JOB_SUBMITTED"];
const ALLOCATED: &[&str] = &["STEPWATCH_JOB_STARTED", "SLURM_JOB_START_TIME"];
const ERROR_FILE: &[&str] = &["TORCHELASTIC_ERROR_FILE"];
/// Variables with the prefix of flight-recorder dumps; the rank follows it in the file's name.
const DUMP_PREFIX: &[&str] = &["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"];
const DEFAULT_DUMP_PREFIX: &str = "/tmp/nccl_trace_rank_";
/// The most characters kept of a value.
const MAX_CHARS: usize = 1024;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) rank: Option<u32>,
    pub(super) world: Option<u32>,
    pub(super) local_rank: Option<u32>,
    /// The file into which torchelastic writes why the process failed.
    pub(super) error_file: Option<PathBuf>,
    /// The file into which NCCL's flight recorder is dumped.
    pub(super) dump: Option<PathBuf>,
    /// The Unix times in seconds when the job was submitted, and when it was given its nodes.
    pub(super) submitted: Option<u32>,
    pub(super) allocated: Option<u32>,
    /// Whether the client reports by itself, or is configured not to.
    pub(super) silent: bool,
}

impl Identity {
    /// Parses `/proc/PID/environ`.
    pub(super) fn parse(environ: &[u8]) -> Self {
        let env = Environ::parse(environ);
        let mut found = Self {
            error_file: env.text(ERROR_FILE).map(PathBuf::from).filter(|path| path.is_absolute()),
            submitted: env.number(SUBMITTED),
            allocated: env.number(ALLOCATED),
            silent: env.text(&["STEPWATCH_DISABLED"]).is_some_and(|v| v != "0"),
            ..Self::default()
        };
        for (rank, world, local) in LAUNCHERS {
            if let Some(rank) = env.number(&[rank]) {
                found.rank = Some(rank);
                found.world = env.number(world);
                found.local_rank = env.number(local);
                break;
            }
        }
        let prefix = || env.text(DUMP_PREFIX).unwrap_or_else(|| DEFAULT_DUMP_PREFIX.into());
        found.dump = found.rank.map(|rank| PathBuf::from(format!("{}{rank}", prefix())));
        found
    }
}

/// The variables that this module reads.
struct Environ<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Environ<'a> {
    fn parse(bytes: &'a [u8]) -> Self {
        let known = |key: &&str| {
            let ranks = || LAUNCHERS.iter().any(|(r, w, l)| r == key || w.contains(key) || l.contains(key));
            [ERROR_FILE, DUMP_PREFIX, SUBMITTED, ALLOCATED, &["STEPWATCH_DISABLED"]]
                .iter()
                .any(|k| k.contains(key))
                || ranks()
        };
        let pairs = bytes.split(|b| *b == 0).filter_map(|v| core::str::from_utf8(v).ok()?.split_once('='));
        Self(pairs.filter(|(key, _)| known(key)).collect())
    }

    /// The first of these variables that is set.
    fn text(&self, keys: &[&str]) -> Option<String> {
        let mut values = keys.iter().filter_map(|k| self.0.get(k)).map(|v| v.trim());
        let value = values.find(|v| !v.is_empty() && v.len() <= MAX_CHARS)?;
        Some(words::line(value).into_owned())
    }

    fn number(&self, keys: &[&str]) -> Option<u32> {
        keys.iter().find_map(|k| self.0.get(k)?.trim().parse().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity_of(variables: &[&str]) -> Identity {
        Identity::parse(variables.join("\0").as_bytes())
    }

    #[test]
    fn torchrun() {
        let found = identity_of(&[
            "PATH=/bin",
            "RANK=9",
            "LOCAL_RANK=1",
            "WORLD_SIZE=16",
            "TORCHELASTIC_ERROR_FILE=/tmp/x/attempt_2/1/error.json",
            "SLURM_PROCID=0",
            "SLURM_NTASKS=2",
            "SLURM_JOB_START_TIME=1795227416",
            "AWS_SECRET_ACCESS_KEY=dummy",
        ]);
        let want = Identity {
            rank: Some(9),
            world: Some(16),
            local_rank: Some(1),
            error_file: Some("/tmp/x/attempt_2/1/error.json".into()),
            dump: Some("/tmp/nccl_trace_rank_9".into()),
            submitted: None,
            allocated: Some(1_795_227_416),
            silent: false,
        };
        assert_eq!(found, want);
    }

    #[test]
    fn slurm_and_mpi() {
        let slurm = identity_of(&[
            "SLURM_PROCID=3",
            "SLURM_NTASKS=8",
            "SLURM_LOCALID=3",
            "TORCH_FR_DUMP_TEMP_FILE=/fr/r_",
        ]);
        assert_eq!((slurm.rank, slurm.world, slurm.local_rank), (Some(3), Some(8), Some(3)));
        assert_eq!(slurm.dump.as_deref(), Some(std::path::Path::new("/fr/r_3")));
        let mpi = identity_of(&[
            "OMPI_COMM_WORLD_RANK=5",
            "OMPI_COMM_WORLD_SIZE=6",
            "SLURM_PROCID=0",
            "SLURM_NTASKS=1",
        ]);
        assert_eq!((mpi.rank, mpi.world), (Some(5), Some(6)));
        assert_eq!(identity_of(&["HOME=/root"]), Identity::default());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_an_environment(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
            let _ = Identity::parse(&bytes);
        }

        #[test]
        fn ranks_are_read_back(rank: u32, world: u32, noise in "[A-Z]{1,5}=[^\0]{0,20}") {
            let found = identity_of(&[&noise, &format!("RANK={rank}"), &format!("WORLD_SIZE={world}")]);
            proptest::prop_assert_eq!((found.rank, found.world), (Some(rank), Some(world)));
        }
    }
}

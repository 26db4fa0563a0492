//! The setup of a run on this node: libraries, environment variables, arguments, and the script and
//! configuration files that its processes were started with.
//!
//! The ranks of this node may differ. A file that differs is left out. A variable that differs is
//! published as different, because another node with only one of those ranks cannot see it.

mod arguments;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use stepwatch_wire::names::setting::DIFFERS_BY_RANK;
use stepwatch_wire::secrets::{is_secret, is_secret_value};
use stepwatch_wire::setting::{ALL_VISIBLE, ARGUMENT, VISIBLE_GPUS};

use super::file::{Named, Starter, contents_of};
use super::value::{Settings, shown};
use crate::processes;
use crate::roots::Roots;
use arguments::{Arguments, MAX_FILES, files};

/// Prefixes of variables that affect training.
const PREFIXES: &[&str] = &[
    "NCCL_",
    "RCCL_",
    "CUDA_",
    "CUBLAS_",
    "CUDNN_",
    "TORCH_",
    "PYTORCH_",
    "UCX_",
    "FI_",
    "FLASH_",
    "NVTE_",
    "NVSHMEM_",
    "OMPI_MCA_",
    "MKL_",
    "OPENBLAS_",
    "KMP_",
    "GLOO_",
    "XLA_",
    "MLX5_",
    "XFORMERS_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "TRITON_",
    "ACCELERATE_",
    "FSDP_",
    "HSA_",
    "HIP_",
    "ROCR_",
    "MIOPEN_",
];
/// Further variables, by their full names.
const NAMES: &[&str] = &[
    "OMP_NUM_THREADS",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "PYTHONHASHSEED",
    "MALLOC_ARENA_MAX",
    "NVIDIA_TF32_OVERRIDE",
    "VLLM_ATTENTION_BACKEND",
];
/// Variables that belong to a rank, a node or a job: its devices, the address that it listens at,
/// and the place that it writes to.
const OF_A_RANK: &[&str] = &[
    "CUDA_CACHE_PATH",
    "CUDA_COREDUMP_FILE",
    "CUDA_COREDUMP_PIPE",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    "NCCL_COMM_ID",
    "NCCL_HOSTID",
    "NCCL_RAS_ADDR",
    "NCCL_DEBUG_FILE",
    "NCCL_GRAPH_DUMP_FILE",
    "NCCL_TOPO_DUMP_FILE",
    "ACCELERATE_TORCH_DEVICE",
    "MIOPEN_CUSTOM_CACHE_DIR",
    "MIOPEN_USER_DB_PATH",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "TRITON_DUMP_DIR",
    "TRITON_OVERRIDE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_TRACE",
    "UCX_LOG_FILE",
    "UCX_PROFILE_FILE",
    "UCX_STATS_DEST",
];
/// The GPUs that a process is given, of NVIDIA and of AMD. Their number is published, because UUIDs
/// differ between nodes.
const VISIBLE: &[&str] = &["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"];
const OPEN_MPI: &str = "OMPI_MCA_";
/// Frameworks and variables of Open MPI's runtime. They give processes their identity and the
/// address of the daemon on their node, and the first node's processes were started differently.
/// The variables that a person sets change how a job starts, not how it trains.
const OPEN_MPI_RUNTIME: &[&str] = &[
    "app_num",
    "cpu_type",
    "ess",
    "errmgr",
    "filem",
    "grpcomm",
    "hnp_uri",
    "initial_wdir",
    "iof",
    "local_daemon_uri",
    "mpi_oversubscribe",
    "mpi_yield_when_idle",
    "num_nodes",
    "num_procs",
    "odls",
    "oob",
    "opal_ess",
    "orte",
    "plm",
    "pmix",
    "prte",
    "pubsub",
    "ras",
    "regx",
    "rmaps",
    "rml",
    "routed",
    "rtc",
    "schizo",
    "shmem_RUNTIME_QUERY_hint",
    "snapc",
    "state",
    "tmpdir_base",
    "universe",
];
/// Suffixes of variables that Kubernetes sets in a pod for each existing service, such as
/// `NCCL_TEST_SERVICE_HOST` for the service nccl-test.
const OF_A_SERVICE: &[&str] = &["_SERVICE_HOST", "_SERVICE_PORT", "_PORT"];
const MAX_VARIABLES: usize = 256;

/// The start of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Started {
    pub(super) variables: BTreeMap<String, String>,
    /// The arguments by name, without dashes.
    arguments: BTreeMap<String, String>,
    /// The number of variables and arguments that were left out as possible secrets.
    pub(super) secret: usize,
    /// The number of arguments over the limit.
    pub(super) over: usize,
    /// The number of GPUs that it is given; `None` for all.
    visible_gpus: Option<usize>,
    files: Vec<Named>,
}

impl Started {
    /// An error if the process may not be inspected, or has exited; `TimedOut` if reading it takes
    /// too long.
    pub(super) fn read(roots: &Roots, pid: u32) -> io::Result<Self> {
        let environ = processes::environ(roots, pid)?;
        let mut found = Self::from_environ(&environ);
        let cmdline = processes::cmdline(roots, pid)?;
        let arguments = Arguments::of(&cmdline);
        (found.arguments, found.over) = (arguments.shown, arguments.over);
        found.secret += arguments.secret;
        if let Some(starter) = Starter::of_process(roots, pid) {
            let arguments = files(&cmdline);
            found.files = arguments.iter().filter_map(|a| starter.file(a)).take(MAX_FILES).collect();
        }
        Ok(found)
    }

    fn from_environ(environ: &[u8]) -> Self {
        let mut found = Self::default();
        let pairs = environ.split(|b| *b == 0).filter_map(|v| core::str::from_utf8(v).ok()?.split_once('='));
        for (name, value) in pairs.filter(|(name, _)| is_setting(name)) {
            if VISIBLE.contains(&name) {
                let gpus = visible(value);
                // Each of them leaves so many of those that another one leaves.
                found.visible_gpus = Some(found.visible_gpus.map_or(gpus, |had| had.min(gpus)));
                if !is_list_of_numbers(value) {
                    continue;
                }
            }
            if is_secret(name) || is_secret_value(value) {
                found.secret += 1;
            } else if found.variables.len() < MAX_VARIABLES {
                found.variables.entry(name.to_owned()).or_insert_with(|| shown(value));
            }
        }
        found
    }
}

/// The settings of all processes of a run on this node, which has so many GPUs.
pub(super) fn settings(processes: &[&Started], more: &[PathBuf], gpus: usize) -> Settings {
    let mut found = Settings::new();
    let Some((first, others)) = processes.split_first() else { return found };
    for name in processes.iter().flat_map(|p| p.variables.keys()) {
        let value = first.variables.get(name);
        let same = others.iter().all(|p| p.variables.get(name) == value);
        let value = value.filter(|_| same).map_or(DIFFERS_BY_RANK, String::as_str);
        found.insert(format!("env.{name}"), value.to_owned());
    }
    for name in processes.iter().flat_map(|p| p.arguments.keys()) {
        let value = first.arguments.get(name);
        let same = others.iter().all(|p| p.arguments.get(name) == value);
        let value = value.filter(|_| same).map_or(DIFFERS_BY_RANK, String::as_str);
        found.insert(format!("{ARGUMENT}{name}"), value.to_owned());
    }
    let visible = |p: &Started| p.visible_gpus.or_else(|| (gpus > 0).then_some(gpus));
    let agree = others.iter().all(|p| visible(p) == visible(first));
    let number = || visible(first).map_or_else(|| ALL_VISIBLE.to_owned(), |gpus| gpus.to_string());
    let value = if agree { number() } else { DIFFERS_BY_RANK.to_owned() };
    found.insert(VISIBLE_GPUS.to_owned(), value);
    for file in first.files.iter().filter(|file| others.iter().all(|p| p.files.contains(file))) {
        found.extend(file.contents().map(|value| (format!("file.{}", file.name), value)));
    }
    found.extend(files_of(more));
    found
}

/// The configured files that exist.
pub(super) fn files_of(paths: &[PathBuf]) -> Settings {
    let named = |path: &PathBuf| {
        let name = path.file_name()?.to_string_lossy().into_owned();
        Some((format!("file.{name}"), contents_of(path)?))
    };
    paths.iter().take(MAX_FILES).filter_map(named).collect()
}

fn is_setting(name: &str) -> bool {
    let plain = name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let wanted = PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || NAMES.contains(&name);
    plain && wanted && !OF_A_RANK.contains(&name) && !is_bookkeeping(name)
}

/// The number of GPUs in `CUDA_VISIBLE_DEVICES`, up to the first invalid one (CUDA C++ Programming
/// Guide, "CUDA Environment Variables").
fn visible(value: &str) -> usize {
    value.split(',').map(str::trim).take_while(|gpu| !gpu.is_empty() && !gpu.starts_with('-')).count()
}

fn is_list_of_numbers(value: &str) -> bool {
    value.bytes().all(|b| b.is_ascii_digit() || matches!(b, b',' | b' ' | b'-'))
}

/// Whether a launcher, rather than a person, sets the variable for its processes.
fn is_bookkeeping(name: &str) -> bool {
    let of =
        |part: &str, rest: &str| rest.strip_prefix(part).is_some_and(|r| r.is_empty() || r.starts_with('_'));
    let of_runtime = |rest: &str| OPEN_MPI_RUNTIME.iter().any(|framework| of(framework, rest));
    let of_service = OF_A_SERVICE.iter().any(|end| name.ends_with(end))
        || name.contains("_SERVICE_PORT_")
        || ["_TCP", "_UDP"]
            .iter()
            .any(|protocol| name.rsplit_once("_PORT_").is_some_and(|(_, r)| r.contains(protocol)));
    name.strip_prefix(OPEN_MPI).map_or(of_service, of_runtime)
}

#[cfg(any(test, feature = "fuzz"))]
pub(super) fn fuzz(bytes: &[u8]) {
    let started = Started::from_environ(bytes);
    assert!(started.variables.keys().all(|name| is_setting(name) && !is_secret(name)));
    assert!(started.variables.values().all(|value| !is_secret_value(value)));
    assert!(files(bytes).len() <= MAX_FILES);
    let shown = Arguments::of(bytes).shown;
    assert!(shown.len() <= arguments::MAX_SHOWN);
    assert!(shown.values().all(|value| value.len() <= 64 && !is_secret_value(value)));
    let _ = settings(&[&started, &started], &[], 8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_and_no_secrets() {
        let started = Started::from_environ(
            [
                "NCCL_IB_HCA=mlx5_0,mlx5_3",
                "NCCL_API_KEY=canary",
                "TORCH_HUB_TOKEN=canary",
                "WANDB_API_KEY=canary",
                "OMPI_MCA_btl_x=ada:canary@proxy:3128",
                "XLA_FLAGS=--dump_to=gs://b?sig=canary",
                "CUDA_VISIBLE_DEVICES=3",
                "LD_PRELOAD=",
                "NCCL_IB_HCA=again",
                "HOME=/root",
                "UCX_BAD NAME=1",
            ]
            .join("\0")
            .as_bytes(),
        );
        let want = [("CUDA_VISIBLE_DEVICES", "3"), ("LD_PRELOAD", ""), ("NCCL_IB_HCA", "mlx5_0,mlx5_3")];
        assert_eq!(started.variables, want.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        assert_eq!(started.secret, 4);
    }

    #[test]
    fn which_gpus_a_process_is_given() {
        let of = |environ: &str| settings(&[&Started::from_environ(environ.as_bytes())], &[], 0);
        let value = |settings: &Settings, key: &str| settings.get(key).cloned();
        for (list, count, shown) in [
            ("0,1,2,3", "4", Some("0,1,2,3")),
            ("3", "1", Some("3")),
            ("", "0", Some("")),
            ("0,-1,1", "1", Some("0,-1,1")),
            ("GPU-3c6e8a4b,GPU-77aa", "2", None),
        ] {
            let found = of(&format!("CUDA_VISIBLE_DEVICES={list}"));
            assert_eq!(value(&found, "visible_gpus").as_deref(), Some(count), "{list}");
            assert_eq!(value(&found, "env.CUDA_VISIBLE_DEVICES").as_deref(), shown, "{list}");
        }
        assert_eq!(value(&of("HOME=/root"), "visible_gpus").as_deref(), Some("all"));
        assert_eq!(
            value(&of("ROCR_VISIBLE_DEVICES=0,1,2\0HIP_VISIBLE_DEVICES=0"), "visible_gpus").as_deref(),
            Some("1")
        );
        let all = Started::from_environ(b"HOME=/root");
        let listed = Started::from_environ(b"CUDA_VISIBLE_DEVICES=0,1");
        assert_eq!(value(&settings(&[&all], &[], 8), "visible_gpus").as_deref(), Some("8"));
        assert_eq!(value(&settings(&[&all, &listed], &[], 2), "visible_gpus").as_deref(), Some("2"));
        // One rank for each GPU.
        let ranks =
            ["0", "1"].map(|gpu| Started::from_environ(format!("CUDA_VISIBLE_DEVICES={gpu}").as_bytes()));
        let found = settings(&[&ranks[0], &ranks[1]], &[], 8);
        assert_eq!(value(&found, "visible_gpus").as_deref(), Some("1"));
        assert_eq!(value(&found, "env.CUDA_VISIBLE_DEVICES").as_deref(), Some(DIFFERS_BY_RANK));
    }

    #[test]
    fn what_launchers_keep_by_variables_is_no_setting() {
        // Variables of Open MPI 1 to 5 with ORTE, PRRTE and Slurm, of torchrun, MPICH, MVAPICH and
        // Slurm, and of Kubernetes.
        let kept = "OMPI_MCA_orte_local_daemon_uri OMPI_MCA_orte_hnp_uri OMPI_MCA_orte_ess_node_rank OMPI_MCA_orte_ess_num_procs \
            OMPI_MCA_orte_ess_vpid OMPI_MCA_orte_top_session_dir OMPI_MCA_orte_jobfam_session_dir OMPI_MCA_orte_tmpdir_base \
            OMPI_MCA_orte_precondition_transports OMPI_MCA_orte_bound_at_launch OMPI_MCA_orte_app_num OMPI_MCA_orte_launch \
            OMPI_MCA_ess OMPI_MCA_ess_base_jobid OMPI_MCA_ess_base_vpid OMPI_MCA_initial_wdir OMPI_MCA_pmix OMPI_MCA_plm \
            OMPI_MCA_plm_slurm_args OMPI_MCA_grpcomm OMPI_MCA_pubsub OMPI_MCA_rmaps_ppr_n_pernode OMPI_MCA_opal_ess_num_procs \
            OMPI_MCA_shmem_RUNTIME_QUERY_hint OMPI_MCA_mpi_yield_when_idle OMPI_MCA_mpi_oversubscribe OMPI_MCA_schizo_proxy \
            OMPI_COMM_WORLD_RANK OMPI_FILE_LOCATION PMIX_SERVER_URI41 PMIX_NAMESPACE PMIX_HOSTNAME PMIX_RANK PRTE_MCA_plm PMI_FD \
            PMI_RANK MV2_COMM_WORLD_RANK SLURM_PROCID SLURMD_NODENAME SLURM_LAUNCH_NODE_IPADDR TORCHELASTIC_RUN_ID \
            TORCHELASTIC_ERROR_FILE MASTER_ADDR MASTER_PORT GROUP_RANK HOSTNAME NCCL_HOSTID NCCL_COMM_ID NCCL_RAS_ADDR \
            NCCL_TOPO_DUMP_FILE NCCL_TEST_SERVICE_HOST NCCL_TEST_SERVICE_PORT_HTTP NCCL_TEST_PORT NCCL_TEST_PORT_80_TCP_ADDR";
        let kept: Vec<_> = kept.split_whitespace().filter(|name| is_setting(name)).collect();
        assert_eq!(kept, [""; 0]);
        let settings = "TORCHDYNAMO_DISABLE TORCHINDUCTOR_MAX_AUTOTUNE TRITON_INTERPRET ACCELERATE_MIXED_PRECISION \
            FSDP_SHARDING_STRATEGY HSA_FORCE_FINE_GRAIN_PCIE OMPI_MCA_pml OMPI_MCA_btl OMPI_MCA_btl_tcp_if_include OMPI_MCA_coll_hcoll_enable OMPI_MCA_osc \
            OMPI_MCA_opal_cuda_support OMPI_MCA_mpi_leave_pinned OMPI_MCA_essential NCCL_SOCKET_IFNAME NCCL_TOPO_FILE NCCL_IB_HCA \
            UCX_NET_DEVICES UCX_TLS FI_PROVIDER GLOO_SOCKET_IFNAME NCCL_PORTS CUDA_DEVICE_ORDER OMP_NUM_THREADS";
        let lost: Vec<_> = settings.split_whitespace().filter(|name| !is_setting(name)).collect();
        assert_eq!(lost, [""; 0]);
    }

    #[test]
    fn nodes_of_one_mpirun_are_set_up_alike() {
        let on = |node: u32| {
            let rank = |rank: u32| {
                let environ = format!(
                    "OMPI_MCA_btl=^openib\0OMPI_MCA_orte_local_daemon_uri=42.{node};tcp://10.0.0.{node}:3000\0\
                    OMPI_MCA_orte_ess_node_rank={rank}\0OMPI_MCA_orte_ess_vpid={rank}\0OMPI_MCA_ess_base_vpid={rank}\0\
                    OMPI_MCA_initial_wdir=/home/ada\0OMPI_MCA_orte_num_nodes=2\0NCCL_HOSTID=n{node}\0\
                    OMPI_MCA_orte_jobfam_session_dir=/tmp/ompi.n{node}.1000/pid.{node}"
                );
                Started::from_environ(environ.as_bytes())
            };
            settings(&[&rank(2 * node), &rank(2 * node + 1)], &[], 0)
        };
        assert_eq!(on(0), on(1));
        let want = [("env.OMPI_MCA_btl", "^openib"), ("visible_gpus", "all")];
        assert_eq!(on(0), want.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn what_differs_between_ranks_is_marked() {
        let of = |variables: &[&str]| Started::from_environ(variables.join("\0").as_bytes());
        let a = of(&["NCCL_DEBUG=INFO", "UCX_NET_DEVICES=mlx5_0", "NVTE_X=1"]);
        let b = of(&["UCX_NET_DEVICES=mlx5_1", "NVTE_X=1"]);
        let differs = "(differs by rank)";
        let want = [
            ("env.NCCL_DEBUG", differs),
            ("env.NVTE_X", "1"),
            ("env.UCX_NET_DEVICES", differs),
            ("visible_gpus", "all"),
        ];
        assert_eq!(settings(&[&a, &b], &[], 0), want.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        assert_eq!(settings(&[&b, &a], &[], 0), settings(&[&a, &b], &[], 0));
        assert_eq!(settings(&[&a], &[], 0).len(), 4);
        assert!(settings(&[], &[], 0).is_empty());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes(bytes: Vec<u8>) {
            fuzz(&bytes);
        }

        #[test]
        fn secrets_never_pass(prefix in "NCCL_|TORCH_|CUDA_", word in "KEY|TOKEN|SECRET|PASSWORD", tail in "[A-Z_]{0,9}") {
            let started = Started::from_environ(format!("{prefix}{word}{tail}=canary").as_bytes());
            proptest::prop_assert!(started.variables.is_empty());
        }
    }
}

"""Who this process is, read from what launchers leave in the environment.

Rank, world size and local rank come from one launcher only: mixing them is how eight ranks end up
calling themselves 0 (``mpirun`` inside an ``sbatch`` script inherits Slurm's variables of the one
batch process). The launcher nearest to the process wins.
"""

import os
import socket
import sys
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from . import _run_name

#: (rank, world, local rank), nearest launcher first.
_LAUNCHERS: Tuple[Tuple[str, Tuple[str, ...], Tuple[str, ...]], ...] = (
    ("RANK", ("WORLD_SIZE",), ("LOCAL_RANK",)),  # torchrun, accelerate, DeepSpeed, Kubeflow
    ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), ("OMPI_COMM_WORLD_LOCAL_RANK",)),
    ("MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",), ("MV2_COMM_WORLD_LOCAL_RANK",)),
    ("PMI_RANK", ("PMI_SIZE",), ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID")),
    ("PMIX_RANK", ("PMIX_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",)),
    ("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"), ("SLURM_LOCALID",)),
)
_FRAMEWORKS = ("torch", "jax", "tensorflow", "numpy")


class Identity(NamedTuple):
    rank: Optional[int]
    world: Optional[int]
    local_rank: Optional[int]
    job: Optional[str]
    #: How often the launcher has restarted us, by its environment; the exporter counts for itself
    #: and takes this as a hint.
    attempt: Optional[int]


def detect(env: Mapping[str, str]) -> Identity:
    rank = world = local = None
    for rank_key, world_keys, local_keys in _LAUNCHERS:
        rank = _integer(env, (rank_key,))
        if rank is not None:
            world, local = _integer(env, world_keys), _integer(env, local_keys)
            break
    job = _run_name.job(env)
    return Identity(rank, world, local, job.id if job else None, _run_name.restarts(env))


def of_torch_distributed() -> Tuple[Optional[int], Optional[int]]:
    """(rank, world) of an initialised process group. Never imports torch: a program with a group
    has imported it."""
    dist = sys.modules.get("torch.distributed")
    try:
        if dist is not None and dist.is_available() and dist.is_initialized():
            return int(dist.get_rank()), int(dist.get_world_size())
    except Exception:
        pass
    return None, None


def of_process_group() -> Tuple[Optional[int], Optional[int]]:
    """(rank, world) as the framework itself has agreed on it with its other processes."""
    rank, world = of_torch_distributed()
    return (rank, world) if rank is not None else of_jax_distributed()


def of_jax_distributed() -> Tuple[Optional[int], Optional[int]]:
    """(process, processes) after ``jax.distributed.initialize()``; asking JAX itself would start
    its backend, which is too early."""
    distributed = sys.modules.get("jax._src.distributed")
    try:
        state: Any = getattr(distributed, "global_state", None)
        if state is not None and state.client is not None:
            return int(state.process_id), int(state.num_processes)
    except Exception:
        pass
    return None, None


def framework() -> Tuple[Optional[str], Optional[str]]:
    """(name, version) of the training framework that this process has imported."""
    for name in _FRAMEWORKS:
        module = sys.modules.get(name)
        if module is not None:
            return name, str(getattr(module, "__version__", "")) or None
    return None, None


def host(env: Mapping[str, str]) -> Dict[str, Any]:
    """What helps to match this process to a node, a GPU and a job's record elsewhere."""
    found: Dict[str, Any] = {"hostname": socket.gethostname()}
    for key, variable in (
        ("cuda_visible_devices", "CUDA_VISIBLE_DEVICES"),
        ("node_rank", "GROUP_RANK"),
        ("job_name", "SLURM_JOB_NAME"),
        ("job_step", "SLURM_STEP_ID"),
        ("wandb_run_id", "WANDB_RUN_ID"),
        ("master_addr", "MASTER_ADDR"),
    ):
        if env.get(variable):
            found[key] = env[variable]
    return found


def times(env: Mapping[str, str]) -> Dict[str, int]:
    """When the job was submitted and given its nodes, as far as the environment has it: Slurm sets
    the latter since 22.05, and ours are for whoever submits. An exporter on the node finds out when
    the process began, and judges what is plausible."""
    found: Dict[str, int] = {}
    for key, variables in (
        ("submitted", ("STEPWATCH_JOB_SUBMITTED",)),
        ("allocated", ("STEPWATCH_JOB_STARTED", "SLURM_JOB_START_TIME")),
    ):
        at = _integer(env, variables)
        if at:
            found[key] = at
    return found


def started() -> Optional[float]:
    """When this process began, by the kernel; None where there is no ``/proc``."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            ticks = int(stat.read().rpartition(b")")[2].split()[19])
        with open("/proc/stat", "rb") as stat:
            booted = next(int(line.split()[1]) for line in stat if line.startswith(b"btime "))
        return booted + ticks / os.sysconf("SC_CLK_TCK")
    except Exception:
        return None


def _integer(env: Mapping[str, str], keys: Tuple[str, ...]) -> Optional[int]:
    for key in keys:
        try:
            n = int(env[key])
        except (KeyError, ValueError):
            continue
        if n >= 0:
            return n
    return None

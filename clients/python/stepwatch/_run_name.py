"""Which run a process belongs to: the rule of ``wire/src/run_name.rs``, held to the same table of
cases.

A name that somebody gave; else the id of the job behind its name; else the script and when it was
started. Every rank finds the same answer on its own.
"""

import os
import socket
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

MAX_CHARS = 128
_MAX_VALUE = 1024
#: Ancestors looked at.
_GENERATIONS = 8

#: The name, and how a launcher of ours came by it; the latter is absent where a person gave it.
NAME, NAMED_BY = "STEPWATCH_RUN", "STEPWATCH_RUN_BY"
_TRACKERS = ("WANDB_RUN_ID", "MLFLOW_RUN_ID")
_TITLE = "WANDB_NAME"
_LAUNCHES = ("TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE")
_RESTARTS = ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
_RANKS = ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
_WORLDS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE")
#: ``LOCAL_SIZE`` is DeepSpeed's (``deepspeed/launcher/launch.py``), which sets ``MASTER_ADDR`` to
#: the node's own address also where there is one node.
_LOCAL_WORLDS = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
#: Where the agents of torchrun meet, if a variable says it, and the port of one that has none.
_ENDPOINT, _DEFAULT_PORT = "PET_RDZV_ENDPOINT", "29400"
#: Options of launchers that say what all their nodes have in common: the variables that their ranks
#: will find it in.
_COMMON = {
    "--rdzv-id": "TORCHELASTIC_RUN_ID",
    "--master-addr": "MASTER_ADDR",
    "--main-process-ip": "MASTER_ADDR",
    "--master-port": "MASTER_PORT",
    "--main-process-port": "MASTER_PORT",
    "--nnodes": "WORLD_SIZE",
    "--num-machines": "WORLD_SIZE",
}
#: Launchers that are files of Python.
_LAUNCHERS = ("distributed/run.py", "distributed/launch.py", "commands/launch.py", "launcher/launch.py")
#: Options of ``stepwatch run`` without a value.
_FLAGS = ("--no-output", "--no-kubeflow", "--no-env")
#: The id that DeepSpeed's launcher gives every elastic training.
_SHARED_LAUNCH = "123456789"
_SLURM = ("SLURM_HET_JOB_ID", "SLURM_JOB_ID_HET_GROUP_0", "SLURM_JOB_ID", "SLURM_JOBID")
_SLURM_NAME = ("SLURM_JOB_NAME_HET_GROUP_0", "SLURM_JOB_NAME")
_SHELLS = frozenset("sh bash dash zsh fish ksh tcsh csh ash".split())
#: Programs that start any command given to them, or adopt it.
_HOSTS = frozenset("systemd init tini dumb-init docker-init catatonit sshd tmux screen xargs parallel".split())


class Process(NamedTuple):
    """A process, as far as the rule needs it."""

    env: Mapping[str, str]
    argv: Sequence[str]
    started: float
    #: What no other process of any node has: boot id, namespace, pid, start.
    mark: str


class Job(NamedTuple):
    #: As the scheduler prints it, and as it follows the name of the run.
    id: str
    short: str
    name: Optional[str]
    variable: str


class Named(NamedTuple):
    run: str
    by: str
    why: str
    #: What it would be called if nobody had given it a name: what joins it to what else is known of
    #: its job.
    unnamed: str
    job: Optional[Job]
    #: How often launchers and schedulers report that they restarted it.
    restarts: Optional[int]


def name(chain: Sequence[Process]) -> Named:
    """The rule. ``chain`` is the process, its parent and so on, as far as they may be looked at."""
    chain = [unwrapped(chain[0]), *chain[1:]] if chain else chain
    env = chain[0].env if chain else {}
    found = job(env)
    unnamed = (
        _of_job(env, chain, found) or _of_launcher(env) or _of_launch(env, chain) or _of_meeting(env, chain) or _of_script(env, chain)
    )
    run, by, why = given(env) or unnamed
    return Named(run, by, why, unnamed[0], found, restarts(env))


_Answer = Tuple[str, str, str]


def given(env: Mapping[str, str]) -> Optional[_Answer]:
    """The name that somebody gave, with by what and why."""
    variables = _TRACKERS if _get(env, NAMED_BY) else (NAME,) + _TRACKERS
    for variable in variables:
        found = _get(env, variable)
        if found:
            return _clip(found, MAX_CHARS), "name", "named by " + variable
    return None


def _of_job(env: Mapping[str, str], chain: Sequence[Process], job: Optional[Job]) -> Optional[_Answer]:
    if job is None:
        return None
    why = "job %s (%s)" % (job.id, job.variable)
    if job.name:
        why += ", named " + job.name
    return _joined(job.name or _title(env, chain), job.short), "job", why


def _of_launcher(env: Mapping[str, str]) -> Optional[_Answer]:
    run = _get(env, NAME)
    return (_clip(run, MAX_CHARS), "launcher", "named by the stepwatch run that started it") if run else None


def _of_launch(env: Mapping[str, str], chain: Sequence[Process]) -> Optional[_Answer]:
    for variable in _LAUNCHES:
        launch = _get(env, variable)
        if launch and launch != _SHARED_LAUNCH:
            return _joined(_title(env, chain), _short(launch)), "launch", "launch %s (%s)" % (launch, variable)
    return None


def _of_meeting(env: Mapping[str, str], chain: Sequence[Process]) -> Optional[_Answer]:
    """Ranks of several nodes share no process, but all of them are given the address where they
    meet."""
    world, here = _number(env, _WORLDS), _number(env, _LOCAL_WORLDS)
    address, port = _get(env, "MASTER_ADDR"), _get(env, "MASTER_PORT")
    if world is None or world <= (1 if here is None else here) or address is None or _is_loopback(address):
        return None
    # Agents that start their ranks again may give them another port.
    endpoint = _get(env, _ENDPOINT)
    agents = (told(process.argv).get("MASTER_PORT") for process in chain[1 : _leader(chain) + 1])
    port = (_port(endpoint) if endpoint else next((found for found in agents if found), None)) or port
    place = "%s-%s" % (address, port) if port else address
    why = "%d ranks of several nodes that meet at %s (MASTER_ADDR, MASTER_PORT)" % (world, place)
    return _joined(_title(env, chain), place), "meeting", why


def _of_script(env: Mapping[str, str], chain: Sequence[Process]) -> _Answer:
    leader = chain[_leader(chain)] if chain else Process({}, [], 0.0, "")
    started, script = _stamp(leader.started), _title(env, chain)
    why = "%s, started %s UTC, with no name and no job" % (script, started)
    return _joined(script, "%s-%08x" % (started, _hash(leader.mark))), "script", why


def _title(env: Mapping[str, str], chain: Sequence[Process]) -> str:
    scripts = (script_of(process.argv) for process in chain[: _leader(chain) + 1])
    return _get(env, _TITLE) or next((script for script in scripts if script), None) or "run"


def _leader(chain: Sequence[Process]) -> int:
    """Index of the process that started every process of this run on this node."""
    at = 0
    while at + 1 < len(chain) and (_is_forked(chain[at], chain[at + 1]) or _is_ranked(chain[at], chain[at + 1])):
        at += 1
    return at


def _is_forked(process: Process, parent: Process) -> bool:
    for word in process.argv:
        if word == "--multiprocessing-fork" or "multiprocessing.forkserver" in word or "multiprocessing.spawn" in word:
            return True
    return bool(process.argv) and list(process.argv) == list(parent.argv) and _program(process.argv).startswith("python")


def _is_ranked(process: Process, parent: Process) -> bool:
    """Whether the parent made this process one of its ranks. A shell in which somebody set a rank
    has started one process, unless it says that there are more."""
    own = any(process.env.get(rank) and process.env.get(rank) != parent.env.get(rank) for rank in _RANKS)
    program = _program(parent.argv)
    is_host = program.lstrip("-") in _SHELLS or program.rstrip(":") in _HOSTS
    return own and (not is_host or (_number(process.env, _WORLDS) or 0) > 1)


def job(env: Mapping[str, str]) -> Optional[Job]:
    """The job that we are of, by the variables of a scheduler."""
    ours = _get(env, "STEPWATCH_JOB_ID")
    if ours:
        return Job(ours, _short(ours), _get(env, "STEPWATCH_JOB_NAME"), "STEPWATCH_JOB_ID")
    for variable in _SLURM:
        found = _get(env, variable)
        if found:
            array, task = _get(env, "SLURM_ARRAY_JOB_ID"), _get(env, "SLURM_ARRAY_TASK_ID")
            title = next(filter(None, (_get(env, key) for key in _SLURM_NAME)), None)
            return Job(found, "%s_%s" % (array, task) if array and task else found, title, variable)
    found = _get(env, "PBS_JOBID")
    if found:
        return Job(found, found.split(".")[0].replace("[", "_").replace("]", ""), _get(env, "PBS_JOBNAME"), "PBS_JOBID")
    found = _get(env, "LSB_JOBID")
    if found:
        index = _get(env, "LSB_JOBINDEX")
        found = "%s_%s" % (found, index) if index and index != "0" else found
        return Job(found, found, (_get(env, "LSB_JOBNAME") or "").split("[")[0] or None, "LSB_JOBID")
    found, task = _get(env, "JOB_ID"), _get(env, "SGE_TASK_ID")
    if found and task:
        found = found if task == "undefined" else "%s_%s" % (found, task)
        return Job(found, found, _get(env, "JOB_NAME"), "JOB_ID")
    return None


def restarts(env: Mapping[str, str]) -> Optional[int]:
    counts = [int(count) for count in (_get(env, key) for key in _RESTARTS) if count and count.isascii() and count.isdigit()]
    return sum(counts) if counts else None


def unwrapped(process: Process) -> Process:
    """``stepwatch run [options] -- COMMAND`` as if it were the command, with what the options
    say."""
    options, command = _split(process.argv)
    if not command:
        return process
    env = dict(process.env, **told(command))
    for option, value in _pairs(options):
        if option == "--job":
            env["STEPWATCH_JOB_ID"] = value
        elif option == "--run":
            env[NAME] = value
            env.pop(NAMED_BY, None)
    return process._replace(env=env, argv=command)


def told(command: Sequence[str]) -> Dict[str, str]:
    """What a launcher is told that its ranks will find in their environment."""
    found: Dict[str, str] = {}
    scripts = (at for at, word in enumerate(command) if word.endswith(".py") and not word.endswith(_LAUNCHERS))
    for option, value in _pairs(command[: next(scripts, len(command))]):  # what follows is for the script
        if option in _COMMON:
            found[_COMMON[option]] = value
        elif option == "--rdzv-endpoint":
            found["MASTER_ADDR"], found["MASTER_PORT"] = value.rpartition(":")[0] or value, _port(value)
    return found


def _port(endpoint: str) -> str:
    return endpoint.rpartition(":")[2] if ":" in endpoint else _DEFAULT_PORT


def _pairs(words: Sequence[str]) -> List[Tuple[str, str]]:
    """Options with what follows, be it theirs or not."""
    found = []
    for at, word in enumerate(words):
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            found.append((option.replace("_", "-"), value if equals else "".join(words[at + 1 : at + 2])))
    return found


def _split(argv: Sequence[str]) -> Tuple[Sequence[str], Sequence[str]]:
    """Options and command of ``stepwatch run``, started as a program or as a module; nothing of
    another."""
    first = 1 if _program(argv).startswith("python") else 0
    at = next((at for at in range(first, len(argv)) if not argv[at].startswith("-")), len(argv))
    module = at > 0 and argv[at - 1].startswith("-") and argv[at - 1] != "-m"
    if module or at + 1 >= len(argv) or _stem(argv[at]) != "stepwatch" or argv[at + 1] != "run":
        return (), ()
    words, end = argv[at + 2 :], 0
    while end < len(words) and words[end].startswith("-") and words[end] != "--":
        end += 1 if "=" in words[end] or words[end] in _FLAGS else 2
    return words[:end], words[end + 1 :] if words[end : end + 1] == ["--"] else words[end:]


def script_of(argv: Sequence[str]) -> Optional[str]:
    """The script of a command line, without directory and suffix; the module behind ``-m``; or the
    program. Of ``stepwatch run`` it is that of the command."""
    command = _split(argv)[1]
    if command:
        return script_of(command)
    for word in argv:
        if word.endswith((".py", ".sh")) and not any(c.isspace() for c in word):
            return _stem(word)
    if "-m" in argv:
        module = list(argv)[list(argv).index("-m") + 1 :]
        return module[0].rsplit(".", 1)[-1] or None if module else None
    if _program(argv).startswith("python") or _program(argv).lstrip("-") in _SHELLS:
        return _stem(argv[1]) if len(argv) > 1 and not argv[1].startswith("-") else None
    return _stem(argv[0]) if argv else None


def _program(argv: Sequence[str]) -> str:
    return argv[0].rsplit("/", 1)[-1] if argv else ""


def _stem(path: str) -> Optional[str]:
    file = path.rsplit("/", 1)[-1]
    return file.rpartition(".")[0] or file or None


def _joined(title: str, end: str) -> str:
    end = _clip(end, MAX_CHARS // 2)
    return "%s-%s" % (_clip(title, max(MAX_CHARS - len(end) - 1, 0)), end)


def _clip(text: str, limit: int) -> str:
    return _plain(text)[:limit]


def _plain(text: str) -> str:
    return "".join(c for c in text if not (c < " " or "\x7f" <= c <= "\x9f"))


def _get(env: Mapping[str, str], variable: str) -> Optional[str]:
    value = _plain(env.get(variable) or "").strip()
    return value if value and value.lower() != "none" and len(value) <= _MAX_VALUE else None


def _number(env: Mapping[str, str], variables: Sequence[str]) -> Optional[int]:
    for variable in variables:
        value = _get(env, variable)
        if value and value.isascii() and value.isdigit():
            return int(value)
    return None


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("localhost", "::1", "0.0.0.0", "::")


def _short(found: str) -> str:
    """Of a UUID its first part, which is enough beside a name."""
    parts = found.split("-")
    uuid = [len(part) for part in parts] == [8, 4, 4, 4, 12] and all(c in "0123456789abcdefABCDEF" for c in "".join(parts))
    return parts[0] if uuid else found


def _hash(text: str) -> int:
    value = 0xCBF29CE484222325
    for byte in text.encode("utf-8", "surrogateescape"):
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return (value ^ (value >> 32)) & 0xFFFFFFFF


def _stamp(unix: float) -> str:
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(int(unix)))


def describe(named: Named, name: Any = None) -> Dict[str, Any]:
    """The fields of ``hello`` about a run that has this name; ``name`` is one that the script gave
    it."""
    if name:
        return {"run_by": "name", "run_why": "named by the script", "run_unnamed": named.unnamed}
    return {"run_by": named.by, "run_why": named.why, "run_unnamed": named.unnamed}


# -- this process ----------------------------------------------------------------------------------


def here(env: Optional[Mapping[str, str]] = None, argv: Optional[Sequence[str]] = None) -> Named:
    """The run of this process, or of the command ``argv`` that it is about to run."""
    chain = _chain(os.environ if env is None else env)
    return name(chain if argv is None else [chain[0]._replace(argv=list(argv))] + chain[1:])


def _chain(env: Mapping[str, str]) -> List[Process]:
    """This process and its ancestors. Where there is no ``/proc``, this process alone, by its own
    data."""
    found: List[Process] = []
    try:
        boot, booted = _read("/proc/sys/kernel/random/boot_id").strip(), _booted()
        pid = os.getpid()
        while pid > 0 and len(found) < _GENERATIONS:
            parent, ticks = _stat(pid)
            started = booted + ticks / os.sysconf("SC_CLK_TCK")
            argv = _read("/proc/%d/cmdline" % pid).split("\0")[:-1]
            found.append(Process(_environ(pid) if found else env, argv, started, "%s/%s/%d/%d" % (boot, _namespace(pid), pid, ticks)))
            pid = parent
    except (OSError, ValueError, IndexError):
        pass
    if not found:
        import sys

        now = time.time()
        found = [Process(env, ["python"] + list(getattr(sys, "argv", []))[:1], now, "%s/%d/%r" % (socket.gethostname(), os.getpid(), now))]
    return found


def _environ(pid: int) -> Dict[str, str]:
    try:
        return dict(pair.split("=", 1) for pair in _read("/proc/%d/environ" % pid).split("\0") if "=" in pair)
    except OSError:
        return {}


def _namespace(pid: int) -> str:
    try:
        return os.readlink("/proc/%d/ns/pid" % pid)
    except OSError:
        return ""


def _stat(pid: int) -> Tuple[int, int]:
    """Parent, and clock ticks after boot at which it started."""
    fields: List[Any] = _read("/proc/%d/stat" % pid).rsplit(")", 1)[1].split()
    return int(fields[1]), int(fields[19])


def _booted() -> int:
    for line in _read("/proc/stat").splitlines():
        if line.startswith("btime "):
            return int(line.split()[1])
    raise ValueError("no btime")


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as f:
        return f.read()

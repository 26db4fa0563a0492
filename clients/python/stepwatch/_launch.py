"""``stepwatch run -- python train.py``: runs a training command as it is, and reports what it
prints and how it ends.

The command may be anything: Python, ``torchrun``, a task of ``srun``, ``accelerate launch``, a
shell script. It sees the same terminal, input and signals as without us, and we end as it ends. The
exporter reads metrics out of the lines.
"""

import argparse
import errno
import json
import os
import secrets
import signal
import sys
import tempfile
import urllib.parse
from typing import Any, Dict, List, Mapping, Optional

from . import _identity, _run_name
from ._child import Child, die_of
from ._cli import USAGE
from ._events import Builder
from ._output import QUEUED, Tee, last_words, recorded
from ._run import HEARTBEAT
from ._sender import GOODBYE, Sender, finish_all
from ._transport import from_environment
from ._version import __version__
from ._wire import text

#: Batches of output kept for a receiver that is slow or away.
QUEUE_LIMIT = 4 * QUEUED
#: Seconds for the last output and the goodbye to leave.
EXIT_WAIT = 0.25

#: What helps to find out why a run failed and costs nothing; only where nobody has decided
#: otherwise.
DEFAULTS = {
    "PYTHONUNBUFFERED": "1",  # what was printed before a crash is seen
    "PYTHONFAULTHANDLER": "1",  # a segmentation fault prints where Python was
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",  # a hung collective leaves what every rank was doing
    "TORCH_FR_BUFFER_SIZE": "2000",
}
#: Commands that start processes on other machines, where a file of ours is not.
_REMOTE = frozenset("srun mpirun mpiexec ssh pdsh sbatch kubectl docker podman ray".split())
#: Not empty and the same on every machine. Transformers sends its content as a token, which nobody
#: asks for.
_ANY_TOKEN = "/proc/sys/kernel/ostype"

DESCRIPTION = """\
Runs COMMAND and reports its output, its exit code and its last words to the exporter, which reads loss, learning rate, step
time and the like out of the lines. The script needs no change; one that uses the client reports all the more.

  stepwatch run -- python train.py --lr 3e-4
  stepwatch run --run llama-70b -- torchrun --nproc-per-node 8 train.py
  srun stepwatch run -- python train.py

The command has the terminal, the input and the signals that it would have without us, and its exit status is ours."""

EPILOG = """\
Exit status: that of COMMAND, or its signal; 127 when it is not found, 126 when it cannot be run, 64 for a mistake before it.

Set for the command where it is not set already: PYTHONUNBUFFERED, PYTHONFAULTHANDLER, TORCH_NCCL_DUMP_ON_TIMEOUT,
TORCH_FR_BUFFER_SIZE, TORCHELASTIC_ERROR_FILE. Where a URL is known (--url, STEPWATCH_URL), also what makes the Trainer of
Transformers 5 report its progress there by itself: KUBEFLOW_TRAINER_SERVER_URL and KUBEFLOW_TRAINER_SERVER_TOKEN."""


def arguments(parser: Any) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.usage = "stepwatch run [options] [--] COMMAND [ARGUMENT ...]"
    about = parser.add_argument_group("what is known of the run")
    about.add_argument("--run", metavar="NAME", help="its name (default: $STEPWATCH_RUN, or the job's name and id, or the script and when it was started)")
    about.add_argument("--model", metavar="JSON|FILE", type=_model, help="its dimensions, for the MFU: n_params, layers, seq_len, ...")
    about.add_argument("--world", metavar="N", type=_natural, help="number of ranks")
    about.add_argument("--rank", metavar="N", type=_natural, help="rank of this process (default: the launcher's environment)")
    about.add_argument("--job", metavar="ID", help="id of the job (default: the scheduler's)")
    about.add_argument("--dtype", metavar="TYPE", help="type that matrices are multiplied in, for the MFU: bfloat16, float8, ...")
    where = parser.add_argument_group("where it is reported")
    where.add_argument("--socket", metavar="PATH", help="socket of the exporter (default: $STEPWATCH_SOCKET)")
    where.add_argument("--url", metavar="URL", help="address of the exporter where there is no socket (default: $STEPWATCH_URL)")
    where.add_argument("--dir", metavar="DIR", help="folder for a file of events where there is neither (default: $STEPWATCH_DIR)")
    less = parser.add_argument_group("what is left alone")
    less.add_argument("--no-output", action="store_true", help="do not report the output, only how the command ends")
    less.add_argument("--no-kubeflow", action="store_true", help="do not make Transformers report by itself")
    less.add_argument("--no-env", action="store_true", help="set nothing for the command but STEPWATCH_*")
    parser.add_argument("command_line", nargs="...", metavar="COMMAND", help="the command, behind -- or as the first argument that is no option")


def run(options: Any) -> int:
    command: List[str] = options.command_line
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        print("stepwatch run: no command\nTry 'stepwatch run --help'.", file=sys.stderr)
        return USAGE
    named = name_of(os.environ, options, command)
    name = named.run
    errors = os.path.join(tempfile.gettempdir(), "stepwatch-%s.json" % secrets.token_hex(8))
    env = environment(os.environ, options, named, command, errors)
    ways = [] if _disabled(env) else from_environment(env, name, _rank(options, env))
    try:
        if not ways:
            os.execvpe(command[0], command, env)
        child = Child(command, env)
    except (OSError, ValueError) as e:
        return _not_run(command[0], e)
    status = _Report(options, env, named, ways).follow(child, command, errors)
    if status < 0:
        die_of(-status)
    return status


def environment(
    outer: Mapping[str, str], options: Any, named: _run_name.Named, command: List[str], errors: str
) -> Dict[str, str]:
    """What the command gets: ours, and what makes it report."""
    name = named.run
    env = dict(outer, STEPWATCH_RUN=name)
    # A job that is submitted from here inherits both, and must not take our name for one that
    # somebody gave it.
    env[_run_name.NAMED_BY] = "" if named.by == "name" else named.by
    if options.job:
        env["STEPWATCH_JOB_ID"] = options.job
    for key, value in (("STEPWATCH_SOCKET", options.socket), ("STEPWATCH_URL", options.url), ("STEPWATCH_DIR", options.dir)):
        if value is not None:
            env[key] = value
    if options.no_env or _disabled(env):
        return env
    for key, value in DEFAULTS.items():
        env.setdefault(key, value)
    if os.path.basename(command[0]) not in _REMOTE:
        env.setdefault("TORCHELASTIC_ERROR_FILE", errors)
    url = env.get("STEPWATCH_URL")
    if url and not options.no_kubeflow and not any(key in env for key in ("KUBEFLOW_TRAINER_SERVER_URL", "DISABLE_KUBEFLOW_INTEGRATION")):
        address = kubeflow(url, name)
        if address is not None:
            env["KUBEFLOW_TRAINER_SERVER_URL"] = address
            env.setdefault("KUBEFLOW_TRAINER_SERVER_TOKEN", _ANY_TOKEN)
    return env


def kubeflow(url: str, name: str) -> Optional[str]:
    """Where the Trainer of Transformers finds the exporter; None where it would need a password,
    which it cannot send."""
    parts = urllib.parse.urlsplit(url if "//" in url else "http://" + url)
    if parts.username or not parts.hostname:
        return None
    path = parts.path.rstrip("/")
    if path.endswith("/v1/events"):
        path = path[: -len("/v1/events")]
    return "%s://%s%s/v1/kubeflow/%s" % (parts.scheme, parts.netloc, path, urllib.parse.quote(name, safe=""))


def name_of(env: Mapping[str, str], options: Any, command: List[str]) -> _run_name.Named:
    """As the client in the script would name it, had it been started without us."""
    known = dict(env, **_run_name.told(command))
    if options.job:
        known["STEPWATCH_JOB_ID"] = options.job
    named = _run_name.here(known, command)
    return named._replace(run=options.run, by="name", why="named by --run") if options.run else named


class _Report:
    """The events of a command that the exporter gets."""

    def __init__(self, options: Any, env: Mapping[str, str], named: _run_name.Named, ways: Any) -> None:
        found = _identity.detect(env)
        about: Dict[str, Any] = dict(
            _identity.host(env), job=options.job or found.job, local_rank=found.local_rank, attempt_hint=found.attempt
        )
        about.update(model=options.model, dtype=options.dtype, client_version=__version__)
        about.update(run_by=named.by, run_why=named.why, run_unnamed=named.unnamed)
        world = options.world if options.world is not None else found.world
        self._builder = Builder(named.run, _rank(options, env), world, about, [], role="launcher")
        self._sender = Sender(ways, self._builder, QUEUE_LIMIT, HEARTBEAT)
        self._tee = Tee(self._sender)
        self._silent = options.no_output

    def follow(self, child: Child, command: List[str], errors: str) -> int:
        """Until the command has ended: its exit status, negative for a signal."""
        self._builder.about["command"] = text(os.path.basename(command[0]))  # not its arguments: people put tokens there
        self._sender.start()
        self._tee.start()
        status = child.wait(self._tee.keep if self._silent else self._tee.put)
        self._tee.close()
        self._say_goodbye(status, errors)
        return status

    def _say_goodbye(self, status: int, errors: str) -> None:
        code = status if status >= 0 else 128 - status
        words = None
        if status != 0:
            words = recorded(errors) or last_words(self._tee.tail("stderr")) or last_words(self._tee.tail("stdout"))
            if status < 0:
                words = "%s: %s" % (_signal_name(-status), words) if words else _signal_name(-status)
        _remove(errors)
        dropped = self._sender.dropped or None
        self._sender.put(GOODBYE, None, None, {"code": code, "text": words, "dropped": dropped})
        finish_all([self._sender], EXIT_WAIT)


def _not_run(program: str, error: Exception) -> int:
    """As a shell prints it."""
    missing = isinstance(error, OSError) and error.errno == errno.ENOENT
    why = error.strerror if isinstance(error, OSError) else str(error)
    print("stepwatch run: %s: %s" % (program, why), file=sys.stderr)
    return 127 if missing else 126


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def _rank(options: Any, env: Mapping[str, str]) -> int:
    if options.rank is not None:
        return int(options.rank)
    return _identity.detect(env).rank or 0


def _disabled(env: Mapping[str, str]) -> bool:
    return env.get("STEPWATCH_DISABLED", "") not in ("", "0", "false", "no")


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _natural(given: str) -> int:
    if not given.isdecimal():
        raise argparse.ArgumentTypeError("%s: not a whole number" % given)
    return int(given)


def _model(given: str) -> Any:
    try:
        if not given.lstrip().startswith("{"):
            with open(given, encoding="utf-8") as f:
                given = f.read()
        model = json.loads(given)
    except (OSError, ValueError) as e:
        raise argparse.ArgumentTypeError("%s: neither a JSON object nor a file with one: %s" % (given[:60], e))
    if not isinstance(model, dict):
        raise argparse.ArgumentTypeError("%s: not a JSON object" % given[:60])
    return model

"""The half of the client that the training loop sees.

Every method hands a tuple to the sending thread and returns. None of them blocks, and none raises:
an observer that stops a run is worse than none. The one thing that is not forgiven is a call of
``step`` that Python itself refuses, at the first step.
"""

import atexit
import functools
import logging
import os
import sys
import time
from types import TracebackType
from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Type, TypeVar, cast

from . import _identity, _run_name, _signals, _startup
from ._checkpoint import Checkpoint, Nothing
from ._events import RESERVED, Builder
from ._heartbeat import Page
from ._sender import EXIT_WAIT, GOODBYE, QUEUE_LIMIT, Sender, finish_all
from ._transport import Transport, from_environment
from ._version import __version__
from ._wire import integer

log = logging.getLogger("stepwatch")

#: Parts of a step: timed into its ``t``. Any other phase is announced instead, because it keeps the
#: next step waiting; in both places its time would be counted twice.
IN_STEP = frozenset(
    "data data_wait data_time data_loading dataloader h2d fwd forward bwd backward fwd_bwd forward_backward loss comm allreduce all_reduce grad_sync"
    " clip grad_clip optim optimizer optimizer_step zero_grad log logging".split()
)
#: Seconds between two heartbeats; a receiver calls a rank silent after several.
HEARTBEAT = 5.0
#: Phases in one step; more are not timed.
MAX_PHASES = 64

_monotonic = time.monotonic
_Method = TypeVar("_Method", bound=Callable[..., Any])


def _never_raises(method: _Method) -> _Method:
    """For the calls that are made seldom: a mistake in the one after 5,000 steps must not be found
    out by the end of the run."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except Exception as e:
            log.warning("stepwatch: %s: %s", method.__name__, e)
            return Nothing()

    return cast(_Method, call)


class Phase:
    """``with run.phase("data"):`` measures the block. Blocks may nest, and each counts in full."""

    __slots__ = ("name", "since", "_run", "_announce")

    def __init__(self, run: "Run", name: str, announce: bool) -> None:
        self.name, self.since = name, 0.0
        self._run, self._announce = run, announce

    def __enter__(self) -> "Phase":
        try:
            self.since = _monotonic()
            self._run.enter(self)
            if self._announce:
                self._run._sender.put("phase", None, None, {"name": self.name, "phase": "begin"}, self.since)
        except Exception:
            pass
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            seconds = self._run.leave(self, timed=not self._announce)
            if self._announce:
                more = {"name": self.name, "phase": "end", "seconds": round(seconds, 6)}
                self._run._sender.put("phase", None, None, more)
        except Exception:
            pass


class Run:
    """One rank of one training run.

    Rank, world size and job come from the launcher's environment unless they are given, and so does
    the name, by the rule of docs/frameworks.md: the job's name and id, or else the script and when
    it was started. ``model`` is what the exporter computes MFU from: any of
    ``n_params, n_active, layers, heads, head_dim, seq_len``. Further keywords are kept with the run
    (``git=...``, ``tp=8``). ``STEPWATCH_DISABLED=1`` turns everything off.
    """

    def __init__(
        self,
        name: Optional[str] = None,
        *,
        world: Optional[int] = None,
        rank: Optional[int] = None,
        local_rank: Optional[int] = None,
        job: Optional[str] = None,
        model: Optional[Mapping[str, Any]] = None,
        dtype: Optional[str] = None,
        framework: Optional[str] = None,
        version: Optional[str] = None,
        socket: Optional[str] = None,
        url: Optional[str] = None,
        directory: Optional[str] = None,
        heartbeat: float = HEARTBEAT,
        queue_limit: int = QUEUE_LIMIT,
        disabled: Optional[bool] = None,
        **about: Any
    ) -> None:
        self._last: Any = None
        self._phases: Dict[str, float] = {}
        self._open: List[Any] = []
        self._closed = False
        #: The step that was marked last.
        self.reached: Optional[int] = None
        self.name, self.rank, self.world = "run", 0, 1
        ways: List[Transport] = []
        try:
            about.update(job=job, local_rank=local_rank, model=model, dtype=dtype, framework=framework, version=version)
            about.update(client_version=__version__)
            self._identify(name, rank, world, about)
            if disabled is None:
                disabled = os.environ.get("STEPWATCH_DISABLED", "") not in ("", "0", "false", "no")
            if not disabled:
                ways = from_environment(os.environ, self.name, self.rank, socket, url, directory)
        except Exception as e:
            log.warning("stepwatch: nothing will be reported: %r", e)
        self._builder = Builder(self.name, self.rank, self.world, about, self._open)
        self._page = Page(self.name, self.rank)
        limit = int(_first_number(1, queue_limit, QUEUE_LIMIT))
        self._sender = Sender(ways, self._builder, limit, _first_number(0.01, heartbeat, HEARTBEAT), self._page)
        self._begin()

    def _identify(self, name: Any, rank: Any, world: Any, about: Dict[str, Any]) -> None:
        env = os.environ
        found = _identity.detect(env)
        group_rank, group_world = _identity.of_process_group()
        job = about.get("job")
        named = _run_name.here(dict(env, STEPWATCH_JOB_ID=str(job)) if job is not None else env)
        self.name = str(name or named.run)
        about.update(_run_name.describe(named, name))
        self.rank = int(_first_number(0, rank, group_rank, found.rank, 0))
        self.world = int(_first_number(1, world, group_world, found.world, 1))
        for key, value in (("local_rank", found.local_rank), ("job", found.job), ("attempt_hint", found.attempt)):
            if about.get(key) is None:
                about[key] = value
        for key, value in [*_identity.host(env).items(), *_identity.times(env).items()]:
            about.setdefault(key, value)
        about.setdefault("started", _identity.started())
        if group_rank is not None:
            about["initialised"] = True  # ``names::hello::INITIALISED`` in the contract

    def _begin(self) -> None:
        try:
            self._sender.start()
            _runs.add(self)
            _startup.watch(self._sender)
            _close_with_worker()
            if self._sender.running:
                _signals.install(_close_terminated)
        except Exception as e:
            log.warning("stepwatch: nothing will be reported: %r", e)

    # -- the training loop -------------------------------------------------------------------------

    def step(self, step: Any, t: Optional[Mapping[str, Any]] = None, **metrics: Any) -> None:
        """Reports an optimizer step that is done. Costs about a microsecond: give it floats you
        have, never ``.item()`` for it.

        ``tokens`` is what the whole job consumed in this step. Without ``step_time`` the time since
        the last call is the step's.
        """
        try:
            now = _monotonic()
            more, self._last = self._last, now
            if self._phases or t is not None:
                more, self._phases = (more, self._phases, t), {}
            sender = self._sender
            sender.queue.append((next(sender.sequence), now, "step", step, metrics, more))
            sender.mark(step, now)
        except Exception:
            pass

    def report(self, at: float, before: Optional[float], step: Any, metrics: Dict[str, Any], phases: Any = None) -> None:
        """For adapters: a step that ended at ``at`` (``time.monotonic()``), the one before it at
        ``before``."""
        self._sender.put("step", step, metrics, (before, phases, None), at)
        self._page.advance(step, at)

    def add(self, step: Any, metrics: Dict[str, Any]) -> None:
        """For helpers: metrics of a step that came to be known later. They are sent with the number
        of the last step reported."""
        self._sender.put("more", step, metrics, None)

    def mark(self, step: Any) -> None:
        """For adapters: the loop has come to the end of this step, whatever is still to be reported
        of it."""
        try:
            self._sender.mark(step, _monotonic())
            self.reached = integer(step)
        except Exception:
            pass

    def take_phases(self) -> Dict[str, float]:
        """For adapters: the timings since the last step, which are the next one's no more."""
        phases, self._phases = self._phases, {}
        return phases

    @_never_raises
    def phase(self, name: str, announce: Optional[bool] = None) -> Phase:
        """Times a block into ``t`` of the step it is part of. A block that holds up training
        (``ckpt``, ``eval``, ``compile``, anything that is not a well-known part of a step) is
        announced when it begins and ends instead, so that nobody takes the silence for a hang."""
        return Phase(self, name, (name not in IN_STEP) if announce is None else announce)

    @_never_raises
    def eval(self, name: str = "eval", step: Any = None, **metrics: Any) -> None:
        """Reports the result of an evaluation on the set ``name``."""
        self._sender.put("eval", step, metrics, {"name": name})

    @_never_raises
    def checkpoint(
        self, step: Any = None, path: Any = None, bytes: Any = None, *, stage: Optional[str] = None, **extra: Any
    ) -> Checkpoint:
        """Reports that a checkpoint is written; in a ``with``, that it starts, and ends or fails
        with the block. ``start()``, ``end()`` and ``fail()`` of what is returned do so by
        themselves, in any thread.

        ``stage`` is ``"save"`` (the training loop waits, and more will come), ``"write"`` (behind
        the training), ``"upload"``, ``"durable"`` or ``"load"``; without one this is all there is.
        Without ``bytes`` the size of ``path`` is found out off the training loop's thread. A save
        without ``step`` is of the last one; of the other stages the step stays unknown.
        """
        return Checkpoint(self._sender, self, step, path, bytes, _free(extra), stage)

    @_never_raises
    def event(self, name: str, text: Any = None, level: str = "info", step: Any = None, **extra: Any) -> None:
        """Reports anything worth a mark on the run's time line."""
        self._sender.put("event", step, None, dict(_free(extra), name=name, text=text, level=level))

    @_never_raises
    def maintenance(self, seconds: float = 1800, reason: Any = None) -> None:
        """Announces that the run is about to be restarted on purpose, and how long that may take.

        Until it is back, or the time is over, nobody is notified that it hangs, that its ranks are
        gone or that its nodes are silent. Everything else is notified as usual, and
        ``maintenance(0)`` takes it back.
        """
        self.event("maintenance", reason, seconds=seconds)

    @_never_raises
    def describe(self, **about: Any) -> None:
        """Adds to what is known of the run (``model=...``, ``dtype=...``, ``git=...``), at any
        time."""
        self._builder.about.update(about)
        self._sender.greet()

    # -- timings, shared with phases and checkpoints -----------------------------------------------

    def enter(self, block: Any) -> None:
        self._open.append(block)
        self._page.phase(block)

    def leave(self, block: Any, timed: bool = True) -> float:
        seconds = _monotonic() - block.since
        if block in self._open:
            self._open.remove(block)
            last = self._open[-1:]  # another thread may remove its own meanwhile
            self._page.phase(last[0] if last else None)
        phases = self._phases
        if timed and (block.name in phases or len(phases) < MAX_PHASES):
            phases[block.name] = phases.get(block.name, 0.0) + seconds
        return float(seconds)

    # -- the end -----------------------------------------------------------------------------------

    @property
    def connected(self) -> Optional[str]:
        """``"seqpacket"``, ``"http"``, ``"jsonl"``, or None while events are only kept."""
        return self._sender.connected

    @property
    def dropped(self) -> int:
        """Events that are lost."""
        return self._sender.dropped

    @_never_raises
    def close(self, code: Optional[int] = 0, text: Any = None) -> None:
        """Sends the goodbye and waits at most EXIT_WAIT for the last events to leave. Without it,
        the exporter reports a dead rank."""
        self._finish(code, text)
        finish_all([self._sender])

    def _finish(self, code: Optional[int], text: Any) -> None:
        _runs.discard(self)
        self._page.remove()
        if self._closed or not self._sender.running:
            return  # a forked child that reported nothing has no goodbye to say, least of all its parent's
        self._closed = True
        self._sender.put(GOODBYE, None, None, {"code": code, "text": text, "dropped": self._sender.dropped or None})
        self._sender.finish()

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            self.close(_exit_code(kind, error), None if kind is None else _describe(kind, error))
        except Exception:
            pass


def _first_number(least: float, *candidates: Any) -> float:
    """The first candidate that is a number of at least ``least``; the last one is."""
    for candidate in candidates:
        try:
            if candidate is not None and float(candidate) >= least:
                return float(candidate)
        except Exception:
            log.warning("stepwatch: not a number: %s", type(candidate).__name__)
    return least


def _free(extra: Dict[str, Any]) -> Dict[str, Any]:
    return {key: value for key, value in extra.items() if key not in RESERVED}


def _describe(kind: Type[BaseException], error: Optional[BaseException]) -> str:
    try:
        return "%s: %s" % (kind.__name__, error)
    except Exception:
        return kind.__name__


def _exit_code(kind: Optional[Type[BaseException]], error: Optional[BaseException]) -> int:
    if kind is None:
        return 0
    if issubclass(kind, SystemExit):
        code = getattr(error, "code", 1)
        return 0 if code is None else code if isinstance(code, int) else 1
    return 130 if issubclass(kind, KeyboardInterrupt) else 1


# Strong: a run that its owner dropped without a goodbye still sends it at exit.
_runs: Set[Run] = set()


def _close_all() -> None:
    """The process ends and these runs were not closed: their exit code is known only if an
    exception ended it."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    crashed = isinstance(error, BaseException) and not hasattr(sys, "ps1")
    runs = list(_runs)
    for run in runs:
        try:
            if crashed and error is not None:
                run._finish(_exit_code(type(error), error), _describe(type(error), error))
            else:
                run._finish(None, None)
        except Exception:
            pass
    finish_all([run._sender for run in runs], EXIT_WAIT)


def _close_terminated() -> None:
    runs = list(_runs)
    for run in runs:
        run._finish(_signals.CODE, _signals.TEXT)
    finish_all([run._sender for run in runs])


def _close_with_worker() -> None:
    """Workers of ``multiprocessing`` leave by ``os._exit``, past ``atexit``; they run these
    finalizers instead."""
    process = sys.modules.get("multiprocessing.process")
    util = sys.modules.get("multiprocessing.util")
    if process is not None and util is not None and process.parent_process() is not None:
        util.Finalize(None, _close_all, exitpriority=100)


atexit.register(_close_all)

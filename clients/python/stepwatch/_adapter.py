"""What the adapters to training frameworks share.

An adapter is a guest in somebody else's loop: it raises nothing into it, waits for no device, and
leaves everything as it found it.
"""

import functools
import logging
import os
import re
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, TypeVar, cast

from . import _run_name, _signals
from ._checkpoint import Named, Nothing
from ._flight import InFlight
from ._run import Phase, Run
from ._transport import DEFAULT_SOCKET

log = logging.getLogger("stepwatch")

_Method = TypeVar("_Method", bound=Callable[..., Any])

#: What frameworks and people call the metrics that detectors know by name; without a prefix, in
#: lower case, with underscores.
_KNOWN = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "gradient_norm": "grad_norm",
    "total_grad_norm": "grad_norm",
    "grad_norm_total": "grad_norm",
    "grad_2.0_norm_total": "grad_norm",
    "lr": "lr",
    "learning_rate": "lr",
    "tokens": "tokens",
    "mfu": "mfu",
    "loss_scale": "loss_scale",
}
_TRAIN = re.compile(r"^(?:train|training)[/_]")
_EVAL = re.compile(r"^(eval|evaluation|val|valid|validation|test)[/_](.+)$")
#: How frameworks write the type that a model is computed in.
_DTYPES = (("fp8", "float8"), ("transformer-engine", "float8"), ("bf16", "bfloat16"), ("fp16", "float16"), ("16", "float16"))


def quiet(method: _Method) -> _Method:
    """Training goes on whatever happens here; and None leaves the framework's control alone."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> None:
        try:
            method(*args, **kwargs)
        except Exception:
            _note(method)

    return cast(_Method, call)


def _note(what: Any) -> None:
    """Inside ``except``: even the program's logging may raise."""
    try:
        log.debug("stepwatch: %s", getattr(what, "__name__", what), exc_info=True)
    except Exception:
        pass


class Guard:
    """The context that ``make`` makes, around a call of the trainer. The call is made whatever
    fails in making, entering or leaving the context, and nothing else comes out of it than its own
    result or exception."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._context: Any = None

    def __enter__(self) -> Any:
        try:
            context = self._make()
            entered = context.__enter__()
        except Exception:
            _note("a checkpoint is not reported")
            return Nothing()
        self._context = context
        return entered

    def __exit__(self, *error: Any) -> None:
        context, self._context = self._context, None
        if context is not None:
            quiet(lambda: context.__exit__(*error))()


def wanted(env: Mapping[str, str]) -> bool:
    """Whether there is anywhere to report to: what was loaded without being asked for has no
    business elsewhere."""
    if env.get("STEPWATCH_DISABLED", "") not in ("", "0", "false", "no"):
        return False
    if any(env.get(name) for name in ("STEPWATCH_SOCKET", "STEPWATCH_URL", "STEPWATCH_DIR")):
        return True
    # The folder and not the socket: an exporter that is being restarted will be back.
    return "STEPWATCH_SOCKET" not in env and os.path.isdir(os.path.dirname(DEFAULT_SOCKET))


def metric(name: str) -> str:
    """The name of a metric of a training step on the wire; an unknown one keeps its own."""
    plain = _TRAIN.sub("", name.lower()).replace("-", "_").replace(" ", "_")
    return _KNOWN.get(plain, name)


def of_evaluation(name: str) -> Optional[Tuple[str, str]]:
    """("val", "loss") for ``val_loss`` and ``val/loss``: a set and a metric; None for a metric of
    training."""
    found = _EVAL.match(name)
    return (found.group(1), found.group(2)) if found else None


def dtype_of(precision: Any) -> Optional[str]:
    """The type that matrices are multiplied in; None where the precision adds nothing to the
    parameters."""
    text = str(getattr(precision, "value", precision) or "").lower()
    return next((dtype for mark, dtype in _DTYPES if mark in text), None)


def tokens_in(batch: Any) -> int:
    """Tokens of a batch as language models get it, padding included; 0 when it is none. A shape is
    known without waiting."""
    try:
        shape = batch["input_ids"].shape
        return int(functools.reduce(lambda a, b: a * b, shape, 1))
    except Exception:
        return 0


class Training:
    """The run of a framework's training loop, and what the loop is in the middle of.

    The run is one that was given, which its owner closes, or one of our own, which lasts from
    ``begin`` to ``end``.
    """

    def __init__(self, run: Optional[Run], about: Dict[str, Any], flight: Optional[InFlight] = None) -> None:
        self.run, self._own, self._about = run, run is None, about
        self._flight = flight if flight is not None else InFlight()
        self._last: Optional[float] = None
        self._wait: Optional[Phase] = None
        self._pauses: List[Any] = []

    def __getstate__(self) -> Dict[str, Any]:
        """For frameworks that copy or pickle themselves with all their callbacks: a run stays where
        it is, the copy makes its own."""
        return dict(self.__dict__, run=None, _own=True, _wait=None, _pauses=[], _last=None)

    def begin(self, name: Optional[str] = None, signals: bool = True, **about: Any) -> None:
        """Without ``signals`` SIGTERM is the framework's business: it would find our handler, and
        keep it beside its own."""
        about.update(self._about)
        if self.run is None:
            # A name that the environment gives comes before the framework's: whoever launched the
            # job reports under it, too.
            own = about.pop("name", None)
            self.run = Run(own or (None if _run_name.given(os.environ) else name), **about)
        else:
            for key in ("name", "world", "rank", "local_rank", "job"):
                about.pop(key, None)
            self.run.describe(**about)
        if not signals:
            _signals.uninstall()
        self._last = time.monotonic()

    def describe(self, **about: Any) -> None:
        """As ``Run.describe``; values that the user gave are not overwritten."""
        if self.run is not None:
            self.run.describe(**{k: v for k, v in about.items() if v is not None and k not in self._about})

    def end(self, code: Optional[int] = 0, text: Any = None) -> None:
        if self.run is None:
            return
        self.resume()
        self.cancel()
        # After an exception the device may never answer again: what has not landed by now is given
        # up.
        self._flight.poll(wait=not code, give_up=bool(code))
        if self._own:
            run, self.run = self.run, None
            run.close(code, text)

    def restart_clock(self) -> None:
        """What went before is no part of the next step's time."""
        self._last = time.monotonic()

    def step(self, step: Any, metrics: Dict[str, Any], at: Optional[float] = None) -> None:
        """An optimizer step that is done now, or was at ``at``. Values may be on a device."""
        run = self.run
        if run is None:
            return
        now = time.monotonic() if at is None else at
        before, self._last = self._last, now
        if before is not None and before >= now:
            # It is reported to have ended before the one before it (frameworks call back from
            # threads): it is unknown how long it took.
            before, self._last = None, before
        phases = run.take_phases()
        run.mark(step)
        self._flight.put(metrics, lambda values: run.report(now, before, step, values, phases))

    def add(self, step: Any, metrics: Dict[str, Any]) -> None:
        """More about a step that was reported already."""
        run, now = self.run, time.monotonic()
        if run is not None and metrics:
            self._flight.put(metrics, lambda values: run.report(now, None, step, values))

    def evaluation(self, name: str, step: Any, metrics: Dict[str, Any]) -> None:
        run = self.run
        if run is not None and metrics:
            own = {key: value for key, value in metrics.items() if key not in ("name", "step")}
            self._flight.put(own, lambda values: run.eval(name, step=step, **values))

    def poll(self) -> None:
        """Passes on what has landed meanwhile."""
        self._flight.poll()

    # -- what the loop is in the middle of ---------------------------------------------------------

    def wait(self, name: str = "data") -> None:
        """The loop now waits for something that is part of the next step."""
        if self._wait is None and self.run is not None:
            self._wait = self.run.phase(name, announce=False).__enter__()

    def got(self) -> None:
        """It has it."""
        wait, self._wait = self._wait, None
        if wait is not None:
            wait.__exit__(None, None, None)

    def cancel(self) -> None:
        """It was something else that took the time."""
        wait, self._wait = self._wait, None
        if wait is not None and self.run is not None:
            self.run.leave(wait, timed=False)

    def pause(self, name: str) -> None:
        """The loop does something else than training, until ``resume``; published now, it explains
        the silence while it lasts."""
        self.cancel()
        if self.run is not None and all(pause.name != name for pause in self._pauses):
            self._pauses.append(self.run.phase(name, announce=True).__enter__())

    def resume(self) -> None:
        while self._pauses:
            self._pauses.pop().__exit__(None, None, None)

    def saving(self, step: Any, path: Any, writes: bool = True, behind: Any = None) -> Any:
        """A context for the writing of a checkpoint. Every rank waits for it, not every one
        writes. ``behind`` is a context for one that has later stages."""
        if self.run is None:
            return Nothing()
        waited = self._wait is not None
        self.cancel()
        context: Any = behind
        if context is None:
            context = self.run.checkpoint(step, path=plain_path(path)) if writes else self.run.phase("ckpt")
        return _Between(context, self.wait if waited else None)


class _Between:
    """Something that interrupted the waiting for the next step's data, which goes on afterwards."""

    def __init__(self, context: Any, afterwards: Optional[Callable[[], None]]) -> None:
        self.context, self._afterwards = context, afterwards

    def __enter__(self) -> Any:
        return self.context.__enter__()

    def __exit__(self, *error: Any) -> None:
        quiet(lambda: self.context.__exit__(*error))()
        if self._afterwards is not None:
            quiet(self._afterwards)()


class Behind:
    """A checkpoint for which the step waits only until it is copied: ``with`` it for the save. The
    writing behind the training begins when that ends, and ends with ``done`` or ``failed``, which
    any thread may call at any time.

    ``leads``: this rank reports the save, and its writing is done when the checkpoint is whole.
    Every other rank reports what it writes itself. Unless it is ``expected`` that there is more to
    come, the save is all there is. One that is not ``lasting`` is lost with its node, and never
    durable.
    """

    def __init__(
        self,
        run: Run,
        step: Any,
        path: Any,
        leads: bool,
        expected: bool = True,
        began: Optional[float] = None,
        lasting: bool = True,
    ) -> None:
        self.expected, self.over = expected, False
        self._lasting = lasting
        self._save = run.checkpoint(step, path=plain_path(path), stage="save")
        self._phase: Any = None if leads else run.phase("ckpt")
        self._began = began
        self._write: Any = None
        self._early: Any = None
        self._lock = threading.Lock()
        if not leads:
            self._save.unreported()

    def __enter__(self) -> "Behind":
        if self._phase is None:
            self._save.start(self._began)
        else:
            self._phase.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._phase is not None:
            self._phase.__exit__(*error)
        else:
            self._save.measured = not self.expected
            self._save.__exit__(*error)
        if self.expected and error[0] is None:
            quiet(self._begin)()

    def _begin(self) -> None:
        write = self._save.then("write").start()
        # Others write into the same folder, which is measured once, when it is whole.
        write.measured = False
        with self._lock:
            self._write, early = write, self._early
        if early is not None:
            early()

    def done(self) -> None:
        self._end(self._done)

    def failed(self, why: Any) -> None:
        self._end(lambda: self._write.fail(why))

    def _end(self, how: Callable[[], None]) -> None:
        with self._lock:
            self.over = True
            if self._write is None:
                self._early = self._early or how
                return
        quiet(how)()

    def _done(self) -> None:
        self._write.end()
        if self._phase is None and self._lasting:
            self._save.then("durable").end()


#: ``step-100``, ``iter_0000100``, ``checkpoint-100``, ``epoch=1-step=100.ckpt`` and ``100``.
_STEP = re.compile(r"(?:^|(?:step|iter|iteration|checkpoint|ckpt)[-_=]?)(\d{1,15})(?:\.\D\w*)?$", re.IGNORECASE)


def step_in(path: Any) -> Optional[Named]:
    """The step in the name of a checkpoint; None where there is none to be seen."""
    found = _STEP.search(str(path).rstrip("/").rpartition("/")[2])
    return Named(found.group(1)) if found else None


def plain_path(path: Any) -> Any:
    return os.fspath(path) if isinstance(path, os.PathLike) else path


class Tap:
    """Takes the place of one method of one object, and hands every call on to it; ``look`` sees the
    arguments first.

    What it is put on works as before when ``look`` fails, when it is copied or pickled, and after
    ``remove``.
    """

    def __init__(self, owner: Any, name: str, look: Callable[..., Any]) -> None:
        inner = getattr(owner, name)
        functools.update_wrapper(self, inner)  # first: of another tap it copies these attributes, too
        self._owner, self._name, self._look, self._inner = owner, name, look, inner
        # Past ``__setattr__``: modules of PyTorch and Keras register what they are given.
        object.__setattr__(owner, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        quiet(self._look)(*args, **kwargs)
        return self._inner(*args, **kwargs)

    def __reduce__(self) -> Any:
        return getattr, (self._owner, self._name)

    def remove(self) -> None:
        if vars(self._owner).get(self._name) is self:
            object.__delattr__(self._owner, self._name)


class Around(Tap):
    """A tap that also sees what came of the call: ``after`` gets the result, once there is one."""

    def __init__(self, owner: Any, name: str, look: Callable[..., Any], after: Callable[[Any], None]) -> None:
        super().__init__(owner, name, look)
        self._after = after

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = super().__call__(*args, **kwargs)
        quiet(self._after)(result)
        return result


class Saving(Tap):
    """Around a method that writes a checkpoint: its start, end and failure. ``look`` makes the
    context from the arguments, ``after`` gets what it gave when the checkpoint is there."""

    def __init__(self, owner: Any, name: str, look: Callable[..., Any], after: Optional[Callable[[Any], None]] = None) -> None:
        super().__init__(owner, name, look)
        self._after = after

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with Guard(lambda: self._look(*args, **kwargs)) as checkpoint:
            result = self._inner(*args, **kwargs)
            if self._after is not None:
                quiet(self._after)(checkpoint)
        return result

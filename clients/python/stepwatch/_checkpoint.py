"""A checkpoint: reported in one call, as the start, end or failure of a ``with`` block, or by calls
of its own, from any thread.

A checkpoint has stages, and each is reported by itself: the save, which blocks the step, then
perhaps a write behind it, an upload, and that it is durable; and the load.
"""

import logging
import os
import stat
import threading
import time
from types import TracebackType
from typing import Any, Dict, List, Optional, Type, cast

from ._sender import NotYet, Sender
from ._wire import MAX_PATH, integer, number, plain, text

log = logging.getLogger("stepwatch")

#: The stages. What names none is a checkpoint that is saved while the step waits.
SAVE, WRITE, UPLOAD, DURABLE, LOAD = STAGES = ("save", "write", "upload", "durable", "load")
#: Seconds after which a checkpoint that no ``with`` has entered is taken for a report in one call.
GRACE = 0.1
#: Seconds and entries that finding out the size of a checkpoint may take.
MEASURE_TIME = 2.0
MEASURE_ENTRIES = 100_000
#: Seconds for it when the run is being closed.
CLOSING_TIME = 0.01


class Named(int):
    """A step that is the number in the name of a checkpoint. A name may count something else, such
    as epochs or jobs, so the number of one that is saved counts only where it fits the steps that
    the run reports."""

    def at(self, current: Any) -> int:
        """The step of a save. A loop may save before it reports its step."""
        return int(self) if current is None or 0 <= self - current <= 1 else int(current)


class Checkpoint:
    """One stage of a checkpoint: what ``run.checkpoint(...)`` returns.

    Either ``with`` it, or call ``start`` and then ``end`` or ``fail``, from any thread; the first
    word on how it ended counts. ``path``, ``bytes`` and ``step`` may be set until then.
    """

    def __init__(
        self,
        sender: Sender,
        timings: Any,
        step: Any,
        path: Any,
        size: Any,
        extra: Dict[str, Any],
        stage: Optional[str] = None,
        after: Optional["Checkpoint"] = None,
    ) -> None:
        if stage is not None and stage not in STAGES:
            raise ValueError("a stage is one of " + ", ".join(STAGES))
        self.path, self.bytes, self.step, self.stage = path, size, step, stage
        #: Whether its size is found out: there may be more to come of a save with later stages.
        self.measured = stage not in (SAVE, LOAD)
        self.seconds: Optional[float] = None
        self.name = LOAD if stage == LOAD else "ckpt"
        self.since = time.monotonic()
        self._sender, self._timings, self._extra = sender, timings, extra
        self._entered = self._started = False
        #: The step that an adapter has come to: its report may wait for a device.
        self._reached: Optional[int] = getattr(timings, "reached", None)
        #: The step that was not told, once the events of the save are made; of all its stages.
        self._found: Dict[str, Any] = after._found if after is not None else {}
        #: Taken by the one who says how it ended: ``pop`` is atomic.
        self._outcome: List[None] = [None]
        if after is None:
            self._sender.put("ckpt", None, None, _End(self, once=True), self.since)

    @property
    def _blocks(self) -> bool:
        """Whether the training loop waits for it."""
        return self.stage in (None, SAVE, LOAD)

    def start(self, at: Optional[float] = None) -> "Checkpoint":
        """It begins now, or began ``at`` (``time.monotonic()``)."""
        try:
            self._entered = self._started = True
            self.since = time.monotonic() if at is None else at
            if self._blocks:
                self._timings.enter(self)
            self._sender.put("ckpt", None, None, _Report(self, "start"), self.since)
        except Exception:
            pass
        return self

    def end(self, bytes: Any = None) -> None:
        """It is done. Without ``bytes`` the size of ``path`` is found out, except of a save that is
        called one and of a load."""
        try:
            if self._over():
                self.bytes = self.bytes if bytes is None else bytes
                self._sender.put("ckpt", None, None, _End(self))
        except Exception:
            pass

    def fail(self, why: Any = None) -> None:
        """It was not done. ``why`` may be the exception."""
        try:
            if self._over():
                why = "%s: %s" % (type(why).__name__, why) if isinstance(why, BaseException) else why
                self._sender.put("ckpt", None, None, _Report(self, "fail", why))
        except Exception:
            pass

    def then(self, stage: str) -> "Checkpoint":
        """A later stage of the same checkpoint: of its step, also if that was not told, and path."""
        try:
            return Checkpoint(self._sender, self._timings, self.step, self.path, None, {}, stage, after=self)
        except Exception as e:
            log.warning("stepwatch: then: %s", e)
            return cast(Checkpoint, Nothing())

    def unreported(self) -> "Checkpoint":
        """Another rank reports it: only its step is kept, for the stages that follow."""
        self._entered = True
        return self

    def _over(self) -> bool:
        """True for the first who says so, for whom the time that it took is taken."""
        self._entered = True
        try:
            self._outcome.pop()
        except IndexError:
            return False
        if self._started:
            self.seconds = time.monotonic() - self.since
            if self._blocks:
                self.seconds = float(self._timings.leave(self, timed=self.stage != LOAD))
        return True

    def __enter__(self) -> "Checkpoint":
        return self.start()

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if kind is None:
            self.end()
        else:
            self.fail(error if error is not None else kind.__name__)

    def step_at(self, told: Any, current: Any) -> Any:
        """The step of an event of it. Only a save is of the step that the run is at."""
        current = current if self._reached is None else self._reached
        if isinstance(told, Named) and self.stage != LOAD:
            return self._found.setdefault("step", told.at(current))
        try:
            if told is not None:
                return integer(told)
        except Exception:
            pass
        if self.stage in (None, SAVE):
            return self._found.setdefault("step", current)
        return self._found.get("step")

    def describe(self, event: Dict[str, Any], phase: str, path: Any) -> None:
        event["phase"] = phase
        if self.stage not in (None, SAVE):
            event["stage"] = self.stage
        if phase != "start" and self.seconds is not None:
            event["seconds"] = round(self.seconds, 6)
        for key, value in self._extra.items():
            event[key] = plain(value)
        if path is not None:
            event["path"] = text(path, MAX_PATH)


class Nothing:
    """Takes the place of a phase or a checkpoint that could not be made, or that nobody wants."""

    path: Any = None
    bytes: Any = None
    step: Any = None

    def start(self, at: Optional[float] = None) -> "Nothing":
        return self

    def end(self, bytes: Any = None) -> None:
        return None

    def fail(self, why: Any = None) -> None:
        return None

    def then(self, stage: str) -> "Nothing":
        return self

    def unreported(self) -> "Nothing":
        return self

    def __enter__(self) -> "Nothing":
        return self

    def __exit__(self, *_: Any) -> None:
        return None


class _Report:
    """The start or failure of a checkpoint, as it was then."""

    def __init__(self, checkpoint: Checkpoint, phase: str, why: Any = None) -> None:
        self._checkpoint, self._phase, self._why = checkpoint, phase, why
        self._step, self._path = checkpoint.step, checkpoint.path

    def fill(self, event: Dict[str, Any], closing: bool) -> bool:
        step = self._checkpoint.step_at(self._step, event.pop("step", None))
        if step is not None:
            event["step"] = step
        self._checkpoint.describe(event, self._phase, self._path)
        if self._why is not None:
            event["text"] = plain(self._why)
        return True


class _End:
    """The end of a checkpoint, held back until its size is known or has taken too long to find out.

    With ``once`` it stands for the report in one call, and is nothing when a ``with`` entered the
    checkpoint after all.
    """

    def __init__(self, checkpoint: Checkpoint, once: bool = False) -> None:
        self._checkpoint, self._once = checkpoint, once
        self._size: Optional[_Size] = None
        self._seen, self._step = False, None

    def ready(self, closing: bool) -> bool:
        if closing:
            return True
        if self._once and not self._checkpoint._entered and time.monotonic() < self._checkpoint.since + GRACE:
            return False
        return self._size is None or self._size.ready()

    def fill(self, event: Dict[str, Any], closing: bool) -> bool:
        """Fills in the event; False when there is none. Raises NotYet while something is open."""
        c = self._checkpoint
        if not self._seen:  # later the run may be at another step
            self._seen, self._step = True, c.step_at(c.step, event.get("step"))
        if self._once and c._entered:
            return False
        if not self.ready(closing):
            raise NotYet
        size = c.bytes
        if size is None and c.measured and isinstance(c.path, (str, os.PathLike)):
            if self._size is None:
                self._size = _Size(os.fspath(c.path))
                if not closing:
                    raise NotYet
                self._size.wait(CLOSING_TIME)
            size = self._size.bytes
        event.pop("step", None)
        if self._step is not None:
            event["step"] = self._step
        c.describe(event, "end", c.path)
        if size is not None:
            event["bytes"] = number(size)
        return True


class _Size:
    """Adds up a file or a folder in a thread of its own: ``stat`` on a shared file system that
    hangs never returns."""

    def __init__(self, path: Any) -> None:
        self.bytes: Optional[int] = None
        self._until = time.monotonic() + MEASURE_TIME
        self._thread = threading.Thread(target=self._measure, args=(path,), name="stepwatch-size", daemon=True)
        self._thread.start()

    def ready(self) -> bool:
        return not self._thread.is_alive() or time.monotonic() >= self._until

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _measure(self, path: Any) -> None:
        try:
            self.bytes = self._add_up(path)
        except Exception:
            pass  # it is not there, or not ours to read: an unknown size stays absent

    def _add_up(self, path: Any) -> Optional[int]:
        top = os.stat(path)
        if not stat.S_ISDIR(top.st_mode):
            return top.st_size
        total = entries = 0
        folders = [path]
        while folders:
            with os.scandir(folders.pop()) as found:
                for entry in found:
                    entries += 1
                    if entries > MEASURE_ENTRIES or time.monotonic() > self._until:
                        return None
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        return total

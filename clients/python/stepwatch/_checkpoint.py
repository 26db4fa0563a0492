"""A checkpoint: reported in one call, or as the start, end or failure of a ``with`` block."""

import os
import stat
import threading
import time
from types import TracebackType
from typing import Any, Dict, Optional, Type

from ._sender import NotYet, Sender
from ._wire import MAX_PATH, number, plain, text

#: Seconds after which a checkpoint that no ``with`` has entered is taken for a report in one call.
GRACE = 0.1
#: Seconds and entries that finding out the size of a checkpoint may take.
MEASURE_TIME = 2.0
MEASURE_ENTRIES = 100_000
#: Seconds for it when the run is being closed.
CLOSING_TIME = 0.01


class Checkpoint:
    """What ``run.checkpoint(...)`` returns. ``path`` and ``bytes`` may be set inside the block."""

    def __init__(self, sender: Sender, timings: Any, step: Any, path: Any, size: Any, extra: Dict[str, Any]) -> None:
        self.path = path
        self.bytes = size
        self.seconds: Optional[float] = None
        self.name = "ckpt"
        self.since = time.monotonic()
        self._sender, self._timings, self._step, self._extra = sender, timings, step, extra
        self._entered = False
        self._sender.put("ckpt", step, None, _End(self, once=True), self.since)

    def __enter__(self) -> "Checkpoint":
        try:
            self._entered = True
            self.since = time.monotonic()
            self._timings.enter(self)
            self._sender.put("ckpt", self._step, None, dict(self._extra, phase="start", path=self.path), self.since)
        except Exception:
            pass
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            self.seconds = float(self._timings.leave(self))
            if kind is None:
                self._sender.put("ckpt", self._step, None, _End(self))
            else:
                self.fail("%s: %s" % (kind.__name__, error))
        except Exception:
            pass

    def fail(self, why: Any = None) -> None:
        """Reports that this checkpoint was not written, for code that finds out without an
        exception."""
        try:
            self._entered = True
            self._sender.put("ckpt", self._step, None, dict(self._extra, phase="fail", path=self.path, text=why))
        except Exception:
            pass


class _End:
    """The end of a checkpoint, held back until its size is known or has taken too long to find out.

    With ``once`` it stands for the report in one call, and is nothing when a ``with`` entered the
    checkpoint after all.
    """

    def __init__(self, checkpoint: Checkpoint, once: bool = False) -> None:
        self._checkpoint, self._once = checkpoint, once
        self._size: Optional[_Size] = None

    def ready(self, closing: bool) -> bool:
        if closing:
            return True
        if self._once and not self._checkpoint._entered and time.monotonic() < self._checkpoint.since + GRACE:
            return False
        return self._size is None or self._size.ready()

    def fill(self, event: Dict[str, Any], closing: bool) -> bool:
        """Fills in the event; False when there is none. Raises NotYet while something is open."""
        c = self._checkpoint
        if self._once and c._entered:
            return False
        if not self.ready(closing):
            raise NotYet
        size = c.bytes
        if size is None and isinstance(c.path, (str, os.PathLike)):
            if self._size is None:
                self._size = _Size(os.fspath(c.path))
                if not closing:
                    raise NotYet
                self._size.wait(CLOSING_TIME)
            size = self._size.bytes
        event["phase"] = "end"
        if c.seconds is not None:
            event["seconds"] = round(c.seconds, 6)  # the next one may have started before this size was known
        for key, value in c._extra.items():
            event[key] = plain(value)
        if c.path is not None:
            event["path"] = text(c.path, MAX_PATH)
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

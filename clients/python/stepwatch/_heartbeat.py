"""A page of shared memory with the position of this process: readable while it hangs, is stopped,
or after it has died.

What goes over a connection needs this process' cooperation: a collective that never returns may
hold the interpreter, and then the last heartbeat is all that anybody ever hears. The page needs
none. The training loop writes its step and its phase there as it goes, the sending thread the time
at which it last ran, and ``stepwatch status`` and the exporter read it from outside.

``/dev/shm/stepwatch/<pid>.hb`` is 256 bytes, little endian:

    0 magic b"STEPWHB1"            24 f64 Unix time of the last step        48 u32 pid             64 phase, 32 bytes of UTF-8
    8 u64 odd while it is written  32 f64 Unix time of the last beat        52 u32 rank            96 run, 96 bytes of UTF-8
    16 i64 last step               40 f64 Unix time at which the phase      56 u64 start time of   192 u64 inode of the pid
                                      began, 0 when there is none              the process             namespace, or 0

The page goes when the run ends; one that is left behind names a process that was killed. A pid is
used again, a pid with its start time (field 22 of /proc/<pid>/stat) is not. A pid of a container
means nothing outside it, hence the namespace.
"""

import logging
import mmap
import os
import stat
import struct
import sys
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from ._wire import integer

log = logging.getLogger("stepwatch")

DIRECTORY = "/dev/shm/stepwatch"
MAGIC = b"STEPWHB1"
SIZE = 256
SUFFIX = ".hb"
#: Pages read from one folder.
MAX_PAGES = 4096
#: Seconds after its last beat for which the page of a dead process is kept for whoever comes to
#: look.
KEPT = 3600.0
#: Phase names kept encoded.
MAX_NAMES = 64

_LAYOUT = struct.Struct("<8sQqdddIIQ32s96sQ")
_NO_PHASE = bytes(32)
#: A reader that always comes in the middle of a write settles for what it has.
_TRIES = 50


class Page:
    """The page of a run; without one (no shared memory, another run of this process has it) every
    call does nothing.

    ``step(number, now)`` is for a step that ended now, ``advance(number, at)`` for one that ended
    earlier, unless a later one is there already, ``phase(block)`` for the innermost open block,
    which has a name and the time since which it is open, or None: all of the thread that trains, in
    monotonic time. ``beat()`` is for the sending thread.
    """

    def __init__(self, run: Optional[str] = None, rank: int = 0) -> None:
        """One for no run is never opened."""
        self._run, self._rank = run, rank
        self._path = ""
        self._closed = False
        self._write_with(_NoWriters)

    def _write_with(self, writers: Any) -> None:
        self.step: Callable[[Any, float], None] = writers.step
        self.advance: Callable[[Any, float], None] = writers.advance
        self.phase: Callable[[Any], None] = writers.phase
        self.beat: Callable[[], None] = writers.beat

    def open(self) -> None:
        """Once a process; never raises, because a run without a page is still a run."""
        global _owner
        try:
            with _lock:
                folder = directory()
                if self._run is None or self._closed or _owner is not None or not folder or sys.byteorder != "little":
                    return
                self._create(folder)
                _owner = self
        except Exception as e:
            log.debug("stepwatch: no heartbeat page: %s", e)

    def _create(self, folder: str) -> None:
        try:
            os.mkdir(folder)
            os.chmod(folder, 0o1777)  # users share the node; each can remove only its own
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                raise
        pid = os.getpid()
        path = os.path.join(folder, "%d%s" % (pid, SUFFIX))
        try:
            os.unlink(path)  # of a process that had our number before us
        except FileNotFoundError:
            pass
        now = time.time()
        first = _LAYOUT.pack(
            MAGIC, 0, -1, 0.0, now, 0.0, pid, self._rank & 0xFFFFFFFF, started(pid) or 0, _NO_PHASE, _text(self._run, 96), namespace()
        )
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.fchmod(fd, 0o644)  # the umask is for files, and this is for the exporter to read
            # Written before it is mapped: where shared memory is full this fails, and a store into
            # the mapping would kill us.
            if os.write(fd, first.ljust(SIZE, b"\0")) != SIZE:
                raise OSError("shared memory is full")
            mapped = memoryview(mmap.mmap(fd, SIZE))
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(fd)
        self._path = path
        self._write_with(_Writers(mapped))

    def remove(self) -> None:
        """The run has ended with a goodbye: there is nothing left to find out about it."""
        global _owner
        with _lock:
            self._closed = True
            if _owner is self:
                _owner = None
                self._unmap()
                try:
                    os.unlink(self._path)
                except OSError:
                    pass

    def _unmap(self) -> None:
        # Not closed: another thread may be in the middle of a write. The mapping goes with the last
        # reference.
        self._write_with(_NoWriters)

    def after_fork(self) -> None:
        """In the child, whose mapping is its parent's page: the child opens its own when it reports
        something itself."""
        self._unmap()


class _Writers:
    """What writes into a page.

    Every field of eight bytes is one store; the name of the phase is longer, so it is written under
    the sequence number. ``step`` is in the training loop, whose caches are cold, so it looks
    nothing up that is not its own and asks no clock: it is given the monotonic time, and how far
    that is from Unix time the sending thread finds out now and then. So it costs 0.25 us; as a
    method that asks took 0.6.
    """

    def __init__(self, page: Any) -> None:
        words, times, sequence = page.cast("q"), page.cast("d"), 0
        offset = time.time() - time.monotonic()
        names: Dict[Any, bytes] = {}

        def step(number: Any, now: float, words: Any = words, times: Any = times) -> None:
            words[2] = number if type(number) is int else integer(number)
            times[3] = now + offset

        def advance(number: Any, at: float) -> None:
            if type(number) is int and number > words[2]:
                step(number, at)

        def phase(block: Any) -> None:
            nonlocal sequence
            name, since = _NO_PHASE, 0.0
            if block is not None:
                name = names.get(block.name) or _text(block.name, len(_NO_PHASE))
                if len(names) < MAX_NAMES:
                    names[block.name] = name
                since = block.since + offset
            words[1] = sequence + 1
            times[5] = since
            page[64:96] = name
            sequence += 2
            words[1] = sequence

        def beat() -> None:
            nonlocal offset
            times[4] = now = time.time()
            offset = now - time.monotonic()

        self.step, self.advance, self.phase, self.beat = step, advance, phase, beat


class _NoWriters:
    """What writes nowhere."""

    @staticmethod
    def step(number: Any, now: float) -> None:
        return None

    advance = step

    @staticmethod
    def phase(block: Any) -> None:
        return None

    @staticmethod
    def beat() -> None:
        return None


class Beat(NamedTuple):
    """The content of a page."""

    run: str
    rank: int
    pid: int
    started: int
    #: None before the first step.
    step: Optional[int]
    step_at: float
    beat_at: float
    #: Empty when no phase is open.
    phase: str
    phase_at: float
    #: Of the pid; 0 when unknown.
    namespace: int

    def state(self) -> str:
        """``running``, ``blocked`` (in the kernel, on a device or a file system), ``stopped``,
        ``zombie``, ``dead``, or ``unseen``: of a container whose processes cannot be seen from
        here."""
        if self.namespace not in (0, namespace()):
            return "unseen"
        fields = _stat(self.pid)
        if not fields or int(fields[19]) != self.started:
            return "dead"
        return {"D": "blocked", "T": "stopped", "t": "stopped", "Z": "zombie", "X": "dead"}.get(fields[0], "running")


def directory() -> str:
    """Where the pages of this node are; empty when they are turned off."""
    return os.environ.get("STEPWATCH_SHM", DIRECTORY)


def pages(folder: str) -> List[Beat]:
    """The pages in ``folder``, in the order of run and rank; what is no page is left out."""
    found = []
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    for name in [n for n in names if n.endswith(SUFFIX)][:MAX_PAGES]:
        beat = read(os.path.join(folder, name))
        if beat is not None:
            found.append(beat)
    return sorted(found, key=lambda b: (b.run, b.rank, b.pid))


def read(path: str) -> Optional[Beat]:
    """The page at ``path``; None when there is none, or it is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        page = os.pread(fd, SIZE, 0)
        for _ in range(_TRIES):
            before, page = page, os.pread(fd, SIZE, 0)
            # Two copies that agree were not being written; of a process that was stopped while it
            # wrote the number stays odd.
            if before == page and (len(page) != SIZE or page[8] % 2 == 0):
                break
    except OSError:
        return None
    finally:
        os.close(fd)
    if len(page) != SIZE or not page.startswith(MAGIC):
        return None
    _, _, step, step_at, beat_at, phase_at, pid, rank, start, phase, run, inside = _LAYOUT.unpack_from(page)
    last = step if step_at > 0.0 else None
    return Beat(_untext(run), rank, pid, start, last, step_at, beat_at, _untext(phase), phase_at, inside)


def namespace() -> int:
    """The pid namespace of this process: its inode in the kernel; 0 where that is unknown."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def started(pid: int) -> Optional[int]:
    """When the process started, in clock ticks since the machine did; None when there is no such
    process."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def _stat(pid: int) -> List[str]:
    """Fields 3 and up of ``/proc/<pid>/stat``: behind the name, which may hold anything."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as f:
            return f.read().decode("ascii", "replace").rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return []


def _text(value: Any, size: int) -> bytes:
    """``value`` in ``size`` bytes, cut at a character's end and filled up with NUL."""
    cut = str(value).encode("utf-8", "replace")[:size]
    return cut.decode("utf-8", "ignore").encode("utf-8").ljust(size, b"\0")


def _untext(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "replace")


def sweep() -> None:
    """Removes pages of long dead processes: a node sees many runs, and shared memory is not cleared
    between them."""
    folder = directory()
    now = time.time()
    for beat in pages(folder):
        if now - beat.beat_at > KEPT and beat.state() in ("dead", "unseen"):
            try:
                os.unlink(os.path.join(folder, "%d%s" % (beat.pid, SUFFIX)))
            except OSError:
                pass  # another user's


_lock = threading.Lock()
_owner: Optional[Page] = None


def _in_child() -> None:
    global _lock, _owner
    _lock = threading.Lock()  # the thread that held it is the parent's
    if _owner is not None:
        _owner.after_fork()
    _owner = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

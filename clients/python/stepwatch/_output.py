"""What a wrapped command prints, on its way to the exporter: lines in batches, and the last lines
before its end.

The copying of the output must not wait for this: it hands over blocks of bytes and goes on. What
nobody takes is kept up to a limit, then the oldest gives way and is counted. Nothing is split into
lines before somebody listens.
"""

import collections
import json
import re
import threading
from typing import Any, Deque, Dict, Iterable, List, Optional, Tuple

from ._sender import Sender
from ._wire import MAX_TEXT, text

#: Bytes of one stream that wait for the receiver; also what is split into lines in one TICK, so a
#: flood costs a bounded share of a core.
BUFFER_LIMIT = 256 * 1024
#: Seconds for which output is gathered before it is sent.
TICK = 0.1
#: Bytes of a line; the rest of it is cut and counted.
MAX_LINE = 4096
#: Bytes of the lines in one event, as JSON: with its head it stays below 7 KiB.
MAX_BATCH = 6 * 1024
#: Events that wait in the sender before output is held back here.
QUEUED = 64
#: Bytes of the end of a stream that are kept for its last words.
TAIL = 32 * 1024
#: Lines without a traceback that make up last words.
LAST_LINES = 3


class Tee:
    """Takes blocks of output from any thread, and reports them from its own."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._streams: Dict[str, _Stream] = collections.OrderedDict()
        self._lock = threading.Lock()
        #: Held from taking blocks to handing over their lines, which stay in order so.
        self._flushing = threading.Lock()
        self._something = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="stepwatch-output", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, stream: str, block: bytes) -> None:
        self.keep(stream, block, report=True)
        self._something.set()

    def keep(self, stream: str, block: bytes, report: bool = False) -> None:
        """For its last words only."""
        with self._lock:
            self._streams.setdefault(stream, _Stream()).put(block, report)

    def close(self) -> None:
        """Hands everything to the sender, whether it is connected or not: the queue there is
        bounded, too."""
        self._closing.set()
        self._something.set()
        self._thread.join(2 * TICK)
        self._flush(last=True)

    def tail(self, stream: str) -> bytes:
        with self._lock:
            kept = self._streams.get(stream)
            return kept.tail() if kept is not None else b""

    def _loop(self) -> None:
        while not self._closing.is_set():
            self._something.wait()
            self._something.clear()
            self._closing.wait(TICK)
            try:
                if self._sender.connected is not None and len(self._sender.queue) < QUEUED:
                    self._flush()
                elif not self._closing.is_set():
                    self._something.set()  # somebody may listen later
            except Exception:
                pass  # one batch is lost, the next may be better

    def _flush(self, last: bool = False) -> None:
        with self._flushing:
            with self._lock:
                taken = [(name, stream, stream.take()) for name, stream in self._streams.items()]
            for name, stream, (blocks, lost) in taken:
                lines = stream.lines.feed(blocks, lost > 0, last)
                for batch in batches(lines):
                    self._sender.put("event", None, None, _Output(name, batch, stream.lines.take_cut(), lost))
                    lost = 0


class _Stream:
    def __init__(self) -> None:
        self.lines = Lines()
        self._blocks: Deque[bytes] = collections.deque()
        self._size = self._lost = 0
        self._tail: Deque[bytes] = collections.deque()
        self._tail_size = 0

    def put(self, block: bytes, report: bool) -> None:
        if report:
            self._blocks.append(block)
            self._size += len(block)
        while self._size > BUFFER_LIMIT:
            oldest = len(self._blocks.popleft())
            self._size -= oldest
            self._lost += oldest
        self._tail.append(block)
        self._tail_size += len(block)
        while self._tail_size - len(self._tail[0]) >= TAIL:
            self._tail_size -= len(self._tail.popleft())

    def take(self) -> Tuple[bytes, int]:
        """What waits, and how many bytes before it were lost."""
        blocks, lost = b"".join(self._blocks), self._lost
        self._blocks.clear()
        self._size = self._lost = 0
        return blocks, lost

    def tail(self) -> bytes:
        return b"".join(self._tail)[-TAIL:]


class Lines:
    """Blocks of bytes in, lines out. A carriage return ends a line, too: every drawing of a
    progress bar is one."""

    def __init__(self) -> None:
        self._rest = b""
        self._resync = False
        self._cut = 0

    def feed(self, block: bytes, gap: bool = False, last: bool = False) -> List[str]:
        """``gap``: something is missing before ``block``, so that its first line is no whole one.
        ``last``: nothing follows it."""
        if gap:
            self._rest, self._resync = b"", True
        parts = block.replace(b"\r", b"\n").split(b"\n")
        if self._resync and len(parts) > 1:
            parts[0], self._resync = b"", False
        parts[0] = self._rest + parts[0]
        self._rest = b"" if last or self._resync else parts.pop()[: MAX_LINE + 1]
        return [self._line(part) for part in parts if part and not part.isspace()] if not self._resync else []

    def take_cut(self) -> int:
        """Lines that were cut since the last call."""
        cut, self._cut = self._cut, 0
        return cut

    def _line(self, part: bytes) -> str:
        if len(part) > MAX_LINE:
            self._cut += 1
            part = part[:MAX_LINE]
        line = part.decode("utf-8", "replace")
        while _size(line) > MAX_BATCH:  # every character may take six as JSON
            self._cut += 1
            line = line[: len(line) // 2]
        return line


def batches(lines: Iterable[str]) -> Iterable[List[str]]:
    batch: List[str] = []
    room = MAX_BATCH
    for line in lines:
        size = _size(line)
        if size > room and batch:
            yield batch
            batch, room = [], MAX_BATCH
        batch.append(line)
        room -= size
    if batch:
        yield batch


def _size(line: str) -> int:
    return len(json.dumps(line)) + 1


class _Output:
    """A batch as what makes an event of it."""

    def __init__(self, stream: str, lines: List[str], cut: int, lost: int) -> None:
        self._keys = {"name": "output", "stream": stream, "lines": lines, "cut": cut, "lost_bytes": lost}

    def fill(self, event: Dict[str, Any], closing: bool) -> bool:
        event.update((key, value) for key, value in self._keys.items() if value)
        return True


# -- last words ------------------------------------------------------------------------------------

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
#: What launchers put before a line: "[rank0]: ", "[default3]:", "worker-0: ".
_PREFIX = re.compile(r"^(?:\[[A-Za-z_]*\d+\]: ?|[\w.-]+-\d+: )+")
_TRACEBACK = "Traceback (most recent call last):"
#: What launchers raise when a process of theirs failed: the reason is in an earlier traceback.
_ECHOES = ("ChildFailedError", "CalledProcessError", "ProcessExitedException", "SystemExit")


def last_words(output: bytes) -> Optional[str]:
    """The exception that ended a program, or the last lines that it printed; None when it printed
    nothing."""
    plain = _ANSI.sub("", output.decode("utf-8", "replace")).replace("\r", "\n")
    lines = [_PREFIX.sub("", line.rstrip()) for line in plain.split("\n")]
    lines = [line for line in lines if line]
    raised = list(_raised(lines))
    own = [line for line in raised if not line.split(":", 1)[0].endswith(_ECHOES)]
    if raised:
        return text((own or raised)[-1], MAX_TEXT)
    return text("\n".join(lines[-LAST_LINES:])[-MAX_TEXT:], MAX_TEXT) or None


def _raised(lines: List[str]) -> Iterable[str]:
    """The exceptions that tracebacks end with: the first line that is not indented."""
    inside = False
    for line in lines:
        if line.lstrip() == _TRACEBACK:
            inside = True
        elif inside and not line[0].isspace():
            inside = False
            yield line


def recorded(path: str) -> Optional[str]:
    """The error that torchelastic recorded in a file: that of the process that failed first."""
    try:
        with open(path, "rb") as f:
            message = json.loads(f.read(1024 * 1024).decode("utf-8", "replace"))["message"]
        found = message["message"] if isinstance(message, dict) else message
        return text(found, MAX_TEXT) or None
    except Exception:
        return None

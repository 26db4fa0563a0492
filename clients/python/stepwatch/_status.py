"""``stepwatch status``: where every training process of this node is.

Read from shared memory, so it answers while a process hangs in a collective, holds the interpreter,
is stopped, or after it has died.
"""

import argparse
import json
import math
import time
from typing import Any, Dict, List, Optional

from . import _heartbeat
from ._heartbeat import Beat

#: The sending thread looks every 20 ms. When it has not run for this long, something keeps the
#: interpreter, or the process.
STALLED = 5.0

_COLUMNS = ("RUN", "RANK", "PID", "STATE", "STEP", "LAST STEP", "PHASE", "FOR", "LAST BEAT", "NOTE")
#: Columns of numbers.
_RIGHT = frozenset(("RANK", "PID", "STEP", "LAST STEP", "FOR", "LAST BEAT"))

DESCRIPTION = """\
Shows every training process of this node that uses the client: its last step and the phase it is in, each with its age.
It needs no help from the process, so it shows as much of one that hangs, is stopped, or was killed.

  STATE      running, blocked (in the kernel, on a device or a file system), stopped, zombie, or dead (it was killed)
  LAST STEP  how long ago the last step ended
  PHASE      the part of the step, evaluation or checkpoint it is in, and for how long
  LAST BEAT  how long ago its interpreter last ran; more than seconds: C code holds the interpreter lock
"""


def arguments(parser: Any) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = DESCRIPTION
    parser.epilog = "Exit status: 0 when there are processes to show, 1 when there are none."
    parser.add_argument("--run", metavar="NAME", help="only processes of this run")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, times as Unix seconds")
    parser.add_argument(
        "--dir", metavar="DIR", default=None, help="where the pages are (default: $STEPWATCH_SHM, or %s)" % _heartbeat.DIRECTORY
    )


def run(options: Any) -> int:
    folder = options.dir or _heartbeat.directory()
    found = [b for b in _heartbeat.pages(folder) if options.run in (None, b.run)]
    if options.json:
        for beat in found:
            print(json.dumps(as_json(beat)))
    elif found:
        print(table(found, time.time()))
    else:
        print("no training process has a page in %s" % (folder or "shared memory: STEPWATCH_SHM is empty"))
    return 0 if found else 1


def as_json(beat: Beat) -> Dict[str, Any]:
    return {
        "run": beat.run,
        "rank": beat.rank,
        "pid": beat.pid,
        "state": beat.state(),
        "step": beat.step,
        "step_at": beat.step_at or None,
        "phase": beat.phase or None,
        "phase_at": beat.phase_at if beat.phase else None,
        "beat_at": beat.beat_at,
    }


def table(found: List[Beat], now: float) -> str:
    rows = [_COLUMNS] + [_row(beat, now) for beat in found]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    lines = []
    for row in rows:
        cells = [c.rjust(w) if name in _RIGHT else c.ljust(w) for name, c, w in zip(_COLUMNS, row, widths)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _row(beat: Beat, now: float) -> Any:
    state = beat.state()
    return (
        _printable(beat.run),
        str(beat.rank),
        str(beat.pid),
        state,
        "-" if beat.step is None else str(beat.step),
        age(now - beat.step_at if beat.step is not None else None),
        _printable(beat.phase) or "-",
        age(now - beat.phase_at if beat.phase else None),
        age(now - beat.beat_at),
        _note(state, now - beat.beat_at),
    )


def _note(state: str, silent: float) -> str:
    if state == "running" and silent > STALLED:
        return "C code holds the interpreter"
    return {
        "blocked": "waits in the kernel: a device or a file system",
        "dead": "killed: it did not say goodbye",
        "unseen": "in a container: its pid means nothing here",
        "zombie": "ended: its parent has not collected it",
    }.get(state, "")


def age(seconds: Optional[float]) -> str:
    """``seconds`` in two units at most, so that 3 h and 3 min are distinguished at a glance."""
    if seconds is None:
        return "-"
    if not math.isfinite(seconds):
        return "?"
    if seconds < 99.95:
        return "%.1fs" % max(0.0, seconds)
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return "%dd%02dh" % (days, hours)
    return "%dh%02dm" % (hours, minutes) if hours else "%dm%02ds" % (minutes, seconds)


def _printable(text: str) -> str:
    """A process that may write to shared memory must not write to our terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)

"""One event as one line of JSON, from unchecked values.

Runs in the sending thread only, so it may be thorough: it takes what a training loop can hand over
(tensors, NumPy scalars, decimals, objects whose ``__float__`` raises) and produces a line that the
exporter accepts, or nothing. NaN and the infinities go out bare, as Python's ``json`` writes them:
they are the values that matter most.
"""

import json
import math
from typing import Any, Dict, List, Mapping, Optional

#: The exporter refuses larger packets.
MAX_EVENT_BYTES = 8 * 1024
#: Entries of ``m`` and of ``t``.
MAX_METRICS = 256
#: Characters of a name or a text.
MAX_TEXT = 256
#: Characters of a checkpoint's path.
MAX_PATH = 1024
#: Entries of a list or a mapping in ``hello``, and how deep they may nest.
MAX_ITEMS = 128
MAX_DEPTH = 3

#: What a step is shortened to last: the exporter and the detectors know these by name.
CORE = ("loss", "grad_norm", "lr", "step_time", "tokens", "mfu", "loss_scale", "samples", "skipped")

_LARGEST_STEP = 2**53


class Unreadable(Exception):
    """The value is not a number that can be had without waiting for a device."""


def number(value: Any) -> Any:
    """``value`` as an int or a float, never by waiting for an accelerator."""
    kind = type(value)
    if kind is float:
        return value
    if kind is bool:
        return int(value)
    if kind is int:
        return value if -(2**63) <= value < 2**63 else float_of(value)
    device = getattr(value, "device", None)
    if device is not None and not on_host(device):
        raise Unreadable("it lives on %s; pass a float, or use stepwatch.torch.StepReporter" % (device,))
    item = getattr(value, "item", None)
    if item is not None:
        value = item()
    return float_of(value)


def float_of(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def on_host(device: Any) -> bool:
    """Whether a ``device`` attribute (PyTorch, JAX or NumPy) names the host's own memory."""
    name = getattr(device, "type", None) or getattr(device, "platform", None) or device
    return str(name).lower().startswith("cpu")


def integer(value: Any) -> int:
    """A step number; raises when it is none."""
    n = value if type(value) is int else number(value)
    if n != n or n != int(n) or abs(n) > _LARGEST_STEP:
        raise Unreadable("a step is a whole number")
    return int(n)


def text(value: Any, limit: int = MAX_TEXT) -> str:
    """``value`` as text that any JSON reader takes: clipped, without lone surrogates."""
    s = value if type(value) is str else str(value)
    return s[:limit].encode("utf-8", "replace").decode("utf-8")


def plain(value: Any) -> Any:
    """``value`` as JSON can carry it, for keys that are neither metrics nor known text. Never
    raises."""
    try:
        return _plain(value, MAX_DEPTH)
    except Exception:
        return "<%s>" % type(value).__name__


def _plain(value: Any, depth: int) -> Any:
    if value is None or type(value) is bool:
        return value
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        if depth == 0:
            return None
        return {text(k): _plain(v, depth - 1) for k, v in list(value.items())[:MAX_ITEMS]}
    if isinstance(value, (list, tuple, set, frozenset)):
        return None if depth == 0 else [_plain(v, depth - 1) for v in list(value)[:MAX_ITEMS]]
    try:
        return number(value)
    except Exception:
        return text(value)


def encode(event: Dict[str, Any]) -> Optional[bytes]:
    """The event as one line without the newline, shortened to the limit; None when even that is too
    long."""
    line = _dump(event)
    if len(line) <= MAX_EVENT_BYTES:
        return line
    for shorter in (_halve_metrics, _drop_extras):
        while len(line) > MAX_EVENT_BYTES and shorter(event):
            line = _dump(event)
    return line if len(line) <= MAX_EVENT_BYTES else None


def _dump(event: Dict[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode("ascii")


def _halve_metrics(event: Dict[str, Any]) -> bool:
    """Drops half of the metrics that no detector uses; False when none is left."""
    for key in ("t", "m"):
        metrics = event.get(key)
        if metrics:
            custom = [name for name in metrics if name not in CORE]
            for name in custom[len(custom) // 2 :]:
                del metrics[name]
            if custom:
                return True
    return False


_KEPT = frozenset(("v", "k", "ts", "run", "rank", "world", "step", "m", "t", "name", "code", "pid", "phase", "dropped"))


def _drop_extras(event: Dict[str, Any]) -> bool:
    """Drops the longest value that the exporter can do without; False when none is left."""
    extras: List[str] = [key for key in event if key not in _KEPT]
    if not extras:
        return False
    del event[max(extras, key=lambda key: len(_dump({"": event[key]})))]
    return True

"""Values on their way from a device: reported in order, each when it has landed, and never waited
for.

Reading a loss with ``.item()`` makes the host wait until the device has caught up, which costs far
more than any report. A value is copied to host memory behind the work that computes it instead, and
looked at again when the loop next comes by.
"""

import collections
import logging
from typing import Any, Callable, Deque, Dict, Protocol, Set, Tuple

log = logging.getLogger("stepwatch")

#: Reports whose values may be on their way; the values of an older one are given up (the report
#: itself is made).
MAX_IN_FLIGHT = 64
#: Metrics that cannot be read and are reported by name.
MAX_REPORTED = 32


class Value(Protocol):
    """A number that is here, or on its way from a device."""

    def landed(self, newest: bool) -> bool:
        """Whether it can be read without waiting. ``newest``: nothing has been handed over after it
        yet."""

    def read(self) -> Any: ...


class Here:
    """A number that needs no waiting."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def landed(self, newest: bool) -> bool:
        return True

    def read(self) -> Any:
        return self._value


class InFlight:
    """A queue of reports; ``start`` sends a value on its way, or raises when it is none."""

    def __init__(self, start: Callable[[Any], Value] = Here) -> None:
        self._start = start
        self._waiting: Deque[Tuple[Dict[str, Value], Callable[[Dict[str, Any]], None]]] = collections.deque()
        #: Values that nobody will see.
        self.given_up = 0
        self._reported: Set[str] = set()

    def __getstate__(self) -> Dict[str, Any]:
        return dict(self.__dict__, _waiting=collections.deque())

    def put(self, values: Dict[str, Any], report: Callable[[Dict[str, Any]], None]) -> None:
        """Calls ``report`` with what is read from ``values``, now or at a later call."""
        started: Dict[str, Value] = {}
        for name, value in values.items():
            try:
                started[name] = self._start(value)
            except Exception as e:  # an array of more than one element, say
                if name not in self._reported and len(self._reported) < MAX_REPORTED:
                    self._reported.add(name)
                    log.warning("stepwatch: metric %r is left out: %s", name, e)
        self._waiting.append((started, report))
        self.poll()

    def poll(self, wait: bool = False, give_up: bool = False) -> None:
        """Passes on, in order, what has landed. ``wait`` for the rest: the end of training.
        ``give_up`` on it: after an exception the device may never answer again."""
        while self._waiting:
            values, report = self._waiting[0]
            newest = len(self._waiting) == 1
            landed = {name: value for name, value in values.items() if wait or _landed(value, newest)}
            missing = len(values) - len(landed)
            if missing and not give_up and len(self._waiting) <= MAX_IN_FLIGHT:
                return
            self._waiting.popleft()
            if missing and not self.given_up:
                log.warning("stepwatch: the device is too far behind, or gone: values are given up")
            self.given_up += missing
            report(_read(landed))


def _landed(value: Value, newest: bool) -> bool:
    try:
        return value.landed(newest)
    except Exception:  # the device is in error: the value will not come, and the report must not wait for it for ever
        return True


def _read(values: Dict[str, Value]) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for name, value in values.items():
        try:
            found[name] = value.read()
        except Exception:
            log.debug("stepwatch: metric %r is left out", name, exc_info=True)
    return found

"""From what the training loop handed over to the events of the wire contract. Runs in the sending
thread."""

import logging
import os
import platform
import time
from typing import Any, Dict, List, Mapping, Optional, Set

from . import _identity
from ._sender import Item
from ._wire import MAX_METRICS, MAX_PATH, Unreadable, integer, number, plain, text

log = logging.getLogger("stepwatch")

#: Keys with a meaning of their own in an event: nothing the user adds may take their place.
RESERVED = frozenset(
    "v k ts c run rank world step m t node name text level code attempt lost missing phase dropped pid client".split()
)


class Builder:
    """Builds the events of one run in the order in which they happened, so that it has the step
    that each belongs to."""

    def __init__(
        self,
        run: str,
        rank: int,
        world: Optional[int],
        about: Dict[str, Any],
        open_phases: List[Any],
        role: Optional[str] = None,
    ) -> None:
        """``role``: what reports is no rank of the run but, say, its launcher."""
        self.about = about
        self._head: Dict[str, Any] = {"run": text(run), "rank": rank}
        if role is not None:
            self._head["role"] = role
        if world is not None:
            self._head["world"] = world
        self._open_phases = open_phases
        self._step: Optional[int] = None
        self._step_at = 0.0
        self._reported: Set[str] = set()

    def _event(self, kind: str, at: float) -> Dict[str, Any]:
        # The offset is taken now and not once: the wall clock of a node is stepped and slewed while
        # a run lasts for weeks.
        ts = round(at + time.time() - time.monotonic(), 6)
        event: Dict[str, Any] = {"v": 1, "k": kind, "ts": ts}
        event.update(self._head)
        return event

    def build(self, item: Item, closing: bool) -> Optional[Dict[str, Any]]:
        _, at, kind, step, metrics, more = item
        if kind == "step":
            return self._build_step(at, step, metrics, more)
        if kind == "more":
            return self._build_more(at, step, metrics)
        event = self._event(kind, at)
        try:
            event["step"] = self._step if step is None else integer(step)
        except Exception:
            event["step"] = self._step
        if event["step"] is None:
            del event["step"]
        if metrics:
            event["m"] = self._metrics(metrics)
        if hasattr(more, "fill"):
            if not more.fill(event, closing):
                return None
        else:
            for key, value in more.items():
                if value is not None:
                    event[key] = text(value, MAX_PATH) if key == "path" else plain(value)
        return event

    def _build_step(self, at: float, step: Any, metrics: Dict[str, Any], more: Any) -> Dict[str, Any]:
        before, phases, given = more if type(more) is tuple else (more, None, None)
        event = self._event("step", at)
        event["step"] = n = integer(step)
        m = self._metrics(metrics)
        if before is not None and "step_time" not in m:
            m["step_time"] = round(at - before, 6)
        event["m"] = m
        if phases:
            event["t"] = {text(name): round(seconds, 6) for name, seconds in list(phases.items())[:MAX_METRICS]}
        if given:
            event.setdefault("t", {}).update(self._metrics(given))
        self._step, self._step_at = n, at
        return event

    def _build_more(self, at: float, step: Any, metrics: Dict[str, Any]) -> Dict[str, Any]:
        """More about a step, sent as of the last one: with an earlier number it would mean that the
        run went back."""
        known = self._step is not None
        event = self._event("step", self._step_at if known else at)
        event["step"] = self._step if known else integer(step)
        event["m"] = self._metrics(metrics)
        return event

    def _metrics(self, given: Mapping[str, Any]) -> Dict[str, Any]:
        m: Dict[str, Any] = {}
        for name, value in given.items():
            if value is None or len(m) >= MAX_METRICS:
                continue
            try:
                m[text(name)] = number(value)
            except Exception as e:
                self._report_once(name, e)
        return m

    def _report_once(self, name: Any, error: Exception) -> None:
        """A metric that cannot be read must not vanish in silence, and must not fill the log at
        every step."""
        name = text(name)
        if name not in self._reported and len(self._reported) < MAX_METRICS:
            self._reported.add(name)
            reason = str(error) if isinstance(error, Unreadable) else repr(error)
            log.warning("stepwatch: metric %r is left out: %s", name, reason)

    def hello(self, dropped: int) -> Dict[str, Any]:
        event = self._event("hello", time.monotonic())
        event["pid"] = os.getpid()
        event["client"] = "stepwatch-python/" + str(self.about.get("client_version", ""))
        name, version = _identity.framework()
        about = {"framework": name, "version": version, "python": platform.python_version()}
        about.update((k, v) for k, v in list(self.about.items()) if v is not None)
        for key, value in about.items():
            if value is not None and key not in RESERVED and key != "client_version":
                event[text(key)] = plain(value)
        if dropped:
            event["dropped"] = dropped
        return event

    def heartbeat(self, dropped: int) -> Dict[str, Any]:
        """The last step of this process that is alive, how long ago it was, and where the process
        is now."""
        now = time.monotonic()
        event = self._event("hb", now)
        if self._step is not None:
            event["step"] = self._step
            event["step_age"] = round(now - self._step_at, 3)
        for phase in self._open_phases[-1:]:
            event["in_phase"] = text(phase.name)
            event["phase_age"] = round(now - phase.since, 3)
        if dropped:
            event["dropped"] = dropped
        return event

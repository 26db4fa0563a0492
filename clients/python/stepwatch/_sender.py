"""The half of the client that does the work: one daemon thread behind a bounded queue.

The training loop appends a tuple to ``Sender.queue`` and goes on: no lock, no system call, no
encoding. The thread looks every ``POLL`` seconds. It is not woken by the caller, because waking a
sleeping thread is a system call and a context switch in the training loop (measured: 12 us where a
plain append costs 3 us with equally cold caches), and a poll costs the process less than a
thousandth of one core.

When the queue is full its oldest entry gives way; sequence numbers in the entries show how many
did. What has been taken out but not yet accepted by the receiver is at most one batch.
"""

import collections
import itertools
import logging
import math
import os
import random
import threading
import time
import weakref
from typing import Any, Deque, Dict, Optional, Protocol, Sequence, Tuple

from ._heartbeat import Page, sweep
from ._transport import Transport
from ._wire import encode

log = logging.getLogger("stepwatch")

#: Events kept while no receiver takes them: at 20 steps a second a restart of the exporter of 50 s
#: loses nothing.
QUEUE_LIMIT = 1024
#: Events kept apart until they are complete (a checkpoint whose size is being measured).
ASIDE_LIMIT = 16
#: Seconds between two looks at the queue: the mean delay of an event is half of it.
POLL = 0.02
#: Seconds that leaving the ``with`` block or the process waits for the last events: 50 ms is the
#: promise, a busy machine wakes us late.
EXIT_WAIT = 0.03
#: Seconds that it may wait instead while nothing but a busy machine holds them up: a lost goodbye
#: is a false alarm of a dead rank.
EXIT_WAIT_FLOWING = 0.25
#: Seconds that the thread itself goes on trying after that, while the process is alive.
LINGER = 2.0
#: Seconds before each further attempt to connect; the last repeats.
BACKOFF = (0.2, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
#: Seconds that a connection must have lasted for its loss to be news: younger ones back off, or we
#: would spin on a broken receiver.
STABLE = 1.0
#: Seconds for which a lost way is given the chance to come back before a lesser one is taken; the
#: queue holds that long.
PATIENCE = 3.0
#: Longest pause between two tries at a receiver that is alive and full.
MAX_FULL_WAIT = 0.25

#: The kind of the last event there is.
GOODBYE = "bye"

#: (sequence number, time.monotonic(), kind, step, metrics, what else the kind needs)
Item = Tuple[int, float, str, Any, Any, Any]

_live: "weakref.WeakSet[Sender]" = weakref.WeakSet()
# An instance of our own: the global generator belongs to the training run, whose results must not
# depend on us.
_jitter = random.Random()


class NotYet(Exception):
    """The event is not complete: ask again."""


class Builder(Protocol):
    """Turns items into events; it has the layout of an event, the sender only the time at which one
    is wanted."""

    def build(self, item: Item, closing: bool) -> Optional[Dict[str, Any]]:
        """None leaves the item out. Raises NotYet, or anything when the item is unusable."""

    def hello(self, dropped: int) -> Dict[str, Any]: ...

    def heartbeat(self, dropped: int) -> Dict[str, Any]: ...


class Sender:
    def __init__(
        self,
        ways: Sequence[Transport],
        builder: Builder,
        limit: int,
        interval: float,
        page: Optional[Page] = None,
    ) -> None:
        self._ways = list(ways)
        self._builder = builder
        self._page = page if page is not None else Page()
        #: Writes the step into the page.
        self.mark = self._page.step
        self._limit, self._interval = limit, interval
        self._thread: Optional[threading.Thread] = None
        self._reset()
        _live.add(self)

    def _reset(self) -> None:
        # A run with nowhere to report to keeps nothing, and costs what any other costs.
        self.queue: Any = collections.deque(maxlen=self._limit if self._ways else 0)
        self.sequence = itertools.count()
        self._outbox: Deque[bytes] = collections.deque()
        self._aside: Deque[Item] = collections.deque()
        self._taken = self._newest = 0
        self._unusable = 0
        self._way: Optional[Transport] = None
        self._failures = 0
        self._opened = 0.0
        self._lost_way: Optional[Transport] = None
        self._lost_at = 0.0
        self._full_wait = 0.0
        self._next_open = self._next_beat = 0.0
        self._last_try = False
        self._quiet_until = 0.0
        self._greet = False
        self._hello: Optional[bytes] = None
        self._deadline: Optional[float] = None
        self._wake = threading.Lock()
        self._wake.acquire()

    # -- any thread --------------------------------------------------------------------------------

    def start(self) -> None:
        if not self._ways:
            return
        self._pid = os.getpid()
        self._page.open()
        self.mark = self._page.step
        self._thread = threading.Thread(target=self._loop, name="stepwatch", daemon=True)
        self._thread.start()

    def put(self, kind: str, step: Any, metrics: Any, more: Any, at: Optional[float] = None) -> None:
        self.queue.append((next(self.sequence), time.monotonic() if at is None else at, kind, step, metrics, more))

    @property
    def connected(self) -> Optional[str]:
        way = self._way
        return way.name if way is not None else None

    @property
    def dropped(self) -> int:
        """Events of this process that are lost: pushed out of the full queue, or impossible to
        encode."""
        try:
            queued = len(self.queue)
            newest = max(self._newest, int(self.queue[-1][0]) + 1)
        except Exception:  # empty, or changed under our eyes
            queued, newest = 0, self._newest
        return max(0, newest - self._taken - queued) + self._unusable + sum(way.refused for way in self._ways)

    def greet(self) -> None:
        """Sends ``hello`` again: its content has changed."""
        self._greet, self._quiet_until = True, 0.0

    @property
    def running(self) -> bool:
        """Whether this process, not the one it was forked from, has reported anything."""
        return self._thread is not None

    def finish(self) -> None:
        """Makes the thread send what is there and end; returns at once."""
        if self._thread is not None and self._deadline is None:
            self._deadline = time.monotonic() + LINGER
            self._rouse()

    def join(self, timeout: float) -> None:
        thread = self._thread
        if thread is not None and self._pid == os.getpid() and thread is not threading.current_thread():
            thread.join(max(0.0, timeout))

    @property
    def flowing(self) -> bool:
        """Whether the thread has something to do and nobody to wait for."""
        thread = self._thread
        if thread is None or thread is threading.current_thread() or not thread.is_alive():
            return False
        way = self._way
        return not self._last_try if way is None else way.prompt and not self._full_wait

    def _rouse(self) -> None:
        try:
            self._wake.release()
        except RuntimeError:
            pass  # it is awake

    def after_fork(self) -> None:
        """In the child: forget the parent's thread, queue and connection.

        The descriptor is closed here, or a data-loading worker would keep the connection of its
        dead parent open and the exporter would not see that the rank died. A child that reports
        something itself gets a connection of its own then, not before.
        """
        for way in self._ways:
            try:
                way.close()
            except Exception:
                pass
        closed = self._deadline is not None
        self._thread = None
        self.mark = self._page.step
        self._reset()
        self.queue = collections.deque(maxlen=0) if closed else _StartsOnAppend(self, self.queue)

    # -- the thread --------------------------------------------------------------------------------

    def _loop(self) -> None:
        sweep()
        while True:
            self._page.beat()
            try:
                pause = self._work()
            except Exception:
                log.debug("stepwatch: the sending thread goes on after", exc_info=True)
                pause = 1.0
            if pause is None:
                self.queue = collections.deque(maxlen=0)  # what a closed run is given is discarded
                return
            self._wake.acquire(timeout=pause)
            # Nearly every look finds nothing, as a step takes seconds: such a look must cost next
            # to nothing.
            while not self.queue and self._deadline is None and time.monotonic() < self._quiet_until:
                self._wake.acquire(timeout=POLL)
                self._page.beat()

    def _work(self) -> Optional[float]:
        """Sends what can be sent now; the seconds to sleep, or None at the end."""
        now = time.monotonic()
        closing = self._deadline is not None
        if closing and not self._last_try:
            self._last_try, self._next_open = True, now
        if now >= self._next_open and self._way is not self._ways[0]:
            self._open(now)
        pause = self._pump(closing)
        if closing and (pause is None or now >= (self._deadline or 0.0) or not self._backlog()):
            if self._way is not None:
                self._way.close()
            return None
        if pause is None:
            return min(1.0, max(0.0, self._next_open - now))
        self._quiet_until = 0.0 if self._outbox or self._aside or self._greet else self._next_due()
        return pause

    def _next_due(self) -> float:
        way = self._way
        beat = self._next_beat if way is not None and way.live else math.inf
        return beat if way is self._ways[0] else min(beat, self._next_open)

    def _backlog(self) -> bool:
        return bool(self.queue or self._outbox or self._aside)

    def _open(self, now: float) -> None:
        """Opens the best way that can be opened and is better than the present one."""
        patient = now - self._lost_at < PATIENCE and not self._last_try
        for way in self._ways:
            if way is self._way:
                break
            try:
                way.open()
            except Exception as e:
                log.debug("stepwatch: %s: %s", way.name, e)
                if patient and way is self._lost_way:
                    break
                continue
            if self._way is not None:
                self._way.close()
            log.info("stepwatch: reporting by %s", way.name)
            self._way, self._opened, self._greet = way, now, True
            self._next_beat = now + self._interval
            break
        if self._way is not self._ways[0]:
            self._back_off(now)

    def _back_off(self, now: float) -> None:
        self._next_open = now + BACKOFF[min(self._failures, len(BACKOFF) - 1)] * _jitter.uniform(0.8, 1.2)
        self._failures += 1

    def _pump(self, closing: bool) -> Optional[float]:
        """Feeds the open way until there is nothing left or it is full: the seconds to sleep, None
        when no way is open."""
        while self._way is not None:
            if not self._fill(self._way, closing):
                return POLL
            try:
                taken = self._way.send(list(itertools.islice(self._outbox, self._way.batch)))
            except Exception as e:
                self._lost(self._way, e)
                continue
            for _ in range(taken):
                self._outbox.popleft()
            if not taken:
                self._full_wait = min(MAX_FULL_WAIT, max(0.005, self._full_wait * 2))
                return 0.005 if closing else self._full_wait
            self._full_wait = 0.0
        return None

    def _lost(self, way: Transport, error: Exception) -> None:
        """The way died in use. The first new attempt is made at once: most often the exporter was
        only restarted."""
        log.info("stepwatch: lost %s: %s", way.name, error)
        way.close()
        now = time.monotonic()
        self._way, self._lost_way, self._lost_at = None, way, now
        if now - self._opened >= STABLE:
            self._failures = 0
            self._open(now)
        else:
            self._back_off(now)

    def _fill(self, way: Transport, closing: bool) -> bool:
        """Refills the outbox up to one batch; whether there is something to send."""
        if self._greet:
            self._greet = False
            self._push_hello()
        while len(self._outbox) < way.batch:
            item = self._next(closing)
            if item is None:
                break
            try:
                event = self._builder.build(item, closing)
                if event is not None:
                    self._push(event)
            except NotYet:
                if len(self._aside) < ASIDE_LIMIT and not closing:
                    self._aside.append(item)
                else:
                    self._unusable += 1
            except Exception as e:
                self._unusable += 1
                log.debug("stepwatch: event %r left out: %r", item[2], e)
        if not self._outbox and way.live and time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + self._interval
            self._push(self._builder.heartbeat(self.dropped))
        return bool(self._outbox)

    def _next(self, closing: bool) -> Optional[Item]:
        if closing and self._aside:
            return self._aside.popleft()  # whatever is known of it by now: nothing may follow the goodbye
        if not closing and self.queue and self.queue[0][2] == GOODBYE:
            return self._next_aside()  # ``finish`` is being called, and what stands aside goes first
        try:
            item: Item = self.queue.popleft()
        except IndexError:
            return self._next_aside()
        self._taken += 1
        self._newest = max(self._newest, item[0] + 1)
        return item

    def _next_aside(self) -> Optional[Item]:
        for item in list(self._aside):
            if item[5].ready(closing=False):
                self._aside.remove(item)
                return item
        return None

    def _push(self, event: Dict[str, Any]) -> None:
        line = encode(event)
        if line is None:
            self._unusable += 1
        else:
            self._outbox.append(line)

    def _push_hello(self) -> None:
        if self._outbox and self._outbox[0] is self._hello:
            self._outbox.popleft()  # that of the connection before, which took nothing
        self._hello = encode(self._builder.hello(self.dropped))
        if self._hello is not None:
            self._outbox.appendleft(self._hello)


class _StartsOnAppend:
    """Stands in for the queue of a forked child, most of which never report: the first event starts
    the thread."""

    def __init__(self, sender: Sender, queue: Any) -> None:
        self._sender, self._queue = sender, queue

    def append(self, item: Item) -> None:
        self._queue.append(item)
        if self._sender.queue is self:
            self._sender.queue = self._queue
            self._sender.start()


def _in_child() -> None:
    for sender in list(_live):
        sender.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def finish_all(senders: Sequence[Sender], timeout: float = EXIT_WAIT) -> None:
    """Ends all of them within one timeout; only those that lack nothing but processor time get
    longer."""
    start = time.monotonic()
    for sender in senders:
        sender.finish()
    for sender in senders:
        sender.join(start + timeout - time.monotonic())
        while sender.flowing and time.monotonic() < start + EXIT_WAIT_FLOWING:
            sender.join(0.005)

#!/usr/bin/env python3
"""What ``run.step()`` costs the training loop, and how long a step takes to reach the socket.

Three receivers: alive, stopped (SIGSTOP: it accepts nothing more, the socket fills up) and absent.
Calls are paced 0.2 to 1 ms apart by hashing a buffer. A tight loop would measure a warm cache and
never let the sending thread have the interpreter; sleeping would measure how a core wakes up.
Hashing does real work on the core and releases the interpreter lock meanwhile, as ``backward()``
does, so that the sending thread runs beside and between the calls and takes its share of the
caches.

Two peers are called with the same arguments in the same loop, a quarter as often. "empty" is an
empty function: it shows what of the tail is the machine's, which on a busy one is most of it.
"peer" does the least that a client can: it takes the time and appends a tuple to a bounded deque.
Three things are judged:

* the median, as a multiple of the peer's. It is the same on every machine, and its limit is never
  widened;
* the targets in microseconds, for what the call adds to an empty one. Where an empty call is slower
  than on a machine that has time, they are wider by as much, but by no more than a named factor:
  beyond it the row says nothing, and is measured again;
* the age of a step when it arrives.

    python3 bench/bench_step.py            # the table
    python3 bench/bench_step.py --check    # exit 1 if a target is missed three times in a row, or
                                           # the machine has no time to measure
"""

import argparse
import collections
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import stepwatch  # noqa: E402

P50_TARGET_US = 2.0
P99_TARGET_US = 10.0
# What an empty call takes at the most (p99) on a machine that has time for the loop.
EMPTY_P99_US = 2.5
# The most by which the targets are wider on a machine that is slower than that.
MOST_SLACK = 6.0
# What the median call may cost of a peer that only takes the time and appends to a deque, on any
# machine.
PEER_RATIO = 2.5
LATENCY_P99_TARGET_MS = 50.0
#: With --check a row that misses a target is measured again: other work on the machine comes and
#: goes, a slow client stays slow.
ATTEMPTS = 3
#: How often a row is measured that says nothing, because the machine had no time, and how long is
#: waited before.
BUSY_ATTEMPTS = 6
BUSY_PAUSE = 5.0
SHORTEST_STEP, LONGEST_STEP = 0.0002, 0.001


def receive(path):
    """The other process: takes packets, and prints how old each step was when it arrived."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(1)
    print("ready", flush=True)
    connection, _ = listener.accept()
    ages, steps = [], 0
    while True:
        packet = connection.recv(16384)
        now = time.time()
        if not packet:
            break
        event = json.loads(packet)
        if event["k"] == "step":
            steps += 1
            ages.append(now - event["ts"])
    json.dump({"steps": steps, "ages": sorted(ages)}, sys.stdout)


def quantile(ordered, q):
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("nan")


def hash_rate():
    """Bytes hashed in a second on this machine."""
    buffer = bytes(1 << 20)
    best = min(_timed(hashlib.sha256, buffer) for _ in range(5))
    return len(buffer) / best


def _timed(function, argument):
    start = time.perf_counter()
    function(argument)
    return time.perf_counter() - start


def empty(step, t=None, **metrics):
    pass


queued = collections.deque(maxlen=1024)


def peer(step, t=None, **metrics):
    queued.append((step, time.time(), t, metrics))


def call(run, calls, rate):
    """The training loop; nanoseconds of each call, of each empty one and of each of the peer,
    sorted."""
    buffer = memoryview(bytes(int(rate * LONGEST_STEP) + 1))
    paces = random.Random(1)
    clock, costs, empties, peers = time.perf_counter_ns, [], [], []

    def work():
        hashlib.sha256(buffer[: int(rate * paces.uniform(SHORTEST_STEP, LONGEST_STEP))])

    for i in range(calls):
        work()
        start = clock()
        run.step(i, loss=2.3456, grad_norm=0.87, lr=3e-4, tokens=4194304)
        costs.append(clock() - start)
        if i % 4 == 0:
            work()
            start = clock()
            empty(i, loss=2.3456, grad_norm=0.87, lr=3e-4, tokens=4194304)
            empties.append(clock() - start)
        elif i % 4 == 2:
            work()
            start = clock()
            peer(i, loss=2.3456, grad_norm=0.87, lr=3e-4, tokens=4194304)
            peers.append(clock() - start)
    return sorted(costs), sorted(empties), sorted(peers)


def thread_seconds(run):
    """Processor time that the sending thread has used so far."""
    return time.clock_gettime(time.pthread_getcpuclockid(run._sender._thread.ident))


class Row:
    """What one receiver gave."""

    HEAD = "%-9s %8s %8s %8s %8s | %8s %8s | %8s %8s | %8s %8s %8s | %8s %8s %8s" % (
        "receiver", "p50 us", "p99 us", "p99.9", "max", "empty 50", "empty 99", "peer 50", "ratio",
        "age p50", "age p99", "max ms", "dropped", "thread %", "exit ms")

    def __init__(self, costs, empties, peers, ages, dropped, cpu, leaving):
        self.us = [quantile(costs, q) / 1e3 for q in (0.5, 0.99, 0.999, 1.0)]
        self.empty_us = [quantile(empties, q) / 1e3 for q in (0.5, 0.99)]
        self.peer_us = quantile(peers, 0.5) / 1e3
        self.ratio = self.us[0] / self.peer_us
        self.ms = [quantile(ages, q) * 1e3 for q in (0.5, 0.99, 1.0)]
        self.rest = (dropped, cpu * 100, leaving * 1e3)

    def line(self, name):
        return "%-9s %8.2f %8.2f %8.1f %8.0f | %8.2f %8.2f | %8.2f %8.2f | %8.1f %8.1f %8.1f | %8d %8.2f %8.1f" % (
            (name,) + tuple(self.us + self.empty_us + [self.peer_us, self.ratio] + self.ms) + self.rest)

    def missed(self):
        late = self.ms[1] > LATENCY_P99_TARGET_MS  # never true of NaN: a stopped receiver sees no age
        # The timer and the machine charge an empty call as well.
        p50, p99 = (call - nothing for call, nothing in zip(self.us, self.empty_us))
        slack = self.slack()
        return self.ratio > PEER_RATIO or p50 > P50_TARGET_US * slack or p99 > P99_TARGET_US * slack or late

    def slowness(self):
        """How many times slower the machine is than one that has time."""
        return max(1.0, self.empty_us[1] / EMPTY_P99_US)

    def slack(self):
        """How much wider the targets in microseconds are."""
        return min(self.slowness(), MOST_SLACK)

    def busy(self):
        """Whether the machine is too slow for the row to say anything."""
        return self.slowness() > MOST_SLACK


def judge(measure, attempts=ATTEMPTS, busy_attempts=BUSY_ATTEMPTS, pause=BUSY_PAUSE):
    """Measures until a row holds its targets. None, or why it did not: what misses is measured
    again, and so is what says nothing."""
    misses = busy = 0
    while misses < attempts and busy < busy_attempts:
        row = measure(misses + busy)
        if row.busy():
            busy += 1
            time.sleep(pause)
        elif row.missed():
            misses += 1
        else:
            return None
    return "missed" if misses == attempts else "not measured: the machine is too busy"


def scenario(name, calls, rate, path):
    receiver = None
    if name != "absent":
        receiver = subprocess.Popen([sys.executable, __file__, "--receive", path], stdout=subprocess.PIPE)
        receiver.stdout.readline()
    run = stepwatch.Run("bench", socket=path, url="", directory="")
    try:
        if receiver is not None:
            deadline = time.monotonic() + 5
            while run.connected is None and time.monotonic() < deadline:
                time.sleep(0.005)
        if name == "stopped":
            os.kill(receiver.pid, signal.SIGSTOP)
        call(run, calls // 20, rate)  # warm-up, as a run has one
        cpu, start = thread_seconds(run), time.perf_counter()
        costs, empties, peers = call(run, calls, rate)
        cpu, wall = thread_seconds(run) - cpu, time.perf_counter() - start
        dropped = run.dropped
        if name == "stopped":
            os.kill(receiver.pid, signal.SIGCONT)
        start = time.perf_counter()
        run.close()
        leaving = time.perf_counter() - start
    finally:
        if receiver is not None:
            os.kill(receiver.pid, signal.SIGCONT)
    ages = []
    if receiver is not None:
        seen = json.loads(receiver.communicate(timeout=30)[0])
        ages = seen["ages"] if name == "alive" else []
    return Row(costs, empties, peers, ages, dropped, cpu / wall, leaving)


def idle_share(folder, seconds=2.0):
    """Share of a core that the sending thread takes while the loop reports nothing."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(os.path.join(folder, "idle.sock"))
    listener.listen(1)
    run = stepwatch.Run("bench", socket=os.path.join(folder, "idle.sock"), url="", directory="")
    time.sleep(0.2)
    before = thread_seconds(run)
    time.sleep(seconds)
    share = (thread_seconds(run) - before) / seconds
    run.close()
    listener.close()
    return share


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20000)
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument("--receive", metavar="PATH", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.receive:
        return receive(options.receive)
    rate = hash_rate()
    print("Python %s, %d calls a row, %.1f to %.1f ms apart" % (
        sys.version.split()[0], options.calls, SHORTEST_STEP * 1e3, LONGEST_STEP * 1e3))
    print(Row.HEAD)
    wrong, slack = {}, 1.0
    with tempfile.TemporaryDirectory() as folder:
        for name in ("alive", "stopped", "absent"):

            def measure(attempt, name=name):
                nonlocal slack
                row = scenario(name, options.calls, rate, os.path.join(folder, "%s-%d.sock" % (name, attempt)))
                print(row.line(name), flush=True)
                slack = max(slack, row.slack())
                return row

            why = judge(measure) if options.check else judge(measure, 1, 1, 0.0)
            if why:
                wrong.setdefault(why, []).append(name)
        print("idle      the sending thread takes %.2f %% of a core" % (idle_share(folder) * 100))
    verdict = "; ".join("%s by %s" % (why.upper(), ", ".join(names)) for why, names in wrong.items())
    print("targets: p50 <= %.1f times the peer's, p50 <= %.0f us, p99 <= %.0f us in the caller, age p99 <= %.0f ms: %s" % (
        PEER_RATIO, P50_TARGET_US, P99_TARGET_US, LATENCY_P99_TARGET_MS, verdict or "held"))
    if slack > 1.0:
        print("this machine is busy: the targets in us were up to %.1f times as wide, of %.0f at most" % (slack, MOST_SLACK))
    return 1 if options.check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())

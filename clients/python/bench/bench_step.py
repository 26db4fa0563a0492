#!/usr/bin/env python3
"""What ``run.step()`` costs the training loop, and how long a step takes to reach the socket.

Three receivers: alive, stopped (SIGSTOP: it accepts nothing more, the socket fills up) and absent. Calls are paced 0.2 to 1 ms
apart by hashing a buffer. A tight loop would measure a warm cache and never let the sending thread have the interpreter; sleeping
would measure how a core wakes up. Hashing does real work on the core and releases the interpreter lock meanwhile, as
``backward()`` does, so that the sending thread runs beside and between the calls and takes its share of the caches.

    python3 bench/bench_step.py            # the table
    python3 bench/bench_step.py --check    # exit 1 if a target is missed
"""

import argparse
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
LATENCY_P99_TARGET_MS = 50.0
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


def call(run, calls, rate):
    """The training loop; nanoseconds of each call, sorted."""
    buffer = memoryview(bytes(int(rate * LONGEST_STEP) + 1))
    paces = random.Random(1)
    clock, costs = time.perf_counter_ns, []
    for i in range(calls):
        hashlib.sha256(buffer[: int(rate * paces.uniform(SHORTEST_STEP, LONGEST_STEP))])
        start = clock()
        run.step(i, loss=2.3456, grad_norm=0.87, lr=3e-4, tokens=4194304)
        costs.append(clock() - start)
    return sorted(costs)


def own_cost(calls):
    """What reading the clock twice adds to every measurement."""
    clock = time.perf_counter_ns
    costs = []
    for _ in range(calls):
        start = clock()
        costs.append(clock() - start)
    return quantile(sorted(costs), 0.5)


def thread_seconds(run):
    """Processor time that the sending thread has used so far."""
    return time.clock_gettime(time.pthread_getcpuclockid(run._sender._thread.ident))


def scenario(name, calls, rate, folder):
    path = os.path.join(folder, name + ".sock")
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
        costs = call(run, calls, rate)
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
    return costs, ages, dropped, cpu / wall, leaving


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
    print("Python %s, %d calls a row, %.1f to %.1f ms apart; two clock readings (%.2f us) included"
          % (sys.version.split()[0], options.calls, SHORTEST_STEP * 1e3, LONGEST_STEP * 1e3, own_cost(5000) / 1e3))
    print("%-9s %8s %8s %8s %9s | %9s %9s %9s | %9s %9s %8s" % (
        "receiver", "p50 us", "p99 us", "p99.9 us", "max us", "age p50", "age p99", "age max ms", "dropped", "thread %", "exit ms"))
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("alive", "stopped", "absent"):
            costs, ages, dropped, cpu, leaving = scenario(name, options.calls, rate, folder)
            us = [quantile(costs, q) / 1e3 for q in (0.5, 0.99, 0.999)] + [costs[-1] / 1e3]
            ms = [quantile(ages, q) * 1e3 for q in (0.5, 0.99)] + [ages[-1] * 1e3 if ages else float("nan")]
            print("%-9s %8.2f %8.2f %8.2f %9.1f | %9.1f %9.1f %9.1f | %9d %9.2f %8.1f" % (
                (name, *us, *ms, dropped, cpu * 100, leaving * 1e3)))
            if us[0] > P50_TARGET_US or us[1] > P99_TARGET_US:
                missed.append("%s: p50 %.2f us, p99 %.2f us" % (name, us[0], us[1]))
            if ages and ms[1] > LATENCY_P99_TARGET_MS:
                missed.append("%s: a step took %.1f ms to the socket (p99)" % (name, ms[1]))
        print("idle      the sending thread takes %.3f %% of a core" % (idle_share(folder) * 100))
    for line in missed:
        print("MISSED  " + line)
    print("targets: p50 <= %.0f us, p99 <= %.0f us in the caller; age p99 <= %.0f ms: %s" % (
        P50_TARGET_US, P99_TARGET_US, LATENCY_P99_TARGET_MS, "missed" if missed else "held"))
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())

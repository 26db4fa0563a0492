#!/usr/bin/env python3
"""What an exporter holds when its stream is full: eight ranks send 6,000 steps each, and it rests
for a minute.

    python3 tests/scripts/full_stream.py target/release/stepwatch-exporter ...
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time

RANKS = 8
STEPS = 6000
PAUSE_S = 0.004
REST_S = 65
PATIENCE_S = 10


def memory(pid):
    with open("/proc/%d/status" % pid) as status:
        fields = dict(line.split(":", 1) for line in status)
    return [int(fields[name].split()[0]) / 1e3 for name in ("VmRSS", "RssAnon")]


def connect(path):
    end = time.monotonic() + PATIENCE_S
    while True:
        rank = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            rank.connect(path)
            return rank
        except OSError:
            rank.close()
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def measure(program, folder):
    ingest, config = os.path.join(folder, "ingest.sock"), os.path.join(folder, "exporter.yml")
    with open(config, "w") as file:
        file.write("listen: '127.0.0.1:0'\ningest: {socket: %s}\nstate_dir: %s/state\n" % (ingest, folder))
    os.mkdir(os.path.join(folder, "shm"))
    command = [program, "run", "--config", config, "--path.shm", os.path.join(folder, "shm")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as exporter:
        try:
            ranks = [connect(ingest) for _ in range(RANKS)]
            times = {"data": 0.02, "fwd_bwd": 3.9, "optim": 0.2}
            values = {"loss": 2.3456, "grad_norm": 0.87, "lr": 3e-4, "step_time": 4.21, "tokens": 4194304, "mfu": 0.41}
            for step in range(1, STEPS + 1):
                for number, rank in enumerate(ranks):
                    event = {"v": 1, "k": "step", "ts": time.time(), "run": "llama-70b", "rank": number,
                             "world": RANKS, "step": step, "m": values, "t": times}
                    rank.send(json.dumps(event, separators=(",", ":")).encode())
                time.sleep(PAUSE_S)
            time.sleep(REST_S)
            return memory(exporter.pid)
        finally:
            exporter.terminate()


for program in sys.argv[1:]:
    with tempfile.TemporaryDirectory() as folder:
        print("%s: %.1f MB resident, %.1f MB of it heap and stacks" % (program, *measure(program, folder)))

#!/usr/bin/env python3
"""What two builds of the exporter cost, side by side in one run.

    python3 tests/scripts/compare_exporters.py --nvml-library LIBRARY BEFORE AFTER

Each watches this machine and eight H100 of the stand-in for NVML, and eight ranks that make a step
a second. Both are scraped once a second as Prometheus does, in turn, and then 400 times in a row.
"""

import argparse
import contextlib
import http.client
import json
import os
import socket
import subprocess
import tempfile
import time

RANKS = 8
LEARN_S = 20
SCRAPES = 400
PATIENCE_S = 20
HEADERS = {"accept": "application/openmetrics-text;version=1.0.0,*/*;q=0.2", "accept-encoding": "gzip"}
TICKS = os.sysconf("SC_CLK_TCK")


class Exporter:
    def __init__(self, program, library, folder):
        self.ingest, port = os.path.join(folder, "ingest.sock"), free_port()
        config, script = os.path.join(folder, "exporter.yml"), os.path.join(folder, "nvml.json")
        with open(config, "w") as file:
            file.write("listen: '127.0.0.1:%d'\ningest: {socket: %s}\nstate_dir: %s/state\n" % (port, self.ingest, folder))
        with open(script, "w") as file:
            json.dump({"final": True}, file)
        command = [program, "run", "--config", config, "--nvml-library", library]
        self.process = subprocess.Popen(command, env={**os.environ, "STEPWATCH_FAKE_NVML": script},
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.port, self.ranks, self.times = port, [], []
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)

    def connect(self):
        end = time.monotonic() + PATIENCE_S
        while len(self.ranks) < RANKS:
            rank = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                rank.connect(self.ingest)
                self.ranks.append(rank)
            except OSError:
                rank.close()
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def step(self, step):
        values = {"loss": 2.3 + step % 7 / 100, "grad_norm": 0.87, "lr": 3e-4, "step_time": 1.0, "tokens": 4194304}
        for number, rank in enumerate(self.ranks):
            event = {"v": 1, "k": "step", "ts": time.time(), "run": "llama-70b", "rank": number, "world": RANKS,
                     "step": step, "m": values, "t": {"data": 0.02, "fwd_bwd": 0.9, "optim": 0.05}}
            rank.send(json.dumps(event, separators=(",", ":")).encode())

    def scrape(self, headers=HEADERS):
        start = time.perf_counter()
        self.connection.request("GET", "/metrics", headers=headers)
        body = self.connection.getresponse().read()
        self.times.append(time.perf_counter() - start)
        return body

    def processor(self):
        with open("/proc/%d/stat" % self.process.pid) as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def resident(self):
        with open("/proc/%d/status" % self.process.pid) as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def percentile(values, share):
    return 1e3 * sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(exporters, seconds):
    used, begin, step = {}, None, 0
    while begin is None or time.monotonic() - begin < seconds:
        second = time.monotonic()
        step += 1
        for exporter in exporters:
            exporter.step(step)
            exporter.scrape()
        if step == LEARN_S:
            begin = time.monotonic()
            used = {exporter: exporter.processor() for exporter in exporters}
        time.sleep(max(0.0, second + 1 - time.monotonic()))
    took = time.monotonic() - begin
    return [100 * (exporter.processor() - used[exporter]) / took for exporter in exporters]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvml-library", required=True)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("programs", nargs="+")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        exporters = []
        for program in args.programs:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            exporters.append(Exporter(program, args.nvml_library, folder))
            stack.callback(exporters[-1].process.wait)
            stack.callback(exporters[-1].process.terminate)
        for exporter in exporters:
            exporter.connect()
        shares = measure(exporters, args.seconds)
        for exporter in exporters:
            exporter.times = []
        for _ in range(SCRAPES):
            for exporter in exporters:
                exporter.scrape()
        print("program, % of a core, MiB, series, page bytes, scrape p50 ms, p99 ms")
        for program, exporter, share in zip(args.programs, exporters, shares):
            times = exporter.times[:]
            page = exporter.scrape({"accept": "text/plain"})
            series = sum(1 for line in page.splitlines() if line and not line.startswith(b"#"))
            print("%s, %.3f, %.1f, %d, %d, %.2f, %.2f" % (
                program, share, exporter.resident(), series, len(page), percentile(times, 0.5), percentile(times, 0.99)))


if __name__ == "__main__":
    main()

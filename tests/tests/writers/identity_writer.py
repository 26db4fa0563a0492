"""A training script that publishes its steps in each way that it is given: the client, a log, telemetry."""

import json
import os
import socket
import struct
import sys
import time
import urllib.request

import stepwatch

run, log, event_file = None, None, None
if "CGROUP" in os.environ:
    # What the kernel does when a process is started within a control group.
    with open(os.path.join(os.environ["CGROUP"], "cgroup.procs"), "a") as procs:
        print(os.getpid(), file=procs)


def client(first, last):
    global run
    if run is None:
        run = stepwatch.Run(os.environ.get("RUN_NAME"))
    for step in range(first, last + 1):
        run.step(step, loss=2.0 + 1.0 / step)


def write(first, last):
    global log
    if log is None:
        log = open(os.environ["LOG"], "a")
    for step in range(first, last + 1):
        print(" iteration %d/ 100 | elapsed time per iteration (ms): 1000.0 | lm loss: 2.5E+00 | grad norm: 0.500 |" % step, file=log)
    log.flush()


def otlp(first, last):
    for step in range(first, last + 1):
        now = str(int(1e9 * time.time()))
        points = {"learning_rate": 1e-4 * step, "train.step": step}
        metrics = [{"name": n, "gauge": {"dataPoints": [{"asDouble": v, "timeUnixNano": now}]}} for n, v in points.items()]
        resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "unknown_service"}}]}
        body = {"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": metrics}]}]}
        request = urllib.request.Request(os.environ["OTLP"], json.dumps(body).encode(), {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=20).read()


def crc32c(data):
    """Of a record of an event file, masked as TensorFlow masks it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 * (crc & 1))
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def events(first, last):
    """As tensorboard's own writer does it: the file is opened anew for every record."""
    global event_file
    if event_file is None:
        name = "events.out.tfevents.%010d.%s.%d.0" % (time.time(), socket.gethostname(), os.getpid())
        event_file = os.path.join(os.path.dirname(os.environ["LOG"]), name)
        record(b"\x1a\x0dbrain.Event:2")
    for step in range(first, last + 1):
        value = b"\x0a\x07lm loss\x15" + struct.pack("<f", 2.5)
        summary = b"\x0a" + bytes([len(value)]) + value
        record(b"\x09" + struct.pack("<d", time.time()) + b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary)


def record(data):
    with open(event_file, "ab") as file:
        length = struct.pack("<Q", len(data))
        file.write(length + crc32c(length) + data + crc32c(data))


WAYS = {"events": events, "client": client, "log": write, "otlp": otlp}
print("ok", flush=True)
for line in sys.stdin:
    way, first, last = line.split()
    WAYS[way](int(first), int(last))
    print("ok", flush=True)

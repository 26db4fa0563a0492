"""A training script that tells of its steps by as many ways as it is told to: the client, a log, telemetry."""

import json
import os
import sys
import urllib.request

import stepwatch

run, log = None, None


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
        now = str(int(1e9 * __import__("time").time()))
        points = {"learning_rate": 1e-4 * step, "train.step": step}
        metrics = [{"name": n, "gauge": {"dataPoints": [{"asDouble": v, "timeUnixNano": now}]}} for n, v in points.items()]
        resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "unknown_service"}}]}
        body = {"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": metrics}]}]}
        request = urllib.request.Request(os.environ["OTLP"], json.dumps(body).encode(), {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=20).read()


WAYS = {"client": client, "log": write, "otlp": otlp}
print("ok", flush=True)
for line in sys.stdin:
    way, first, last = line.split()
    WAYS[way](int(first), int(last))
    print("ok", flush=True)

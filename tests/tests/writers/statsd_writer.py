"""Sends a trainer's numbers with the clients that there are: statsd for a plain socket, datadog's for one with tags.

`step STEP LOSS` on standard input sends a step; the addresses are in the environment.
"""
import os
import sys

from datadog.dogstatsd import DogStatsd
from statsd import StatsClient


def main():
    port = int(os.environ["STATSD_PORT"])
    plain = StatsClient("127.0.0.1", port, prefix="trainer")
    tagged = DogStatsd(socket_path=os.environ["STATSD_SOCKET"], disable_telemetry=True, disable_buffering=True)
    for line in sys.stdin:
        step, loss = line.split()[1:]
        with plain.pipeline() as together:
            together.gauge("step", int(step))
            together.gauge("loss", float(loss))
            together.timing("step_time", 4000)
            together.incr("tokens_seen", 4096)
        tags = ["run:tagged", "rank:3", "step:" + step]
        tagged.gauge("loss", float(loss), tags=tags)
        tagged.distribution("step_time", 0.25, tags=tags)
        print("ok", flush=True)


main()

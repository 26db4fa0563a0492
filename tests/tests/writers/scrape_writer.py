"""Serves a page of metrics as Axolotl does: with the SDK of OpenTelemetry and its exporter for Prometheus.

The first line of its output is the port. `step STEP LOSS` on standard input counts a step and sets the gauges; a second endpoint
of plain prometheus_client, whose port is the second line, shows the same as prime-rl would. The gauges are set in the order in
which those two set them.
"""
import sys
import time

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, Gauge, start_http_server


def main():
    meter = MeterProvider(metric_readers=[PrometheusMetricReader()]).get_meter("axolotl.training")
    loss = meter.create_gauge("axolotl_train_loss", unit="1")
    memory = meter.create_gauge("axolotl_memory_usage", unit="MB")
    steps = meter.create_counter("axolotl_global_steps", unit="1")
    registry = CollectorRegistry()
    trainer = {
        name: Gauge("trainer_" + name, name, registry=registry)
        for name in ("step", "loss", "grad_norm", "last_step_timestamp_seconds", "throughput_tokens_per_sec", "mismatch_kl")
    }
    for served in (None, registry):
        server, _ = start_http_server(0, addr="127.0.0.1", **({"registry": served} if served else {}))
        print(server.server_port, flush=True)
    done = 0
    for line in sys.stdin:
        step, value = line.split()[1:]
        steps.add(int(step) - done)
        done = int(step)
        loss.set(float(value))
        memory.set(1234.0)
        trainer["step"].set(done)
        trainer["loss"].set(float(value))
        trainer["throughput_tokens_per_sec"].set(1000)
        trainer["grad_norm"].set(0.5)
        trainer["mismatch_kl"].set(0.01)
        trainer["last_step_timestamp_seconds"].set(time.time())
        print("ok", flush=True)


main()

"""Reports what Megatron-LM's instruments would, with the OpenTelemetry SDK and the exporter that its environment chooses.

Lines on standard input: `log LOSS SECONDS` sets the gauges and records a step's duration, as a trainer does at its log interval;
`at STEP LOSS` sets a loss that says which step it is of; `span STEP LOSS` reports a loss as newer Megatrons do, by an event of a
span. Each is exported at once.
"""
import os
import sys

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

if os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] == "grpc":
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
else:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter


def main():
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=3600000)
    provider = MeterProvider(metric_readers=[reader])
    meter = provider.get_meter("megatron.training")
    duration = meter.create_histogram("megatron.training.step_duration_ms", unit="ms")
    loss = meter.create_gauge("megatron.training.loss")
    lr = meter.create_gauge("megatron.training.learning_rate")
    skipped = meter.create_counter("megatron.training.skipped_iters")
    spans = TracerProvider()
    spans.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    tracer = spans.get_tracer("megatron.training")
    for line in sys.stdin:
        what, *numbers = line.split()
        if what == "log":
            loss.set(float(numbers[0]))
            lr.set(3e-4)
            duration.record(1000 * float(numbers[1]))
            skipped.add(1)
        elif what == "at":
            loss.set(float(numbers[1]), {"step": int(numbers[0])})
        elif what == "span":
            with tracer.start_as_current_span("nv.mlm.train.log") as span:
                step = {"nv.dl.training.step": int(numbers[0])}
                objective = {"nv.dl.training.objective.name": "lm loss", "nv.dl.training.objective.value": float(numbers[1])}
                span.add_event("nv.dl.training.objective", {**step, **objective})
                span.add_event("nv.dl.training.numerics", {**step, "nv.dl.training.learning_rate": 3e-4})
        if not provider.force_flush():
            sys.exit("the exporter refused")
        print("ok", flush=True)


main()

"""Writes event files as torch.utils.tensorboard does: with tensorboard's own writer, TensorFlow and PyTorch aside.

Lines on standard input: `steps FIRST END` writes scalars of the old style, `tensors FIRST END` of the new one, `flush` flushes.
"""
import sys

import numpy
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util import tensor_util


def loss(step):
    return float("nan") if step == 7 else float("inf") if step == 8 else 10.0 / step


def add(writer, step, **value):
    writer.add_event(Event(wall_time=1.79e9 + step, step=step, summary=Summary(value=[Summary.Value(**value)])))


def scalars(writer, step):
    add(writer, step, tag="lm loss", simple_value=loss(step))
    add(writer, step, tag="grad-norm", simple_value=0.25)
    add(writer, step, tag="learning-rate", simple_value=1e-4)
    add(writer, step, tag="lm loss vs samples", simple_value=loss(step))
    if step % 5 == 0:
        add(writer, step, tag="lm loss validation", simple_value=3.0)


def tensors(writer, step, first):
    for tag, value in (("train/loss", numpy.float32(loss(step))), ("grad_norm", numpy.float64(0.25))):
        metadata = None
        if first:
            metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
        add(writer, step, tag=tag, tensor=tensor_util.make_tensor_proto(value), metadata=metadata)
    histogram = numpy.zeros((30, 3))
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="histograms"))
    add(writer, step, tag="weights", tensor=tensor_util.make_tensor_proto(histogram), metadata=metadata)


def main():
    writer = None
    for line in sys.stdin:
        what, *numbers = line.split()
        if writer is None or what == "new":
            writer = EventFileWriter(sys.argv[1], filename_suffix=f".{numbers[0] if what == 'new' else 0}")
        if what == "start":
            session = SessionLog(status=SessionLog.START)
            writer.add_event(Event(wall_time=1.79e9, step=int(numbers[0]), session_log=session))
        elif what in ("steps", "tensors"):
            first, end = map(int, numbers)
            for step in range(first, end):
                scalars(writer, step) if what == "steps" else tensors(writer, step, step == first)
        writer.flush()
        print("ok", flush=True)


main()

"""Writes an event file with tensorboardX, which many trainers without PyTorch's own writer use.

A line `steps FIRST END` on standard input writes scalars, and a histogram beside them, and flushes.
"""
import sys

from tensorboardX import SummaryWriter


def main():
    with SummaryWriter(sys.argv[1], flush_secs=3600) as writer:
        for line in sys.stdin:
            first, end = map(int, line.split()[1:])
            for step in range(first, end):
                loss = float("nan") if step == 7 else 10.0 / step
                writer.add_scalar("train/loss", loss, step, walltime=1.79e9 + step)
                writer.add_scalar("train/learning_rate", 1e-4, step, walltime=1.79e9 + step)
                writer.add_histogram("weights", [0.0] * 1000, step)
                writer.add_text("note", "a text is no number", step)
            writer.add_scalars("compared", {"a": 1.0, "b": 2.0}, end)
            writer.flush()
            print("ok", flush=True)


main()

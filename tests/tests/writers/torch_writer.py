"""Writes event files with torch.utils.tensorboard: scalars of both styles and precisions, and all that is no scalar.

A line `steps FIRST END` on standard input writes and flushes; `purge STEP` goes on in a new writer that purges from there.
"""
import sys

import torch
from torch.utils.tensorboard import SummaryWriter


def main():
    writer = SummaryWriter(sys.argv[1])
    writer.add_hparams({"lr": 0.1, "batch": 32}, {"hparam/accuracy": 0.5}, run_name="hparams")
    for line in sys.stdin:
        what, *numbers = line.split()
        if what == "purge":
            writer.close()
            writer = SummaryWriter(sys.argv[1], purge_step=int(numbers[0]), filename_suffix=".2")
        else:
            first, end = map(int, numbers)
            for step in range(first, end):
                loss = torch.tensor(10.0 / step)
                writer.add_scalar("train/loss", loss, step, new_style=step % 2 == 0)
                writer.add_scalar("grad_norm", 1 / 3, step, new_style=True, double_precision=True)
                writer.add_histogram("weights", torch.zeros(1000), step)
                writer.add_image("image", torch.zeros(3, 8, 8), step)
                writer.add_text("note", "a text", step)
        writer.flush()
        print("ok", flush=True)


main()

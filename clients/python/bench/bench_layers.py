#!/usr/bin/env python3
"""What statistics of layers cost a training step: a small transformer, with and without.

The ways take turns, step by step, so that what else the machine does falls on all of them alike. "a
sampled step" is what every step would cost with ``every=1``; "every=100" is the default, worked out
from it and from a step between samples.

    python3 bench/bench_layers.py                  # on the processor
    python3 bench/bench_layers.py --device cuda
"""

import argparse
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import torch  # noqa: E402

import stepwatch.torch  # noqa: E402


class Transformer(torch.nn.Module):
    def __init__(self, layers, width, vocabulary=1024):
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, width)
        one = dict(d_model=width, nhead=width // 32, dim_feedforward=4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = torch.nn.ModuleList(torch.nn.TransformerEncoderLayer(**one) for _ in range(layers))
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Training:
    """A model of its own, with or without statistics of its layers."""

    def __init__(self, options, run, every):
        torch.manual_seed(1)
        self.model = Transformer(options.layers, options.width).to(options.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.tokens = torch.randint(0, 1024, (options.batch, options.length + 1), device=options.device)
        self.stats = stepwatch.torch.LayerStats(run, self.model, every=every) if every else None
        self.seconds = []
        self.at = 0

    def step(self, synchronize):
        start = time.perf_counter()
        logits = self.model(self.tokens[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), self.tokens[:, 1:].flatten()).backward()
        if self.stats is not None:
            self.stats.step(self.at)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        synchronize()
        self.seconds.append(time.perf_counter() - start)
        self.at += 1

    def typical(self):
        """The first quartile: what else the machine does only adds to it."""
        return sorted(self.seconds[len(self.seconds) // 10 :])[len(self.seconds) // 4]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    options = parser.parse_args()
    synchronize = torch.cuda.synchronize if options.device.startswith("cuda") else lambda: None
    run = stepwatch.Run("bench", socket="/nonexistent", url="", directory="")
    ways = {"without": 0, "between samples": 10**9, "a sampled step": 1}
    trainings = {name: Training(options, run, every) for name, every in ways.items()}
    for _ in range(options.steps):
        for training in trainings.values():
            training.step(synchronize)
    run.close()
    base = trainings["without"].typical()
    ratios = {name: training.typical() / base for name, training in trainings.items()}
    parameters = sum(p.numel() for p in trainings["without"].model.parameters())
    print("torch %s on %s, %d blocks, %.1f M parameters, %d tokens a step" % (
        torch.__version__, options.device, options.layers, parameters / 1e6, options.batch * options.length))
    for name, training in trainings.items():
        print("%-16s %8.2f ms   x %.3f" % (name, training.typical() * 1e3, ratios[name]))
    every = 100
    print("%-16s %8s      x %.4f" % ("every=%d" % every, "", ((every - 1) * ratios["between samples"] + ratios["a sampled step"]) / every))


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Trains a tiny character language model for real, and blows it up for real if asked to.

    python3 examples/train_tiny.py --blow-up-at 350

From the step given with --blow-up-at the learning rate doubles at every step, as a broken schedule
would make it: the gradient norm runs up over a few steps, the loss jumps, and then nothing is
finite any more. No number is made up. The run goes on for a few seconds after that, as real ones
do, and ends with exit status 1.
"""

import argparse
import math
import os
import sys
import tempfile
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # products this small only lose time to more threads
_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [_here, os.path.join(_here, "..")]  # runs from a checkout, installed or not
import stepwatch  # noqa: E402
import tiny_lm  # noqa: E402

WARM_UP = 40
MOMENTUM = 0.9
#: What a broken schedule multiplies the learning rate by at every step.
BLOW_UP = 2.0
EVAL_EVERY = 100
KEPT_CHECKPOINTS = 2


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="tiny-lm", help="name of the run")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps-per-second", type=float, default=15.0, help="0: as fast as it goes")
    parser.add_argument("--blow-up-at", type=int, metavar="STEP", help="let the learning rate run away from this step on")
    parser.add_argument("--spike-at", type=int, metavar="STEP", help="train on one batch of garbage: a gradient spike that passes")
    parser.add_argument("--stop-after-nan", type=float, default=5.0, metavar="SECONDS", help="exit 1 this long after the first NaN")
    parser.add_argument("--checkpoint-every", type=int, default=100, metavar="STEPS", help="0: never")
    parser.add_argument("--checkpoint-dir", help="default: a new temporary folder")
    parser.add_argument("--resume", metavar="FILE", help="go on from a checkpoint")
    parser.add_argument("--pure-python", action="store_true", help="the smaller model, without NumPy")
    parser.add_argument("--quiet", action="store_true")
    return parser.parse_args()


def learning_rate(options, model, step):
    lr = model.lr * min(1.0, step / WARM_UP)
    if options.blow_up_at is not None and step >= options.blow_up_at:
        lr *= BLOW_UP ** min(step - options.blow_up_at + 1, 100)
    return lr


class Checkpoints:
    def __init__(self, run, model, folder):
        self._run, self._model = run, model
        self._folder = folder or tempfile.mkdtemp(prefix="train_tiny-")
        self._kept = []
        os.makedirs(self._folder, exist_ok=True)
        print("checkpoints in %s" % self._folder, flush=True)

    def save(self, step):
        base = os.path.join(self._folder, "step-%d" % step)
        with self._run.checkpoint(step, path=base) as checkpoint:
            checkpoint.path = self._model.save(base)
        self._kept.append(checkpoint.path)
        for old in self._kept[:-KEPT_CHECKPOINTS]:
            os.remove(old)
        del self._kept[:-KEPT_CHECKPOINTS]


class Pace:
    """Holds the loop to a rate; time lost to a checkpoint is not made up for, as no accelerator
    would."""

    def __init__(self, per_second):
        self._gap = 1.0 / per_second if per_second > 0 else 0.0
        self._next = time.monotonic()

    def wait(self):
        self._next = max(self._next + self._gap, time.monotonic())
        time.sleep(max(0.0, self._next - time.monotonic()))


def train(options, run, model, corpus, first):
    checkpoints = Checkpoints(run, model, options.checkpoint_dir) if options.checkpoint_every else None
    pace, broken_at, broken_step = Pace(options.steps_per_second), None, None
    for step in range(first, options.steps + 1):
        with run.phase("data"):
            batch = corpus.garbage(model.batch) if step == options.spike_at else corpus.batch(model.batch)
        with run.phase("fwd_bwd"):
            loss, grads = model.gradients(batch)
            norm = model.norm(grads)
        lr = learning_rate(options, model, step)
        with run.phase("optim"):
            model.update(grads, lr, MOMENTUM)
        pace.wait()
        run.step(step, loss=loss, grad_norm=norm, lr=lr, tokens=model.batch)
        finite = math.isfinite(loss) and math.isfinite(norm)
        if not options.quiet and (step % 20 == 0 or options.blow_up_at is not None and 0 <= step - options.blow_up_at < 20):
            print("step %5d | loss %9.4f | grad norm %10.4g | lr %.3g" % (step, loss, norm, lr), flush=True)
        if not finite and broken_at is None:
            broken_at, broken_step = time.monotonic(), step
            print("step %5d: not finite any more" % step, flush=True)
        if broken_at is not None:
            if time.monotonic() - broken_at >= options.stop_after_nan:
                raise FloatingPointError("the loss is not finite since step %d" % broken_step)
            continue  # a checkpoint of this would only replace a good one
        if step % EVAL_EVERY == 0:
            with run.phase("eval"):
                run.eval("held_out", step=step, loss=model.gradients(corpus.held_out(200), backward=False)[0])
        if checkpoints is not None and step % options.checkpoint_every == 0:
            checkpoints.save(step)
    if broken_at is not None:
        raise FloatingPointError("the loss is not finite since step %d" % broken_step)


def main():
    options = arguments()
    kind = tiny_lm.PureModel if options.pure_python or tiny_lm.numpy is None else tiny_lm.NumpyModel
    corpus = tiny_lm.Corpus(kind.context, options.seed)
    model, first = kind(len(corpus.alphabet), options.seed), 1
    if options.resume:
        model.load(options.resume)
        first = int(os.path.basename(options.resume).split("-")[1].split(".")[0]) + 1
    about = {"n_params": model.n_params, "seq_len": kind.context, "layers": 3 if kind is tiny_lm.NumpyModel else 2}
    print("%s: %d parameters, %s" % (options.run, model.n_params, model.name), flush=True)
    try:
        with stepwatch.Run(options.run, model=about, dtype="float32" if kind is tiny_lm.NumpyModel else "float64",
                           seed=options.seed) as run:
            train(options, run, model, corpus, first)
    except FloatingPointError as e:
        print("gave up: %s" % e, flush=True)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

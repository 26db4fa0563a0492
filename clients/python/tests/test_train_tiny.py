"""The example really trains, and really diverges."""

import json
import math
import os
import random
import sys
import unittest

from support import ROOT, Case, until

EXAMPLES = os.path.join(ROOT, "examples")
sys.path.insert(0, EXAMPLES)
import tiny_lm  # noqa: E402

KINDS = [tiny_lm.PureModel] + ([tiny_lm.NumpyModel] if tiny_lm.numpy is not None else [])


def setUpModule():
    print("train_tiny: tested %s" % ("with NumPy and without" if len(KINDS) > 1 else "in pure Python only"), file=sys.stderr)


class Gradients(unittest.TestCase):
    def test_they_are_the_slopes_of_the_loss(self):
        for kind in KINDS:
            corpus = tiny_lm.Corpus(kind.context, 1)
            model = kind(len(corpus.alphabet), 1)
            if kind is tiny_lm.NumpyModel:
                model.params = [p.astype("float64") for p in model.params]
            batch = corpus.batch(8)
            _, grads = model.gradients(batch)
            pick = random.Random(3)
            for parameter, grad in zip(model.params, grads):
                for _ in range(4):
                    row = pick.randrange(len(parameter))
                    flat = not hasattr(parameter[0], "__len__")
                    place, slope = (parameter, grad) if flat else (parameter[row], grad[row])
                    at = row if flat else pick.randrange(len(place))
                    value, tiny = place[at], 1e-5
                    place[at] = value + tiny
                    above = model.gradients(batch, backward=False)[0]
                    place[at] = value - tiny
                    below = model.gradients(batch, backward=False)[0]
                    place[at] = value
                    self.assertAlmostEqual((above - below) / (2 * tiny), slope[at], delta=1e-6, msg=kind.name)


class Training(Case):
    def train(self, *arguments):
        out = os.path.join(self.folder, "out")
        status, stdout, stderr = self.program(
            os.path.join(EXAMPLES, "train_tiny.py"), "--steps-per-second", 0, "--checkpoint-dir", os.path.join(self.folder, "c"),
            *arguments, STEPWATCH_DIR=out, STEPWATCH_SOCKET="",
        )
        self.assertEqual(stderr, "")
        (name,) = os.listdir(out)
        with open(os.path.join(out, name)) as f:
            events = [json.loads(line) for line in f]
        os.unlink(os.path.join(out, name))
        return status, events

    def numbers(self, events, key):
        return [e["m"][key] for e in events if e["k"] == "step"]

    def flavours(self):
        return [["--pure-python"]] + ([[]] if tiny_lm.numpy is not None else [])

    def test_it_learns_and_reports(self):
        for flavour in self.flavours():
            status, events = self.train("--steps", 150, "--checkpoint-every", 60, "--spike-at", 120, "--run", "learns", *flavour)
            self.assertEqual(status, 0)
            self.assertEqual([e["step"] for e in events if e["k"] == "step"], list(range(1, 151)))
            loss, norm = self.numbers(events, "loss"), self.numbers(events, "grad_norm")
            self.assertLess(sum(loss[90:110]) / 20, loss[0] - 0.5)
            calm = sorted(norm[60:119])
            self.assertLess(calm[-1], 2.5 * calm[30], "no spikes of its own")
            self.assertGreater(norm[119], 5 * calm[30], "the garbage batch")
            self.assertLess(norm[120], 2.5 * calm[30], "and it is over")
            checkpoints = [(e["phase"], e["step"]) for e in events if e["k"] == "ckpt"]
            self.assertEqual(checkpoints, [("start", 60), ("end", 60), ("start", 120), ("end", 120)])
            saved = [e for e in events if e["k"] == "ckpt"][-1]
            self.assertEqual(os.path.getsize(saved["path"]), saved["bytes"])
            self.assertEqual([e["name"] for e in events if e["k"] == "eval"], ["held_out"])
            self.assertEqual((events[0]["k"], events[-1]["k"], events[-1]["code"]), ("hello", "bye", 0))
            status, events = self.train("--steps", 130, "--resume", saved["path"], *flavour)
            self.assertEqual((status, [e["step"] for e in events if e["k"] == "step"]), (0, list(range(121, 131))))
            self.assertLess(self.numbers(events, "loss")[0], loss[0] - 0.3)

    def test_it_diverges(self):
        for flavour in self.flavours():
            for seed in (1, 2):
                status, events = self.train("--steps", 400, "--blow-up-at", 80, "--stop-after-nan", 0.2, "--seed", seed, *flavour)
                self.assertEqual(status, 1)
                loss, norm = self.numbers(events, "loss"), self.numbers(events, "grad_norm")
                level = sorted(norm[40:79])[20]
                self.assertLess(max(norm[40:79]), 2.5 * level)
                broken = next(i for i in range(len(loss)) if not (math.isfinite(loss[i]) and math.isfinite(norm[i])))
                self.assertTrue(85 <= broken + 1 <= 100, broken)
                self.assertGreater(norm[broken - 1], 100 * level, "it runs up before it breaks")
                self.assertTrue(all(math.isnan(x) for x in loss[-3:]), "and goes on with NaN")
                self.assertEqual((events[-1]["k"], events[-1]["code"]), ("bye", 1))
                self.assertIn("not finite", events[-1]["text"])
                self.assertFalse([e for e in events if e["k"] == "ckpt" and e["step"] > broken])

    def test_to_a_live_receiver(self):
        receiver = self.receiver()
        status, _, _ = self.program(os.path.join(EXAMPLES, "train_tiny.py"), "--pure-python", "--steps", 20, "--steps-per-second", 100,
                                    "--checkpoint-every", 0)
        self.assertEqual(status, 0)
        until(lambda: receiver.events("bye"))
        self.assertEqual(receiver.steps(), list(range(1, 21)))


class Bench(Case):
    def test_it_runs(self):
        status, out, err = self.program(os.path.join(ROOT, "bench", "bench_step.py"), "--calls", 300)
        self.assertEqual((status, err), (0, ""))
        for row in ("alive", "stopped", "absent"):
            self.assertIn("\n" + row, out)


if __name__ == "__main__":
    unittest.main()

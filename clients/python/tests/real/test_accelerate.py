"""The Accelerate tracker against Accelerate itself, on the processor."""

import math
import os
import unittest
import warnings

from peers import Real, require, until

accelerate, torch = require("accelerate", "torch")

from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: E402

import stepwatch  # noqa: E402
import stepwatch.accelerate  # noqa: E402
from stepwatch.accelerate import StepwatchTracker  # noqa: E402


class Loop(Real):
    def setUp(self):
        super().setUp()
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        warnings.simplefilter("ignore")
        self.addCleanup(warnings.resetwarnings)

    def train(self, log_with, steps=5, every=1, nan_at=None, tensors=False, **options):
        accelerator = accelerate.Accelerator(cpu=True, log_with=log_with, **options)
        accelerator.init_trackers("acc", config={"batch_size": 4})
        torch.manual_seed(3)
        model = torch.nn.Linear(8, 1)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        losses = []
        for step in range(1, steps + 1):
            x = torch.randn(4, 8) * (float("nan") if step == nan_at else 1.0)
            loss = (model(x) - 1).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if step % every == 0:
                accelerator.log({"train_loss": loss.detach() if tensors else loss.item(), "learning_rate": 0.1, "epoch": 1}, step=step)
        return accelerator, losses

    def test_by_name(self):
        accelerator, losses = self.train("stepwatch", nan_at=5)
        accelerator.log({"eval_loss": 1.5, "eval_accuracy": 0.5}, step=5)
        accelerator.end_training()
        events = self.steps(5)
        self.assertEqual([e["step"] for e in events], [1, 2, 3, 4, 5])
        self.assertTrue(math.isnan(losses[4]))
        self.assert_losses(events, losses)
        self.assertTrue(all((e["m"]["lr"], e["m"]["epoch"]) == (0.1, 1) for e in events))
        self.assertTrue(all(e["m"]["step_time"] > 0 for e in events[1:]))
        self.assertEqual(self.bye()["code"], 0)
        e = self.sink.events("eval")[0]
        self.assertEqual((e["name"], e["step"], e["m"]), ("eval", 5, {"loss": 1.5, "accuracy": 0.5}))
        hello = self.hello()
        self.assertEqual((hello["run"], hello["framework"], hello["version"]), ("acc", "accelerate", accelerate.__version__))
        self.assertEqual((hello["config"], hello["world"]), ({"batch_size": 4}, 1))

    def test_as_an_object_beside_another(self):
        run = stepwatch.Run("mine")
        self.addCleanup(run.close)
        accelerator, losses = self.train([StepwatchTracker(run=run, tokens_per_step=64)], tensors=True)
        self.assertIs(accelerator.get_tracker("stepwatch", unwrap=True), run)
        accelerator.end_training()
        events = self.steps(5)
        self.assert_losses(events, losses)
        self.assertEqual({e["m"]["tokens"] for e in events}, {64})
        self.assertEqual({e["run"] for e in self.sink.events()}, {"mine"})
        self.assertEqual(self.sink.events("bye"), [], "the run is its owner's")

    def test_every_so_many_steps(self):
        accelerator, losses = self.train("stepwatch", steps=6, every=2)
        accelerator.end_training()
        events = self.steps(3)
        self.assertEqual([e["step"] for e in events], [2, 4, 6])
        self.assert_losses(events, losses[1::2])
        gap = events[2]["ts"] - events[1]["ts"]
        self.assertAlmostEqual(events[2]["m"]["step_time"], gap / 2, places=3)

    def test_checkpoints(self):
        accelerator, _ = self.train("stepwatch")
        accelerator.get_tracker("stepwatch").attach(accelerator)
        accelerator.save_state(os.path.join(self.folder, "state"))
        events = until(lambda: self.sink.events("ckpt")[1:] and self.sink.events("ckpt"))
        self.assertEqual([(e["phase"], e["step"]) for e in events], [("start", 5), ("end", 5)])
        self.assertGreater(events[1]["bytes"], 100)
        accelerator.end_training()
        self.assertEqual(self.bye()["code"], 0)

    def test_bf16_is_what_is_computed_in(self):
        accelerator, _ = self.train("stepwatch", mixed_precision="bf16")
        accelerator.end_training()
        self.bye()
        self.assertEqual(self.hello()["dtype"], "bfloat16")

    def test_an_exception_is_the_last_word(self):
        code = """
            import os, sys
            sys.path.insert(0, %r)
            import accelerate, stepwatch.accelerate
            a = accelerate.Accelerator(cpu=True, log_with="stepwatch")
            a.init_trackers("acc")
            a.log({"loss": 1.0}, step=1)
            raise ValueError("bad shard 17")
        """
        code, _, err = self.script(code % os.path.dirname(os.path.abspath(__file__)))
        self.assertEqual(code, 1, err)
        bye = self.bye()
        self.assertEqual((bye["code"], bye["text"]), (1, "ValueError: bad shard 17"))
        self.assertEqual(self.sink.steps(), [1])


if __name__ == "__main__":
    unittest.main()

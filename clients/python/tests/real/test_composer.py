"""The Composer logger against Composer itself, on the processor."""

import math
import os
import unittest
import warnings

from peers import Real, require, until

composer, torch = require("composer", "torch")

from composer.callbacks import OptimizerMonitor  # noqa: E402
from composer.loggers import InMemoryLogger  # noqa: E402
from torchmetrics.regression import MeanSquaredError  # noqa: E402

import stepwatch  # noqa: E402
from stepwatch.composer import StepwatchLogger  # noqa: E402

BATCHES = 6


def batches(count=BATCHES, nan_at=None):
    torch.manual_seed(7)
    x = torch.randn(count * 4, 8)
    if nan_at is not None:
        x[nan_at * 4] = float("nan")
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, torch.ones(count * 4, 1)), batch_size=4)


class Model(composer.ComposerModel):
    def __init__(self, fail_at=None):
        super().__init__()
        torch.manual_seed(3)
        self.layer, self.fail_at, self.calls = torch.nn.Linear(8, 1), fail_at, 0

    def forward(self, batch):
        self.calls += 1
        if self.calls == self.fail_at:
            raise ValueError("bad shard 17")
        return self.layer(batch[0])

    def loss(self, outputs, batch):
        return (outputs - batch[1]).square().mean()

    def get_metrics(self, is_train):
        return {} if is_train else {"MeanSquaredError": MeanSquaredError()}

    def update_metric(self, batch, outputs, metric):
        metric.update(outputs, batch[1])


class Fit(Real):
    def setUp(self):
        super().setUp()
        warnings.simplefilter("ignore")
        self.addCleanup(warnings.resetwarnings)

    def fit(self, logger=None, model=None, data=None, **options):
        self.memory = InMemoryLogger()
        self.logger = logger or StepwatchLogger(name="mpt")
        model = model or Model()
        options.setdefault("max_duration", "1ep")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = composer.Trainer(
            model=model, optimizers=optimizer, train_dataloader=data or batches(), device="cpu", progress_bar=False,
            loggers=[self.logger, self.memory], callbacks=[OptimizerMonitor(batch_log_interval=1)], **options
        )
        self.addCleanup(trainer.close)
        trainer.fit()
        return trainer

    def own(self, name):
        return [float(value) for _, value in self.memory.data[name]]

    def test_every_step_with_what_composer_knows(self):
        self.fit()
        events = self.steps(BATCHES)
        self.assertEqual([e["step"] for e in events], [1, 2, 3, 4, 5, 6])
        self.assert_losses(events, self.own("loss/train/total"))
        for e, norm in zip(events, self.own("l2_norm/grad/global")):
            self.assertAlmostEqual(e["m"]["grad_norm"], norm, places=5)
        self.assertTrue(all((e["m"]["lr"], e["m"]["samples"]) == (0.1, 4) and e["m"]["step_time"] > 0 for e in events))
        self.assertTrue(all(0 <= e["t"]["data"] <= e["m"]["step_time"] for e in events[1:]))
        self.assertEqual(self.bye()["code"], 0)
        hello = self.hello()
        self.assertEqual((hello["run"], hello["framework"], hello["version"]), ("mpt", "composer", composer.__version__))
        self.assertEqual((hello["model"]["n_params"], hello["world"], hello["rank"]), (9, 1, 0))

    def test_micro_batches_are_one_step_and_nan_is_nan(self):
        self.fit(data=batches(nan_at=4), device_train_microbatch_size=2)
        self.assertTrue(math.isnan(self.own("loss/train/total")[4]))
        self.assert_losses(self.steps(BATCHES), self.own("loss/train/total"))

    def test_evaluations(self):
        self.fit(eval_dataloader=batches(2), eval_interval="3ba")
        self.steps(BATCHES)
        events = until(lambda: self.sink.events("eval")[1:] and self.sink.events("eval"))
        self.assertEqual([(e["name"], e["step"]) for e in events], [("eval", 3), ("eval", 6)])
        for e, value in zip(events, self.own("metrics/eval/MeanSquaredError")):
            self.assertAlmostEqual(e["m"]["MeanSquaredError"], value, places=5)
        names = [(e["name"], e["phase"]) for e in self.sink.events("phase")]
        self.assertEqual(names[:4], [("eval", "begin"), ("eval", "end")] * 2)

    def test_the_goodbye_waits_for_the_evaluators(self):
        trainer = self.fit(eval_dataloader=batches(2), eval_interval="1ep")
        trainer.close()
        self.assertEqual(self.bye()["code"], 0)
        self.assertEqual(len(self.sink.events("bye")), 1)

    def test_checkpoints(self):
        self.fit(save_folder=os.path.join(self.folder, "ckpt"), save_interval="3ba")
        self.steps(BATCHES)
        self.bye()
        saves = self.sink.events("ckpt")
        self.assertEqual(sorted((e["step"], e["phase"]) for e in saves), [(3, "end"), (3, "start"), (6, "end"), (6, "start")])
        self.assert_sizes()

    def test_fit_twice(self):
        trainer = self.fit()
        trainer.fit(duration="1ep")
        self.assertEqual([e["step"] for e in self.steps(2 * BATCHES)], list(range(1, 13)))
        until(lambda: len(self.sink.events("bye")) == 2)

    def test_a_run_of_the_users(self):
        with stepwatch.Run("mine") as run:
            self.fit(StepwatchLogger(run))
        self.steps(BATCHES)
        self.bye()
        self.assertEqual({e["run"] for e in self.sink.events()}, {"mine"})

    def test_a_name_that_the_trainer_made_up_is_none(self):
        self.set_env(WANDB_NAME="night")
        self.fit(StepwatchLogger())
        self.bye()
        self.fit(StepwatchLogger(), run_name="mpt-7b")
        until(lambda: len(self.sink.events("bye")) == 2)
        # A title may be of several runs, so that the rule adds when this one began.
        first, second = [e["run"] for e in self.sink.events("bye")]
        self.assertRegex(first, r"^night-\d{8}-\d{6}-")
        self.assertEqual(second, "mpt-7b")

    def test_an_exception_is_the_last_word(self):
        code = """
            import os, sys, warnings
            warnings.simplefilter("ignore")
            sys.path.insert(0, %r)
            import test_composer as t
            os.environ["STEPWATCH_SOCKET"] = sys.argv[1]
            class Case(t.Fit):
                def runTest(self): pass
            Case().fit(model=t.Model(fail_at=3))
        """
        code, _, err = self.script(code % os.path.dirname(os.path.abspath(__file__)), self.path)
        self.assertEqual(code, 1, err)
        bye = self.bye()
        self.assertEqual((bye["code"], bye["text"]), (1, "ValueError: bad shard 17"))
        self.assertEqual(self.sink.steps(), [1, 2])


if __name__ == "__main__":
    unittest.main()

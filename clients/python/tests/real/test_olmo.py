"""The OLMo-core callback against OLMo-core's own Trainer, on the processor."""

import logging
import os
import unittest

from peers import Real, require

_, torch = require("olmo_core.train", "torch")

from olmo_core.data.data_loader import DataLoaderBase  # noqa: E402
from olmo_core.train import Duration, TrainerConfig  # noqa: E402
from olmo_core.train.callbacks import Callback, CheckpointerCallback  # noqa: E402
from olmo_core.train.train_module import BasicTrainModule  # noqa: E402

from stepwatch.olmo import StepwatchCallback  # noqa: E402

STEPS, VOCAB, LENGTH, BATCH = 6, 32, 8, 4


class Data(DataLoaderBase):
    def __init__(self, folder, fail_at=None):
        super().__init__(work_dir=folder, global_batch_size=BATCH * LENGTH)
        self.fail_at = fail_at

    total_batches = 100

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        pass

    def reshuffle(self, epoch=None, **_):
        self._epoch = epoch or 1

    def _iter_batches(self):
        for i in range(self.total_batches):
            if i == self.fail_at:
                raise ValueError("bad shard 17")
            yield self.get_mock_batch()

    def get_mock_batch(self):
        return {"input_ids": torch.randint(0, VOCAB, (BATCH, LENGTH))}

    def global_num_tokens_in_batch(self, batch):
        return batch["input_ids"].numel()


class Model(torch.nn.Module):
    def __init__(self, nan_at=None):
        super().__init__()
        self.embed, self.out = torch.nn.Embedding(VOCAB, 8), torch.nn.Linear(8, VOCAB)
        self.calls, self.nan_at = 0, nan_at

    def forward(self, input_ids):
        self.calls += 1
        logits = self.out(self.embed(input_ids))
        return logits * float("nan") if self.calls == self.nan_at else logits


class Kept(Callback):
    """OLMo-core's own idea of what it logged."""

    def __init__(self):
        self.metrics = {}

    def log_metrics(self, step, metrics):
        self.metrics.setdefault(step, {}).update(metrics)


class Module(BasicTrainModule):
    def num_flops_per_token(self, seq_len):
        return None

    def global_num_flops_in_batch(self, batch):
        return None


class Fit(Real):
    def setUp(self):
        super().setUp()
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)

    def fit(self, nan_at=None, fail_at=None, checkpoints=False, **options):
        torch.manual_seed(1)
        model = Model(nan_at)
        module = Module(model, torch.optim.SGD(model.parameters(), lr=0.1), BATCH * LENGTH, max_grad_norm=1.0)
        self.kept = Kept()
        config = TrainerConfig(
            save_folder=os.path.join(self.folder, "out"), work_dir=os.path.join(self.folder, "work"), max_duration=Duration.steps(STEPS),
            metrics_collect_interval=2, save_overwrite=True, no_checkpoints=not checkpoints, no_evals=True, **options
        )
        config = config.with_callback("stepwatch", StepwatchCallback(name="olmo")).with_callback("kept", self.kept)
        if checkpoints:
            config = config.with_callback("checkpointer", CheckpointerCallback(save_interval=3, save_async=False))
        trainer = config.build(module, Data(self.folder, fail_at))
        trainer.fit()
        return trainer

    def losses(self):
        return {e["step"]: e["m"]["loss"] for e in self.sink.events("step") if "loss" in e["m"]}

    def test_every_step_and_what_olmo_logs_of_it(self):
        self.fit()
        self.assertEqual(self.bye()["code"], 0)
        steps = [e for e in self.sink.events("step") if "tokens" in e["m"]]
        self.assertEqual([e["step"] for e in steps], list(range(1, STEPS + 1)))
        self.assertEqual({e["m"]["tokens"] for e in steps}, {BATCH * LENGTH})
        self.assertTrue(all(0 <= e["t"]["data"] <= e["m"]["step_time"] for e in steps))
        self.assertEqual(self.losses(), {step: own["train/CE loss"] for step, own in self.kept.metrics.items() if "train/CE loss" in own})
        self.assertEqual(len(self.losses()), STEPS)
        norms = {e["step"]: e["m"]["grad_norm"] for e in self.sink.events("step") if "grad_norm" in e["m"]}
        self.assertEqual(norms[STEPS], self.kept.metrics[STEPS]["optim/total grad norm"])
        hello = self.hello()
        self.assertEqual((hello["run"], hello["framework"], hello["world"]), ("olmo", "olmo-core", 1))
        self.assertEqual(hello["model"]["n_params"], VOCAB * 8 + 8 * VOCAB + VOCAB)

    def test_a_loss_that_is_nan_is_published_although_olmo_stops_before_it_logs_it(self):
        with self.assertRaisesRegex(RuntimeError, "nan loss"):
            self.fit(nan_at=5)  # the first call is the dry run
        bye = self.bye()
        self.assertEqual(bye["code"], 1)
        self.assertIn("nan loss encountered at step 4", bye["text"])
        self.assertEqual(str(self.losses()[4]), "nan")

    def test_an_exception_is_the_last_word(self):
        with self.assertRaisesRegex(ValueError, "bad shard 17"):
            self.fit(fail_at=3)
        self.assertEqual((self.bye()["code"], self.bye()["text"]), (1, "ValueError: bad shard 17"))
        self.assertEqual(len([e for e in self.sink.events("step") if "tokens" in e["m"]]), 3)

    def test_checkpoints(self):
        self.fit(checkpoints=True)
        self.bye()
        events = [e for e in self.sink.events("ckpt") if e["step"] == 3]
        self.assertEqual([e["phase"] for e in events], ["start", "end"])
        self.assertEqual(events[1]["path"], os.path.join(self.folder, "out", "step3"))
        self.assertTrue(os.path.isdir(events[1]["path"]))


if __name__ == "__main__":
    unittest.main()

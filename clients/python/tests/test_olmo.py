"""The OLMo-core callback without OLMo-core: called in its trainer's order."""

import os
import types
import unittest
from unittest import mock

from support import Case, until

from stepwatch.olmo import StepwatchCallback

Space = types.SimpleNamespace


class Evaluator:
    def perform_eval(self):
        pass


class Trainer:
    def __init__(self, callback, folder):
        self.callbacks = {"stepwatch": callback, "evaluator": Evaluator()}
        self.global_step = self.global_train_tokens_seen = 0
        self.train_module, self.save_folder, self.is_canceled = Space(), folder, False
        self.checkpointer = Space(checkpoint_dirname=lambda step: "step%d" % step)
        self.callback = callback
        callback.trainer = self

    def save_checkpoint(self, fail=False):
        path = os.path.join(self.save_folder, "step%d" % self.global_step)
        if fail:
            raise OSError("no space left on device")
        os.mkdir(path)
        self.callback.post_checkpoint_saved(path)
        return path

    def save_checkpoint_async(self):
        return os.path.join(self.save_folder, "step%d" % self.global_step), None

    def train(self, *steps):
        """``_fit_epoch``; ``steps`` are called where evaluators and checkpointers are."""
        for step in steps:
            self.callback.pre_load_batch()
            self.global_step += 1
            self.global_train_tokens_seen += 32
            self.callback.pre_step({})
            self.callback.post_train_batch()
            if step is not None:
                step()


class Olmo(Case):
    def setUp(self):
        super().setUp()
        self.sink = self.receiver()
        patch = mock.patch.dict(os.environ, {"STEPWATCH_SOCKET": self.path})
        patch.start()
        self.addCleanup(patch.stop)
        self.callback = StepwatchCallback(name="olmo")
        self.trainer = Trainer(self.callback, self.folder)
        self.callback.pre_train()
        self.addCleanup(self.callback.close)

    def bye(self):
        return until(lambda: self.sink.events("bye"))[0]

    def test_steps_and_the_metrics_that_come_later(self):
        self.trainer.train(None, None)
        for step in (1, 2):
            self.callback.log_metrics(step, {
                "train/CE loss": 3.0 / step, "optim/total grad norm": 0.5, "optim/LR (group 0)": 0.01, "throughput/device/MFU": 40.0,
                "throughput/device/TPS": 1000.0, "throughput/total tokens": 7, "train/Z loss": 0.1, "eval/lm/c4-validation/CE loss": 2.5,
                "eval/downstream/arc/accuracy": 0.25,
            })  # fmt: skip
        self.callback.close()
        self.assertEqual(self.bye()["code"], 0)
        events = self.sink.events("step")
        self.assertEqual([(e["step"], e["m"].get("tokens"), e["m"].get("loss")) for e in events], [(1, 32, None), (2, 32, None), (1, None, 3.0), (2, None, 1.5)])
        self.assertEqual(set(events[0]["t"]), {"data"})
        self.assertEqual(events[2]["m"], {
            "loss": 3.0, "grad_norm": 0.5, "lr": 0.01, "mfu_reported": 0.4, "tokens_per_second_per_gpu": 1000.0, "train/Z loss": 0.1,
        })  # fmt: skip
        found = {(e["name"], e["step"]): e["m"] for e in self.sink.events("eval")}
        self.assertEqual(found["c4-validation", 2], {"loss": 2.5})
        self.assertEqual(found["arc", 1], {"accuracy": 0.25})

    def test_evaluations_are_announced_while_they_last(self):
        self.trainer.train(self.trainer.callbacks["evaluator"].perform_eval, None)
        self.callback.close()
        self.bye()
        self.assertEqual([(e["name"], e["phase"]) for e in self.sink.events("phase")], [("eval", "begin"), ("eval", "end")])
        self.assertNotIn("perform_eval", vars(self.trainer.callbacks["evaluator"]), "left as it was")
        self.assertNotIn("save_checkpoint", vars(self.trainer))

    def test_checkpoints(self):
        def written_behind():
            path, _ = self.trainer.save_checkpoint_async()
            self.trainer.later = lambda: self.callback.post_checkpoint_saved(path)

        self.trainer.train(self.trainer.save_checkpoint, written_behind, None, lambda: self.trainer.later())
        with self.assertRaises(OSError):
            self.trainer.save_checkpoint(fail=True)
        self.callback.close()
        self.bye()
        events = sorted((e["step"], e["phase"], os.path.basename(e["path"])) for e in self.sink.events("ckpt"))
        self.assertEqual(events, [(1, "end", "step1"), (1, "start", "step1"), (2, "end", "step2"), (4, "fail", "step4"), (4, "start", "step4")])
        self.assertEqual([e["name"] for e in self.sink.events("phase")], ["ckpt", "ckpt"], "the copy is taken while training waits")

    def test_what_ended_it(self):
        self.trainer.train(None)
        self.callback.on_error(RuntimeError("nan loss encountered at step 1"))
        self.callback.close()
        bye = self.bye()
        self.assertEqual((bye["code"], bye["text"], len(self.sink.events("bye"))), (1, "RuntimeError: nan loss encountered at step 1", 1))
        self.assertEqual([str(e["m"].get("loss")) for e in self.sink.events("step")], ["None", "nan"])

    def test_a_run_that_was_canceled_says_why(self):
        self.trainer.is_canceled, self.trainer._cancel_reason = True, "SIGTERM received"
        self.callback.close()
        self.assertEqual((self.bye()["code"], self.bye()["text"]), (0, "SIGTERM received"))

    def test_no_hook_raises(self):
        callback = StepwatchCallback()
        for _ in range(2):
            callback.pre_train()
            callback.pre_load_batch()
            callback.pre_step(None)
            callback.post_train_batch()
            callback.log_metrics("x", {"train/CE loss": object(), 3: 4})
            callback.post_checkpoint_saved(object())
            callback.on_error(ValueError())
            callback.close()
            callback.trainer = object()


if __name__ == "__main__":
    unittest.main()

"""The Trainer callback: a stand-in calls it in the order of ``Trainer``, and the Trainer itself
where it is installed."""

import os
import sys
import types
import unittest

from support import Case, until

from stepwatch.huggingface import StepwatchCallback

try:
    import torch
    import transformers
except ImportError:
    transformers = None


def setUpModule():
    real = " and transformers " + transformers.__version__ if transformers else " only"
    print("Hugging Face callback: tested against a stand-in" + real, file=sys.stderr)


class Namespace(types.SimpleNamespace):
    pass


class StandIn:
    """Calls back as ``transformers.Trainer`` 5 does: the flow control of ``DefaultFlowCallback``,
    then log, evaluate, save."""

    def __init__(self, callback, folder, logging_steps=2, eval_steps=0, save_steps=0, rank=0, during=None):
        self.callback, self.during = callback, during or (lambda what: None)
        self.logging_steps, self.eval_steps, self.save_steps = logging_steps, eval_steps, save_steps
        self.args = Namespace(run_name="hf", output_dir=folder, world_size=2, process_index=rank, logging_nan_inf_filter=False,
                              logging_strategy=Namespace(value="steps"))
        self.state = Namespace(global_step=0, num_input_tokens_seen=0, is_world_process_zero=rank == 0)
        self.control = Namespace(should_log=False, should_evaluate=False, should_save=False)
        self.optimizer = Namespace(param_groups=[{"lr": 0.1}])

    def call(self, event, **more):
        result = getattr(self.callback, event)(self.args, self.state, self.control, model=None, optimizer=self.optimizer, **more)
        assert result is None, "the control is not ours to replace"

    def train(self, steps):
        self.call("on_train_begin")
        for step in range(1, steps + 1):
            self.call("on_step_begin")
            self.call("on_optimizer_step")
            self.optimizer.param_groups[0]["lr"] /= 2  # the scheduler
            self.state.global_step, self.state.num_input_tokens_seen = step, 128 * step
            self.control.should_log = step % self.logging_steps == 0
            self.control.should_evaluate = bool(self.eval_steps) and step % self.eval_steps == 0
            self.control.should_save = bool(self.save_steps) and step % self.save_steps == 0
            self.call("on_step_end")
            if self.control.should_log:
                self.control.should_log = False
                self.call("on_log", logs={"loss": 3.0 - step, "grad_norm": 0.5, "learning_rate": 9.0, "epoch": 0.1, "train_runtime": 1.0})
            if self.control.should_evaluate:
                self.evaluate()
            if self.control.should_save:
                self.save(step)
        self.call("on_log", logs={"train_runtime": 1.0, "train_loss": 2.0})
        self.call("on_train_end")

    def evaluate(self):
        self.call("on_prediction_step")
        self.during("eval")
        self.call("on_log", logs={"eval_loss": 2.5})
        self.control.should_evaluate = False
        self.call("on_evaluate", metrics={"eval_loss": 2.5, "eval_runtime": 0.1, "epoch": 0.1})

    def save(self, step):
        self.during("save")
        if self.state.is_world_process_zero:
            folder = os.path.join(self.args.output_dir, "checkpoint-%d" % step)
            os.mkdir(folder)
            with open(os.path.join(folder, "model.bin"), "wb") as f:
                f.write(b"x" * 100)
        self.control.should_save = False
        self.call("on_save")


class WithAStandIn(Case):
    def test_every_step_once_with_the_loss_where_it_is_logged(self):
        receiver = self.receiver()
        StandIn(StepwatchCallback(self.run_()), self.folder).train(5)
        events = until(lambda: receiver.events("step")[4:] and receiver.events("step"))
        self.assertEqual([e["step"] for e in events], [1, 2, 3, 4, 5])
        self.assertEqual([e["m"].get("loss") for e in events], [None, 1.0, None, -1.0, None])
        self.assertEqual([e["m"].get("grad_norm") for e in events], [None, 0.5, None, 0.5, None])
        self.assertEqual([e["m"]["tokens"] for e in events], [128] * 5)
        self.assertTrue(all(e["m"]["step_time"] > 0 for e in events))
        self.assertEqual([e["m"]["lr"] for e in events], [0.1, 9.0, 0.025, 9.0, 0.00625], "the rate that the step was made with")

    def test_what_ppo_logs_before_its_step_ends_is_of_that_step(self):
        receiver = self.receiver()
        trainer = StandIn(StepwatchCallback(self.run_()), self.folder)
        trainer.call("on_train_begin")
        for step in (1, 2):
            trainer.state.global_step = step
            loss = 0.5 if step == 1 else float("nan")
            trainer.call("on_log", logs={"loss/policy_avg": loss, "objective/kl": 0.1, "lr": 3e-6, "episode": 8 * step})
            trainer.call("on_step_end")
        trainer.call("on_train_end")
        events = until(lambda: receiver.events("step")[1:] and receiver.events("step"))
        self.assertEqual([(e["step"], str(e["m"]["loss"]).lower()) for e in events], [(1, "0.5"), (2, "nan")])

    def test_evaluations_and_saves_are_announced_while_they_last(self):
        receiver = self.receiver()
        run = self.run_()
        seen = {}

        def during(what):
            kind = "phase" if what == "eval" else "ckpt"
            seen[what] = until(lambda: receiver.events(kind))[-1]
            self.assertIn(3, until(lambda: 3 in receiver.steps() and receiver.steps()), "the step is out before the pause")

        StandIn(StepwatchCallback(run), self.folder, eval_steps=3, save_steps=3, during=during).train(4)
        self.assertEqual((seen["eval"]["name"], seen["eval"]["phase"]), ("eval", "begin"))
        self.assertEqual((seen["save"]["phase"], seen["save"]["step"]), ("start", 3))
        end = until(lambda: receiver.events("ckpt")[1:])[0]
        self.assertEqual((end["phase"], end["bytes"], os.path.basename(end["path"])), ("end", 100, "checkpoint-3"))
        self.assertEqual(receiver.events("eval")[0]["m"], {"loss": 2.5, "runtime": 0.1, "epoch": 0.1})
        last = until(lambda: [e for e in receiver.events("step") if e["step"] == 4])[0]
        self.assertEqual(set(last["t"]), {"ckpt", "data"}, "part of the next step's time; the phase has been announced")

    def test_only_the_writer_reports_the_checkpoint(self):
        receiver = self.receiver()
        StandIn(StepwatchCallback(self.run_()), self.folder, save_steps=2, rank=1).train(3)
        until(lambda: receiver.steps() == [1, 2, 3])
        self.assertEqual(receiver.events("ckpt"), [])
        self.assertEqual([e["name"] for e in receiver.events("phase")], ["ckpt", "ckpt"])

    def test_a_run_of_its_own_ends_with_training(self):
        receiver = self.receiver()
        os.environ["STEPWATCH_SOCKET"] = self.path
        try:
            StandIn(StepwatchCallback(git="abc"), self.folder).train(1)
        finally:
            del os.environ["STEPWATCH_SOCKET"]
        self.assertEqual(until(lambda: receiver.events("bye"))[0]["code"], 0)
        hello = receiver.events("hello")[0]
        self.assertEqual((hello["run"], hello["world"], hello["framework"], hello["git"]), ("hf", 2, "transformers", "abc"))

    def test_packing_gives_the_length_of_the_sequences(self):
        class Model:
            config = types.SimpleNamespace(num_hidden_layers=2, hidden_size=64)

            def parameters(self):
                return []

            modules = children = parameters

        receiver = self.receiver()
        trainer = StandIn(StepwatchCallback(self.run_()), self.folder)
        trainer.args.packing, trainer.args.max_length = True, 4096
        trainer.callback.on_train_begin(trainer.args, trainer.state, trainer.control, model=Model())
        trainer.train(1)
        model = until(lambda: [e["model"] for e in receiver.events("hello") if e.get("model")])[-1]
        self.assertEqual((model["seq_len"], model["num_hidden_layers"]), (4096, 2))

    def test_a_filter_that_hides_nan_is_pointed_out(self):
        receiver = self.receiver()
        trainer = StandIn(StepwatchCallback(self.run_()), self.folder)
        trainer.args.logging_nan_inf_filter = True
        trainer.train(1)
        event = until(lambda: receiver.events("event"))[0]
        self.assertEqual((event["name"], event["level"]), ("nan_filter", "warning"))

    def test_nothing_raises(self):
        callback = StepwatchCallback(self.run_())
        for name in dir(callback):
            if name.startswith("on_"):
                self.assertIsNone(getattr(callback, name)(None, None, None), name)


@unittest.skipIf(transformers is None, "transformers is not installed: only the stand-in was tested")
class WithTheTrainer(Case):
    def test_training(self):
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 64

            def __getitem__(self, i):
                x = torch.arange(16) + i % 8
                return {"input_ids": x, "labels": x}

        config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=64, n_positions=32, bos_token_id=0, eos_token_id=0)
        args = transformers.TrainingArguments(
            os.path.join(self.folder, "out"), max_steps=6, logging_steps=2, eval_strategy="steps", eval_steps=3, save_steps=3,
            per_device_train_batch_size=4, use_cpu=True, report_to=[], disable_tqdm=True, include_num_input_tokens_seen="all",
        )
        receiver = self.receiver()
        callback = StepwatchCallback(self.run_())
        data = Data()
        model = transformers.GPT2LMHeadModel(config)
        transformers.Trainer(model, args, train_dataset=data, eval_dataset=data, callbacks=[callback]).train()
        events = until(lambda: receiver.events("step")[5:] and receiver.events("step"))
        self.assertEqual([e["step"] for e in events], [1, 2, 3, 4, 5, 6])
        self.assertEqual(["loss" in e["m"] for e in events], [False, True] * 3)
        self.assertEqual(["grad_norm" in e["m"] for e in events], [False, True] * 3)
        self.assertTrue(all(e["m"]["tokens"] == 64 and e["m"]["step_time"] > 0 and "lr" in e["m"] for e in events))
        until(lambda: len(receiver.events("ckpt")) == 4)
        self.assertEqual([e["step"] for e in receiver.events("eval")], [3, 6])
        saves = [(e["step"], e["phase"]) for e in receiver.events("ckpt")]
        self.assertEqual(sorted(saves, key=lambda save: save[0]), [(3, "start"), (3, "end"), (6, "start"), (6, "end")])
        self.assertTrue(all(e["bytes"] > 10000 for e in receiver.events("ckpt") if e["phase"] == "end"))
        self.assertEqual(receiver.events("hello")[-1]["model"]["layers"], 1)


if __name__ == "__main__":
    unittest.main()

"""The Trainer callback against transformers itself, and TRL, on the processor."""

import math
import os
import unittest
import warnings

from peers import Real, require, until

transformers, torch = require("transformers", "torch")

import stepwatch  # noqa: E402
from stepwatch.huggingface import StepwatchCallback  # noqa: E402

STEPS = 6


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        x = torch.arange(16) + i % 8
        return {"input_ids": x, "labels": x}


def gpt2():
    torch.manual_seed(3)
    sizes = dict(n_layer=1, n_head=2, n_embd=16, vocab_size=64, n_positions=32)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **sizes))


class Fit(Real):
    def setUp(self):
        super().setUp()
        warnings.simplefilter("ignore")
        self.addCleanup(warnings.resetwarnings)
        transformers.logging.set_verbosity_error()

    def train(self, callbacks=None, model=None, data=None, resume=None, **options):
        options = dict(dict(max_steps=STEPS, logging_steps=1, per_device_train_batch_size=4, save_strategy="no"), **options)
        args = transformers.TrainingArguments(
            os.path.join(self.folder, "out"), use_cpu=True, report_to=[], disable_tqdm=True, logging_nan_inf_filter=False, **options
        )
        trainer = transformers.Trainer(
            model or gpt2(), args, train_dataset=data or Data(), eval_dataset=Data(), callbacks=callbacks or [StepwatchCallback()]
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    def logged(self, trainer, name):
        return [entry[name] for entry in trainer.state.log_history if "loss" in entry and name in entry]

    def test_every_step_with_what_the_trainer_knows(self):
        trainer = self.train(run_name="gpt", include_num_input_tokens_seen="all")
        events = self.steps(STEPS)
        self.assertEqual([e["step"] for e in events], [1, 2, 3, 4, 5, 6])
        self.assert_losses(events, self.logged(trainer, "loss"))
        self.assertEqual([e["m"]["grad_norm"] for e in events], self.logged(trainer, "grad_norm"))
        self.assertEqual([e["m"]["lr"] for e in events], self.logged(trainer, "learning_rate"))
        self.assertTrue(all(e["m"]["tokens"] == 64 and 0 <= e["t"]["data"] <= e["m"]["step_time"] for e in events))
        self.assertEqual(self.bye()["code"], 0)
        hello = self.hello()
        self.assertEqual((hello["run"], hello["framework"], hello["version"]), ("gpt", "transformers", transformers.__version__))
        self.assertEqual((hello["model"]["layers"], hello["dtype"]), (1, "float32"))

    def test_accumulated_batches_are_one_step(self):
        trainer = self.train(gradient_accumulation_steps=2, max_steps=3, bf16=True)
        events = self.steps(3)
        self.assertEqual([e["step"] for e in events], [1, 2, 3])
        self.assert_losses(events, self.logged(trainer, "loss"))
        self.assertEqual(self.hello()["dtype"], "bfloat16")

    def test_nan_is_seen_as_nan(self):
        class Failing(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, model=None, **_):
                if state.global_step == 4:
                    with torch.no_grad():
                        model.lm_head.weight.fill_(float("nan"))

        trainer = self.train([StepwatchCallback(), Failing()])
        self.assertTrue(math.isnan(self.logged(trainer, "loss")[4]))
        self.assert_losses(self.steps(STEPS), self.logged(trainer, "loss"))

    def test_evaluations_and_checkpoints(self):
        trainer = self.train(eval_strategy="steps", eval_steps=3, save_strategy="steps", save_steps=3)
        self.steps(STEPS)
        self.bye()
        evaluations = self.sink.events("eval")
        self.assertEqual([(e["name"], e["step"]) for e in evaluations], [("eval", 3), ("eval", 6)])
        for e, own in zip(evaluations, [entry for entry in trainer.state.log_history if "eval_loss" in entry]):
            self.assertAlmostEqual(e["m"]["loss"], own["eval_loss"], places=5)
        self.assertEqual([(e["name"], e["phase"]) for e in self.sink.events("phase")], [("eval", "begin"), ("eval", "end")] * 2)
        saves = self.sink.events("ckpt")
        self.assertEqual(sorted((e["step"], e["phase"]) for e in saves), [(3, "end"), (3, "start"), (6, "end"), (6, "start")])
        self.assertTrue(all(e["path"].endswith("checkpoint-%d" % e["step"]) for e in saves))
        self.assertGreater(next(e["bytes"] for e in saves if e["phase"] == "end"), 10000)

    def test_resume_goes_on_counting(self):
        self.train(max_steps=3, save_strategy="steps", save_steps=3)
        self.train(resume=True)
        self.assertEqual([e["step"] for e in self.steps(STEPS)], [1, 2, 3, 4, 5, 6])
        until(lambda: len(self.sink.events("bye")) == 2)

    def test_a_run_of_the_users(self):
        with stepwatch.Run("mine") as run:
            self.train([StepwatchCallback(run)])
        self.steps(STEPS)
        self.bye()
        self.assertEqual({e["run"] for e in self.sink.events()}, {"mine"})

    def test_the_launchers_name_before_that_of_a_folder(self):
        self.set_env(STEPWATCH_RUN="night")
        self.train()
        self.bye()
        self.assertEqual({e["run"] for e in self.sink.events()}, {"night"})

    def test_an_exception_is_the_last_word(self):
        code = """
            import os, sys
            sys.path.insert(0, %r)
            import test_transformers as t
            os.environ["STEPWATCH_SOCKET"] = sys.argv[1]
            class Fail(t.transformers.TrainerCallback):
                def on_step_end(self, args, state, control, **_):
                    if state.global_step == 2:
                        raise ValueError("bad shard 17")
            callback = t.StepwatchCallback()
            args = t.transformers.TrainingArguments(sys.argv[2], max_steps=4, use_cpu=True, report_to=[], disable_tqdm=True)
            t.transformers.Trainer(t.gpt2(), args, train_dataset=t.Data(), callbacks=[callback, Fail()]).train()
        """
        code, _, err = self.script(code % os.path.dirname(os.path.abspath(__file__)), self.path, self.folder)
        self.assertEqual(code, 1, err)
        bye = self.bye()
        self.assertEqual((bye["code"], bye["text"]), (1, "ValueError: bad shard 17"))
        self.assertEqual(self.sink.steps(), [1, 2])


class WithTrl(Real):
    def test_supervised_fine_tuning(self):
        trl, datasets = require("trl", "datasets")
        transformers.logging.set_verbosity_error()
        words = {word: i for i, word in enumerate("<pad> <unk> the gradient norm of this run is fine".split())}
        from tokenizers import Tokenizer, models, pre_tokenizers

        tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="<pad>"
        )
        data = datasets.Dataset.from_dict({"text": ["the gradient norm of this run is fine"] * 32})
        args = trl.SFTConfig(
            os.path.join(self.folder, "sft"), max_steps=4, logging_steps=1, use_cpu=True, report_to=[], disable_tqdm=True,
            per_device_train_batch_size=4, save_strategy="no", max_length=16, bf16=False, gradient_checkpointing=False,
        )
        trainer = trl.SFTTrainer(gpt2(), args, train_dataset=data, processing_class=tokenizer, callbacks=[StepwatchCallback()])
        trainer.train()
        events = self.steps(4)
        own = [entry for entry in trainer.state.log_history if "loss" in entry]
        self.assert_losses(events, [entry["loss"] for entry in own])
        for e, entry in zip(events, own):
            self.assertEqual(e["m"]["entropy"], entry["entropy"])
            self.assertEqual(e["m"]["mean_token_accuracy"], entry["mean_token_accuracy"])
        self.assertEqual(self.bye()["code"], 0)


if __name__ == "__main__":
    unittest.main()

"""The Lightning and Fabric adapters against Lightning itself, on the processor."""

import copy
import importlib.metadata
import math
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest
import warnings
from unittest import mock

from peers import ROOT, Real, require, until

torch, L, pytorch_lightning = require("torch", "lightning", "pytorch_lightning")

import stepwatch.fabric  # noqa: E402
import stepwatch.lightning  # noqa: E402
from stepwatch.fabric import StepwatchFabricCallback  # noqa: E402
from stepwatch.lightning import StepwatchCallback  # noqa: E402

BATCHES = 6


def batches(count=BATCHES, nan_at=None):
    torch.manual_seed(7)
    data = torch.randn(count * 4, 8)
    if nan_at is not None:
        data[nan_at * 4] = float("nan")
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=4)


def module(base=None):
    class Model((base or L.LightningModule)):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.layer = torch.nn.Linear(8, 1)
            self.losses, self.norms = [], []
            self.fail_at = None

        def training_step(self, batch, batch_idx):
            if batch_idx == self.fail_at:
                raise ValueError("bad shard 17")
            loss = (self.layer(batch[0]) - 1).square().mean()
            self.losses.append(loss.item())
            self.log("train_loss", loss, prog_bar=True)
            self.log("accuracy", 0.5, on_step=True, on_epoch=True)
            return loss

        def on_before_optimizer_step(self, optimizer):
            norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in self.parameters()]))
            self.norms.append(norm.item())
            self.log("grad_norm", norm)

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", (self.layer(batch[0]) - 1).square().mean())
            self.log("val_acc", 0.25)

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.08)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    return Model()


TWO_RANKS = """
    import sys, warnings
    warnings.simplefilter("ignore")
    import torch, lightning.pytorch as L
    from stepwatch.lightning import StepwatchCallback

    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)
        def training_step(self, batch, batch_idx):
            return self.layer(batch[0]).square().mean()
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    if __name__ == "__main__":
        x = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 8)), batch_size=4)
        saver = L.callbacks.ModelCheckpoint(sys.argv[2], every_n_train_steps=2)
        L.Trainer(
            accelerator="cpu", devices=2, strategy=sys.argv[1], max_steps=2, logger=False,
            callbacks=[StepwatchCallback(name=sys.argv[1]), saver], enable_progress_bar=False, enable_model_summary=False,
        ).fit(Model(), x)
"""


class Manual(L.LightningModule):
    """Two optimizers that the module steps itself, as a GAN does."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.a, self.b = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)

    def training_step(self, batch, batch_idx):
        for optimizer, layer in zip(self.optimizers(), (self.a, self.b)):
            loss = layer(batch[0]).square().mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        self.log("train/loss", loss)

    def configure_optimizers(self):
        return [torch.optim.SGD(self.a.parameters(), lr=0.1), torch.optim.SGD(self.b.parameters(), lr=0.2)]


class Quiet(Real):
    def setUp(self):
        super().setUp()
        warnings.simplefilter("ignore")
        self.addCleanup(warnings.resetwarnings)

    def trainer(self, callbacks=(), package=L.pytorch, **options):
        options.setdefault("max_epochs", 1)
        options.setdefault("logger", False)
        options.setdefault("enable_checkpointing", False)
        options.setdefault("log_every_n_steps", 1)
        return package.Trainer(
            accelerator="cpu", devices=1, enable_progress_bar=False, enable_model_summary=False, callbacks=list(callbacks),
            default_root_dir=self.folder, **options
        )


class Fit(Quiet):
    def test_every_step_with_what_lightning_knows(self):
        model = module()
        self.trainer([StepwatchCallback(name="pl", tokens_per_step=64)]).fit(model, batches())
        events = self.steps(BATCHES)
        self.assertEqual([e["step"] for e in events], [1, 2, 3, 4, 5, 6])
        self.assert_losses(events, model.losses)
        for e, norm in zip(events, model.norms):
            self.assertAlmostEqual(e["m"]["grad_norm"], norm, places=5)
        self.assertEqual([e["m"]["lr"] for e in events], [0.08 * 0.5**i for i in range(6)], "the rate that the step was made with")
        self.assertTrue(all(e["m"]["tokens"] == 64 and e["m"]["accuracy"] == 0.5 and e["m"]["step_time"] > 0 for e in events))
        self.assertTrue(all(0 <= e["t"]["data"] <= e["m"]["step_time"] + 0.01 for e in events))
        self.assertEqual(self.bye()["code"], 0)
        hello = self.hello()
        self.assertEqual((hello["run"], hello["world"], hello["rank"], hello["framework"]), ("pl", 1, 0, "lightning"))
        self.assertEqual((hello["version"], hello["model"]["n_params"], hello["dtype"]), (L.__version__, 9, "float32"))

    def test_the_other_package(self):
        with mock.patch.dict(sys.modules):
            for name in [name for name in sys.modules if name == "lightning" or name.startswith("lightning.")]:
                del sys.modules[name]
            del sys.modules["stepwatch.lightning"]
            import stepwatch.lightning as again

            callback = again.StepwatchCallback()
            self.assertIsInstance(callback, pytorch_lightning.Callback)
            model = module(pytorch_lightning.LightningModule)
            self.trainer([callback], pytorch_lightning).fit(model, batches())
        self.assert_losses(self.steps(BATCHES), model.losses)

    def test_accumulated_batches_are_one_step(self):
        model = module()
        self.trainer([StepwatchCallback()], accumulate_grad_batches=4).fit(model, batches())
        events = self.steps(2)
        self.assertEqual([e["step"] for e in events], [1, 2])
        self.assert_losses(events, [sum(model.losses[:4]) / 4, sum(model.losses[4:]) / 2])

    def test_bf16_is_what_is_computed_in(self):
        self.trainer([StepwatchCallback()], precision="bf16-mixed").fit(module(), batches())
        self.steps(BATCHES)
        self.assertEqual(self.hello()["dtype"], "bfloat16")

    def test_nan_is_seen_as_nan(self):
        model = module()
        self.trainer([StepwatchCallback()]).fit(model, batches(nan_at=3))
        self.assertTrue(math.isnan(model.losses[3]))
        self.assert_losses(self.steps(BATCHES), model.losses)

    def test_evaluations_and_checkpoints(self):
        saver = L.pytorch.callbacks.ModelCheckpoint(self.folder, every_n_train_steps=3, save_top_k=-1)
        trainer = self.trainer([StepwatchCallback(), saver], enable_checkpointing=True, val_check_interval=3, max_epochs=1)
        trainer.fit(module(), batches(), batches(2))
        self.steps(BATCHES)
        self.bye()
        evaluations = self.sink.events("eval")
        self.assertEqual([(e["name"], e["step"]) for e in evaluations], [("val", 3), ("val", 6)], "the sanity check is none")
        self.assertEqual(set(evaluations[0]["m"]), {"loss", "acc"})
        self.assertAlmostEqual(evaluations[1]["m"]["loss"], trainer.callback_metrics["val_loss"].item(), places=5)
        phases = [(e["name"], e["phase"]) for e in self.sink.events("phase")]
        self.assertEqual(phases, [("sanity_check", "begin"), ("sanity_check", "end")] + [("eval", "begin"), ("eval", "end")] * 2)
        saves = self.sink.events("ckpt")
        self.assertEqual(sorted((e["step"], e["phase"]) for e in saves), [(3, "end"), (3, "start"), (6, "end"), (6, "start")])
        for e in saves:
            self.assertTrue(e["path"].endswith("step=%d.ckpt" % e["step"]), e["path"])
        self.assert_sizes()
        self.assertNotIn("save_checkpoint", vars(trainer), "the trainer is left as it was")

    def test_a_checkpoint_that_fails(self):
        class Full(L.pytorch.plugins.TorchCheckpointIO):
            def save_checkpoint(self, *_, **__):
                raise OSError("no space left on device")

        saver = L.pytorch.callbacks.ModelCheckpoint(self.folder, every_n_train_steps=2)
        trainer = self.trainer([StepwatchCallback(), saver], enable_checkpointing=True, plugins=[Full()])
        with self.assertRaisesRegex(OSError, "no space"):
            trainer.fit(module(), batches())
        self.assertEqual(self.bye()["code"], 1)
        self.assertEqual([e["phase"] for e in self.sink.events("ckpt")], ["start", "fail"])
        self.assertIn("no space", self.sink.events("ckpt")[1]["text"])

    def test_a_checkpoint_that_a_thread_writes(self):
        first = self.folder + "/first=step=3.ckpt"
        saver = L.pytorch.callbacks.ModelCheckpoint(self.folder, every_n_train_steps=3, save_top_k=-1)
        plugin = L.pytorch.plugins.AsyncCheckpointIO()
        trainer = self.trainer([StepwatchCallback(), saver], enable_checkpointing=True, plugins=[plugin], max_epochs=1)
        trainer.fit(module(), batches())
        self.bye()
        for step in (3, 6):
            events = sorted((e for e in self.sink.events("ckpt") if e["step"] == step), key=lambda e: e["ts"])
            stages = [(e.get("stage", "save"), e["phase"]) for e in events]
            self.assertEqual(stages, [("save", "start"), ("save", "end"), ("write", "start"), ("write", "end"), ("durable", "end")])
            self.assertTrue(all(e["path"].endswith("step=%d.ckpt" % step) for e in events))
            self.assertEqual({e.get("bytes") for e in events[:4]}, {None})
            os.replace(events[0]["path"], first) if step == 3 else None
        self.assertNotIn("save_checkpoint", vars(plugin), "it is left as it was")
        self.trainer([StepwatchCallback()], max_epochs=1).fit(module(), batches(), ckpt_path=first)
        until(lambda: len(self.sink.events("bye")) == 2)
        loads = [(e["phase"], e["step"], e["path"]) for e in self.sink.events("ckpt") if e.get("stage") == "load"]
        self.assertEqual(loads, [("start", 3, first), ("end", 3, first)])

    def test_a_checkpoint_that_a_thread_fails_to_write(self):
        trained = threading.Event()

        def full(*_, **__):
            self.assertTrue(trained.wait(60))
            raise OSError("no space left on device")

        class Full(L.pytorch.plugins.AsyncCheckpointIO):
            def _ensure_setup(self):
                super()._ensure_setup()
                self._checkpoint_io = mock.Mock(save_checkpoint=full)

        class Trained(L.pytorch.Callback):
            def on_fit_end(self, *_):
                trained.set()

            on_train_end = on_fit_end

        saver = L.pytorch.callbacks.ModelCheckpoint(self.folder, every_n_train_steps=6, save_on_train_epoch_end=False)
        trainer = self.trainer([StepwatchCallback(), saver, Trained()], enable_checkpointing=True, plugins=[Full()])
        with self.assertRaisesRegex(OSError, "no space"):
            trainer.fit(module(), batches())
        self.bye()
        events = sorted(self.sink.events("ckpt"), key=lambda e: e["ts"])
        stages = [(e.get("stage", "save"), e["phase"], e["step"]) for e in events]
        self.assertEqual(stages, [("save", "start", 6), ("save", "end", 6), ("write", "start", 6), ("write", "fail", 6)])
        self.assertEqual(events[-1]["text"], "OSError: no space left on device")

    def test_an_exception_is_the_last_word(self):
        model = module()
        model.fail_at = 2
        with self.assertRaisesRegex(ValueError, "bad shard 17"):
            self.trainer([StepwatchCallback()]).fit(model, batches())
        bye = self.bye()
        self.assertEqual((bye["code"], bye["text"]), (1, "ValueError: bad shard 17"))
        self.assertEqual(self.sink.steps(), [1, 2])

    def test_resume_goes_on_counting(self):
        first = self.trainer([StepwatchCallback()])
        first.fit(module(), batches())
        first.save_checkpoint(os.path.join(self.folder, "r.ckpt"))
        model = module()
        self.trainer([StepwatchCallback()], max_epochs=2).fit(model, batches(), ckpt_path=os.path.join(self.folder, "r.ckpt"))
        events = self.steps(2 * BATCHES)
        self.assertEqual([e["step"] for e in events], list(range(1, 13)))
        self.assert_losses(events[BATCHES:], model.losses)

    def test_fit_twice_is_two_runs(self):
        trainer = self.trainer([StepwatchCallback()])
        model = module()
        trainer.fit(model, batches())
        trainer.fit_loop.max_epochs = 2
        trainer.fit(model, batches())
        self.assertEqual([e["step"] for e in self.steps(2 * BATCHES)], list(range(1, 13)))
        until(lambda: len(self.sink.events("bye")) == 2)
        self.assertEqual(self.sink.steps(connection=1), list(range(7, 13)))

    def test_a_run_of_the_users(self):
        with stepwatch.Run("mine", world=4, rank=2) as run:
            self.trainer([StepwatchCallback(run)]).fit(module(), batches())
            run.event("after")
        self.steps(BATCHES)
        self.bye()
        self.assertEqual({(e["run"], e["rank"], e["world"]) for e in self.sink.events()}, {("mine", 2, 4)})
        self.assertEqual(len(self.sink.events("bye")), 1)

    def test_manual_optimization_of_two(self):
        self.trainer([StepwatchCallback()]).fit(Manual(), batches())
        events = self.steps(BATCHES)
        self.assertEqual([e["step"] for e in events], [2, 4, 6, 8, 10, 12], "Lightning counts every optimizer's step")
        self.assertTrue(all("loss" in e["m"] and e["m"]["lr"] == 0.1 and e["m"]["lr/1"] == 0.2 for e in events))

    def test_tokens_of_a_language_model(self):
        class Tokens(torch.utils.data.Dataset):
            def __len__(self):
                return 8

            def __getitem__(self, i):
                return {"input_ids": torch.zeros(16, dtype=torch.long), "x": torch.ones(8)}

        model = module()
        model.training_step = lambda batch, batch_idx: (model.layer(batch["x"]) - 1).square().mean()
        self.trainer([StepwatchCallback()], accumulate_grad_batches=2).fit(model, torch.utils.data.DataLoader(Tokens(), batch_size=2))
        self.assertEqual([e["m"]["tokens"] for e in self.steps(2)], [64, 64])

    def test_sigterm_stays_lightnings(self):
        code = """
            import os, signal, sys, warnings
            warnings.simplefilter("ignore")
            sys.path.insert(0, %r)
            import test_lightning as t
            os.environ["STEPWATCH_SOCKET"] = sys.argv[1]
            class Kill(t.L.pytorch.Callback):
                def on_train_batch_end(self, trainer, model, outputs, batch, batch_idx):
                    if batch_idx == 2:
                        os.kill(os.getpid(), signal.SIGTERM)
            class Case(t.Fit):
                def runTest(self): pass
            case = Case(); case.folder = os.getcwd()
            case.trainer([t.StepwatchCallback(), Kill()]).fit(t.module(), t.batches(200))
        """
        code, _, err = self.script(code % os.path.dirname(os.path.abspath(__file__)), self.path)
        bye = self.bye()
        self.assertEqual((bye["code"], bye["text"]), (143, "SIGTERM"), err)
        self.assertEqual(self.steps(3)[-1]["step"], 3, "the batch was finished: Lightning ended in its own way")
        self.assertNotEqual(code, -15, "nor did we kill it")

    def test_two_ranks_of_either_launcher(self):
        for strategy in ("ddp", "ddp_spawn"):
            script = os.path.join(self.folder, strategy + ".py")
            with open(script, "w") as f:
                f.write(textwrap.dedent(TWO_RANKS))
            code, _, err = self.program(script, strategy, self.folder)
            self.assertEqual(code, 0, err)
            until(lambda: sum(e["run"] == strategy for e in self.sink.events("bye")) == 2)
            own = [e for e in self.sink.events() if e["run"] == strategy]
            self.assertEqual({(e["rank"], e["world"]) for e in own}, {(0, 2), (1, 2)})
            for rank in (0, 1):
                self.assertEqual([e["step"] for e in own if e["k"] == "step" and e["rank"] == rank], [1, 2])
            self.assertEqual({(e["rank"], e["code"]) for e in own if e["k"] == "bye"}, {(0, 0), (1, 0)})
            self.assertEqual({e["rank"] for e in own if e["k"] == "ckpt"}, {0})

    def test_copies_and_pickles(self):
        """Strategies that spawn processes pickle the trainer before ``setup``; some users copy it
        in the middle."""
        seen = []

        class Copy(L.pytorch.Callback):
            def on_train_batch_end(self, trainer, *_):
                seen.append(copy.deepcopy(trainer.save_checkpoint))
                seen.append(copy.deepcopy(trainer.callbacks[0]._training))

        trainer = self.trainer([pickle.loads(pickle.dumps(StepwatchCallback(name="n"))), Copy()])
        model = module()
        trainer.fit(model, batches(1))
        self.assert_losses(self.steps(1), model.losses)
        self.assertNotIsInstance(seen[0], stepwatch._adapter.Tap)
        self.assertIsNone(seen[1].run)


class EntryPoint(Quiet):
    """What ``pip install stepwatch`` does, played by an entry point that says the same."""

    def setUp(self):
        super().setUp()
        point = importlib.metadata.EntryPoint("stepwatch", "stepwatch.lightning:factory", "lightning.pytorch.callbacks_factory")
        fabric = importlib.metadata.EntryPoint("stepwatch", "stepwatch.fabric:factory", "lightning.fabric.callbacks_factory")
        points = {point.group: [point], fabric.group: [fabric]}
        patch = mock.patch("lightning.fabric.utilities.registry.entry_points", lambda group: points.get(group, []))
        patch.start()
        self.addCleanup(patch.stop)

    def test_no_code_at_all(self):
        model = module()
        self.trainer().fit(model, batches())
        self.assert_losses(self.steps(BATCHES), model.losses)
        self.assertEqual(self.bye()["code"], 0)

    def test_the_users_own_replaces_it(self):
        trainer = self.trainer([StepwatchCallback(name="mine")])
        self.assertEqual(sum(isinstance(c, StepwatchCallback) for c in trainer.callbacks), 2)
        trainer.fit(module(), batches())
        self.steps(BATCHES)
        self.bye()
        self.assertEqual(self.sink.steps(), [1, 2, 3, 4, 5, 6], "once each")
        self.assertEqual({e["run"] for e in self.sink.events()}, {"mine"})

    def test_nothing_where_it_is_off_or_nobody_listens(self):
        self.set_env(STEPWATCH_DISABLED="1")
        self.assertFalse(any(isinstance(c, StepwatchCallback) for c in self.trainer().callbacks))
        self.set_env(STEPWATCH_DISABLED="", STEPWATCH_SOCKET="")
        self.assertFalse(any(isinstance(c, StepwatchCallback) for c in self.trainer().callbacks))

    def test_validate_and_test_alone_report_nothing(self):
        self.trainer().validate(module(), batches(), verbose=False)
        self.assertEqual(self.sink.events(), [])

    def test_fabric(self):
        fabric = L.fabric.Fabric(accelerator="cpu", devices=1)
        losses = loop(fabric, self.folder)
        events = self.steps(5)
        self.assertEqual([e["step"] for e in events[:5]], [1, 2, 3, 4, 5])
        self.assert_losses(events[:5], losses[:5])


class Installed(Real):
    """The package as pip installs it, and scripts that do not know of it."""

    SCRIPT = """
        import sys, warnings
        warnings.simplefilter("ignore")
        import torch
        %s
        torch.manual_seed(3)
        x = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(24, 8)), batch_size=4)
        %s
        assert "stepwatch" in sys.modules
    """
    FIT = """
        class Model(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(8, 1)
            def training_step(self, batch, i):
                return self.layer(batch[0]).square().mean()
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)
        quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
        L.Trainer(accelerator="cpu", devices=1, max_epochs=1, **quiet).fit(Model(), x)
    """
    LOOP = """
        fabric = Fabric(accelerator="cpu", devices=1)
        model = torch.nn.Linear(8, 1)
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for (batch,) in x:
            optimizer.zero_grad()
            fabric.backward(model(batch).square().mean())
            optimizer.step()
    """

    @classmethod
    def setUpClass(cls):
        cls.where = tempfile.mkdtemp(prefix="sw")
        cls.addClassCleanup(shutil.rmtree, cls.where, True)
        source = os.path.join(cls.where, "source")  # building leaves things behind
        shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns("tests", "build", "*.egg-info", "__pycache__"))
        cls.site = os.path.join(cls.where, "site")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", cls.site, source]
        subprocess.run(pip, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def test_no_code_at_all(self):
        for number, (imports, body) in enumerate(
            (
                ("import lightning.pytorch as L", self.FIT),
                ("import pytorch_lightning as L", self.FIT),
                ("from lightning.fabric import Fabric", self.LOOP),
                ("from lightning_fabric import Fabric", self.LOOP),
            )
        ):
            code = textwrap.dedent(self.SCRIPT) % (imports, textwrap.dedent(body))
            code, _, err = self.program("-c", code, PYTHONPATH=self.site, STEPWATCH_RUN="run%d" % number)
            self.assertEqual(code, 0, err)
            until(lambda: len(self.sink.events("bye")) == number + 1)
            events = [e for e in self.sink.events("step") if e["run"] == "run%d" % number]
            self.assertEqual([e["step"] for e in events], [1, 2, 3, 4, 5, 6], imports)
            self.assertTrue(all("loss" in e["m"] and e["m"]["lr"] == 0.1 for e in events), imports)


def loop(fabric, folder, steps=6, log_from=None):
    torch.manual_seed(3)
    model = torch.nn.Linear(8, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    losses = []
    for i, (x,) in enumerate(fabric.setup_dataloaders(batches(steps))):
        loss = (model(x) - 1).square().mean()
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        losses.append(loss.item())
        if log_from is not None:
            fabric.log_dict({"train/loss": loss, "grad_norm": 0.5, "acc": 1.0}, step=log_from + i)
    fabric.save(os.path.join(folder, "fabric.ckpt"), {"model": model})
    return losses


class FabricLoop(Quiet):
    def test_steps_logs_and_checkpoints(self):
        fabric = L.fabric.Fabric(accelerator="cpu", devices=1, callbacks=[StepwatchFabricCallback(name="fab", tokens_per_step=32)])
        losses = loop(fabric, self.folder, log_from=101)
        events = self.steps(6)
        self.assertEqual([e["step"] for e in events], [101, 102, 103, 104, 105, 106], "the numbers are the script's")
        self.assert_losses(events, losses)
        self.assertTrue(all((e["m"]["lr"], e["m"]["grad_norm"], e["m"]["acc"], e["m"]["tokens"]) == (0.1, 0.5, 1.0, 32) for e in events))
        end = until(lambda: self.sink.events("ckpt")[1:])[0]
        self.assertEqual((end["phase"], end["step"], os.path.basename(end["path"])), ("end", 106, "fabric.ckpt"))
        fabric.call("on_train_end")
        self.assertEqual(self.bye()["code"], 0)
        hello = self.hello()
        self.assertEqual((hello["run"], hello["framework"], hello["model"]["n_params"]), ("fab", "fabric", 9))

    def test_evaluations(self):
        fabric = L.fabric.Fabric(accelerator="cpu", devices=1, callbacks=[StepwatchFabricCallback()])
        loop(fabric, self.folder)
        fabric.call("on_validation_start")
        fabric.log_dict({"val_loss": torch.tensor(1.5), "val_acc": 0.5}, step=6)
        fabric.call("on_validation_end")
        e = until(lambda: self.sink.events("eval"))[0]
        self.assertEqual((e["name"], e["step"], e["m"]), ("val", 6, {"loss": 1.5, "acc": 0.5}))
        fabric.call("on_train_end")

    def test_an_exception_ends_the_process_and_the_last_step_is_not_lost(self):
        code = """
            import os, sys, warnings
            warnings.simplefilter("ignore")
            sys.path.insert(0, %r)
            import test_lightning as t
            os.environ["STEPWATCH_SOCKET"] = sys.argv[1]
            fabric = t.L.fabric.Fabric(accelerator="cpu", devices=1, callbacks=[t.StepwatchFabricCallback()])
            def fail(*_, **__):
                raise ValueError("bad shard 17")
            fabric._strategy.save_checkpoint = fail
            t.loop(fabric, ".")
        """
        code, _, err = self.script(code % os.path.dirname(os.path.abspath(__file__)), self.path)
        self.assertEqual(code, 1, err)
        bye = self.bye()
        self.assertEqual((bye["code"], bye["text"]), (1, "ValueError: bad shard 17"))
        self.assertEqual(self.sink.steps(), [1, 2, 3, 4, 5, 6])
        self.assertEqual([e["phase"] for e in self.sink.events("ckpt")], ["start", "fail"])


if __name__ == "__main__":
    unittest.main()

"""The adapters without their frameworks: stand-ins call them in the frameworks' order, with tensors
that record who waited for them.

What the frameworks really do is tested in ``real/``, where they are installed.
"""

import copy
import importlib
import os
import pickle
import sys
import time
import types
import unittest
from unittest import mock

from support import Case, until
from test_torch import FakeTorch, Optimizer, Stream, Tensor

from stepwatch import _adapter
from stepwatch._adapter import Saving, Tap, Training, dtype_of, metric, of_evaluation, tokens_in, wanted

ADAPTERS = (
    "accelerate", "composer", "deepspeed", "fabric", "huggingface", "jax", "keras", "lightning", "megatron", "olmo", "ray", "torch", "torchtitan",
)
Space = types.SimpleNamespace


class Imports(Case):
    def test_the_package_imports_no_adapter_and_no_adapter_needs_its_framework(self):
        code = """
            import importlib, sys
            class Block:
                def find_spec(self, name, path=None, target=None):
                    if name.split(".")[0] in %r:
                        raise ImportError(name)
            sys.meta_path.insert(0, Block())
            import stepwatch
            print(sorted(name for name in sys.modules if name.startswith("stepwatch.") and "._" not in name))
            for name in %r:
                importlib.import_module("stepwatch." + name)
            from stepwatch.accelerate import StepwatchTracker
            from stepwatch.composer import StepwatchLogger
            from stepwatch.fabric import StepwatchFabricCallback
            from stepwatch.keras import StepwatchCallback
            from stepwatch.lightning import StepwatchCallback as Lightning
            for kind in (StepwatchTracker, StepwatchLogger, StepwatchFabricCallback, StepwatchCallback, Lightning):
                kind()
            print("ok")
        """
        frameworks = (
            "torch", "lightning", "pytorch_lightning", "transformers", "accelerate", "composer", "keras", "jax", "numpy", "deepspeed", "megatron",
            "olmo_core", "ray", "torchtitan",
        )
        code, out, err = self.script(code % (frameworks, ADAPTERS))
        self.assertEqual((code, out), (0, "[]\nok\n"), err)

    def test_no_hook_raises(self):
        from stepwatch.accelerate import StepwatchTracker
        from stepwatch.composer import StepwatchLogger
        from stepwatch.fabric import StepwatchFabricCallback
        from stepwatch.keras import StepwatchCallback
        from stepwatch.lightning import StepwatchCallback as Lightning

        hooks = 0
        for kind in (StepwatchTracker, StepwatchLogger, StepwatchFabricCallback, StepwatchCallback, Lightning):
            adapter = kind()
            for name in [name for name in vars(kind.__mro__[0]) if not name.startswith("_")] + [n for n in dir(kind) if n.startswith("on_")]:
                hook = getattr(adapter, name)
                if getattr(hook, "__wrapped__", None) is not None:
                    for count in range(7):
                        try:
                            self.assertIsNone(hook(*[object()] * count))
                        except TypeError as e:  # Python's own, of a call with the wrong number of arguments
                            self.fail("%s.%s: %s" % (kind.__name__, name, e))
                        hooks += 1
        self.assertGreater(hooks, 100)


class Names(unittest.TestCase):
    def test_metrics(self):
        for name, wire in (
            ("train_loss", "loss"), ("train/loss", "loss"), ("Train/Loss", "loss"), ("learning_rate", "lr"), ("train/grad-norm", "grad_norm"),
            ("grad_2.0_norm_total", "grad_norm"), ("accuracy", "accuracy"), ("train/acc", "train/acc"), ("aux_loss", "aux_loss"),
        ):
            self.assertEqual(metric(name), wire)

    def test_evaluations(self):
        for name, found in (
            ("val_loss", ("val", "loss")), ("eval/c4/loss", ("eval", "c4/loss")), ("loss", None), ("value_loss", None), ("evaluation", None),
        ):
            self.assertEqual(of_evaluation(name), found)

    def test_types(self):
        for precision, dtype in (
            ("bf16-mixed", "bfloat16"), ("16-mixed", "float16"), ("bf16-true", "bfloat16"), ("32-true", None), ("amp_bf16", "bfloat16"),
            ("amp_fp8", "float8"), ("no", None), (None, None), (Space(value="fp16"), "float16"), ("transformer-engine", "float8"),
        ):
            self.assertEqual(dtype_of(precision), dtype, precision)

    def test_tokens(self):
        self.assertEqual(tokens_in({"input_ids": Space(shape=(4, 16))}), 64)
        self.assertEqual([tokens_in(batch) for batch in (None, [1], {"x": 1}, {"input_ids": [1]})], [0] * 4)

    def test_who_is_wanted(self):
        self.assertTrue(wanted({"STEPWATCH_URL": "http://node:9765"}))
        self.assertFalse(wanted({"STEPWATCH_URL": "http://node:9765", "STEPWATCH_DISABLED": "1"}))
        self.assertFalse(wanted({"STEPWATCH_SOCKET": ""}))
        with mock.patch.object(_adapter, "DEFAULT_SOCKET", os.path.join(os.path.dirname(__file__), "ingest.sock")):
            self.assertTrue(wanted({}), "the exporter's folder is there")
        with mock.patch.object(_adapter, "DEFAULT_SOCKET", "/nowhere/ingest.sock"):
            self.assertFalse(wanted({}))


class Owner:
    def save(self, path):
        """Writes."""
        if path == "full":
            raise OSError("no space left on device")
        return path.upper()


class Taps(Case):
    def test_a_tap_changes_nothing(self):
        owner, seen = Owner(), []
        tap = Tap(owner, "save", seen.append)
        self.assertEqual((owner.save("a"), owner.save.__doc__, seen), ("A", "Writes.", ["a"]))
        Tap(owner, "save", lambda *_: 1 / 0)
        self.assertEqual(owner.save("b"), "B", "whatever becomes of the one who looks")
        del owner.save
        tap = Tap(owner, "save", seen.append)
        copied, pickled = copy.deepcopy(owner), pickle.loads(pickle.dumps(owner))
        self.assertEqual((copied.save("c"), pickled.save("d"), seen), ("C", "D", ["a", "b"]), "a copy is none of ours")
        tap.remove()
        self.assertNotIn("save", vars(owner))

    def test_checkpoints(self):
        receiver = self.receiver()
        training, owner = Training(self.run_(), {}), Owner()
        training.wait()
        Saving(owner, "save", lambda path: training.saving(7, path), lambda ckpt: setattr(ckpt, "bytes", 5))
        self.assertEqual(owner.save("ok"), "OK")
        self.assertIsNotNone(training._wait, "the waiting goes on")
        with self.assertRaisesRegex(OSError, "no space"):
            owner.save("full")
        events = until(lambda: receiver.events("ckpt")[3:] and receiver.events("ckpt"))
        self.assertEqual([(e["phase"], e["path"]) for e in events], [("start", "ok"), ("end", "ok"), ("start", "full"), ("fail", "full")])
        self.assertEqual((events[1]["bytes"], events[3]["text"]), (5, "OSError: no space left on device"))

    def test_no_step_takes_less_than_no_time(self):
        receiver = self.receiver()
        training = Training(self.run_(), {})
        now = time.monotonic()
        for step, at in ((1, now), (2, now + 2), (3, now + 1), (4, now + 2.5)):
            training.step(step, {}, at)
        events = until(lambda: receiver.events("step")[3:] and receiver.events("step"))
        self.assertEqual([e["m"].get("step_time") for e in events], [None, 2.0, None, 0.5])

    def test_without_a_run_nothing_is_in_the_way(self):
        owner = Owner()
        Saving(owner, "save", lambda path: Training(None, {}).saving(1, path))
        self.assertEqual(owner.save("a"), "A")
        Saving(owner, "save", lambda path: 1 / 0)
        self.assertEqual(owner.save("a"), "A")


class Signals(Case):
    def test_sigterm_is_left_to_the_framework(self):
        code = """
            import os, signal, stepwatch
            from stepwatch import _signals
            from stepwatch._adapter import Training
            training = Training(None, {})
            training.begin(signals=False)
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            training.end()
            other = Training(None, {})
            other.begin()
            assert signal.getsignal(signal.SIGTERM) is _signals._on_signal
        """
        code, _, err = self.script(code)
        self.assertEqual(code, 0, err)


class Trainer:
    """As much of Lightning's trainer as the callback reads, and its order of calls."""

    def __init__(self, *callbacks, accumulate=1, stream=None):
        self.callbacks, self.accumulate_grad_batches, self.stream = list(callbacks), accumulate, stream
        self.world_size, self.global_rank, self.local_rank, self.is_global_zero = 4, 1, 1, False
        self.strategy = Space(handles_gradient_accumulation=False)
        self.precision, self.global_step, self.sanity_checking, self.lightning_module = "bf16-mixed", 0, False, self
        self.automatic_optimization, self.distributed_sampler_kwargs = True, {"num_replicas": 4}
        self.optimizers = [Space(param_groups=[{"lr": 0.1}])]
        self._results = self
        self.logged = []

    def valid_items(self):
        return enumerate(self.logged)

    def _forked_name(self, item, on_step):
        return item.meta.name, item.meta.name

    def parameters(self):
        return []

    modules = children = parameters

    def log(self, name, value):
        meta = Space(name=name, on_step=True, on_epoch=True)
        self.logged.append(Space(meta=meta, _forward_cache=value, _computed=value))

    def save_checkpoint(self, filepath):
        pass

    def call(self, hook, *more):
        for callback in self.callbacks:
            assert getattr(callback, hook)(self, self, *more) is None

    def start(self):
        self.call("setup", "fit")
        self.call("on_train_start")
        self.call("on_train_epoch_start")

    def fit(self, losses):
        self.start()
        for i, loss in enumerate(losses):
            batch = {"input_ids": Space(shape=(2, 8))}
            self.call("on_train_batch_start", batch, i)
            if (i + 1) % self.accumulate_grad_batches == 0:
                self.call("on_before_optimizer_step", self.optimizers[0])
                self.optimizers[0].param_groups[0]["lr"] /= 2
                self.global_step += 1
            self.call("on_train_batch_end", {"loss": loss}, batch, i)
        self.call("teardown", "fit")


class Loss(Tensor):
    """A tensor on a device that can be added and scaled there."""

    def __add__(self, other):
        return Loss(self._value + other._value, stream=self._stream)

    def __mul__(self, factor):
        return Loss(self._value * factor, stream=self._stream)


class Lightning(Case):
    def setUp(self):
        super().setUp()
        from stepwatch.lightning import StepwatchCallback

        self.kind, self.sink, self.stream = StepwatchCallback, self.receiver(), Stream()
        patch = mock.patch.dict(sys.modules, {"torch": FakeTorch(self.stream)})
        patch.start()
        self.addCleanup(patch.stop)
        patch = mock.patch.dict(os.environ, STEPWATCH_SOCKET=self.path)
        patch.start()
        self.addCleanup(patch.stop)

    def losses(self, *values):
        return [Loss(value, stream=self.stream) for value in values]

    def test_nothing_waits_for_the_device(self):
        trainer = Trainer(self.kind(name="pl"))
        trainer.log("train/acc", Loss(0.5, stream=self.stream))
        trainer.start()
        for i, loss in enumerate(self.losses(3.0, 2.0)):
            trainer.call("on_train_batch_start", {}, i)
            trainer.global_step += 1
            trainer.call("on_train_batch_end", {"loss": loss}, {}, i)
        self.assertEqual(self.stream.waits, 0)
        self.stream.done = True
        trainer.call("on_train_batch_start", {}, 2)
        events = until(lambda: self.sink.events("step")[1:] and self.sink.events("step"))
        self.assertEqual([(e["step"], e["m"]["loss"], e["m"]["train/acc"]) for e in events], [(1, 3.0, 0.5), (2, 2.0, 0.5)])
        self.assertEqual(self.stream.waits, 0)
        trainer.call("teardown", "fit")

    def test_steps(self):
        self.stream.done = True
        trainer = Trainer(self.kind(), accumulate=2)
        trainer.fit(self.losses(1.0, 1.5, 2.0, 2.5))
        events = until(lambda: self.sink.events("bye") and self.sink.events("step"))
        self.assertEqual([(e["step"], e["m"]["loss"], e["m"]["lr"], e["m"]["tokens"]) for e in events],
                         [(1, 2.5, 0.1, 128), (2, 4.5, 0.05, 128)])
        hello = self.sink.events("hello")[-1]
        self.assertEqual((hello["rank"], hello["world"], hello["dtype"]), (1, 4, "bfloat16"))

    def test_the_dimensions_of_the_model_in_the_module(self):
        config = Space(num_hidden_layers=12, num_attention_heads=16, hidden_size=1024, vocab_size=32000)
        weight = Space(numel=lambda: 5000, requires_grad=True, dtype="torch.bfloat16")
        inner = Space(config=config)
        trainer = Trainer(self.kind())
        trainer.parameters, trainer.modules, trainer.children = lambda: [weight], lambda: [trainer, inner], lambda: [inner]
        trainer.fit(self.losses(1.0))
        model = until(lambda: self.sink.events("bye") and self.sink.events("hello"))[-1]["model"]
        found = {key: model.get(key) for key in ("layers", "heads", "head_dim", "hidden", "vocab", "n_params")}
        self.assertEqual(found, {"layers": 12, "heads": 16, "head_dim": 64, "hidden": 1024, "vocab": 32000, "n_params": 5000})

    def test_one_reports_for_all(self):
        self.stream.done = True
        automatic, mine = self.kind(), self.kind(name="mine")
        automatic.automatic = True
        Trainer(automatic, mine).fit(self.losses(1.0, 2.0))
        until(lambda: self.sink.events("bye"))
        self.assertEqual((self.sink.steps(), {e["run"] for e in self.sink.events()}), ([1, 2], {"mine"}))

    def test_the_end_by_an_exception(self):
        trainer = Trainer(self.kind())
        trainer.start()
        trainer.call("on_exception", type("SIGTERMException", (SystemExit,), {})())
        self.assertEqual(until(lambda: self.sink.events("bye"))[0]["code"], 143)
        trainer = Trainer(self.kind())
        trainer.start()
        trainer.call("on_exception", KeyboardInterrupt())
        self.assertEqual(until(lambda: self.sink.events("bye")[1:])[0]["code"], 130)

    def test_only_the_writer_reports_a_checkpoint(self):
        trainer = Trainer(self.kind())
        trainer.start()
        trainer.save_checkpoint("a.ckpt")
        trainer.call("teardown", "fit")
        until(lambda: self.sink.events("bye"))
        self.assertEqual([e["name"] for e in self.sink.events("phase")], ["ckpt", "ckpt"])
        self.assertEqual(self.sink.events("ckpt"), [])

    def test_what_is_logged_has_a_limit(self):
        from stepwatch import lightning

        self.stream.done = True
        trainer = Trainer(self.kind())
        for i in range(2 * lightning.MAX_LOGGED):
            trainer.log("m%d" % i, 1.0)
        trainer.fit(self.losses(1.0))
        m = until(lambda: self.sink.events("step"))[0]["m"]
        self.assertEqual(sum(name.startswith("m") for name in m), lightning.MAX_LOGGED)
        self.assertEqual(m["loss"], 1.0)

    def test_the_entry_point(self):
        for module in (importlib.import_module("stepwatch.lightning"), importlib.import_module("stepwatch.fabric")):
            self.assertEqual([c.automatic for c in module.factory()], [True])
            with mock.patch.dict(os.environ, STEPWATCH_DISABLED="1"):
                self.assertEqual(module.factory(), [])
            with mock.patch.object(module, "wanted", side_effect=RuntimeError):
                self.assertEqual(module.factory(), [])


class Array:
    """A scalar of JAX that is ready when the test says so."""

    size, is_fully_addressable = 1, True

    def __init__(self, value):
        self._value, self.ready, self.copied = value, False, False

    def copy_to_host_async(self):
        self.copied = True

    def is_ready(self):
        return self.ready

    def item(self):
        assert self.ready, "read before it was there: JAX would have waited"
        return self._value


class Jax(Case):
    def test_a_step_is_reported_when_its_values_are_ready(self):
        from stepwatch import jax

        receiver, first = self.receiver(), Array(2.5)
        reporter = jax.StepReporter(self.run_(), tokens=64)
        reporter.step(0, loss=first)
        reporter.step(1, loss=1.0)
        self.assertTrue(first.copied)
        self.assertEqual(receiver.steps(), [])
        first.ready = True
        reporter.step(2, loss=0.5)
        events = until(lambda: receiver.events("step")[2:] and receiver.events("step"))
        self.assertEqual([(e["m"]["loss"], e["m"]["tokens"]) for e in events], [(2.5, 64), (1.0, 64), (0.5, 64)])

    def test_an_array_of_many_hosts(self):
        from stepwatch import jax

        whole, here = Array(1.0), Array(1.0)
        whole.is_fully_addressable, whole.is_fully_replicated, whole.addressable_data = False, True, lambda i: here
        self.assertIs(jax._Value.of(whole)._array, here)
        whole.is_fully_replicated = False
        with self.assertRaisesRegex(ValueError, "another host"):
            jax._Value.of(whole)

    def test_a_run_without_jax(self):
        from stepwatch import jax

        with mock.patch.dict(sys.modules):
            sys.modules.pop("jax", None)
            run = jax.run("r", socket=self.path, url="", directory="")
        self.addCleanup(run.close)
        self.assertEqual((run.name, run.rank, run.world), ("r", 0, 1))


class FabricLoop(Case):
    def test_steps(self):
        from stepwatch.fabric import StepwatchFabricCallback

        receiver = self.receiver()
        callback = StepwatchFabricCallback(self.run_(), tokens_per_step=8)
        late = StepwatchFabricCallback(self.run_("never"))
        late.automatic = True

        class Fabric:
            world_size = global_rank = local_rank = 0
            is_global_zero, strategy, _callbacks = True, None, [late, callback]

            def backward(self, loss):
                pass

            def log_dict(self, metrics, step=None):
                pass

            def save(self, path, state):
                pass

        fabric, model = Fabric(), Trainer()
        first, second = Optimizer(0.1), Optimizer(0.2)
        for c in fabric._callbacks:
            c.on_after_setup(fabric=fabric, module=model)
        for i in range(3):
            fabric.backward(Tensor(1.0 + i, "cpu"))
            if i == 1:
                fabric.backward(Tensor(9.0, "cpu"))  # accumulated, or of another model
            for optimizer in (first, second):
                for c in fabric._callbacks:
                    c.on_after_optimizer_step(strategy=None, optimizer=optimizer)
            fabric.log_dict({"grad_norm": 0.5, "val_loss": 3.0})
        fabric.save("x.ckpt", {})
        events = until(lambda: receiver.events("ckpt") and receiver.events("step"))
        self.assertEqual([(e["step"], e["m"].get("loss"), e["m"]["grad_norm"]) for e in events], [(1, 1.0, 0.5), (2, None, 0.5), (3, 3.0, 0.5)])
        self.assertEqual({(e["m"]["lr"], e["m"]["tokens"], e["run"]) for e in events}, {(0.1, 8, "r")})
        self.assertEqual([e["step"] for e in receiver.events("eval")], [1, 2, 3])


class AccelerateLoop(Case):
    def test_logs(self):
        from stepwatch.accelerate import StepwatchTracker

        receiver = self.receiver()
        tracker = StepwatchTracker(run=self.run_(), tokens_per_step=8)
        tracker.log({"loss": 3.0, "lr": 0.1}, step=10)
        tracker.log({"acc": 0.5}, step=10)
        tracker.log({"train_loss": 2.0}, step=12)
        tracker.log({"loss": 1.0})
        tracker.log({"eval_loss": 2.5})
        tracker.finish()
        self.assertEqual(until(lambda: receiver.events("eval"))[0]["step"], 13)
        events = receiver.events("step")
        self.assertEqual([(e["step"], e["m"].get("loss")) for e in events], [(10, 3.0), (10, None), (12, 2.0), (13, 1.0)])
        self.assertNotIn("step_time", events[0]["m"])
        self.assertAlmostEqual(events[2]["m"]["step_time"], (events[2]["ts"] - events[0]["ts"]) / 2, places=3)


class ComposerLoop(Case):
    def test_steps(self):
        from stepwatch.composer import MAX_LOGGED, StepwatchLogger

        receiver = self.receiver()
        logger = StepwatchLogger(self.run_())
        state = Space(
            model=Trainer(), run_name="mpt", precision="amp_bf16", callbacks=[], evaluators=[1], dataloader_label="c4",
            optimizers=[Space(param_groups=[{"lr": 0.1}])], timestamp=Space(batch=0, token=0, sample=0), previous_timestamp=None,
        )
        logger.fit_start(state, None)
        for i in range(2):
            for event in ("before_dataloader", "after_dataloader", "batch_start"):
                getattr(logger, event)(state, None)
            logger.log_metrics({"layer%d" % n: 1.0 for n in range(2 * MAX_LOGGED)}, i)
            logger.log_metrics({"loss/train/total": 2.0 - i, "time/batch": 9, "l2_norm/grad/global": 0.5}, i)
            state.previous_timestamp = state.timestamp
            state.timestamp = Space(batch=i + 1, token=64 * (i + 1), sample=4 * (i + 1))
            logger.batch_end(state, None)
        logger.fit_end(state, None)
        logger.eval_before_all(state, None)
        logger.eval_start(state, None)
        logger.log_metrics({"metrics/c4/loss": 1.5}, 2)
        logger.eval_end(state, None)
        logger.eval_after_all(state, None)
        e = until(lambda: receiver.events("eval"))[0]
        self.assertEqual((e["name"], e["step"], e["m"]), ("c4", 2, {"loss": 1.5}))
        events = receiver.events("step")
        self.assertEqual([(e["step"], e["m"]["loss"], e["m"]["grad_norm"], e["m"]["tokens"]) for e in events], [(1, 2.0, 0.5, 64), (2, 1.0, 0.5, 64)])
        self.assertTrue(all(len(e["m"]) <= MAX_LOGGED + 7 and "data" in e["t"] for e in events))


class KerasLoop(Case):
    def test_the_ends_of_batches_in_any_order(self):
        from stepwatch.keras import StepwatchCallback

        receiver = self.receiver()
        callback = StepwatchCallback(self.run_())
        callback.params = {"steps": 5}
        callback._model = Space(optimizer=Space(iterations=10, _learning_rate=0.5), steps_per_execution=1)
        callback.on_epoch_begin(0)
        losses = [3.0, 1.0, 5.0, 2.0, float("nan")]
        for batch in range(5):
            callback.on_train_batch_begin(batch)
        for batch in (1, 0, 3, 2, 4):
            callback.on_train_batch_end(batch, {"loss": sum(losses[: batch + 1]) / (batch + 1)})
        events = until(lambda: receiver.events("step")[4:] and receiver.events("step"))
        self.assertEqual([(e["step"], e["m"]["loss"], e["m"]["lr"]) for e in events[:4]],
                         [(11, 3.0, 0.5), (12, 1.0, 0.5), (13, 5.0, 0.5), (14, 2.0, 0.5)])
        self.assertNotEqual(events[4]["m"]["loss"], events[4]["m"]["loss"])


if __name__ == "__main__":
    unittest.main()

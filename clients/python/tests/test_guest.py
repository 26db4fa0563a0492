"""We are a guest in somebody else's call: whatever of ours fails, the call is made once, and its own
result or exception comes out of it."""

import contextlib
import functools
import os
import sys
import types
import unittest
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from support import Case
from test_adapters import Trainer
from test_deepspeed import Engine

from stepwatch import _adapter, _checkpoint, _dcp, _flight, _orbax, _run, deepspeed, lightning, megatron, ray

Space = types.SimpleNamespace

#: What runs inside a call of the trainer.
HOOKS = (
    _adapter.Training, _adapter.Behind, _adapter._Between, _checkpoint.Checkpoint, _run.Phase, _run.Run, _flight.InFlight,
    _dcp.CheckpointReporter, _orbax.CheckpointReporter, _orbax._Managed, _orbax._Saved, _orbax._Waited, lightning._Hooks,
    lightning._Submitted, megatron._Megatron, megatron._Installed, megatron._Loading, ray._Reports, ray.StepwatchWorkerCallback,
    deepspeed.Attached, deepspeed.StepwatchMonitor,
)  # fmt: skip
#: What the trainer itself calls, and so does what it is around.
AROUND = ("on_report", "write_events", "__getattr__", "__getstate__")


def hooks():
    for kind in HOOKS:
        for name, value in vars(kind).items():
            if isinstance(value, types.FunctionType) and name not in AROUND:
                yield kind, name


def fails(*_, **__):
    raise RuntimeError("a mistake of ours")


class Work:
    """A call of the trainer."""

    def __init__(self):
        self.calls, self.result, self.error = 0, object(), None

    def __call__(self, *_, **__):
        self.calls += 1
        if self.error is not None:
            raise self.error
        return self.result

    def methods(self, *names, kind="Owner", **attributes):
        methods = {name: lambda _, *args, **kwargs: self(*args, **kwargs) for name in names}
        return type(kind, (), dict(methods, **attributes))()

    def function(self):
        return lambda *args, **kwargs: self(*args, **kwargs)

    def module(self, name, *functions):
        module = types.ModuleType(name)
        vars(module).update({function: self.function() for function in functions})
        return module


class Guests(Case):
    def setUp(self):
        super().setUp()
        self.receiver()
        self.work, self.run_one = Work(), self.run_()
        self.set(mock.patch.dict(os.environ, {"STEPWATCH_SOCKET": self.path}))

    def set(self, patch):
        patch.start()
        self.addCleanup(patch.stop)

    def modules(self, **names):
        self.set(mock.patch.dict(sys.modules, {name.replace("_0_", "."): module for name, module in names.items()}))

    def check(self, *calls):
        """Each call comes out as it is with every hook broken by itself, and with all of them."""
        for broken in [[], *([hook] for hook in hooks()), list(hooks())]:
            with contextlib.ExitStack() as stack:
                stack.enter_context(mock.patch.object(_adapter.log, "disabled", True))
                for kind, name in broken:
                    stack.enter_context(mock.patch.object(kind, name, fails))
                for call in calls:
                    self.once(call, broken)

    def once(self, call, broken):
        told = "%s with %s" % (call, broken if len(broken) < 2 else "all broken")
        for self.work.error in (None, OSError("no space left on device")):
            self.work.calls = 0
            if self.work.error is None:
                self.assertIs(call(), self.work.result, told)
            else:
                with self.assertRaises(OSError, msg=told) as raised:
                    call()
                self.assertIs(raised.exception, self.work.error, told)
            self.assertEqual(self.work.calls, 1, told)

    def test_torch_distributed_checkpoint(self):
        module = self.work.module("torch.distributed.checkpoint", "save", "async_save", "load")
        self.modules(torch=Space(), torch_0_distributed=Space(), torch_0_distributed_0_checkpoint=module)
        with _dcp.CheckpointReporter(self.run_one):
            names = ("save", "async_save", "load")
            self.check(*(functools.partial(getattr(module, name), {}, checkpoint_id="/c/step-1") for name in names))

    def test_orbax(self):
        names = ("save", "restore", "wait_until_finished", "check_for_errors")
        inner = self.work.methods(*names, _make_on_commit_callback=lambda _: self.work)
        manager = self.work.methods("save", _checkpointer=inner)
        with _orbax.CheckpointReporter(self.run_one, manager):
            calls = [functools.partial(getattr(inner, name), "/c/1") for name in names]
            self.check(functools.partial(manager.save, 1), *calls, lambda: inner._make_on_commit_callback()())

    def test_lightning_with_a_writer_of_somebody_else(self):
        """Of the same name; nothing in it is as expected."""
        for attributes in ({}, {"_error": None}, {"_error": None, "_executor": None}, {"_error": None, "_executor": Space(submit=fails)}):
            trainer = Trainer(lightning.StepwatchCallback(run=self.run_one))
            writer = self.work.methods("save_checkpoint", kind="AsyncCheckpointIO", **attributes)
            trainer.is_global_zero, trainer.strategy = True, Space(checkpoint_io=writer)
            trainer.save_checkpoint = writer.save_checkpoint
            trainer.call("setup", "fit")
            trainer.save_checkpoint = functools.partial(trainer.save_checkpoint)
            self.once(functools.partial(writer.save_checkpoint, "/c"), attributes)
            self.once(trainer.save_checkpoint, attributes)
            self.assertEqual("save_checkpoint" in vars(writer), len(attributes) == 2)

    def test_lightning(self):
        trainer = Trainer(lightning.StepwatchCallback(run=self.run_one))
        save = self.work.methods("save_checkpoint").save_checkpoint
        writer = self.work.methods("save_checkpoint", kind="AsyncCheckpointIO", _error=None, _executor=ThreadPoolExecutor(1))
        self.addCleanup(writer._executor.shutdown)
        trainer.is_global_zero, trainer.save_checkpoint = True, save
        trainer.strategy = self.work.methods("load_checkpoint", checkpoint_io=writer, handles_gradient_accumulation=False)
        trainer.call("setup", "fit")
        taken = (trainer.save_checkpoint, trainer.strategy.load_checkpoint, writer.save_checkpoint)
        self.assertEqual([type(call) for call in taken], [_adapter.Saving] * 3)
        self.check(*(functools.partial(call, "/c/step=1.ckpt") for call in taken))

    def test_megatron(self):
        names = ("train", "training_log", "evaluate", "evaluate_and_print_results", "save_checkpoint_and_time",
                 "maybe_finalize_async_save", "load_checkpoint")  # fmt: skip
        module = self.work.module("megatron.training.training", *names)
        module.get_args = lambda: Space(save="/save", load="/load")
        checkpointing = self.work.module("megatron.training.checkpointing", "schedule_async_save")
        self.modules(megatron=Space(), megatron_0_training=Space(), megatron_0_training_0_training=module,
                     megatron_0_training_0_checkpointing=checkpointing)  # fmt: skip
        self.addCleanup(megatron.uninstall)
        self.assertTrue(megatron.install(run=self.run_one))
        calls = [functools.partial(getattr(module, name), 1) for name in names]
        calls.append(functools.partial(checkpointing.schedule_async_save, Space(add_finalize_fn=fails)))
        self.assertTrue(all(hasattr(call.func, "stepwatch") for call in calls))
        self.check(*calls)
        module.get_args = fails
        for call in calls:
            self.once(call, ["get_args"])

    def test_megatron_bridge(self):
        train = self.work.module("train", "save_checkpoint_and_time", "maybe_finalize_async_save")
        checkpointing = self.work.module("checkpointing", "schedule_async_save")
        self.modules(**{megatron._BRIDGE_TRAIN.replace(".", "_0_"): train, megatron._BRIDGE_CHECKPOINTING.replace(".", "_0_"): checkpointing})
        state = Space(cfg=Space(model=Space(), checkpoint=Space(save="/save")), train_state=Space(step=4))
        megatron.StepwatchCallback(run=self.run_one).on_train_start(Space(state=state))
        calls = [train.save_checkpoint_and_time, train.maybe_finalize_async_save, checkpointing.schedule_async_save]
        self.assertTrue(all(hasattr(call, "stepwatch") for call in calls))
        self.check(*(functools.partial(call, argument) for call in calls for argument in (state, None)))

    def test_ray(self):
        worker = ray.StepwatchWorkerCallback()

        def waiting(_, *args, **kwargs):
            with worker.on_report():
                return self.work(*args, **kwargs)

        places = {name: lambda _: 0 for name in ("get_world_rank", "get_world_size", "get_local_rank")}
        context = self.work.methods("_upload_checkpoint", report=waiting, **places)
        internal = "ray.train.v2._internal.execution.context"
        parts = [internal.rsplit(".", i)[0] for i in range(1, 6)]
        modules = {name: types.ModuleType(name) for name in parts}
        modules[internal] = Space(get_train_context=lambda: context)
        self.set(mock.patch.dict(sys.modules, modules))
        for name in parts[:-1] + [internal]:
            above, _, own = name.rpartition(".")
            setattr(modules[above], own, modules[name])
        worker.after_init_train_context()
        self.addCleanup(worker.before_worker_shutdown)
        self.assertEqual([type(context.report), type(context._upload_checkpoint)], [_adapter.Around, _adapter.Saving])
        checkpoint = Space(path="/tmp/local")
        self.check(lambda: context.report({"loss": 1.0}, checkpoint), lambda: context._upload_checkpoint("1", {}, checkpoint))

    def test_deepspeed(self):
        names = ("forward", "backward", "step", "save_checkpoint", "load_checkpoint", "destroy")
        engine, work = Engine(), self.work
        for name in names:
            setattr(engine, name, functools.partial(work))
        engine.monitor = work.methods("write_events")
        attached = deepspeed.attach(engine, run=self.run_one)
        self.addCleanup(attached.remove)
        self.check(*(functools.partial(getattr(engine, name), "/c") for name in names))

    def test_the_log_may_fail_too(self):
        owner = self.work.methods("save")
        _adapter.Saving(owner, "save", fails, fails)
        with mock.patch.object(_adapter.log, "debug", fails):
            self.once(owner.save, [])

    def test_a_block_with_a_reporter_ends_as_it_does(self):
        module, inner = self.work.module("torch.distributed.checkpoint", "save"), self.work.methods("save", "restore")
        self.modules(torch=Space(), torch_0_distributed=Space(), torch_0_distributed_0_checkpoint=module)
        for make in (lambda: _dcp.CheckpointReporter(self.run_one), lambda: _orbax.CheckpointReporter(self.run_one, inner)):
            reporter, error = make(), OSError("no space left on device")
            self.addCleanup(reporter.remove)
            with mock.patch.object(type(reporter), "remove", fails), self.assertRaises(OSError) as raised:
                with reporter:
                    raise error
            self.assertIs(raised.exception, error)

    def test_two_on_one_method_both_look(self):
        owner, seen = self.work.methods("save"), []
        first = _adapter.Tap(owner, "save", lambda *_: seen.append("first"))
        second = _adapter.Tap(owner, "save", lambda *_: seen.append("second"))
        self.once(owner.save, [])
        self.assertEqual(seen, ["second", "first"] * 2)
        second.remove()
        self.assertIsNone(vars(owner).get("save"))
        self.assertIsNot(first, second)


if __name__ == "__main__":
    unittest.main()

"""The DeepSpeed adapter without DeepSpeed: a stand-in for its engine, with tensors that record who
waited for them."""

import os
import sys
import types
import unittest
from unittest import mock

from support import Case, until
from test_torch import FakeTorch, Stream, Tensor

import stepwatch.deepspeed as adapter

Space = types.SimpleNamespace


class Loss(Tensor):
    requires_grad = True

    def numel(self):
        return 1

    def __add__(self, other):
        return Loss(self._value + other._value, stream=self._stream)

    def __truediv__(self, other):
        return Loss(self._value / other, stream=self._stream)


class Monitor:
    enabled = False

    def __init__(self):
        self.written = []

    def write_events(self, events):
        self.written += events


class Engine:
    """As much of ``DeepSpeedEngine`` as somebody who watches it sees."""

    def __init__(self, stream=None, accumulate=1):
        self.module = Space(training=True, parameters=lambda: [], modules=lambda: [], children=lambda: [])
        self.optimizer = Space(cur_scale=65536.0)
        self.global_steps = self.skipped_steps = self.micro = 0
        self.global_rank, self.world_size, self.dp_world_size = 0, 2, 2
        self.monitor, self.stream, self.accumulate, self.lr = Monitor(), stream, accumulate, 0.1
        self.overflow_at = None

    def forward(self, value, **batch):
        return Loss(value, stream=self.stream)

    def backward(self, loss):
        return loss

    def step(self):
        self.micro += 1
        if self.micro % self.accumulate == 0:
            self.global_steps += 1
            self.skipped_steps += self.global_steps == self.overflow_at
            self.monitor.write_events([("Train/Samples/lr", self.lr, 8 * self.global_steps), ("Train/Samples/elapsed_time_ms_forward", 20.0, 8)])
            self.lr /= 2

    def save_checkpoint(self, save_dir, tag=None):
        if save_dir == "full":
            raise OSError("no space left on device")

    def load_checkpoint(self, load_dir):
        self.global_steps = 1

    def destroy(self):
        pass

    def get_lr(self):
        return [self.lr]

    def get_global_grad_norm(self):
        return 0.5

    def train_batch_size(self):
        return 8

    def fp16_enabled(self):
        return True

    def bfloat16_enabled(self):
        return False


class Pipeline(Engine):
    agg_train_loss = None

    def train_batch(self, value):
        self.agg_train_loss = Loss(value, stream=self.stream)
        self.global_steps += 1
        return self.agg_train_loss


class Attached(Case):
    def setUp(self):
        super().setUp()
        self.sink = self.receiver()
        patch = mock.patch.dict(os.environ, {"STEPWATCH_SOCKET": self.path})
        patch.start()
        self.addCleanup(patch.stop)

    def attach(self, engine, **options):
        attached = adapter.attach(engine, name="ds", **options)
        self.addCleanup(attached.remove)
        return attached

    def train(self, engine, *values):
        for value in values:
            engine.backward(engine.forward(value))
            engine.step()

    def steps(self, count):
        return until(lambda: len(self.sink.events("step")) >= count and self.sink.events("step"))

    def bye(self):
        return until(lambda: self.sink.events("bye"))[0]

    def test_steps(self):
        engine = Engine()
        engine.overflow_at = 2
        attached = self.attach(engine, tokens_per_step=64)
        self.train(engine, 3.0, 2.0, 1.0)
        attached.remove()
        events = self.steps(3)
        self.assertEqual([(e["step"], e["m"]["loss"], e["m"]["lr"]) for e in events], [(1, 3.0, 0.1), (2, 2.0, 0.05), (3, 1.0, 0.025)])
        self.assertEqual([e["m"].get("skipped") for e in events], [None, 1, None])
        m = events[0]["m"]
        self.assertEqual((m["grad_norm"], m["loss_scale"], m["samples"], m["tokens"]), (0.5, 65536.0, 8, 64))
        self.assertEqual(events[0]["t"]["forward"], 0.02)
        self.assertEqual((self.bye()["code"], [k for k in vars(engine) if k in dir(Engine)]), (0, []))

    def test_accumulated_batches_are_one_step(self):
        engine = Engine(accumulate=2)
        attached = self.attach(engine)
        self.train(engine, 3.0, 2.0, 1.0, 0.0)
        attached.remove()
        self.assertEqual([(e["step"], e["m"]["loss"]) for e in self.steps(2)], [(1, 2.5), (2, 0.5)])

    def test_a_loss_that_goes_backward_by_itself_is_what_forward_returned(self):
        engine = Engine()
        attached = self.attach(engine)
        engine.forward(3.0, input_ids=Space(shape=(4, 16)))
        engine.step()
        engine.module.training = False
        engine.forward(9.0, input_ids=Space(shape=(4, 16)))
        attached.remove()
        event = self.steps(1)[0]
        self.assertEqual((event["m"]["loss"], event["m"]["tokens"]), (3.0, 128))

    def test_pipelines(self):
        engine = Pipeline()
        attached = self.attach(engine)
        engine.train_batch(3.0)
        engine.train_batch(2.0)
        attached.remove()
        self.assertEqual([(e["step"], e["m"]["loss"]) for e in self.steps(2)], [(1, 3.0), (2, 2.0)])

    def test_nobody_waits_for_the_device(self):
        stream = Stream()
        engine = Engine(stream)
        with mock.patch.dict(sys.modules, {"torch": FakeTorch(stream)}):
            attached = self.attach(engine)
            self.train(engine, 3.0, 2.0)
            self.assertEqual((stream.waits, self.sink.events("step")), (0, []))
            stream.done = True
            attached.remove()
        self.assertEqual([e["m"]["loss"] for e in self.steps(2)], [3.0, 2.0])
        self.assertEqual(stream.waits, 0)

    def test_monitors_stay_as_they_were_switched(self):
        engine = Engine()
        own = engine.monitor
        attached = self.attach(engine)
        self.assertFalse(engine.monitor.enabled, "switched on, it would start collectives")
        self.train(engine, 3.0)
        engine.monitor.write_events([("Train/Samples/eval_loss", 1.5, 8), ("mine", 7.0, 8)])
        attached.remove()
        self.assertIs(engine.monitor, own)
        self.assertEqual(len(own.written), 4)
        self.bye()
        evaluation = self.sink.events("eval")[0]
        self.assertEqual((evaluation["name"], evaluation["step"], evaluation["m"]), ("eval", 1, {"loss": 1.5}))
        self.assertEqual(self.sink.events("step")[1]["m"], {"mine": 7.0})

    def test_a_monitor_of_any_loop(self):
        monitor = adapter.StepwatchMonitor()
        self.assertTrue(monitor.enabled)
        monitor.write_events([("Train/loss", 3.0, 7), ("Train/lr", 0.1, 7), ("bad",)])
        monitor.write_events([("Train/loss", 3.0, 7), ("Train/lr", 0.1, 7)])
        self.assertEqual([(e["step"], e["m"]) for e in self.steps(1)], [(7, {"loss": 3.0, "lr": 0.1})])
        monitor._training.end()

    def test_checkpoints_and_going_on_from_them(self):
        engine = Engine()
        attached = self.attach(engine)
        self.train(engine, 3.0, 2.0)
        engine.save_checkpoint("out")
        with self.assertRaises(OSError):
            engine.save_checkpoint("full", tag="last")
        engine.load_checkpoint("out")
        self.train(engine, 1.0)
        attached.remove()
        self.bye()
        events = {(e["phase"], e["step"], e["path"]) for e in self.sink.events("ckpt")}
        written, failed = "out/global_step2", "full/last"
        self.assertEqual(events, {("start", 2, written), ("end", 2, written), ("start", 2, failed), ("fail", 2, failed)})
        self.assertEqual([e["step"] for e in self.sink.events("step")], [1, 2, 2])

    def test_installed_and_what_it_does_not_know(self):
        made = []
        deepspeed = Space(initialize=lambda **_: made.append(Engine()) or (made[-1], None, None, None), __version__="0.19.8")
        with mock.patch.dict(sys.modules, {"deepspeed": deepspeed}):
            self.assertTrue(adapter.install(name="auto") and adapter.install())
            engine = deepspeed.initialize()[0]
            self.train(engine, 1.0)
            engine.destroy()
            self.assertEqual((self.bye()["code"], len(self.sink.events("hello"))), (0, 1))
        with mock.patch.dict(sys.modules, {"deepspeed": None}):
            self.assertFalse(adapter.install())
        adapter.attach(object()).remove()


if __name__ == "__main__":
    unittest.main()

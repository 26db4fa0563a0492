"""The PyTorch helper: against PyTorch where it is installed, and always against stand-ins for
tensors on a device.

The stand-ins are what makes "never waits for the device" testable: a copy lands when the test says
so, and a read before that fails.
"""

import sys
import types
import unittest
from unittest import mock

from support import Case, until

import stepwatch.torch

try:
    import torch
except ImportError:
    torch = None


def setUpModule():
    print("PyTorch helper: tested against stand-ins%s" % (" and PyTorch " + torch.__version__ if torch else " only"), file=sys.stderr)


class Device:
    def __init__(self, kind):
        self.type = kind


class Stream:
    """The device's queue: what has been computed so far."""

    def __init__(self):
        self.done = False
        self.waits = 0


class Tensor:
    shape, dtype = (), "float32"

    def __init__(self, value, kind="cuda", stream=None):
        self.device, self._value, self._stream = Device(kind), value, stream

    def detach(self):
        return self

    def clone(self):
        return self

    def item(self):
        if self._stream is not None:
            self._stream.waits += 1
        return self._value


class Pinned(Tensor):
    def __init__(self):
        super().__init__(None, "cpu")
        self.event = None

    def copy_(self, other, non_blocking=False):
        assert non_blocking
        self._value = other._value


class FakeTorch:
    """As much of ``torch`` as a copy behind the computation takes."""

    def __init__(self, stream):
        class Event:
            def record(self):
                pass

            def query(self):
                return stream.done

            def synchronize(self):
                if not stream.done:
                    stream.waits += 1
                    stream.done = True

        self.cuda = types.SimpleNamespace(Event=Event)

    @staticmethod
    def empty(shape, dtype, pin_memory):
        assert pin_memory
        return Pinned()


class Optimizer:
    def __init__(self, lr):
        self.param_groups = [{"lr": lr}]


class OnADevice(Case):
    def setUp(self):
        super().setUp()
        self.stream = Stream()
        patch = mock.patch.dict(sys.modules, {"torch": FakeTorch(self.stream)})
        patch.start()
        self.addCleanup(patch.stop)
        self.sink = self.receiver()
        self.run = self.run_()

    def loss(self, value):
        return Tensor(value, stream=self.stream)

    def test_a_step_is_reported_when_its_values_have_landed(self):
        reporter = stepwatch.torch.StepReporter(self.run, optimizer=Optimizer(1e-3), tokens=64)
        for step in range(3):
            reporter.step(step, loss=self.loss(2.0 + step), grad_norm=self.loss(0.5))
        self.run.event("marker")
        until(lambda: self.sink.events("event"))
        self.assertEqual((self.sink.steps(), self.stream.waits), ([], 0), "the device is behind: nothing is known, nobody waits")
        self.stream.done = True
        reporter.step(3, loss=self.loss(5.0))
        events = until(lambda: self.sink.events("step")[3:] and self.sink.events("step"))
        self.assertEqual([e["step"] for e in events], [0, 1, 2, 3])
        self.assertEqual([e["m"]["loss"] for e in events], [2.0, 3.0, 4.0, 5.0])
        self.assertEqual((events[0]["m"]["lr"], events[0]["m"]["tokens"], events[0]["m"]["grad_norm"]), (1e-3, 64, 0.5))
        self.assertEqual(self.stream.waits, 0)

    def test_times_are_those_of_the_calls(self):
        clock = iter([100.0, 104.0, 109.0])
        reporter = stepwatch.torch.StepReporter(self.run)
        with mock.patch.object(stepwatch.torch.time, "monotonic", lambda: next(clock)):
            for step in range(3):
                reporter.step(step, loss=self.loss(1.0))
        reporter.flush()
        events = until(lambda: self.sink.events("step")[2:] and self.sink.events("step"))
        self.assertEqual([e["m"].get("step_time") for e in events], [None, 4.0, 5.0])
        self.assertAlmostEqual(events[2]["ts"] - events[0]["ts"], 9.0, places=2)

    def test_phases_stay_with_their_step(self):
        reporter = stepwatch.torch.StepReporter(self.run)
        with self.run.phase("data"):
            pass
        reporter.step(1, loss=self.loss(1.0))
        reporter.step(2, loss=self.loss(1.0))
        reporter.flush()
        first, second = until(lambda: self.sink.events("step")[1:] and self.sink.events("step"))
        self.assertEqual((list(first["t"]), "t" in second), (["data"], False))

    def test_a_device_that_hangs_does_not_hold_back_for_ever(self):
        reporter = stepwatch.torch.StepReporter(self.run)
        for step in range(stepwatch.torch.MAX_IN_FLIGHT + 2):
            reporter.step(step, loss=self.loss(1.0), other=3.0)
        until(lambda: self.sink.steps() == [0, 1])
        self.assertEqual(self.sink.events("step")[0]["m"], {"other": 3.0})
        self.assertEqual(self.stream.waits, 0)

    def test_the_end_waits_and_an_exception_does_not(self):
        with stepwatch.torch.StepReporter(self.run) as reporter:
            reporter.step(1, loss=self.loss(1.5))
        until(lambda: self.sink.steps() == [1])
        self.stream.done, self.stream.waits = False, 0
        with self.assertRaises(RuntimeError):
            with stepwatch.torch.StepReporter(self.run) as reporter:
                reporter.step(2, loss=self.loss(1.5))
                raise RuntimeError("CUDA error")
        until(lambda: self.sink.steps() == [1, 2])
        self.assertEqual(self.stream.waits, 0)

    def test_a_device_without_pinned_copies_is_read_a_step_later(self):
        reporter = stepwatch.torch.StepReporter(self.run)
        losses = [Tensor(float(i), "mps", Stream()) for i in range(3)]
        for step, loss in enumerate(losses):
            reporter.step(step, loss=loss, again=loss)
            self.assertEqual(loss._stream.waits, 0, "not in its own step")
        until(lambda: self.sink.steps() == [0, 1])
        self.assertEqual([loss._stream.waits > 0 for loss in losses], [True, True, False])

    def test_values_in_host_memory_are_taken_as_they_are_now(self):
        reporter = stepwatch.torch.StepReporter(self.run)
        loss = Tensor(1.0, "cpu")
        reporter.step(1, loss=loss)
        loss._value = 2.0  # the loop reuses its buffer
        self.assertEqual(until(lambda: self.sink.events("step"))[0]["m"]["loss"], 1.0)

    def test_nothing_raises(self):
        reporter = stepwatch.torch.StepReporter(self.run, model=object(), optimizer=object(), norm=True)
        reporter.step(1, loss=object())
        reporter.flush()


class Weight:
    dtype = "torch.bfloat16"

    def __init__(self, count, trained=True):
        self.count, self.requires_grad = count, trained

    def numel(self):
        return self.count


class Language:
    """A model of Hugging Face, as far as it is described."""

    def __init__(self, config, weights, tied=False):
        self.config, self.weights, self.tied = config, weights, tied

    def parameters(self):
        return self.weights

    def modules(self):
        return [self]

    def children(self):
        return []

    def get_input_embeddings(self):
        return types.SimpleNamespace(weight=self.weights[0])

    def get_output_embeddings(self):
        return types.SimpleNamespace(weight=self.weights[0 if self.tied else -1])


class Described(unittest.TestCase):
    CONFIG = {
        "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16, "full_attention_interval": 4,
        "linear_num_value_heads": 32, "num_experts": 512, "num_experts_per_tok": 10, "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "id2label": {"0": "x"},
    }  # fmt: skip

    def model(self, config=None, **tied):
        weights = [Weight(1000), Weight(7000, trained=False), Weight(100), Weight(1000)]
        return stepwatch.torch.describe_model(Language(types.SimpleNamespace(**(config or self.CONFIG)), weights, **tied))["model"]

    def test_the_layers_that_a_model_has(self):
        model = self.model()
        self.assertEqual({k: model[k] for k in self.CONFIG if k != "id2label"}, {k: v for k, v in self.CONFIG.items() if k != "id2label"})
        self.assertNotIn("id2label", model)

    def test_frozen_weights_and_an_embedding_that_is_only_looked_up(self):
        model = self.model()
        self.assertEqual((model["n_params"], model["trainable_params"], model["n_embedding"]), (9100, 2100, 1000))
        self.assertNotIn("n_embedding", self.model(tied=True))

    def test_the_language_part_of_a_model_that_sees(self):
        model = self.model({"vision_config": {"hidden_size": 7}, "text_config": self.CONFIG, "model_type": "both"})
        self.assertEqual((model["hidden_size"], model["vision_config"]), (2048, {}))


@unittest.skipIf(torch is None, "PyTorch is not installed: only the stand-ins were tested")
class WithPyTorch(Case):
    def test_a_training_loop(self):
        receiver = self.receiver()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        run = self.run_()
        norms = []
        with stepwatch.torch.StepReporter(run, model, optimizer, tokens=32, norm=True) as reporter:
            for step in range(3):
                optimizer.zero_grad()
                loss = model(torch.ones(4, 8)).square().mean()
                loss.backward()
                norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)))
                optimizer.step()
                reporter.step(step, loss=loss)
                scheduler.step()
        events = until(lambda: receiver.events("step")[2:] and receiver.events("step"))
        self.assertEqual([e["m"]["lr"] for e in events], [1e-2, 5e-3, 2.5e-3])
        for event, norm in zip(events, norms):
            self.assertAlmostEqual(event["m"]["grad_norm"], norm, places=5)
        self.assertEqual(events[0]["m"]["tokens"], 32)
        hello = receiver.events("hello")[-1]
        self.assertEqual((hello["model"]["n_params"], hello["dtype"], hello["framework"]), (161, "float32", "torch"))

    def test_norm(self):
        layer = torch.nn.Linear(2, 2)
        self.assertIsNone(stepwatch.torch.total_grad_norm(layer.parameters()))
        layer(torch.ones(1, 2)).sum().backward()
        layer.bias.grad.fill_(float("nan"))
        self.assertTrue(stepwatch.torch.total_grad_norm(layer.parameters()).isnan())

    def test_half_precision_and_plain_step(self):
        receiver = self.receiver()
        self.run_().step(1, loss=torch.tensor(1.5, dtype=torch.bfloat16), nan=torch.tensor(float("nan")))
        m = until(lambda: receiver.events("step"))[0]["m"]
        self.assertEqual(m["loss"], 1.5)
        self.assertNotEqual(m["nan"], m["nan"])


if __name__ == "__main__":
    unittest.main()

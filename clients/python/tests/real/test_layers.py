"""Statistics of layers against PyTorch itself, on the processor, and on a GPU where there is
one."""

import math
import os
import re
import socket
import unittest
import unittest.mock

from peers import Real, require, until

torch = require("torch")

import stepwatch.torch  # noqa: E402
from stepwatch import _layers  # noqa: E402


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = torch.nn.Linear(8, 8)
        self.mlp = torch.nn.Linear(8, 8, bias=False)

    def forward(self, x):
        return x + self.mlp(torch.tanh(self.attn(x)))


class Model(torch.nn.Module):
    def __init__(self, blocks=3):
        super().__init__()
        torch.manual_seed(1)
        self.embed = torch.nn.Linear(4, 8)
        self.layers = torch.nn.ModuleList(Block() for _ in range(blocks))
        self.head = torch.nn.Linear(8, 1)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


LAYERS = ["embed", "layers.0", "layers.1", "layers.2", "head"]


def data(step=0, device="cpu"):
    torch.manual_seed(step)
    return torch.randn(5, 4).to(device)


class Stats(Real):
    def setUp(self):
        super().setUp()
        self.run = self.run_()
        self.addCleanup(torch._dynamo.reset)

    def train(self, model, steps=2, stats=None, between=None, **options):
        """Steps of a usual loop; the metrics of each sample."""
        stats = stats or stepwatch.torch.LayerStats(self.run, model, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        device = next(model.parameters()).device
        for step in range(steps):
            model(data(step, device)).square().mean().backward()
            stats.step(step)
            if between is not None:
                between(step)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            self.run.step(step, loss=1.0)
            optimizer.zero_grad()
        stats.close()
        return self.samples()

    def samples(self):
        """What was reported, by the step that it was reported under; parts of the same step
        together."""
        self.run.event("marker")
        until(lambda: [e for e in self.sink.events("event") if e["name"] == "marker"])
        found = {}
        for event in self.sink.events("step"):
            if "loss" not in event["m"]:
                found.setdefault(event["step"], {}).update(event["m"])
        return found

    def expected(self, model, given):
        """By the simplest means: hooks that keep everything, and norms of all of it."""
        kept = {}
        modules = {name: m for name, m in model.named_modules() if name in LAYERS}
        handles = [m.register_forward_hook(lambda m, i, o, n=n: kept.__setitem__(n, o.detach())) for n, m in modules.items()]
        model(given).square().mean().backward()
        for handle in handles:
            handle.remove()
        want = {}
        for name, module in modules.items():
            grads = torch.cat([p.grad.flatten() for p in module.parameters()])
            want["grad_norm/" + name] = float(grads.norm())
            want["act_rms/" + name] = float(kept[name].square().mean().sqrt())
            want["act_absmax/" + name] = float(kept[name].abs().max())
        model.zero_grad()
        return want

    def assert_metrics(self, found, want):
        self.assertEqual(sorted(found), sorted(want))
        for name in want:
            self.assertAlmostEqual(found[name], want[name], delta=1e-4 * abs(want[name]), msg=name)


class Values(Stats):
    def test_they_are_what_they_are_called(self):
        model = Model()
        want = self.expected(model, data(0))
        self.assert_metrics(self.train(model, steps=1)[0], want)

    def test_half_precision_does_not_overflow(self):
        model = Model().to(torch.bfloat16)
        for p in model.parameters():
            p.data.fill_(30.0)
        model(data(0).to(torch.bfloat16) * 100).square().mean().backward()
        stats = stepwatch.torch.LayerStats(self.run, model)
        model(data(0).to(torch.bfloat16)).mean().backward()
        stats.step(0)
        stats.close()
        (found,) = self.samples().values()
        self.assertTrue(all(math.isfinite(v) and v > 0 for v in found.values()), found)

    def test_nan_and_infinity_are_seen(self):
        model = Model()
        stats = stepwatch.torch.LayerStats(self.run, model)
        model.layers[1].mlp.weight.data[0, 0] = float("nan")
        model(data(0)).mean().backward()
        stats.step(0)
        stats.close()
        (found,) = self.samples().values()
        self.assertTrue(math.isfinite(found["act_rms/layers.0"]))
        for name in ("act_rms/layers.1", "act_absmax/layers.1", "act_absmax/head", "grad_norm/layers.0"):
            self.assertTrue(math.isnan(found[name]), name)

    def test_accumulated_gradients(self):
        model = Model()
        stats = stepwatch.torch.LayerStats(self.run, model)
        outputs = []
        handle = model.head.register_forward_hook(lambda m, i, o: outputs.append(o.detach()))
        for micro in range(3):
            model(data(micro)).mean().backward()
        handle.remove()
        stats.step(0)
        stats.close()
        (found,) = self.samples().values()
        whole = torch.cat(outputs)
        self.assertAlmostEqual(found["act_rms/head"], float(whole.square().mean().sqrt()), places=5)
        self.assertAlmostEqual(found["act_absmax/head"], float(whole.abs().max()), places=5)

    def test_an_evaluation_is_no_part_of_a_step(self):
        model = Model()
        stats = stepwatch.torch.LayerStats(self.run, model, gradients=False)
        model.eval()
        model(data(0) * 1000)
        model.train()
        model(data(0)).mean().backward()
        stats.step(0)
        stats.close()
        self.assertLess(self.samples()[0]["act_absmax/embed"], 100)


class Sampling(Stats):
    def test_the_first_step_and_every_nth(self):
        seen = []
        model = Model()
        stats = stepwatch.torch.LayerStats(self.run, model, every=4)
        self.train(model, 10, stats, between=lambda step: seen.append(len(model.head._forward_hooks)))
        # A hook is there behind a step if the next is to be looked at.
        self.assertEqual(seen, [0, 0, 0, 1, 0, 0, 0, 1, 0, 0])
        samples = [e for e in self.sink.events("step") if "loss" not in e["m"]]
        self.assertEqual(len(samples), 3)
        self.assertEqual([e["step"] for e in samples], [0, 3, 7], "known before the step itself is reported: that of the last one")

    def test_steps_that_are_counted_otherwise(self):
        model = Model()
        stats = stepwatch.torch.LayerStats(self.run, model, every=100)
        hooked = []
        for step in range(1_000, 1_400, 8):
            model(data()).mean().backward()
            stats.step(step)
            if model.head._forward_hooks:
                hooked.append(step + 8)
        self.assertEqual(hooked, [1104, 1200, 1304, 1400])

    def test_training_is_not_changed(self):
        ends = []
        for options in (None, dict(every=2)):
            model = Model()
            stats = stepwatch.torch.LayerStats(self.run, model, **options) if options else unittest.mock.Mock()
            self.train(model, 6, stats)
            ends.append([p.detach().clone() for p in model.parameters()])
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(*ends)))

    def test_a_hook_that_fails_harms_nobody(self):
        model = Model()
        with unittest.mock.patch.object(_layers, "_tensor_in", side_effect=RuntimeError):
            found = self.train(model, 2, every=1)
        self.assertEqual({name.split("/")[0] for m in found.values() for name in m}, {"grad_norm"})


class Choice(Stats):
    def names(self, model, **options):
        return sorted(name.split("/", 1)[1] for name in self.train(model, 1, activations=False, **options)[0])

    def test_blocks_by_default(self):
        self.assertEqual(self.names(Model()), sorted(LAYERS))

    def test_without_blocks_every_module_with_parameters(self):
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Sequential(torch.nn.Linear(8, 1)))
        self.assertEqual(self.names(model), ["0", "2.0"])

    def test_by_name(self):
        self.assertEqual(self.names(Model(), layers="*.attn"), ["layers.0.attn", "layers.1.attn", "layers.2.attn"])

    def test_by_regular_expression_and_list(self):
        self.assertEqual(self.names(Model(), layers=[re.compile(r"s\.[02]\.mlp$"), "head"]), ["head", "layers.0.mlp", "layers.2.mlp"])

    def test_the_limit_is_reported(self):
        with self.assertLogs("stepwatch", "WARNING") as logs:
            names = self.names(Model(blocks=30), max_layers=5)
        self.assertIn("5 of 32", logs.output[0])
        self.assertEqual(len(names), 5)
        self.assertTrue({"embed", "head"} <= set(names))
        (event,) = [e for e in self.sink.events("event") if e["name"] == "layer_stats"]
        self.assertEqual((event["layers"], event["left_out"]), (5, 27))

    def test_many_layers_are_several_events_and_none_is_cut(self):
        model = Model(blocks=150)
        found = self.train(model, 1, max_layers=200)
        self.assertEqual(len(found[0]), 3 * 152)
        self.assertTrue(all(len(packet) <= 8192 for _, packet in self.sink.packets))


class Wrapped(Stats):
    """Under the names that the layers have without their wrappers."""

    def group(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % port, rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)

    def test_ddp(self):
        self.group()
        want = self.expected(Model(), data(0))
        self.assert_metrics(self.train(torch.nn.parallel.DistributedDataParallel(Model()), 1)[0], want)

    def test_fully_sharded(self):
        self.group()
        from torch.distributed.fsdp import fully_shard

        want = {k.replace("grad_norm/", "grad_norm_shard/"): v for k, v in self.expected(Model(), data(0)).items()}
        model = Model()
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        self.assert_metrics(self.train(model, 1)[0], want)

    def test_activation_checkpointing(self):
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        want = self.expected(Model(), data(0))
        model = Model()
        for i, layer in enumerate(model.layers):
            model.layers[i] = checkpoint_wrapper(layer)
        self.assert_metrics(self.train(model, 1)[0], want)


class Compiled(Stats):
    def counter(self):
        compiled = []

        def backend(graph, inputs):
            compiled.append(graph)
            return graph.forward

        return backend, compiled

    def test_a_compiled_model_has_gradients_only_and_is_not_compiled_again(self):
        for whole in (lambda m, b: torch.compile(m, backend=b), lambda m, b: (m.compile(backend=b), m)[1]):
            backend, compiled = self.counter()
            torch._dynamo.reset()
            model = whole(Model(), backend)
            with self.assertLogs("stepwatch", "WARNING") as logs:
                found = self.train(model, 6, every=2)
            self.assertIn("inside of compiled code", logs.output[0])
            self.assertEqual({n.split("/")[0] for m in found.values() for n in m}, {"grad_norm"})
            self.assertEqual({n.split("/")[1] for m in found.values() for n in m}, set(LAYERS))
            self.assertEqual(len(compiled), 1)

    def test_compiled_blocks_have_both(self):
        backend, compiled = self.counter()
        want = self.expected(Model(), data(0))
        model = Model()
        for i, layer in enumerate(model.layers):
            model.layers[i] = torch.compile(layer, backend=backend)
        self.assert_metrics(self.train(model, 6, every=2)[0], want)
        self.assertEqual(len(compiled), 1, "of three blocks that are alike; none again because of a hook")


class Transformers(Stats):
    def test_modules_that_return_more_than_a_tensor(self):
        transformers = require("transformers")
        sizes = dict(n_layer=2, n_head=2, n_embd=16, vocab_size=64, n_positions=32)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **sizes))
        stats = stepwatch.torch.LayerStats(self.run, model, layers=["transformer.h.*", "transformer"])
        tokens = torch.arange(32).reshape(2, 16)
        model(input_ids=tokens, labels=tokens).loss.backward()
        stats.step(0)
        stats.close()
        (found,) = self.samples().values()
        for name in ("act_rms/transformer.h.0", "act_rms/transformer.h.1", "act_rms/transformer", "grad_norm/transformer.h.0"):
            self.assertGreater(found[name], 0)


@unittest.skipUnless(torch.cuda.is_available(), "no GPU: that nothing waits for it was not tested against one")
class OnTheDevice(Stats):
    def test_nothing_waits(self):
        model = Model().cuda()
        stats = stepwatch.torch.LayerStats(self.run, model, every=1)
        given = data(0, "cuda")
        want = self.expected(Model().cuda(), given)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for step in range(20):
                model(given).square().mean().backward()
                stats._in_flight.poll = unittest.mock.Mock(side_effect=stats._in_flight.poll)
                stats.step(step)
                model.zero_grad()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        stats.close()
        self.run.step(0, loss=1.0)
        self.assert_metrics(next(iter(self.samples().values())), want)


if __name__ == "__main__":
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    unittest.main()

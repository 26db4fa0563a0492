"""The Megatron adapters against as much of Megatron as a processor runs.

Megatron-Bridge's own module of callbacks is loaded from the installed package by its path, for the
package itself imports Transformer Engine; its manager fires our hooks as its ``train`` does.
Megatron-Core's own calculator of batches gives the samples. Megatron-LM's training loop is in no
package: it is tested against a stand-in with its signatures, in ``tests/test_megatron.py``.
"""

import importlib.util
import os
import sys
import types
import unittest
from importlib import metadata

from peers import Real, require

core, torch = require("megatron.core", "torch")

from megatron.core import num_microbatches_calculator as calculator  # noqa: E402


def bridge():
    """``megatron.bridge.training.callbacks`` of the installed package."""
    try:
        files = metadata.files("megatron-bridge")
    except metadata.PackageNotFoundError:
        if os.environ.get("STEPWATCH_REQUIRE_PEERS") == "1":
            raise
        print("SKIPPED: megatron-bridge is not installed: its callbacks were not tested", file=sys.stderr)
        raise unittest.SkipTest("megatron-bridge is not installed")
    path = next(f for f in files if str(f) == "megatron/bridge/training/callbacks.py").locate()
    spec = importlib.util.spec_from_file_location("megatron.bridge.training.callbacks", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    print("tested against megatron-bridge %s" % metadata.version("megatron-bridge"), file=sys.stderr)
    return module


callbacks = bridge()
for _name in ("megatron.bridge", "megatron.bridge.training"):
    sys.modules.setdefault(_name, types.ModuleType(_name))

from stepwatch.megatron import Callback, StepwatchCallback, losses  # noqa: E402

Space = types.SimpleNamespace


class Bridge(Real):
    def test_its_manager_finds_our_hooks(self):
        self.assertIs(Callback, callbacks.Callback)
        manager = callbacks.normalize_callbacks([StepwatchCallback()])
        for event in ("on_train_start", "on_train_step_start", "on_train_step_end", "on_train_end", "on_eval_start", "on_eval_end"):
            self.assertTrue(callbacks.should_fire(manager, event), event)

    def test_steps_evaluations_and_the_description(self):
        calculator.unset_num_microbatches_calculator()
        calculator.init_num_microbatches_calculator(0, None, 16, 4, 2)
        self.addCleanup(calculator.unset_num_microbatches_calculator)
        callback = StepwatchCallback(name="bridge")
        manager = callbacks.normalize_callbacks([callback])
        model = Space(num_layers=2, hidden_size=64, num_attention_heads=4, seq_length=128, tensor_model_parallel_size=8, bf16=True)
        state = Space(cfg=Space(model=model, train=Space(), checkpoint=Space(save="/save")), train_state=Space(step=10))
        optimizer = Space(param_groups=[{"lr": 0.5, "is_decoupled_lr": True}, {"lr": 0.01, "is_decoupled_lr": False}])

        def fire(event, **more):
            manager.fire(event, callbacks.CallbackContext(state=state, model=[], optimizer=optimizer, **more))

        fire("on_train_start")
        for i in range(3):
            fire("on_train_step_start")
            fire("on_train_step_end", loss_dict={"lm loss": torch.tensor(2.0 - i), "z_loss": torch.tensor(0.1)}, grad_norm=0.5, skipped_iter=i == 2)
            state.train_state.step += 1
        fire("on_eval_start")
        fire("on_eval_end", total_loss_dict={"lm loss": torch.tensor([6.0, 4.0])})
        fire("on_train_end")
        callback.close()
        events = self.steps(3)
        self.assertEqual([(e["step"], e["m"]["loss"], e["m"].get("skipped")) for e in events], [(11, 2.0, None), (12, 1.0, None), (13, 0.0, 1)])
        self.assertEqual({(e["m"]["lr"], e["m"]["grad_norm"], e["m"]["samples"], e["m"]["tokens"]) for e in events}, {(0.01, 0.5, 16, 2048)})
        self.bye()
        evaluation = self.sink.events("eval")[0]
        self.assertEqual((evaluation["name"], evaluation["step"], evaluation["m"]), ("validation", 13, {"loss": 1.5}))
        hello = self.hello()
        self.assertEqual((hello["framework"], hello["tp"], hello["dtype"]), ("megatron-bridge", 8, "bfloat16"))
        self.assertEqual(hello["model"], {"layers": 2, "hidden": 64, "heads": 4, "seq_len": 128})

    def test_sums_with_their_counts(self):
        found = losses({"lm loss": torch.tensor([6.0, 4.0]), "mtp_1 loss": torch.tensor(2.0)})
        self.assertEqual({k: float(v) for k, v in found.items()}, {"loss": 1.5, "mtp_1_loss": 2.0})


if __name__ == "__main__":
    unittest.main()

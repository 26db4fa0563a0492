"""Statistics of layers, as far as they need no PyTorch: names, limits, and under which step they
are sent. The rest is in ``real``."""

import json
import unittest

from support import Case, until

from stepwatch import _layers
from stepwatch._layers import own_name, split, thin_out


class Names(unittest.TestCase):
    def test_wrappers_are_taken_out(self):
        for path, name in (
            ("layers.0.attn", "layers.0.attn"),
            ("module.layers.0", "layers.0"),
            ("module.module.decoder.layers.3", "decoder.layers.3"),
            ("_orig_mod.layers.0._orig_mod.mlp", "layers.0.mlp"),
            ("_fsdp_wrapped_module.layers.1._fsdp_wrapped_module._checkpoint_wrapped_module.mlp", "layers.1.mlp"),
            ("_forward_module.module.h.2", "h.2"),
            ("encoder.module.proj", "encoder.module.proj"),
            ("module", ""),
            ("", ""),
        ):
            self.assertEqual(own_name(path), name)

    def test_thinned_out_evenly(self):
        layers = list(range(10))
        self.assertEqual(thin_out(layers, 10), layers)
        self.assertEqual(thin_out(layers, 4), [0, 3, 6, 9])
        self.assertEqual(thin_out(layers, 1), [0])

    def test_every_part_fits_into_an_event(self):
        for letter in ("x", "\u20ac"):
            metrics = {"grad_norm/%s.%d" % (letter * (1 + i % 200), i): 1.2345678901234567e-300 for i in range(500)}
            parts = list(split(metrics))
            self.assertEqual({k: v for part in parts for k, v in part.items()}, metrics)
            for part in parts:
                self.assertLess(len(json.dumps(part)), 7 * 1024)
        self.assertEqual(list(split({})), [])


class Sending(Case):
    def test_more_about_a_step_never_goes_back(self):
        receiver = self.receiver()
        run = self.run_()
        run.add(1, {"grad_norm/a": 0.5})
        run.step(5, loss=1.0)
        run.add(4, {"grad_norm/a": 0.25, "bad": object()})
        run.step(6, loss=1.0)
        with self.assertLogs("stepwatch", "WARNING"):
            events = until(lambda: receiver.events("step")[3:] and receiver.events("step"))
        self.assertEqual([e["step"] for e in events], [1, 5, 5, 6])
        self.assertEqual(events[2]["m"], {"grad_norm/a": 0.25})
        self.assertAlmostEqual(events[2]["ts"], events[1]["ts"], places=4)
        self.assertAlmostEqual(events[3]["m"]["step_time"], events[3]["ts"] - events[1]["ts"], places=4)

    def test_a_model_that_is_none_costs_a_warning(self):
        with self.assertLogs("stepwatch", "WARNING"):
            stats = _layers.LayerStats(self.run_(), object())
        for step in (0, None, "x", 1):
            stats.step(step)
        stats.close()


if __name__ == "__main__":
    unittest.main()

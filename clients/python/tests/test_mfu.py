"""The calculator, held to the cases that the exporter's own figures are held to."""

import argparse
import contextlib
import io
import json
import os
import tempfile
import unittest

from stepwatch import _mfu, _mfu_command, _peaks

ROOT = os.path.join(os.path.dirname(__file__), "..", "..", "..")
TRAINING = os.path.join(ROOT, "exporter", "src", "training")


def command(*args):
    """Exit code, standard output and standard error of ``stepwatch mfu``."""
    parser = argparse.ArgumentParser()
    _mfu_command.arguments(parser)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = _mfu_command.run(parser.parse_args(list(args)))
        except SystemExit as stop:
            code = stop.code
    return code, out.getvalue(), err.getvalue()


class Flops(unittest.TestCase):
    def test_the_cases_of_the_exporter(self):
        with open(os.path.join(TRAINING, "mfu", "cases.json")) as f:
            cases = json.load(f)
        self.assertGreaterEqual(len(cases), 30)
        for case in cases:
            model, want = _mfu.Model(case["model"]), case["flops_per_token_want"]
            got = model.flops_per_token()
            self.assertEqual((set(got), model.refused), (set(want), case.get("refused_want")), case["name"])
            for convention in want:
                self.assertAlmostEqual(got[convention] / want[convention], 1, 9, (case["name"], convention))

    def test_the_figures_are_those_that_were_derived_by_hand(self):
        with open(os.path.join(TRAINING, "mfu", "cases.json")) as f:
            cases = [case for case in json.load(f) if "derivation" in case]
        self.assertGreaterEqual(len(cases), 15)
        for case in cases:
            for convention, derivation in case["derivation"].items():
                self.assertRegex(derivation, r"^[-+*/() 0-9]+$")  # plain arithmetic
                self.assertEqual(eval(derivation), case["flops_per_token_want"][convention], (case["name"], derivation))

    def test_what_is_kept_of_a_configuration_is_enough(self):
        """An adapter sends what ``dimensions_of`` keeps of a configuration: the figures must not
        depend on the rest."""
        with open(os.path.join(TRAINING, "mfu", "cases.json")) as f:
            cases = json.load(f)
        for case in cases:
            whole, kept = _mfu.Model(case["model"]), _mfu.Model(_mfu.dimensions_of(dict(case["model"], id2label={"0": "x"})))
            self.assertEqual((whole.flops_per_token(), whole.refused), (kept.flops_per_token(), kept.refused), case["name"])
        self.assertNotIn("id2label", _mfu.dimensions_of({"id2label": {}, "hidden_size": 1}))

    def test_the_table_is_the_exporters(self):
        with open(os.path.join(TRAINING, "peaks.csv")) as theirs:
            table = theirs.read()
        self.assertEqual(_peaks.TABLE, table)
        for line in table.splitlines():
            self.assertTrue(line.startswith("#") or line.count(",") == 6, line)

    def test_peaks(self):
        for name, dtype, tera in [
            ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
            ("NVIDIA H100 PCIe", "fp8", 1513),
            ("NVIDIA H20", "bf16", 148),
            ("AMD Instinct MI300X", "bf16", 1307.4),
            ("TPU v5", "bf16", 459),
            ("TPU v5 lite", "bf16", 197),
            ("TPU7x", "bf16", 1153.5),
            ("TPU v4 lite", "bf16", None),
            ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
            ("Tesla V100-SXM2-32GB", "bf16", None),
            ("abacus", "bf16", None),
        ]:
            peak = _mfu.peak(name, dtype)
            self.assertEqual(peak and peak.flops / 1e12, tera, name)


class Command(unittest.TestCase):
    LLAMA = ["--params", "7504924672", "--layers", "32", "--heads", "32", "--head-dim", "128", "--seq-len", "8192"]

    def test_the_worked_example(self):
        code, out, _ = command(*self.LLAMA, "--tokens-per-second-per-gpu", "9500", "--device", "H100")
        self.assertEqual(code, 0, out)
        mfu = {line.split()[0]: float(line.split()[-2]) for line in out.splitlines() if line.endswith("%")}
        self.assertEqual(set(mfu), {"full", "causal", "6n"})
        for convention, percent in [("6n", 43.3), ("causal", 49.4), ("full", 55.6)]:
            self.assertAlmostEqual(mfu[convention], percent, delta=0.1)
        self.assertIn("no figure for exact: missing are --hidden, --ffn, --vocab, --gated or --not-gated", out)

    def test_a_config_json_and_the_speed_of_the_whole_job(self):
        config = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
                  "intermediate_size": 14336, "vocab_size": 128256, "hidden_act": "silu"}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump(config, f)
            f.flush()
            code, out, _ = command("--config", f.name, "--seq-len", "8k", "--tokens-per-step", "4M", "--step-time", "3.5",
                                   "--world", "128", "--device", "NVIDIA H100 80GB HBM3", "--format", "json")
        self.assertEqual(code, 0, out)
        figures = json.loads(out)
        self.assertEqual(set(figures["conventions"]), set(_mfu.CONVENTIONS))
        exact = figures["conventions"]["exact"]
        self.assertAlmostEqual(exact["mfu"], exact["flops_per_token"] * 4e6 / 3.5 / 128 / 989.4e12)

    def test_a_figure_that_cannot_be_true_is_pointed_out(self):
        _, out, _ = command(*self.LLAMA, "--tokens-per-second-per-gpu", "19k", "--device", "H100")
        self.assertIn("nobody trains that fast", out)

    def test_a_model_without_a_formula_is_refused(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump({"model_type": "t5", "is_encoder_decoder": True, "num_layers": 2}, f)
            f.flush()
            code, out, err = command("--config", f.name, "--params", "1B")
        self.assertEqual((code, out), (64, ""))
        self.assertIn("no formula for this model: an encoder and a decoder", err)

    def test_what_is_wrong_is_named(self):
        for args, words in [
            ([], "--params"),
            (["--params", "8B", "--device", "abacus"], "--peak-tflops"),
            (["--params", "8B", "--tokens-per-second", "1e6"], "--world"),
            (["--params", "8B", "--tokens-per-step", "4M"], "--step-time"),
            (["--config", "/nonexistent/config.json"], "No such file"),
        ]:
            code, _, err = command(*args)
            self.assertEqual(code, 64, args)
            self.assertIn(words, err)
        code, _, err = command("--params", "many")
        self.assertIn("positive number such as 8e9", err)
        self.assertNotEqual(code, 0)


if __name__ == "__main__":
    unittest.main()

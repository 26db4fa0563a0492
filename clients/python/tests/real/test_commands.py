"""``stepwatch run`` round the launchers and trainers that people use."""

import json
import os
import subprocess
import sys
import textwrap
import unittest

from peers import Case, require, until
from support import ROOT, HttpReceiver

torch = require("torch")

BIN = os.path.dirname(sys.executable)


class Launched(Case):
    def launched(self, script, *command, options=(), **environment):
        """Runs ``stepwatch run options -- command script``; (status, stdout, stderr)."""
        path = os.path.join(self.folder, "train.py")
        with open(path, "w") as f:
            f.write(textwrap.dedent(script))
        env = dict(os.environ, PYTHONPATH=ROOT, STEPWATCH_SOCKET=self.path, TMPDIR=self.folder, OMP_NUM_THREADS="1", **environment)
        full = [sys.executable, "-m", "stepwatch", "run", *options, "--", *command, path]
        done = subprocess.run(full, env=env, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=240, universal_newlines=True)
        return done.returncode, done.stdout, done.stderr

    def bye(self, receiver):
        return until(lambda: [e for e in receiver.events("bye") if e.get("role") == "launcher"], "a goodbye")[0]


class Torchrun(Launched):
    TORCHRUN = (os.path.join(BIN, "torchrun"), "--standalone", "--nproc-per-node", "2")

    def test_a_rank_that_fails(self):
        receiver = self.receiver()
        status, out, err = self.launched("""
            import os, time
            os.write(1, b"rank %s starts\\n" % os.environ["RANK"].encode())  # in one piece: the ranks share a terminal
            if os.environ["RANK"] == "1":
                raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
            time.sleep(60)
        """, *self.TORCHRUN)
        self.assertEqual(status, 1)
        bye = self.bye(receiver)
        self.assertEqual((bye["code"], bye["text"]), (1, "RuntimeError: CUDA error: uncorrectable ECC error encountered"))
        lines = [line for e in receiver.events("event") if e["stream"] == "stdout" for line in e["lines"]]
        self.assertEqual(sorted(lines), ["rank 0 starts", "rank 1 starts"])
        self.assertIn("ChildFailedError", err, "nothing is kept from the terminal")

    def test_the_error_that_torchelastic_recorded(self):
        receiver = self.receiver()
        status, _, _ = self.launched("""
            import os, sys, time
            from torch.distributed.elastic.multiprocessing.errors import record
            @record
            def main():
                if os.environ["RANK"] == "0":
                    raise ValueError("shard 17 is truncated")
                time.sleep(60)
            main()
        """, *self.TORCHRUN)
        self.assertEqual(status, 1)
        self.assertEqual(self.bye(receiver)["text"], "ValueError: shard 17 is truncated")

    def test_ranks_that_use_the_client_belong_to_the_same_run(self):
        receiver = self.receiver()
        status, _, err = self.launched("""
            import stepwatch
            with stepwatch.Run() as run:
                run.step(1, loss=2.0)
        """, *self.TORCHRUN, options=("--run", "llama"))
        self.assertEqual(status, 0, err)
        self.bye(receiver)
        steps = until(lambda: receiver.events("step")[1:] and receiver.events("step"))
        self.assertEqual(sorted((e["run"], e["rank"], e["world"]) for e in steps), [("llama", 0, 2), ("llama", 1, 2)])


class Trainer(Launched):
    def test_transformers_reports_with_no_code_at_all(self):
        transformers = require("transformers")
        if int(transformers.__version__.split(".")[0]) < 5:
            self.skipTest("before version 5 the Trainer does not report by itself")
        http = HttpReceiver()
        self.addCleanup(http.close)
        status, out, err = self.launched("""
            import torch, transformers
            class Data(torch.utils.data.Dataset):
                def __len__(self):
                    return 16
                def __getitem__(self, i):
                    x = torch.arange(8) + i % 4
                    return {"input_ids": x, "labels": x}
            sizes = dict(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=16)
            model = transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **sizes))
            arguments = transformers.TrainingArguments("out", max_steps=4, logging_steps=1, use_cpu=True, save_strategy="no")
            transformers.Trainer(model=model, args=arguments, train_dataset=Data()).train()
        """, sys.executable, options=("--run", "tiny", "--url", http.url, "--socket", ""))
        self.assertEqual(status, 0, err)
        posted = [json.loads(body) for path, _, body in http.requests if path == "/v1/kubeflow/tiny"]
        self.assertTrue(posted)
        names = {m["name"] for p in posted for m in p["trainerStatus"].get("metrics", [])}
        self.assertTrue({"loss", "current_step"} <= names, names)
        events = [json.loads(line) for path, _, body in http.requests if path == "/v1/events" for line in body.splitlines()]
        lines = [line for e in events if e["k"] == "event" for line in e["lines"]]
        self.assertTrue(any("'loss'" in line for line in lines), lines)


if __name__ == "__main__":
    unittest.main()

"""``torch.distributed.checkpoint`` itself, on the processor: every stage of what it saves and loads,
in one process and in two that make one checkpoint."""

import os
import textwrap
import unittest
import warnings

from peers import Real, require, until

torch, dcp = require("torch", "torch.distributed.checkpoint")

import stepwatch  # noqa: E402
from stepwatch.torch import CheckpointReporter  # noqa: E402

TWO_RANKS = """
    import os, sys, warnings
    warnings.simplefilter("ignore")
    import torch, torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    import stepwatch
    from stepwatch.torch import CheckpointReporter

    def rank(rank, folder):
        os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
        store = dist.FileStore(os.path.join(folder, "store"), 2)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        mesh = init_device_mesh("cpu", (2,))
        with stepwatch.Run("two") as run, CheckpointReporter(run):
            state = {"w": distribute_tensor(torch.ones(64, 64), mesh, [Shard(0)])}
            run.step(20, loss=1.0)
            dcp.async_save(state, checkpoint_id=os.path.join(folder, "step-20")).result()
            dist.barrier()
            dcp.load(state, checkpoint_id=os.path.join(folder, "step-20"))
        dist.destroy_process_group()

    if __name__ == "__main__":
        torch.multiprocessing.spawn(rank, (sys.argv[1],), nprocs=2)
"""


def told(events):
    """In the order in which it happened: what waits for a size is sent later."""
    return [(e.get("stage", "save"), e["phase"]) for e in sorted(events, key=lambda e: e["ts"])]


ALL = [("save", "start"), ("save", "end"), ("write", "start"), ("write", "end"), ("durable", "end")]


class Stages(Real):
    def setUp(self):
        super().setUp()
        warnings.simplefilter("ignore")
        self.addCleanup(warnings.resetwarnings)

    def size(self, path):
        return sum(os.path.getsize(os.path.join(path, name)) for name in os.listdir(path))

    def of_step(self, step, count):
        def own():
            return [e for e in self.sink.events("ckpt") if e.get("step") == step]

        return until(lambda: len(own()) >= count and own(), "%d events of step %d" % (count, step))

    def test_an_asynchronous_save_and_a_load(self):
        state = {"model": torch.nn.Linear(64, 64).state_dict(), "step": torch.tensor(100)}
        path = os.path.join(self.folder, "step-100")
        with stepwatch.Run("r") as run, CheckpointReporter(run):
            run.step(100, loss=1.0)
            future = dcp.async_save(state, checkpoint_id=path)
            run.step(101, loss=1.0)
            self.assertTrue(hasattr(future, "result") or hasattr(future, "upload_completion"), "what it returned")
            getattr(future, "upload_completion", future).result()
            events = self.of_step(100, 5)
            dcp.load(state, checkpoint_id=path)
            until(lambda: len(self.sink.events("ckpt")) == 7)
        self.assertEqual(told(events), ALL)
        self.assertEqual({e["path"] for e in events}, {path})
        self.assertEqual({e.get("stage"): e["bytes"] for e in events if "bytes" in e}, {"durable": self.size(path)})
        times = {e.get("stage"): e["seconds"] for e in events if "seconds" in e}
        self.assertTrue(set(times) == {None, "write"} and min(times.values()) > 0, times)
        step = next(e for e in self.sink.events("step") if e["step"] == 101)
        self.assertAlmostEqual(step["t"]["ckpt"], times[None], places=5, msg="the write is no part of the step")
        loads = [e for e in self.sink.events("ckpt") if e.get("stage") == "load"]
        self.assertEqual([(e["phase"], e["step"], e["path"]) for e in loads], [("start", 100, path), ("end", 100, path)])
        self.assertEqual(self.bye()["code"], 0)

    def test_a_checkpoint_without_a_number_is_of_the_step_that_the_run_was_at(self):
        path = os.path.join(self.folder, "last")
        with stepwatch.Run("r") as run, CheckpointReporter(run):
            run.step(7, loss=1.0)
            future = dcp.async_save({"w": torch.ones(8)}, checkpoint_id=path)
            run.step(8, loss=1.0)
            getattr(future, "upload_completion", future).result()
            self.assertEqual(told(self.of_step(7, 5)), ALL)

    def test_a_save_that_the_step_waits_for(self):
        path = os.path.join(self.folder, "iter_0000030")
        with stepwatch.Run("r") as run, CheckpointReporter(run):
            metadata = dcp.save({"w": torch.ones(8)}, checkpoint_id=path)
            events = self.of_step(30, 2)
        self.assertIsNotNone(metadata)
        self.assertEqual(told(events), [("save", "start"), ("save", "end")])
        self.assertEqual(events[-1]["bytes"], self.size(path))

    def test_a_write_that_fails(self):
        blocked = os.path.join(self.folder, "file")
        with open(blocked, "w"):
            pass
        path = os.path.join(blocked, "step-9")
        with stepwatch.Run("r") as run, CheckpointReporter(run):
            future = dcp.async_save({"w": torch.ones(8)}, checkpoint_id=path)
            with self.assertRaises(dcp.CheckpointException):
                getattr(future, "upload_completion", future).result()
            events = self.of_step(9, 4)
        self.assertEqual(told(events), [("save", "start"), ("save", "end"), ("write", "start"), ("write", "fail")])
        self.assertRegex(events[-1]["text"], r"^rank 0: (FileExists|NotADirectory)Error: ")

    def test_a_copy_that_goes_on_behind_the_training_too(self):
        """``async_save`` returns two futures then (PyTorch 2.9)."""
        try:
            from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        except ImportError:
            self.skipTest("this PyTorch copies while the step waits")
        path = os.path.join(self.folder, "step-11")
        stager = DefaultStager(StagingOptions(False, False, True, False))
        self.addCleanup(stager.close)
        with stepwatch.Run("r") as run, CheckpointReporter(run):
            response = dcp.async_save({"w": torch.ones(8)}, checkpoint_id=path, async_stager=stager)
            response.staging_completion.result()
            response.upload_completion.result()
            self.assertEqual(told(self.of_step(11, 5)), ALL)

    def test_two_ranks_of_one_checkpoint(self):
        script = os.path.join(self.folder, "two.py")
        with open(script, "w") as f:
            f.write(textwrap.dedent(TWO_RANKS))
        code, _, err = self.program(script, self.folder)
        self.assertEqual(code, 0, err)
        until(lambda: len(self.sink.events("bye")) == 2)
        events = self.sink.events("ckpt")
        self.assertEqual({(e["run"], e["world"], e["step"], e["path"]) for e in events}, {("two", 2, 20, os.path.join(self.folder, "step-20"))})
        load = [("load", "start"), ("load", "end")]
        self.assertEqual(told(e for e in events if e["rank"] == 0), ALL + load)
        self.assertEqual(told(e for e in events if e["rank"] == 1), ALL[2:4] + load)
        waits = [e["phase"] for e in self.sink.events("phase") if e["rank"] == 1 and e["name"] == "ckpt"]
        self.assertEqual(waits, ["begin", "end"], "it waits for the save, which the first rank reports")
        durable = next(e for e in events if e.get("stage") == "durable")
        self.assertEqual((durable["rank"], durable["bytes"]), (0, self.size(os.path.join(self.folder, "step-20"))))


if __name__ == "__main__":
    unittest.main()

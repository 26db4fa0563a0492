"""The reporter of ``torch.distributed.checkpoint`` against a stand-in with its functions: of PyTorch
2.4, whose ``async_save`` returns a future, and of those that return two."""

import os
import sys
import threading
import types
import unittest
from concurrent.futures import Future
from unittest import mock

from support import Case, until

from stepwatch._adapter import step_in
from stepwatch._dcp import CheckpointReporter


class Stand:
    """``torch.distributed.checkpoint``."""

    def __init__(self):
        module = self.module = types.ModuleType("torch.distributed.checkpoint")
        self.error, self.response, self.futures, self.calls = None, False, [], []

        def save(state_dict, *, checkpoint_id=None, storage_writer=None, planner=None, process_group=None, no_dist=False):
            """Saves."""
            self.calls.append(("save", checkpoint_id))
            if self.error is not None:
                raise self.error
            return "metadata"

        def async_save(state_dict, *, checkpoint_id=None, storage_writer=None, planner=None, process_group=None, no_dist=False):
            if self.error is not None:
                raise self.error
            self.futures.append(Future())
            if not self.response:
                return self.futures[-1]
            return types.SimpleNamespace(staging_completion=Future(), upload_completion=self.futures[-1])

        def load(state_dict, *, checkpoint_id=None, storage_reader=None, planner=None, process_group=None, no_dist=False):
            if self.error is not None:
                raise self.error

        module.save, module.async_save, module.load = save, async_save, load


class Dcp(Case):
    def setUp(self):
        super().setUp()
        self.sink, self.stand = self.receiver(), Stand()
        distributed = types.SimpleNamespace(get_rank=lambda group: group)
        names = {"torch": types.ModuleType("torch"), "torch.distributed": distributed, "torch.distributed.checkpoint": self.stand.module}
        patch = mock.patch.dict(sys.modules, names)
        patch.start()
        self.addCleanup(patch.stop)
        self.dcp = self.stand.module

    def reporter(self, rank=0, **options):
        run = self.run_(rank=rank, world=4)
        reporter = CheckpointReporter(run, **options)
        self.addCleanup(reporter.remove)
        return run, reporter

    def words(self, count):
        events = until(lambda: self.sink.events("ckpt")[count - 1 :] and self.sink.events("ckpt"), "%d events" % count)
        self.assertEqual(len(events), count, events)
        # A size is found out while the next things happen.
        return [(e.get("stage", "save"), e["phase"], e.get("step"), e.get("path")) for e in sorted(events, key=lambda e: e["ts"])]

    def test_each_stage_of_an_asynchronous_save(self):
        for step, response in ((100, False), (200, True)):
            with self.subTest(response=response):
                self.stand.response = response
                _, reporter = self.reporter()
                path = "/c/step-%d" % step
                result = self.dcp.async_save({}, checkpoint_id=path)
                future = self.stand.futures[-1]
                self.assertIs(getattr(result, "upload_completion", result), future, "what it returned is what is returned")
                until(lambda: [e["step"] for e in self.sink.events("ckpt") if e.get("stage") == "write"][-1:] == [step])
                self.assertFalse(any(e.get("stage") == "durable" and e["step"] == step for e in self.sink.events("ckpt")))
                thread = threading.Thread(target=lambda: future.set_result("metadata"))
                thread.start()
                thread.join()
                until(lambda: any(e.get("stage") == "durable" and e["step"] == step for e in self.sink.events("ckpt")))
                own = [e for e in self.sink.events("ckpt") if e["step"] == step]
                self.assertEqual(
                    [(e.get("stage", "save"), e["phase"], e["path"]) for e in own],
                    [(s, p, path) for s, p in (("save", "start"), ("save", "end"), ("write", "start"), ("write", "end"), ("durable", "end"))],
                )
                self.assertEqual(future.result(), "metadata")
                reporter.remove()

    def test_another_rank_reports_what_it_writes(self):
        run, _ = self.reporter(rank=3)
        run.step(12)
        self.dcp.async_save({}, checkpoint_id="/c/last")
        self.stand.futures[0].set_result(None)
        self.assertEqual(self.words(2), [("write", "start", 12, "/c/last"), ("write", "end", 12, "/c/last")])
        self.assertEqual([e["name"] for e in self.sink.events("phase")], ["ckpt", "ckpt"])

    def test_the_first_of_a_group_writes_the_metadata(self):
        self.reporter(rank=2)
        self.dcp.save({}, checkpoint_id="/c/5", process_group=0)
        self.dcp.save({}, checkpoint_id="/c/6", process_group=1)
        self.assertEqual(self.words(2), [("save", "start", 5, "/c/5"), ("save", "end", 5, "/c/5")])

    def test_a_failure_of_any_stage(self):
        self.reporter()
        future = self.dcp.async_save({}, checkpoint_id="/c/iter_0000300")
        error = OSError("no space left on device")
        self.stand.futures[0].set_exception(error)
        with self.assertRaises(OSError) as raised:
            future.result()
        self.assertIs(raised.exception, error)
        self.stand.error = collected = RuntimeError("ranks: ...")
        collected.failures = {2: (OSError("stale file handle"), [])}
        for function, path in (("async_save", "/c/400"), ("save", "/c/500"), ("load", "/c/600")):
            with self.assertRaises(RuntimeError) as raised:
                getattr(self.dcp, function)({}, checkpoint_id=path)
            self.assertIs(raised.exception, collected)
        words = self.words(10)
        wanted = [("save", "start", 300), ("save", "end", 300), ("write", "start", 300), ("write", "fail", 300)]
        for stage, step in (("save", 400), ("save", 500), ("load", 600)):
            wanted += [(stage, "start", step), (stage, "fail", step)]
        self.assertEqual([word[:3] for word in words], wanted)
        texts = [e["text"] for e in self.sink.events("ckpt") if e["phase"] == "fail"]
        self.assertEqual(texts[0], "OSError: no space left on device")
        self.assertEqual(texts[2:], ["rank 2: OSError: stale file handle"] * 2)

    def test_a_save_that_is_cancelled_is_none(self):
        self.reporter()
        self.dcp.async_save({}, checkpoint_id="/c/9")
        self.stand.futures[0].cancel()
        self.assertEqual(self.words(4)[-1], ("write", "fail", 9, "/c/9"))

    def test_the_path_of_what_writes_and_a_step_that_somebody_knows(self):
        run, _ = self.reporter(step=lambda path: 77)
        writer = types.SimpleNamespace(path=os.path.join("/c", "x"))
        self.assertEqual(self.dcp.save({}, storage_writer=writer), "metadata")
        self.dcp.load({}, storage_reader=writer)
        self.assertEqual(self.words(4), [(s, p, 77, "/c/x") for s in ("save", "load") for p in ("start", "end")])

    def test_a_load_is_of_no_step_that_is_not_told(self):
        run, _ = self.reporter()
        run.step(5)
        self.dcp.load({}, checkpoint_id="/c/last")
        self.assertEqual(self.words(2), [("load", "start", None, "/c/last"), ("load", "end", None, "/c/last")])

    def test_a_save_is_of_the_step_that_the_run_reports(self):
        """The name may count epochs, or be the number of the job."""
        run, _ = self.reporter()
        wanted = []
        for step, name, told in ((500, "checkpoint_3", 500), (600, "1748563", 600), (700, "1748563", 700), (800, "step-801", 801)):
            run.step(step)
            self.dcp.save({}, checkpoint_id="/c/" + name)
            wanted += [("save", phase, told, "/c/" + name) for phase in ("start", "end")]
        self.dcp.async_save({}, checkpoint_id="/c/1748563")
        run.step(900)
        self.stand.futures[0].set_result(None)
        self.dcp.load({}, checkpoint_id="/c/step-700")
        wanted += [(stage, phase, 800, "/c/1748563") for stage, phase in (
            ("save", "start"), ("save", "end"), ("write", "start"), ("write", "end"), ("durable", "end"))]  # fmt: skip
        wanted += [("load", phase, 700, "/c/step-700") for phase in ("start", "end")]
        self.assertEqual(self.words(len(wanted)), wanted)

    def test_the_step_counts_whose_values_are_still_on_the_device(self):
        run, _ = self.reporter()
        run.step(6)
        run.mark(9)
        self.dcp.save({}, checkpoint_id="/c/1748563")
        self.dcp.save({}, checkpoint_id="/c/last")
        self.assertEqual([word[2] for word in self.words(4)], [9] * 4)

    def test_everything_is_left_as_it_was(self):
        before = dict(vars(self.dcp))
        _, first = self.reporter()
        self.assertEqual(self.dcp.save.__doc__, "Saves.")
        first.remove()
        self.assertEqual(vars(self.dcp), before)
        _, first = self.reporter()
        _, second = self.reporter()
        first.remove()
        self.dcp.save({}, checkpoint_id="/c/1")
        self.words(2)
        second.remove()
        self.dcp.save({}, checkpoint_id="/c/2")
        with CheckpointReporter(self.run_()):
            pass
        self.words(2)
        with self.assertRaises(TypeError):
            self.dcp.save()

    def test_a_step_function_that_raises_costs_the_report_only(self):
        self.reporter(step=lambda path: 1 / 0)
        self.assertEqual(self.dcp.save({}, checkpoint_id="/c/1"), "metadata")
        self.assertIsInstance(self.dcp.async_save({}, checkpoint_id="/c/1"), Future)
        self.assertEqual(self.sink.events("ckpt"), [])

    def test_where_there_is_no_pytorch(self):
        with mock.patch.dict(sys.modules, {"torch.distributed.checkpoint": None}), self.assertLogs("stepwatch", "WARNING"):
            CheckpointReporter(self.run_()).remove()

    def test_steps_in_names(self):
        for path, step in (
            ("/c/step-100", 100), ("/c/iter_0000100/", 100), ("/c/checkpoint-7", 7), ("/c/12", 12), ("epoch=1-step=30.ckpt", 30),
            ("s3://bucket/run/global_step500", 500), ("/c/llama-70b", None), ("/c/last", None), ("/c/2026-11-30", None), (None, None),
        ):  # fmt: skip
            self.assertEqual(step_in(path), step, path)


if __name__ == "__main__":
    unittest.main()

"""The Ray Train callbacks without Ray: what its controller and its workers call, in their order."""

import copy
import os
import pickle
import threading
import types
import unittest
from unittest import mock

from support import Case, until

from stepwatch import ray as adapter
from stepwatch.ray import StepwatchCallback, StepwatchWorkerCallback

Space = types.SimpleNamespace


class Callbacks(Case):
    def setUp(self):
        super().setUp()
        self.sink = self.receiver()
        patch = mock.patch.dict(os.environ, {"STEPWATCH_SOCKET": self.path})
        patch.start()
        self.addCleanup(patch.stop)
        self.context = Space(get_run_config=lambda: Space(name="ray-run"))

    def controller(self, **options):
        callback = StepwatchCallback(**options)
        self.addCleanup(callback.close)
        return callback

    def of(self, rank, kind="step"):
        return [e for e in self.sink.events(kind) if e["rank"] == rank]

    def test_each_worker_is_a_rank(self):
        callback = self.controller()
        for step in (10, 20):
            metrics = [{"global_step": step, "train_loss": step + r, "val_loss": 0.5, "who": "me", "time": {"x": 1}} for r in (0, 1)]
            callback.after_report(self.context, metrics, Space(path="/store/ckpt") if step == 20 else None)
        callback.close()
        until(lambda: len(self.sink.events("bye")) == 2)
        for rank in (0, 1):
            self.assertEqual([(e["step"], e["m"]["loss"]) for e in self.of(rank)], [(10, 10 + rank), (20, 20 + rank)])
            self.assertEqual(self.of(rank, "hello")[0]["run"], "ray-run")
        one, two = self.of(0)
        self.assertAlmostEqual(two["m"]["step_time"], (two["ts"] - one["ts"]) / 10, places=3)
        self.assertEqual([(e["rank"], e["step"], e["path"]) for e in self.sink.events("ckpt")], [(0, 20, "/store/ckpt")])
        self.assertEqual(self.sink.events("eval")[0]["m"], {"loss": 0.5})

    def test_reports_without_a_step_are_counted(self):
        callback = self.controller(name="mine")
        for _ in range(3):
            callback.after_report(self.context, [{"loss": 1.0}], None)
        self.assertEqual([e["step"] for e in until(lambda: self.of(0)[2:] and self.of(0))], [1, 2, 3])
        self.assertEqual(self.of(0)[0]["run"], "mine")

    def test_a_group_that_failed_is_a_new_attempt_when_it_reports_again(self):
        callback = self.controller()
        callback.after_report(self.context, [{"loss": 1.0}] * 3, None)
        callback.after_exception(self.context, {1: ValueError("bad shard 17")})
        byes = until(lambda: len(self.sink.events("bye")) == 3 and {e["rank"]: e for e in self.sink.events("bye")})
        self.assertEqual((byes[1]["code"], byes[1]["text"]), (1, "ValueError: bad shard 17"))
        self.assertTrue(all(byes[rank].get("code") is None for rank in (0, 2)))
        self.assertEqual(self.of(1, "event")[0]["name"], "worker_failed")
        callback.after_report(self.context, [{"loss": 1.0}] * 3, None)
        until(lambda: len(self.sink.events("hello")) == 6)

    def test_ranks_are_limited_and_the_first_are_kept(self):
        callback = self.controller()
        with mock.patch.object(adapter, "MAX_RANKS", 2), self.assertLogs("stepwatch", "WARNING") as logged:
            for _ in range(2):
                callback.after_report(self.context, [{"loss": 1.0}] * 5, None)
        self.assertEqual(len(logged.output), 1)
        until(lambda: len(self.sink.events("step")) == 4)
        self.assertEqual({e["rank"] for e in self.sink.events("step")}, {0, 1})

    def test_beside_the_workers_it_reports_exceptions_only(self):
        callback = self.controller(per_rank=False)
        callback.after_report(self.context, [{"loss": 1.0}], None)
        callback.after_exception(self.context, {0: ValueError("x")})
        until(lambda: self.sink.events("bye"))
        self.assertEqual(self.sink.events("step"), [])

    def test_it_goes_to_the_controller_by_pickle(self):
        callback = self.controller(name="n")
        callback.after_report(self.context, [{"loss": 1.0}], None)
        for other in (pickle.loads(pickle.dumps(callback)), copy.deepcopy(callback)):
            self.assertEqual((other._name, other._ranks), ("n", {}))
        self.assertEqual(pickle.loads(pickle.dumps(StepwatchWorkerCallback(name="w")))._name, "w")

    def test_no_hook_raises(self):
        callback = self.controller()
        for arguments in ((None, None, None), (self.context, [None, 3, {"loss": object()}], object())):
            callback.after_report(*arguments)
        callback.after_exception(None, None)
        worker = StepwatchWorkerCallback()
        worker.after_init_train_context()  # there is no Ray
        with worker.on_report():
            pass
        worker.before_worker_shutdown()

    def test_a_worker_publishes_how_long_it_waited_and_what_it_uploaded(self):
        uploading = []

        class Context:
            storage_context = Space(experiment_fs_path="/store")
            execution_context = Space(training_thread_runner=Space(get_error=lambda: None))

            def get_world_rank(self):
                return 3

            def get_world_size(self):
                return 4

            def get_local_rank(self):
                return 1

            def report(self, metrics, checkpoint=None, checkpoint_upload_mode="sync"):
                with worker.on_report():
                    if checkpoint_upload_mode == "sync":
                        return self._upload_checkpoint("ckpt_1", metrics, checkpoint)
                uploading.append(threading.Thread(target=self._upload_checkpoint, args=("ckpt_1", metrics, checkpoint)))

            def _upload_checkpoint(self, name, metrics, checkpoint=None):
                if checkpoint == "full":
                    raise OSError("no space left on device")

        context = Context()
        contexts = Space(get_train_context=lambda: context)
        names = {name: contexts for name in ("ray", "ray.train", "ray.train.v2", "ray.train.v2._internal", "ray.train.v2._internal.execution")}
        names["ray"] = Space(__version__="2.60.0")
        worker = StepwatchWorkerCallback(name="w")
        with mock.patch.dict("sys.modules", dict(names, **{"ray.train.v2._internal.execution.context": contexts})):
            names["ray"].train = Space(v2=Space(_internal=Space(execution=Space(context=contexts))))
            worker.after_init_train_context()
        context.report({"loss": 2.0})
        context.report({"loss": 1.0}, checkpoint=Space(path="/tmp/local"))
        with self.assertRaises(OSError):
            context.report({"loss": 0.5}, checkpoint="full")
        context.report({"loss": 0.4}, checkpoint=Space(path="/tmp/local"), checkpoint_upload_mode="async")
        context.report({"loss": 0.3})
        uploading[0].start()
        uploading[0].join()
        context.execution_context.training_thread_runner.get_error = lambda: Space(_base_exc=ValueError("bad shard 17"))
        worker.before_worker_shutdown()
        bye = until(lambda: self.sink.events("bye"))[0]
        self.assertEqual((bye["rank"], bye["code"], bye["text"]), (3, 1, "ValueError: bad shard 17"))
        events = self.of(3)
        self.assertEqual([(e["step"], e["m"]["loss"]) for e in events], [(1, 2.0), (2, 1.0), (3, 0.5), (4, 0.4), (5, 0.3)])
        self.assertEqual([e["step"] for e in events if "report" in e.get("t", {})], [2, 3, 4, 5])
        behind = [(e["stage"], e["phase"]) for e in self.of(3, "ckpt") if e["step"] == 4]
        self.assertEqual(behind, [("upload", "start"), ("upload", "end")], "of the step that it was reported with")
        for stage in (None, "upload"):
            phases = [(e["step"], e["phase"], e["path"]) for e in self.of(3, "ckpt") if e.get("stage") == stage and e["step"] != 4]
            wanted = ((2, "start"), (2, "end"), (3, "start"), (3, "fail"))
            self.assertEqual(phases, [(step, phase, "/store/ckpt_1") for step, phase in wanted], stage)
        self.assertEqual(self.of(3, "hello")[0]["world"], 4)


if __name__ == "__main__":
    unittest.main()

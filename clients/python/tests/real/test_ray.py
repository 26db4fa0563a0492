"""The Ray Train callbacks against a real Ray on this machine: two workers on the processor."""

import os
import tempfile
import unittest

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

from peers import ROOT, Real, require, until  # noqa: E402

ray, train = require("ray", "ray.train")

from ray.train import RunConfig, ScalingConfig  # noqa: E402
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer  # noqa: E402

from stepwatch.ray import StepwatchCallback, StepwatchWorkerCallback  # noqa: E402


def setUpModule():
    environment = {"env_vars": {"PYTHONPATH": ROOT, "RAY_TRAIN_V2_ENABLED": "1"}}
    options = dict(include_dashboard=False, logging_level="ERROR", log_to_driver=False, runtime_env=environment)
    ray.init(num_cpus=4, object_store_memory=80 * 2**20, **options)


def tearDownModule():
    ray.shutdown()


def loop(config):
    rank = train.get_context().get_world_rank()
    for step in range(1, 5):
        if rank == config.get("fail") and step == 3:
            raise ValueError("bad shard 17")
        metrics = {"step": step, "loss": 1.0 / step + rank, "lr": 0.1, "note": "text"}
        if step == 4:
            metrics["val_loss"] = 2.5
        if step == 2 and rank == 0 and config.get("save"):
            with tempfile.TemporaryDirectory() as folder:
                with open(os.path.join(folder, "weights"), "wb") as f:
                    f.write(b"w" * 1000)
                train.report(metrics, checkpoint=train.Checkpoint.from_directory(folder))
        else:
            train.report(metrics)


class Fit(Real):
    def fit(self, callbacks, **config):
        trainer = DataParallelTrainer(
            loop, train_loop_config=config, scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(name="ray-run", storage_path=self.folder, callbacks=callbacks),
        )
        return trainer.fit()

    def address(self):
        """The driver's environment is not the workers'."""
        return {"socket": self.path}

    def test_the_controller_reports_every_rank(self):
        self.fit([StepwatchCallback(**self.address())], save=True)
        until(lambda: len(self.sink.events("step")) >= 8, "eight steps")
        for rank in (0, 1):
            events = [e for e in self.sink.events("step") if e["rank"] == rank]
            self.assertEqual([e["step"] for e in events], [1, 2, 3, 4])
            self.assert_losses(events, [1.0 / s + rank for s in (1, 2, 3, 4)])
            self.assertEqual({(e["world"], e["m"]["lr"], e["run"]) for e in events}, {(2, 0.1, "ray-run")})
        self.assertEqual({(e["name"], e["step"], e["m"]["loss"]) for e in self.sink.events("eval")}, {("val", 4, 2.5)})
        checkpoint = until(lambda: self.sink.events("ckpt"))[0]
        self.assertEqual((checkpoint["rank"], checkpoint["step"], checkpoint["phase"]), (0, 2, "end"))
        self.assertTrue(checkpoint["path"].startswith(self.folder))
        self.assertEqual((self.hello()["framework"], self.hello()["version"]), ("ray-train", ray.__version__))

    def test_the_controller_reports_exceptions(self):
        with self.assertRaises(Exception):
            self.fit([StepwatchCallback(**self.address())], fail=1)
        event = until(lambda: self.sink.events("event"))[0]
        self.assertEqual((event["name"], event["rank"], event["text"]), ("worker_failed", 1, "ValueError: bad shard 17"))
        byes = until(lambda: self.sink.events("bye")[1:] and {e["rank"]: e for e in self.sink.events("bye")})
        self.assertEqual((byes[1]["code"], byes[1]["text"]), (1, "ValueError: bad shard 17"))
        self.assertIsNone(byes[0].get("code"))

    def test_the_workers_report_themselves_and_how_long_they_waited(self):
        self.fit([StepwatchWorkerCallback(**self.address())], save=True)
        until(lambda: len(self.sink.events("step")) >= 8, "eight steps")
        for rank in (0, 1):
            events = [e for e in self.sink.events("step") if e["rank"] == rank]
            self.assertEqual([e["step"] for e in events], [1, 2, 3, 4])
            self.assert_losses(events, [1.0 / s + rank for s in (1, 2, 3, 4)])
            self.assertTrue(all(0 < e["t"]["report"] <= e["m"]["step_time"] + 0.01 for e in events[1:]), events)
        self.assertEqual(len({e["pid"] for e in self.sink.events("hello")}), 2)
        events = [e for e in self.sink.events("ckpt") if e["rank"] == 0]
        stages = [(e.get("stage", "save"), e["phase"], e["step"]) for e in sorted(events, key=lambda e: e["ts"])]
        self.assertEqual(sorted(stages), [("save", "end", 2), ("save", "start", 2), ("upload", "end", 2), ("upload", "start", 2)])
        self.assertTrue(os.path.isfile(os.path.join(events[1]["path"], "weights")))
        byes = until(lambda: self.sink.events("bye")[1:] and self.sink.events("bye"))
        self.assertEqual({e["code"] for e in byes}, {0})

    def test_a_worker_that_failed_says_so_itself(self):
        with self.assertRaises(Exception):
            self.fit([StepwatchWorkerCallback(**self.address())], fail=1)
        byes = until(lambda: [e for e in self.sink.events("bye") if e["rank"] == 1])
        self.assertEqual((byes[0]["code"], byes[0]["text"]), (1, "ValueError: bad shard 17"))


if __name__ == "__main__":
    unittest.main()

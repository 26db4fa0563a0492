"""Orbax itself, on the processor: every stage of what it saves and restores."""

import os
import unittest
from unittest import mock

from peers import Real, require, until

ocp, jax = require("orbax.checkpoint", "jax")

import jax.numpy as jnp  # noqa: E402

import stepwatch  # noqa: E402
from stepwatch.jax import CheckpointReporter  # noqa: E402

ALL = [("save", "start"), ("save", "end"), ("write", "start"), ("write", "end"), ("durable", "end")]


def args():
    return ocp.args.StandardSave({"w": jnp.ones((64, 64))})


class Stages(Real):
    def of_step(self, step, count):
        def own():
            return sorted((e for e in self.sink.events("ckpt") if e.get("step") == step), key=lambda e: e["ts"])

        events = until(lambda: len(own()) >= count and own(), "%d events of step %d" % (count, step))
        self.assertEqual(len(events), count, events)
        return events

    def told(self, events):
        return [(e.get("stage", "save"), e["phase"]) for e in events]

    def size(self, path):
        return sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)

    def test_a_manager(self):
        path = os.path.join(self.folder, "manager")
        options = ocp.CheckpointManagerOptions(save_interval_steps=2)
        with stepwatch.Run("r") as run, ocp.CheckpointManager(path, options=options) as manager:
            with CheckpointReporter(run, manager):
                saved = []
                for step in range(4):
                    run.step(step, loss=1.0)
                    saved.append(manager.save(step, args=args()))
                manager.wait_until_finished()
                found = manager.restore(2, args=ocp.args.StandardRestore({"w": jnp.zeros((64, 64))}))
            self.assertEqual(saved, [True, False, True, False], "what it returned")
            self.assertEqual(float(found["w"].sum()), 4096.0)
            first, second = self.of_step(0, 5), self.of_step(2, 7)
            self.assertNotIn("save", vars(manager), "it is left as it was")
        self.assertEqual(self.told(first), ALL)
        self.assertEqual(self.told(second), ALL + [("load", "start"), ("load", "end")])
        for step, events in ((0, first), (2, second)):
            own = os.path.join(path, str(step))
            self.assertEqual({e["path"] for e in events}, {own})
            self.assertEqual([e["bytes"] for e in events if "bytes" in e], [self.size(own)])
        step = next(e for e in self.sink.events("step") if e["step"] == 3)
        self.assertAlmostEqual(step["t"]["ckpt"], second[1]["seconds"], places=5, msg="the write is no part of the step")

    def test_a_checkpointer_by_itself(self):
        path = os.path.join(self.folder, "step_7")
        with stepwatch.Run("r") as run, ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler()) as checkpointer:
            with CheckpointReporter(run, checkpointer):
                checkpointer.save(path, args=args())
                checkpointer.check_for_errors()
                checkpointer.wait_until_finished()
            self.assertEqual(self.told(self.of_step(7, 5)), ALL)

    def test_a_commit_that_fails(self):
        path = os.path.join(self.folder, "8")
        with stepwatch.Run("r") as run:
            checkpointer = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
            with CheckpointReporter(run, checkpointer):
                handler = checkpointer.handler
                with mock.patch.object(handler, "finalize", side_effect=OSError("no space left on device")):
                    checkpointer.save(path, args=args())
                    with self.assertRaisesRegex(OSError, "no space left"):
                        checkpointer.wait_until_finished()
            events = self.of_step(8, 4)
        self.assertEqual(self.told(events), ALL[:3] + [("write", "fail")])
        self.assertEqual(events[-1]["text"], "OSError: no space left on device")

    def test_a_save_that_is_refused(self):
        path = os.path.join(self.folder, "9")
        with stepwatch.Run("r") as run, ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler()) as checkpointer:
            os.mkdir(path)
            with CheckpointReporter(run, checkpointer):
                with self.assertRaises(ValueError):
                    checkpointer.save(path, args=args())
            self.assertEqual(self.told(self.of_step(9, 2)), [("save", "start"), ("save", "fail")])

    def test_one_that_the_step_waits_for(self):
        path = os.path.join(self.folder, "10")
        with stepwatch.Run("r") as run, CheckpointReporter(run, ocp.Checkpointer(ocp.StandardCheckpointHandler())) as reporter:
            reporter.checkpointer.save(path, args=args())
            events = self.of_step(10, 2)
        self.assertEqual(self.told(events), [("save", "start"), ("save", "end")])
        self.assertEqual(events[1]["bytes"], self.size(path))


if __name__ == "__main__":
    unittest.main()

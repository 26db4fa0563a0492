"""The reporter of Orbax against a stand-in with its functions, as the process of any number."""

import os
import sys
import threading
import types
import unittest
from unittest import mock

from support import Case, until

from stepwatch.jax import CheckpointReporter

ALL = [("save", "start"), ("save", "end"), ("write", "start"), ("write", "end"), ("durable", "end")]


class Asynchronous:
    """An ``AsyncCheckpointer``: every process makes the function that commits, and the primary host
    calls it."""

    def __init__(self, primary, process):
        self._primary_host, self.process = primary, process
        self.gate, self.thread = threading.Event(), None

    def save(self, directory, *args, **kwargs):
        commit = self._make_on_commit_callback()

        def write():
            self.gate.wait(20)
            if self._primary_host is None or self._primary_host == self.process:
                commit()

        self.thread = threading.Thread(target=write)
        self.thread.start()

    def _make_on_commit_callback(self):
        return lambda: None

    def check_for_errors(self):
        pass

    def wait_until_finished(self):
        self.gate.set()
        self.thread.join()

    def restore(self, directory):
        return directory


class Manager:
    def __init__(self, checkpointer):
        self._checkpointer = checkpointer

    def save(self, step):
        self._checkpointer.save("/c/%d" % step)
        return True


class Orbax(Case):
    def setUp(self):
        super().setUp()
        self.sink = self.receiver()

    def assert_reported(self, expected, primary, process, rank):
        jax = types.SimpleNamespace(process_index=lambda: process)
        run = self.run_(rank=rank, world=2)
        checkpointer = Asynchronous(primary, process)
        with mock.patch.dict(sys.modules, jax=jax), CheckpointReporter(run, checkpointer):
            checkpointer.save("/c/step_7")
            checkpointer.wait_until_finished()
        run.event("last")
        until(lambda: self.sink.events("event"))

        def events():
            return [e for e in self.sink.events("ckpt") if e["rank"] == rank]

        # What is whole is measured in a thread before it is reported.
        until(lambda: len(events()) >= len(expected))
        run.close()
        reported = [(e.get("stage", "save"), e["phase"]) for e in sorted(events(), key=lambda e: e["ts"])]
        self.assertEqual(reported, expected)

    def test_the_primary_host_leads_whichever_process_it_is(self):
        self.assert_reported(ALL, primary=1, process=1, rank=1)

    def test_the_first_process_does_not_lead_where_another_commits(self):
        self.assert_reported(ALL[2:4], primary=1, process=0, rank=0)

    def test_where_there_is_no_primary_host_each_commits_its_own(self):
        self.assert_reported(ALL, primary=None, process=1, rank=1)

    def test_the_step_of_a_save_is_the_one_that_the_run_reports(self):
        """The manager may be given the epoch."""
        run = self.run_()
        manager = Manager(Asynchronous(0, 0))
        with mock.patch.dict(sys.modules, jax=types.SimpleNamespace(process_index=lambda: 0)), CheckpointReporter(run, manager):
            for step, named in ((500, 3), (501, 501), (502, 503)):
                run.step(step)
                manager.save(named)
                manager._checkpointer.wait_until_finished()
            manager._checkpointer.restore("/c/3")
        events = until(lambda: len(self.sink.events("ckpt")) == 17 and self.sink.events("ckpt"))
        steps = {(os.path.basename(e["path"]), e["step"]) for e in events if e.get("stage") != "load"}
        self.assertEqual(steps, {("3", 500), ("501", 501), ("503", 503)})
        self.assertEqual({e["step"] for e in events if e.get("stage") == "load"}, {3})


if __name__ == "__main__":
    unittest.main()

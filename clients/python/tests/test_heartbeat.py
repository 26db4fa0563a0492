"""The page in shared memory shows where a process is: while it hangs, is stopped, holds the
interpreter, and after it was killed."""

import json
import os
import random
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
import unittest
from unittest import mock

from support import ROOT, Case, until

import stepwatch
from stepwatch import _heartbeat, _status


class WithPages(Case):
    def setUp(self):
        super().setUp()
        self.pages = os.path.join(self.folder, "shm")
        patch = mock.patch.dict(os.environ, {"STEPWATCH_SHM": self.pages})
        patch.start()
        self.addCleanup(patch.stop)

    def page(self, pid):
        return _heartbeat.read(os.path.join(self.pages, "%d.hb" % pid))

    def here(self):
        return self.page(os.getpid())

    def status(self, *arguments):
        """Runs the command in a process of its own; (exit status, stdout)."""
        code, out, err = self.program("-m", "stepwatch", "status", *arguments)
        self.assertEqual(err, "")
        return code, out

    def started(self, code):
        """A process that runs ``code`` with a page, once it has printed a line."""
        env = dict(os.environ, PYTHONPATH=ROOT, STEPWATCH_SOCKET=self.path)
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], env=env, stdout=subprocess.PIPE, universal_newlines=True
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process


class Page(WithPages):
    def test_the_layout_is_what_others_read(self):
        run = self.run_("grünes Lama", rank=3)
        before = time.time()
        run.step(41)
        run.step(42, loss=1.0)
        with run.phase("eval"):
            with open(os.path.join(self.pages, "%d.hb" % os.getpid()), "rb") as f:
                page = f.read()
        after = time.time()
        self.assertEqual(len(page), 256)
        self.assertEqual(page[:8], b"STEPWHB1")
        sequence, step, step_at, beat_at, phase_at, pid, rank, start = struct.unpack_from("<QqdddIIQ", page, 8)
        self.assertEqual((sequence % 2, step, pid, rank), (0, 42, os.getpid(), 3))
        with open("/proc/self/stat") as f:
            self.assertEqual(start, int(f.read().rsplit(")", 1)[1].split()[19]))
        for at in (step_at, phase_at):
            # The step is timed by the monotonic clock, whose distance from Unix time is rounded.
            self.assertTrue(before - 0.001 <= at <= after + 0.001, (before, at, after))
        self.assertLess(abs(beat_at - after), 20)
        self.assertEqual(page[64:96], b"eval".ljust(32, b"\0"))
        self.assertEqual(page[96:192], "grünes Lama".encode().ljust(96, b"\0"))
        self.assertEqual(page[192:], struct.pack("<Q", os.stat("/proc/self/ns/pid").st_ino).ljust(64, b"\0"))

    def test_phases_nest_and_end(self):
        run = self.run_()
        self.assertEqual((self.here().phase, self.here().step), ("", None))
        with run.phase("eval"):
            outer = self.here()
            with run.phase("data"):
                self.assertEqual(self.here().phase, "data")
            self.assertEqual(self.here().phase, "eval")
            self.assertAlmostEqual(self.here().phase_at, outer.phase_at, places=3)
        with run.checkpoint(1, path="x"):
            self.assertEqual(self.here().phase, "ckpt")
        self.assertEqual((self.here().phase, self.here().phase_at), ("", 0.0))

    def test_anyone_may_read_and_only_the_owner_remove(self):
        before = os.umask(0o077)
        self.addCleanup(os.umask, before)
        self.run_()
        self.assertEqual(os.stat(self.pages).st_mode & 0o7777, 0o1777)
        self.assertEqual(os.stat(os.path.join(self.pages, "%d.hb" % os.getpid())).st_mode & 0o7777, 0o644)

    def test_long_and_strange_names(self):
        run = self.run_("\u20ac" * 100, rank=-5)
        with run.phase("\u20ac" * 30, announce=False):
            self.assertEqual((self.here().run, self.here().phase), ("\u20ac" * 32, "\u20ac" * 10))
        with run.phase("\ud800"):
            self.assertEqual(self.here().phase, "?")

    def test_steps_that_are_not_plain_numbers(self):
        run = self.run_()
        run.step(7.0)
        self.assertEqual(self.here().step, 7)
        for odd in (None, "x", 2**70, float("nan"), object()):
            run.step(odd)
        self.assertEqual(self.here().step, 7)

    def test_a_report_of_an_earlier_step_does_not_take_it_back(self):
        run = self.run_()
        now = time.monotonic()
        run.report(now - 100, None, 4, {})
        self.assertAlmostEqual(self.here().step_at, time.time() - 100, delta=5)
        run.mark(6)
        run.report(now, None, 5, {})
        self.assertEqual(self.here().step, 6)

    def test_the_sending_thread_beats(self):
        self.run_()
        first = self.here().beat_at
        until(lambda: self.here().beat_at > first, "a beat")

    def test_it_goes_with_the_run_and_the_next_run_has_its_own(self):
        with self.run_("a") as first:
            second = self.run_("b")
            self.assertEqual(self.here().run, "a", "one process, one page")
        self.assertEqual(os.listdir(self.pages), [])
        second.step(1)
        self.run_("c")
        self.assertEqual(self.here().run, "c")
        first.step(1)
        with first.phase("eval"):
            self.assertEqual((self.here().step, self.here().phase), (None, ""))

    def test_turned_off(self):
        with mock.patch.dict(os.environ, {"STEPWATCH_SHM": ""}):
            self.run_().step(1)
        self.run_(disabled=True).step(1)
        self.run_(socket="").step(1)
        self.assertFalse(os.path.exists(self.pages))

    def test_where_there_can_be_no_page_the_run_goes_on(self):
        receiver = self.receiver()
        file = os.path.join(self.folder, "file")
        open(file, "w").close()
        os.symlink(self.folder, os.path.join(self.folder, "link"))
        for place in (file, file + "/below", "/proc/nothing", os.path.join(self.folder, "link")):
            with mock.patch.dict(os.environ, {"STEPWATCH_SHM": place}):
                run = self.run_()
                run.step(1)
                run.close()
        until(lambda: receiver.steps() == [1, 1, 1, 1])
        self.assertEqual([n for n in os.listdir(self.folder) if n.endswith(".hb")], [])

    def test_shared_memory_that_is_full(self):
        with mock.patch.object(_heartbeat.os, "write", side_effect=OSError(28, "No space left on device")):
            page = _heartbeat.Page("r", 0)
            page.open()
        page.step(1, 0.0)
        self.assertEqual(os.listdir(self.pages), [])

    def test_the_page_of_a_process_that_had_our_number(self):
        os.mkdir(self.pages)
        with open(os.path.join(self.pages, "%d.hb" % os.getpid()), "w") as f:
            f.write("old")
        self.run_("new")
        self.assertEqual(self.here().run, "new")

    def test_pages_of_long_dead_processes_are_swept(self):
        os.mkdir(self.pages)
        dead = subprocess.Popen(["true"])
        dead.wait()
        for name, pid, age in (("old", dead.pid, 2 * _heartbeat.KEPT), ("fresh", dead.pid + 1, 1.0)):
            self.forge(pid, name, time.time() - age)
        self.run_()
        until(lambda: self.page(dead.pid) is None)
        self.assertEqual(self.page(dead.pid + 1).run, "fresh")

    def test_a_pid_of_another_namespace_is_not_taken_for_a_dead_one(self):
        os.mkdir(self.pages)
        self.forge(os.getpid(), "contained", time.time(), namespace=1)
        code, out = self.status()
        self.assertIn("unseen", out)
        self.assertNotIn("killed", out)

    def forge(self, pid, name, beat, namespace=0):
        page = _heartbeat._LAYOUT.pack(b"STEPWHB1", 0, 1, beat, beat, 0.0, pid, 0, 1, b"", name.encode(), namespace)
        with open(os.path.join(self.pages, "%d.hb" % pid), "wb") as f:
            f.write(page.ljust(256, b"\0"))


class Forks(WithPages):
    def test_a_child_never_writes_its_parents_page(self):
        code, out, err = self.script("""
            import os, stepwatch
            from stepwatch import _heartbeat
            at = lambda pid: _heartbeat.read("%s/%d.hb" % (os.environ["STEPWATCH_SHM"], pid))
            run = stepwatch.Run("r")
            run.step(1)
            with run.phase("eval"):
                pid = os.fork()
                if pid == 0:
                    with run.phase("data"):
                        assert at(os.getpid()) is None, "it has reported nothing"
                    run.step(1000)
                    assert at(os.getpid()).step == 1000
                    assert (at(os.getppid()).step, at(os.getppid()).phase) == (1, "eval")
                    run.close()
                    assert at(os.getpid()) is None
                    os._exit(0)
                assert os.waitpid(pid, 0)[1] == 0
            assert (at(os.getpid()).step, at(os.getpid()).phase) == (1, "")
        """, STEPWATCH_SHM=self.pages)
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(os.listdir(self.pages), [], "gone with the process that made it")


class Hangs(WithPages):
    def test_a_stopped_process(self):
        process = self.started("""
            import stepwatch, time
            run = stepwatch.Run("llama", rank=5)
            run.step(1234)
            with run.phase("forward"):
                print("ready", flush=True)
                time.sleep(60)
        """)
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: self.page(process.pid).state() == "stopped")
        code, out = self.status()
        self.assertEqual(code, 0)
        head, row = out.splitlines()
        self.assertEqual(head.split()[:5], ["RUN", "RANK", "PID", "STATE", "STEP"])
        self.assertRegex(row, r"^llama +5 +%d  stopped +1234 +\d+\.\ds  forward +\d+\.\ds +\d+\.\ds$" % process.pid)

    def test_c_code_that_holds_the_interpreter(self):
        process = self.started("""
            import ctypes, stepwatch
            run = stepwatch.Run("r")
            run.step(7)
            with run.phase("allreduce"):
                print("ready", flush=True)
                ctypes.PyDLL(None).sleep(60)  # PyDLL keeps the interpreter lock
        """)

        def silent():
            before = self.page(process.pid).beat_at
            self.status()
            return self.page(process.pid).beat_at == before

        until(silent, "the interpreter held")
        code, out = self.status("--json", "--run", "r")
        (row,) = [json.loads(line) for line in out.splitlines()]
        self.assertEqual((row["state"], row["step"], row["phase"]), ("running", 7, "allreduce"))
        later = row["beat_at"] + _status.STALLED + 1
        with mock.patch.object(_heartbeat.Beat, "state", lambda _: "running"):
            self.assertIn("C code holds the interpreter", _status.table([self.page(process.pid)], later))

    def test_a_killed_process_leaves_its_page(self):
        process = self.started("""
            import stepwatch, time
            run = stepwatch.Run("r")
            run.step(9)
            with run.phase("ckpt"):
                print("ready", flush=True)
                time.sleep(60)
        """)
        process.kill()
        until(lambda: self.page(process.pid).state() == "zombie")
        process.wait()
        beat = self.page(process.pid)
        self.assertEqual((beat.state(), beat.step, beat.phase), ("dead", 9, "ckpt"))
        self.assertIn("killed: it did not say goodbye", self.status()[1])

    def test_a_number_that_is_used_again_is_not_the_same_process(self):
        self.run_()
        beat = self.here()
        self.assertEqual((beat.state(), beat._replace(started=beat.started - 1).state()), ("running", "dead"))

    def test_an_orderly_end_leaves_nothing(self):
        for code in ("run.close()", "raise SystemExit(3)", "raise RuntimeError", "import os; os.kill(os.getpid(), 15)"):
            self.script("import stepwatch; run = stepwatch.Run('r'); run.step(1); " + code)
            self.assertEqual(os.listdir(self.pages), [], code)


class Reading(WithPages):
    def test_a_writer_and_a_reader_at_once(self):
        run = self.run_()
        names = ("a" * 32, "b" * 32)
        done = threading.Event()
        torn = []

        def read():
            while not done.is_set():
                phase = self.here().phase
                if phase not in names + ("",):
                    torn.append(phase)

        thread = threading.Thread(target=read)
        thread.start()
        for i in range(3000):
            with run.phase(names[i % 2], announce=False):
                run.step(i)
        done.set()
        thread.join()
        self.assertEqual(torn, [])

    def test_whatever_lies_there_is_read_or_left_out(self):
        os.mkdir(self.pages)
        dice = random.Random(5)
        path = os.path.join(self.pages, "1.hb")
        for size in list(range(0, 20)) + [255, 256, 257, 5000]:
            for magic in (b"", b"STEPWHB1"):
                with open(path, "wb") as f:
                    f.write((magic + bytes(dice.randrange(256) for _ in range(size)))[:size])
                for beat in _heartbeat.pages(self.pages):
                    _status.table([beat], 1e9)
                    json.dumps(_status.as_json(beat))
        os.unlink(path)
        os.mkdir(path)
        os.mkfifo(os.path.join(self.pages, "2.hb"))
        os.symlink("/dev/zero", os.path.join(self.pages, "3.hb"))
        self.assertEqual(_heartbeat.pages(self.pages), [])
        self.assertEqual(self.status()[0], 1)

    def test_nobody_writes_to_the_terminal(self):
        self.run_("a\x1b[31mb\nc")
        self.assertIn("a?[31mb?c", _status.table([self.here()], time.time()))

    def test_ages(self):
        for seconds, shown in ((None, "-"), (-1, "0.0s"), (0.04, "0.0s"), (99.9, "99.9s"), (100, "1m40s"), (3599, "59m59s"),
                               (3600, "1h00m"), (86399, "23h59m"), (90000, "1d01h"), (1e9, "11574d01h")):
            self.assertEqual(_status.age(seconds), shown)
        for odd in (float("nan"), float("inf"), -float("inf")):
            _status.age(odd)

    def test_nothing_to_show(self):
        self.assertEqual(self.status(), (1, "no training process has a page in %s\n" % self.pages))


class Cost(WithPages):
    def test_a_run_has_its_page_from_the_first_step_on(self):
        run = stepwatch.Run("r", socket=self.path)
        self.addCleanup(run.close)
        run.step(0)
        self.assertEqual(self.here().step, 0)


if __name__ == "__main__":
    unittest.main()

"""The rule, held to the table that the exporter is held to, and what it says of real processes."""

import json
import os
import re
import subprocess
import sys
import unittest

from support import ROOT, Case, until

from stepwatch import _run_name

CASES = os.path.join(ROOT, "..", "..", "wire", "src", "run_name", "cases.json")
UNNAMED = r"^%s-[0-9]{8}-[0-9]{6}-[0-9a-f]{8}$"


def process(case):
    return _run_name.Process(case["env"], case["argv"].split(), case["started"], case["mark"])


class Table(unittest.TestCase):
    def test_the_cases_of_the_exporter(self):
        with open(CASES) as f:
            cases = json.load(f)
        self.assertGreaterEqual(len(cases), 30)
        for case in cases:
            named = _run_name.name([process(p) for p in case["chain"]])
            want = (case["run"], case["by"], case["why"], case.get("unnamed", case["run"]), case.get("job"), case.get("restarts"))
            got = (named.run, named.by, named.why, named.unnamed, named.job.id if named.job else None, named.restarts)
            self.assertEqual(got, want, case["title"])

    def test_the_end_of_a_name_is_never_cut(self):
        named = _run_name.name([_run_name.Process({"SLURM_JOB_ID": "101", "SLURM_JOB_NAME": "x" * 300}, [], 0.0, "")])
        self.assertEqual((len(named.run), named.run[-5:]), (_run_name.MAX_CHARS, "x-101"))


TRAIN = """
import json, multiprocessing, os, sys
import stepwatch
from stepwatch import _run_name

def say(out):
    print(json.dumps(_run_name.here().run), file=out, flush=True)

def work(path):
    with open(path, "a") as out:
        say(out)

if __name__ == "__main__":
    say(sys.stdout)
    for method in sys.argv[1:]:
        child = multiprocessing.get_context(method).Process(target=work, args=(os.path.join(sys.argv[0] + ".out"),))
        child.start()
        child.join()
    sys.stdin.read()
"""


class Processes(Case):
    def setUp(self):
        super().setUp()
        self.train = os.path.join(self.folder, "train.py")
        with open(self.train, "w") as f:
            f.write(TRAIN)

    def start(self, *arguments, **environment):
        """A script that says its name and runs until it is done with."""
        env = dict(os.environ, PYTHONPATH=ROOT, PYTHONDONTWRITEBYTECODE="1", **environment)
        started = subprocess.Popen(
            [sys.executable, self.train] + list(arguments), env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True
        )
        self.addCleanup(started.communicate)
        return json.loads(started.stdout.readline())

    def test_two_scripts_at_one_time_are_two_runs(self):
        one, other = self.start(), self.start()
        self.assertRegex(one, UNNAMED % "train")
        self.assertRegex(other, UNNAMED % "train")
        self.assertNotEqual(one, other)

    def test_its_workers_are_of_its_run(self):
        name = self.start("fork", "spawn", "forkserver")
        path = self.train + ".out"

        def said():
            if not os.path.exists(path):
                return []
            with open(path) as f:
                return [json.loads(line) for line in f]

        until(lambda: len(said()) == 3)
        self.assertEqual(said(), [name] * 3)

    def test_ranks_that_one_process_starts_are_of_one_run(self):
        ranks = [self.start(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1") for rank in (0, 1)]
        self.assertEqual(*ranks)

    def test_without_proc_a_process_has_a_name_of_its_own(self):
        read, _run_name._read = _run_name._read, lambda path: open("/nowhere/" + path)
        try:
            named = _run_name.here({})
        finally:
            _run_name._read = read
        self.assertEqual(named.by, "script")

    def test_hello_says_by_what_the_run_has_its_name(self):
        receiver = self.receiver()
        self.run_("mine")
        hello = until(lambda: receiver.events("hello"))[0]
        self.assertEqual((hello["run"], hello["run_by"], hello["run_why"]), ("mine", "name", "named by the script"))
        self.assertTrue(hello["run_unnamed"])
        self.assertNotEqual(hello["run_unnamed"], "mine")

    def test_a_job_that_is_given_names_the_run(self):
        receiver = self.receiver()
        run = self.run_(None, job="77")
        hello = until(lambda: receiver.events("hello"))[0]
        self.assertTrue(re.search("-77$", run.name), run.name)
        self.assertEqual((hello["job"], hello["run_by"]), ("77", "job"))


if __name__ == "__main__":
    unittest.main()

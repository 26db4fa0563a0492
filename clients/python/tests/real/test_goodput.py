"""Google's ml-goodput-measurement itself gives the answers with which the run ledger is compared."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from peers import ROOT, require

require("ml_goodput_measurement")

REPOSITORY = os.path.dirname(os.path.dirname(ROOT))
ORACLE = os.path.join(REPOSITORY, "tests", "scripts", "goodput_oracle.py")
LOGS = os.path.join(REPOSITORY, "alerter", "detect", "tests", "data", "goodput")


def read(folder):
    with open(os.path.join(folder, "mgm.json")) as answers:
        return json.load(answers)


class Goodput(unittest.TestCase):
    def test_it_answers_what_is_stored(self):
        logs = sorted(name for name in os.listdir(LOGS) if name.endswith(".jsonl"))
        with tempfile.TemporaryDirectory() as folder:
            for name in logs:
                shutil.copy(os.path.join(LOGS, name), folder)
            asked = subprocess.run([sys.executable, ORACLE, folder], capture_output=True, text=True, timeout=300)
            self.assertEqual(asked.returncode, 0, asked.stderr)
            found = read(folder)
        stored = read(LOGS)
        self.assertEqual(sorted(found["answers"]), [name.removesuffix(".jsonl") for name in logs])
        self.assertEqual(found, stored)


if __name__ == "__main__":
    unittest.main()

"""What the tests against real frameworks share. They are skipped loudly where a framework is
absent, and fail instead where ``STEPWATCH_REQUIRE_PEERS=1`` says that it must be there."""

import importlib
import math
import os
import sys
import unittest
from importlib import metadata

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from support import ROOT, Case, until  # noqa: F401, E402


def require(*names):
    """The modules; skips the test module when one is not installed."""
    found = []
    for name in names:
        try:
            found.append(importlib.import_module(name))
        except ImportError as e:
            if os.environ.get("STEPWATCH_REQUIRE_PEERS") == "1":
                raise
            print("SKIPPED: %s is not installed: its adapter was not tested against it (%s)" % (name, e), file=sys.stderr)
            raise unittest.SkipTest("%s is not installed" % name)
    print("tested against %s %s" % (found[0].__name__.split(".")[0], _version(found[0])), file=sys.stderr)
    return found[0] if len(found) == 1 else found


def _version(module):
    """What it says of itself, else what its package is installed as."""
    top = module.__name__.split(".")[0]
    said = getattr(module, "__version__", None)
    if said:
        return said
    for name in metadata.packages_distributions().get(top, [top]):
        return metadata.version(name)
    return ""


class Real(Case):
    """A test whose adapter makes its own run and finds the receiver by the environment, as users'
    do."""

    #: Frameworks take many seconds to import, on a busy machine a minute.
    timeout = 300

    def setUp(self):
        super().setUp()
        self.sink = self.receiver()
        self.set_env(STEPWATCH_SOCKET=self.path)
        here = os.getcwd()
        os.chdir(self.folder)  # frameworks write logs where they stand
        self.addCleanup(os.chdir, here)

    def set_env(self, **values):
        for name, value in values.items():
            before = os.environ.get(name)
            os.environ[name] = value
            self.addCleanup(os.environ.__setitem__ if before is not None else os.environ.pop, name, before)

    def steps(self, count):
        return until(lambda: len(self.sink.events("step")) >= count and self.sink.events("step"), "%d steps" % count)

    def bye(self):
        return until(lambda: self.sink.events("bye"), "a goodbye")[-1]

    def hello(self):
        return until(lambda: self.sink.events("hello"), "a hello")[-1]

    def assert_losses(self, events, expected, places=5):
        found = [e["m"].get("loss") for e in events]
        self.assertEqual(len(found), len(expected), (found, expected))
        for a, b in zip(found, expected):
            if b is None or a is None:
                self.assertEqual(a, b)
            elif math.isnan(b):
                self.assertTrue(isinstance(a, float) and math.isnan(a), (found, expected))
            else:
                self.assertAlmostEqual(a, b, places=places)

    def assert_sizes(self):
        """Those of the checkpoints, as far as the run did not end before they were known."""
        ends = [e for e in self.sink.events("ckpt") if e["phase"] == "end"]
        self.assertIn("bytes", ends[0])
        for e in ends:
            self.assertEqual(e.get("bytes", os.path.getsize(e["path"])), os.path.getsize(e["path"]))

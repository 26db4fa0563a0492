"""The client as one file: nothing but that file and Python, in a folder of its own."""

import ast
import os
import random
import subprocess
import sys
import unittest

from support import Case, until

from stepwatch import _bundle

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Bundle(Case):
    def setUp(self):
        super().setUp()
        self.cluster = os.path.join(self.folder, "cluster")
        os.mkdir(self.cluster)
        self.file = os.path.join(self.cluster, "stepwatch.py")
        status, out, err = self.program("-m", "stepwatch", "bundle", "-o", self.file)
        self.assertEqual((status, err), (0, ""))
        self.assertIn("KiB", out)

    def isolated(self, *arguments, **more):
        """Runs Python as isolated as it can be in the folder of the bundle; (status, stdout,
        stderr)."""
        env = {"PATH": os.environ["PATH"], "STEPWATCH_SOCKET": self.path, "STEPWATCH_SHM": ""}
        env.update(more)
        command = [sys.executable, "-I", "-S", "-B", "-W", "error"] + [str(a) for a in arguments]
        done = subprocess.run(command, cwd=self.cluster, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, universal_newlines=True)
        return done.returncode, done.stdout, done.stderr

    def script(self, code):
        path = os.path.join(self.cluster, "train.py")
        with open(path, "w") as f:
            f.write("import sys\nsys.path.insert(0, %r)\n" % self.cluster + code)
        return self.isolated(path)

    def test_every_python_that_is_supported_can_read_it(self):
        with open(self.file, encoding="utf-8") as f:
            text = f.read()
        tree = ast.parse(text, feature_version=(3, 8))
        module = {}
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
                key = node.targets[0].slice
                module[key.value if isinstance(key, ast.Constant) else key.value.value] = ast.literal_eval(node.value)
        names = {n[:-3] for n in os.listdir(os.path.join(ROOT, "stepwatch")) if n.endswith(".py")} - {"__main__"}
        self.assertEqual(set(module), names)
        for name, source in module.items():
            ast.parse(source, feature_version=(3, 8))
            with open(os.path.join(ROOT, "stepwatch", name + ".py"), encoding="utf-8") as f:
                self.assertEqual(source, f.read())
            self.assertTrue(source in text, name + " is not readable as it is")

    def test_nothing_but_the_standard_library_is_imported_by_name(self):
        status, out, err = self.script("import stepwatch, stepwatch.torch, stepwatch._launch, stepwatch._status\nprint(*sorted(sys.modules))")
        self.assertEqual((status, err), (0, ""))
        tops = {name.partition(".")[0] for name in out.split()}
        allowed = getattr(sys, "stdlib_module_names", tops)
        self.assertEqual([t for t in sorted(tops) if t not in allowed and t not in ("stepwatch", "__main__", "_sysconfigdata") and not t.startswith("_")], [])

    def test_a_run(self):
        receiver = self.receiver()
        status, out, err = self.script("""
import stepwatch
from stepwatch.torch import StepReporter
import stepwatch.huggingface
assert stepwatch.__file__ == %r, stepwatch.__file__
with stepwatch.Run("r") as run:
    with StepReporter(run) as reporter:
        reporter.step(1, loss=2.0)
""" % self.file)
        self.assertEqual((status, out, err), (0, "", ""))
        until(lambda: receiver.events("bye"))
        self.assertEqual(receiver.steps(), [1])
        self.assertEqual(sorted(os.listdir(self.cluster)), ["stepwatch.py", "train.py"])

    def test_the_command_line(self):
        receiver = self.receiver()
        status, out, err = self.isolated("stepwatch.py", "run", "--run", "x", "--", "sh", "-c", "echo loss 2.5; exit 3")
        self.assertEqual((status, out, err), (3, "loss 2.5\n", ""))
        until(lambda: receiver.events("bye"))
        self.assertEqual([e["lines"] for e in receiver.events("event")], [["loss 2.5"]])
        self.assertEqual(self.isolated("stepwatch.py", "nonsense")[0], 64)
        self.assertEqual(self.isolated("stepwatch.py", "status")[0], 1)
        self.assertIn("stepwatch", self.isolated("stepwatch.py", "--version")[1])

    def test_a_bundle_makes_the_same_bundle(self):
        status, out, err = self.isolated("stepwatch.py", "bundle", "-o", "-")
        self.assertEqual((status, err), (0, ""))
        with open(self.file, encoding="utf-8") as f:
            self.assertEqual(out, f.read())

    def test_tracebacks_show_the_line(self):
        status, out, err = self.script("""
import stepwatch, traceback
from stepwatch._wire import integer
try:
    integer(float("nan"))
except Exception:
    print(traceback.format_exc())
""")
        self.assertEqual((status, err), (0, ""))
        self.assertIn('stepwatch.py/_wire.py", line ', out)
        self.assertIn('raise Unreadable("a step is a whole number")', out)

    def test_it_forks(self):
        receiver = self.receiver()
        status, out, err = self.script("""
import os, stepwatch
with stepwatch.Run("r") as run:
    pid = os.fork()
    if pid == 0:
        run.step(2)
        run.close()
        os._exit(0)
    os.waitpid(pid, 0)
    run.step(1)
""")
        self.assertEqual(status, 0, err)
        until(lambda: len(receiver.events("bye")) == 2)
        self.assertEqual(sorted(receiver.steps()), [1, 2])

    def test_where_it_cannot_be_written(self):
        status, out, err = self.program("-m", "stepwatch", "bundle", "-o", "/no/such/folder/x.py")
        self.assertEqual((status, out), (1, ""))
        self.assertIn("No such file", err)

    def test_any_source_survives(self):
        dice = random.Random(8)
        for _ in range(2000):
            source = "".join(dice.choice(["'", '"', "\\", "\n", "a", "\r", "\0", "\u20ac", "\x0c"]) for _ in range(dice.randrange(12)))
            self.assertEqual(ast.literal_eval(_bundle.literal(source)), source)


if __name__ == "__main__":
    unittest.main()

"""What is installed: the wheel and the source distribution hold what they should, and work; and
every module keeps its types."""

import ast
import os
import shutil
import subprocess
import sys
import tarfile
import unittest
import zipfile

from support import Case, needs

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODULES = sorted("stepwatch/" + name for name in os.listdir(os.path.join(ROOT, "stepwatch")) if name.endswith(".py"))


class Distributions(Case):
    @classmethod
    def setUpClass(cls):
        needs("build", "setuptools", "wheel")

    def setUp(self):
        super().setUp()
        source = os.path.join(self.folder, "source")
        shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns("__pycache__", ".*", "build", "dist", "*.egg-info"))
        out = os.path.join(self.folder, "dist")
        self.check([sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", "--outdir", out, source])
        names = sorted(os.listdir(out))
        self.assertEqual([n.split("-")[0] for n in names], ["stepwatch", "stepwatch"])
        self.wheel, self.sdist = (os.path.join(out, name) for name in names)

    def check(self, command, **more):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, universal_newlines=True, **more)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_both_hold_what_they_should_and_work(self):
        self.assertRegex(os.path.basename(self.wheel), r"^stepwatch-[\d.]+-py3-none-any\.whl$")
        with zipfile.ZipFile(self.wheel) as wheel:
            names = set(wheel.namelist())
            about = {name.rsplit("/", 1)[1]: wheel.read(name).decode() for name in names if ".dist-info/" in name}
        package = {name for name in names if ".dist-info/" not in name}
        self.assertEqual(package, set(MODULES) | {"stepwatch/py.typed"}, "all of the package and nothing else: no tests, no bench")
        self.assertIn("Apache License", about["LICENSE"])
        self.assertIn("[console_scripts]\nstepwatch = stepwatch._cli:main", about["entry_points.txt"])
        self.assertIn("[lightning.pytorch.callbacks_factory]", about["entry_points.txt"])
        self.assertIn("Requires-Python: >=3.8", about["METADATA"])
        self.assertNotIn("Requires-Dist", about["METADATA"])
        self.assertIn("# stepwatch", about["METADATA"], "the README is the long description")
        self.sdist_holds_what_builds()
        self.installed_it_works()

    def sdist_holds_what_builds(self):
        with tarfile.open(self.sdist) as sdist:
            names = {name.split("/", 1)[1] for name in sdist.getnames() if "/" in name}
        self.assertLessEqual(set(MODULES) | {"stepwatch/py.typed", "pyproject.toml", "README.md", "LICENSE"}, names)
        for name in names:
            self.assertNotRegex(name, r"^(tests|bench|examples)(/|$)")

    def installed_it_works(self):
        place = os.path.join(self.folder, "installed")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        self.check(pip + ["--no-index", "--no-deps", "--target", place, self.wheel])
        env = dict(os.environ, PYTHONPATH=place)
        self.assertIn("stepwatch 0.", self.check([os.path.join(place, "bin", "stepwatch"), "--version"], env=env))
        self.assertEqual(self.check([os.path.join(place, "bin", "stepwatch"), "run", "--", "echo", "hi"], env=env), "hi\n")


class Sources(unittest.TestCase):
    def test_types(self):
        needs("mypy")
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull], cwd=ROOT, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=300, universal_newlines=True,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_every_python_that_is_supported_can_read_it(self):
        for name in MODULES:
            with open(os.path.join(ROOT, name), encoding="utf-8") as f:
                ast.parse(f.read(), name, feature_version=(3, 8))


if __name__ == "__main__":
    unittest.main()

"""The images, and the first look with Compose: read by hadolint and by the types of the Compose
specification.
"""

import os
import re
import shutil
import subprocess
import sys
import unittest

from support import DEPLOY, NEEDS, REQUIRED, ROOT, chart, program

try:
    import yaml
    from compose_spec import PyCompose
except ImportError:
    if REQUIRED:
        raise
    PyCompose = None

COMPOSE = DEPLOY / "compose.yml"
# What a machine has, and Compose makes.
OF_THE_MACHINE = {"/dev/shm", "/proc", "/run/stepwatch", "/sys"}


@unittest.skipUnless(chart and PyCompose, NEEDS)
class Images(unittest.TestCase):
    def setUp(self):
        self.text = (DEPLOY / "Dockerfile").read_text()

    def test_hadolint_finds_nothing(self):
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        hadolint = shutil.which("hadolint", path=path)
        self.assertIsNotNone(hadolint, NEEDS)
        # DL3008: the compiler of the other architecture is that of the Debian of the image.
        run = subprocess.run(
            [hadolint, "--ignore", "DL3008", DEPLOY / "Dockerfile"], capture_output=True, text=True
        )
        self.assertEqual((run.returncode, run.stdout), (0, ""))

    def test_they_are_built_by_the_compiler_of_the_workspace(self):
        toolchain = (ROOT / "rust-toolchain.toml").read_text()
        [version] = re.findall(r'channel = "(.+)"', toolchain)
        self.assertIn(f"rust:{version}-bookworm AS build", self.text)
        self.assertIn(f"RUSTUP_TOOLCHAIN={version}\n", self.text)

    def test_each_program_has_one_and_is_not_root_in_it(self):
        stages = self.text.split("\nFROM ")[1:]
        heads = [stage.splitlines()[0] for stage in stages]
        base = "gcr.io/distroless/cc-debian12:nonroot"
        self.assertEqual(heads[1:], [f"{base} AS exporter", f"{base} AS alerter"])
        # The C library of the compiler's Debian, 12, is that of the base.
        self.assertIn("bookworm", heads[0])
        for stage, name in zip(stages[1:], ("exporter", "alerter")):
            self.assertIn(f'ENTRYPOINT ["/usr/bin/stepwatch-{name}"]', stage)
            self.assertNotIn("USER", stage)


@unittest.skipUnless(chart and PyCompose, NEEDS)
class Compose(unittest.TestCase):
    def setUp(self):
        self.compose = yaml.safe_load(COMPOSE.read_text())

    def test_it_is_what_the_specification_allows(self):
        PyCompose.from_yaml(COMPOSE.read_text())
        with self.assertRaises(ValueError):
            PyCompose.from_yaml(COMPOSE.read_text().replace("read_only:", "readonly:"))

    def test_what_it_mounts_exists(self):
        volumes = set(self.compose["volumes"])
        for name, service in self.compose["services"].items():
            for volume in service.get("volumes", []):
                source = volume.split(":")[0]
                if source.startswith("."):
                    self.assertTrue((DEPLOY / source).exists(), f"{name}: {source}")
                else:
                    self.assertIn(source, volumes | OF_THE_MACHINE)
            build = service.get("build")
            if build:
                context = DEPLOY / build["context"]
                self.assertTrue((context / build["dockerfile"]).exists())
                dockerfile = (DEPLOY / "Dockerfile").read_text()
                self.assertIn(f" AS {build['target']}\n", dockerfile)

    def test_only_this_machine_reaches_it(self):
        for service in self.compose["services"].values():
            for port in service["ports"]:
                self.assertTrue(port.startswith("127.0.0.1:"), port)

    def test_the_replicas_are_two_on_one_database(self):
        text = (DEPLOY / "compose" / "replicas.yml").read_text()
        PyCompose.from_yaml(text)
        services = yaml.safe_load(text)["services"]
        for name in ("alerter", "alerter-2"):
            service = services[name]
            url = service["environment"]["STEPWATCH_ADVERTISE_URL"]
            self.assertEqual(url, f"http://{name}:9766")
            [mount] = service["volumes"]
            self.assertTrue((DEPLOY / mount.split(":")[0]).exists(), mount)
        config = yaml.safe_load((DEPLOY / "compose" / "alerter-replicas.yml").read_text())
        variables = {v for k, v in config["storage"]["postgres"].items() if k.endswith("_env")}
        self.assertEqual(variables, set(services["alerter"]["environment"]))
        scraped = yaml.safe_load((DEPLOY / "compose" / "prometheus-replicas.yml").read_text())
        targets = scraped["scrape_configs"][1]["static_configs"][0]["targets"]
        self.assertEqual(targets, ["alerter:9766", "alerter-2:9766"])
        for port in services["alerter-2"]["ports"]:
            self.assertTrue(port.startswith("127.0.0.1:"), port)

    def test_the_programs_take_what_they_are_given(self):
        for name in ("exporter", "alerter"):
            binary = program(f"stepwatch-{name}")
            if binary is None:
                self.skipTest("the programs are not built")
            args = self.compose["services"][name]["command"]
            file = DEPLOY / "compose" / f"{name}.yml"
            for command in ([*args, "--help"], ["config", "check", file]):
                run = subprocess.run([binary, *command], capture_output=True, text=True)
                self.assertEqual(run.returncode, 0, run.stderr)

    def test_prometheus_takes_its_configuration(self):
        ours = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text())
        sample = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
        for job, known in zip(ours["scrape_configs"], sample["scrape_configs"]):
            self.assertEqual(job["job_name"], known["job_name"])
            self.assertEqual(job.get("honor_labels"), known.get("honor_labels"))
        services = self.compose["services"]
        targets = [
            t for j in ours["scrape_configs"] for c in j["static_configs"] for t in c["targets"]
        ]
        for target in targets:
            self.assertIn(target.split(":")[0], services)
        source = yaml.safe_load((DEPLOY / "grafana" / "datasource.yml").read_text())
        self.assertEqual(source["datasources"][0]["url"], "http://prometheus:9090")
        promtool = shutil.which("promtool")
        if promtool is None:
            self.assertFalse(REQUIRED)
            self.skipTest("promtool is not installed")
        check = [
            promtool,
            "check",
            "config",
            "--syntax-only",
            DEPLOY / "compose" / "prometheus.yml",
        ]
        run = subprocess.run(check, capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr + run.stdout)


if __name__ == "__main__":
    unittest.main()

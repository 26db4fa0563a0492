"""The manifests for those without Helm, and the example for Argo CD: they are what the chart
gives, and Kubernetes takes them.
"""

import copy
import json
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from support import (
    DEPLOY,
    NEEDS,
    NEWEST,
    OLDEST,
    chart,
    documents,
    objects,
    one,
    pod_template,
    program,
    wrong,
)
from test_chart import CASES

if chart:
    import yaml

KUBERNETES = DEPLOY / "kubernetes"
# Configuration of Prometheus, and a patch.
NOT_OBJECTS = {"prometheus.yml", "kernel-log.yml"}


def patched(into, patch):
    """As `kubectl patch` merges: lists by the key of their kind, and null takes a value away."""
    if isinstance(into, dict) and isinstance(patch, dict):
        for key, value in patch.items():
            if value is None:
                into.pop(key, None)
            else:
                into[key] = patched(into[key], value) if key in into else value
        return into
    if isinstance(into, list) and isinstance(patch, list):
        for item in patch:
            key = "mountPath" if "mountPath" in item else "name"
            same = [old for old in into if old[key] == item[key]]
            if same:
                patched(same[0], item)
            else:
                into.append(item)
        return into
    return patch


@unittest.skipUnless(chart, NEEDS)
class Manifests(unittest.TestCase):
    def test_they_are_what_the_chart_gives(self):
        for file in chart.MANIFESTS:
            with self.subTest(file):
                again = "python deploy/helm/render.py writes it"
                self.assertEqual((KUBERNETES / file).read_text(), chart.manifest(file), again)

    def test_kubernetes_takes_them(self):
        for path in sorted(KUBERNETES.glob("*.yml")):
            if path.name in NOT_OBJECTS:
                continue
            for o in documents(path):
                # An Indexed job that fails pod by pod needs a newer Kubernetes than the rest.
                versions = (NEWEST,) if path.name == "check-active.yml" else (OLDEST, NEWEST)
                for version in versions:
                    self.assertIsNone(wrong(o, version), path.name)
                self.assertNotIn("Helm", json.dumps(o))

    def test_the_patch_of_the_kernel_log_is_the_value_of_the_chart(self):
        daemon_set = one(documents(KUBERNETES / "exporter.yml"), "DaemonSet", "stepwatch-exporter")
        [patch] = documents(KUBERNETES / "kernel-log.yml")
        wanted = one(
            objects({"exporter": {"kernelLog": "privileged"}}), "DaemonSet", "stepwatch-exporter"
        )
        merged = pod_template(patched(copy.deepcopy(daemon_set), patch))["spec"]
        wanted = pod_template(wanted)["spec"]
        for spec in (merged, wanted):
            spec["volumes"].sort(key=lambda v: v["name"])
            spec["containers"][0]["volumeMounts"].sort(key=lambda m: m["name"])
        self.assertEqual(merged, wanted)

    def test_the_sets_share_what_one_file_has(self):
        gpu = documents(KUBERNETES / "exporter.yml")
        cpu = documents(KUBERNETES / "exporter-cpu.yml")
        names = [(o["kind"], o["metadata"]["name"]) for o in gpu + cpu]
        self.assertEqual(len(names), len(set(names)), "one does not replace the other")
        labels = pod_template(one(cpu, "DaemonSet", "stepwatch-exporter-cpu"))["metadata"]["labels"]
        service = one(gpu, "Service", "stepwatch-exporter")
        self.assertLessEqual(service["spec"]["selector"].items(), labels.items())

    def test_the_arguments_are_understood(self):
        started = set()
        sets = [objects(values) for values in CASES.values()]
        for o in (o for found in sets for o in found if pod_template(o)):
            for container in pod_template(o)["spec"]["containers"]:
                [path] = container["command"]
                name = path.removeprefix("/usr/bin/")
                self.assertTrue(container["image"].startswith(f"{name}:"))
                binary = program(name)
                if binary is None:
                    self.skipTest("the programs are not built")
                # The help comes only after every argument before it was understood.
                args = [binary, *container["args"], "--help"]
                run = subprocess.run(args, capture_output=True, text=True)
                self.assertEqual(run.returncode, 0, run.stderr)
                started.add((name, container["args"][0]))
        programs = ("stepwatch-alerter", "stepwatch-exporter")
        self.assertEqual(started, {(name, word) for name in programs for word in ("run", "config")})

    def test_the_values_of_the_readme_are_taken(self):
        blocks = re.findall(r"```yaml\n(.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)
        [values] = [yaml.safe_load(block) for block in blocks if "alerter:" in block]
        found = objects(values)
        self.assertTrue(one(found, "DaemonSet", "stepwatch-exporter-cpu"))
        self.assertTrue(one(found, "PrometheusRule", "stepwatch"))
        self.assertTrue(one(found, "ServiceMonitor", "stepwatch-alerter"), "or a rule pages")
        self.assertEqual(values["prometheusNamespace"], "monitoring")
        for o in found:
            self.assertIsNone(wrong(o, NEWEST))


@unittest.skipUnless(chart, NEEDS)
class ArgoCd(unittest.TestCase):
    def test_the_example_installs_the_chart(self):
        [application] = documents(DEPLOY / "argocd.yml")
        spec = application["spec"]
        self.assertEqual(application["apiVersion"], "argoproj.io/v1alpha1")
        self.assertEqual(set(spec), {"project", "source", "destination", "syncPolicy"})
        self.assertEqual(DEPLOY.parent / spec["source"]["path"], chart.CHART)
        found = objects(spec["source"]["helm"]["valuesObject"])
        for o in found:
            self.assertIsNone(wrong(o, NEWEST))
        # Each secret that the configuration reads is mounted where it is read.
        config = one(found, "ConfigMap", "stepwatch-alerter")["data"]["alerter.yml"]
        pod = pod_template(one(found, "Deployment", "stepwatch-alerter"))["spec"]
        mounts = [m["mountPath"] for m in pod["containers"][0]["volumeMounts"]]
        read = [w for w in config.split() if w.startswith("/run/secrets/")]
        self.assertEqual(len(read), 2)
        for path in read:
            self.assertIn(path.rsplit("/", 1)[0], mounts)

    def test_its_configuration_is_right_once_the_secrets_are_there(self):
        binary = program("stepwatch-alerter")
        if binary is None:
            self.skipTest("the programs are not built")
        [application] = documents(DEPLOY / "argocd.yml")
        found = objects(application["spec"]["source"]["helm"]["valuesObject"])
        config = one(found, "ConfigMap", "stepwatch-alerter")["data"]["alerter.yml"]
        with tempfile.TemporaryDirectory() as directory:
            secrets = {"slack/token": "xoxb-1-2-3", "pagerduty/routing-key": "0" * 32}
            for secret, text in secrets.items():
                path = Path(directory) / secret
                path.parent.mkdir()
                path.write_text(text)
            file = Path(directory) / "alerter.yml"
            file.write_text(config.replace("/run/secrets/stepwatch", directory))
            run = subprocess.run([binary, "config", "check", file], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)


if __name__ == "__main__":
    unittest.main()

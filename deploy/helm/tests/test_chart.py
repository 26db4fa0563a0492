"""The chart, rendered by Helm's own library, against Kubernetes' schemas, and what it promises.

python -m unittest discover -v -s tests
"""

import json
import os
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
    ROOT,
    chart,
    merged,
    objects,
    one,
    pod_template,
    program,
    wrong,
)

if chart:
    import yaml
    from support import HelmError, lint

BOTH = {"exporter": {"cpu": {"enabled": True}}}
POLICIES = {
    "exporter": {
        "hostNetwork": False,
        "hostPID": False,
        "podResourcesDir": "",
        "serviceAccount": {"create": False},
        "networkPolicy": {"enabled": True},
    },
    "alerter": {
        "networkPolicy": {"enabled": True, "toPorts": [443, 587]},
        "serviceAccount": {"create": False, "name": "pager"},
        "persistence": {"existingClaim": "mine"},
    },
    "configCheck": {"enabled": False},
}
EVERYTHING = merged(
    BOTH,
    {
        "commonLabels": {"team": "infra"},
        "prometheusNamespace": "monitoring",
        "imagePullSecrets": [{"name": "registry"}],
        "extraObjects": [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "more"}},
            'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: "{{ .Release.Name }}-text"}\n',
        ],
        "exporter": {
            "capabilities": ["SYS_PTRACE", "SYSLOG", "SYS_ADMIN", "NET_ADMIN"],
            "kernelLog": "nri",
            "seLinuxOptions": {"type": "spc_t"},
            "config": {"stream": {"max_bytes": 16777216}},
            "hostPaths": [{"name": "data", "path": "/data"}],
            "secrets": ["kubeflow"],
            "web": {"existingSecret": "exporter-web", "probe": "TCP"},
            "env": [{"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"}],
            "podLabels": {"team": "infra"},
            "podAnnotations": {"note": "x"},
            "serviceAccount": {"annotations": {"note": "x"}},
            "podMonitor": {
                "enabled": True,
                "labels": {"release": "prometheus"},
                "interval": "15s",
                "endpoint": {"scheme": "https", "tlsConfig": {"insecureSkipVerify": True}},
            },
        },
        "alerter": {
            "config": {
                "external_url": "https://stepwatch.example.org",
                "sources": [{"exporters": {"dns": ["stepwatch-exporter:9765"], "scheme": "https"}}],
                "templates": {"title": "{{ incident.place }}: {{ incident.name }}"},
            },
            "secrets": ["slack", "pager.duty"],
            "web": {"existingSecret": "alerter-web", "probe": "HTTPS"},
            "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
            "persistence": {"storageClassName": "fast", "accessMode": "ReadWriteOncePod"},
            "service": {"type": "LoadBalancer", "annotations": {"note": "x"}},
            "ingress": {
                "enabled": True,
                "className": "nginx",
                "annotations": {"note": "x"},
                "host": "stepwatch.example.org",
                "tlsSecret": "stepwatch-tls",
            },
            "podLabels": {"team": "infra"},
            "podAnnotations": {"note": "x"},
            "priorityClassName": "high",
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [{"operator": "Exists"}],
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "topology.kubernetes.io/zone",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": {"app.kubernetes.io/part-of": "stepwatch"}},
                }
            ],
            "podDisruptionBudget": {"enabled": True},
            "networkPolicy": {"enabled": True},
            "serviceMonitor": {
                "enabled": True,
                "endpoint": {
                    "authorization": {"credentials": {"name": "stepwatch-token", "key": "token"}}
                },
            },
        },
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboards": {"enabled": True, "namespace": "grafana"},
    },
)
REPLICAS = merged(
    POLICIES,
    {
        "alerter": {
            "replicas": 3,
            "postgres": {"existingSecret": "stepwatch-postgres", "port": 6432},
            "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
            "networkPolicy": {"from": [{"podSelector": {"matchLabels": {"a": "b"}}}]},
        },
        "configCheck": {"enabled": True},
    },
)
CASES = {
    "default": {},
    "replicas": REPLICAS,
    "one on PostgreSQL": {"alerter": {"postgres": {"existingSecret": "pg"}}},
    "gpu and cpu": BOTH,
    "cpu": {"exporter": {"gpu": {"enabled": False}, "cpu": {"enabled": True}}},
    "exporter": {"alerter": {"enabled": False}},
    "alerter": {"exporter": {"enabled": False}, "alerter": {"persistence": {"enabled": False}}},
    "privileged": {"exporter": {"kernelLog": "privileged"}},
    "policies": POLICIES,
    "everything": EVERYTHING,
}
# Of values that are refused, what Helm says.
REFUSED = [
    ({"alerter": {"replicas": 2}}, "alerter/replicas"),
    ({"alerter": {"replicas": 0, "postgres": {"existingSecret": "pg"}}}, "alerter/replicas"),
    ({"alerter": {"postgres": {"secret": "pg"}}}, "secret"),
    ({"alerter": {"config": {"storage": {"postgres": {}}}}}, "alerter/config/storage/postgres"),
    (
        {
            "alerter": {
                "replicas": 2,
                "postgres": {"existingSecret": "pg"},
                "web": {"existingSecret": "web", "probe": "HTTPS"},
            }
        },
        "which no certificate has",
    ),
    ({"alerter": {"replica": 1}}, "replica"),
    ({"alertr": {}}, "alertr"),
    ({"exporter": {"gpu": {"enable": True}}}, "enable"),
    ({"exporter": {"capabilities": ["SYS_BOOT"]}}, "exporter/capabilities/0"),
    ({"exporter": {"kernelLog": True}}, "exporter/kernelLog"),
    ({"exporter": {"seLinuxOptions": {"typ": "spc_t"}}}, "'typ'"),
    ({"exporter": {"port": 0}}, "exporter/port"),
    ({"exporter": {"maxUnavailable": "0%"}}, "exporter/maxUnavailable"),
    ({"exporter": {"socketDir": "run/stepwatch"}}, "exporter/socketDir"),
    ({"exporter": {"hostPaths": [{"path": "/data"}]}}, "exporter/hostPaths/0"),
    ({"exporter": {"config": {"listen": ":1"}}}, "exporter/config/listen"),
    ({"exporter": {"config": {"ingest": {"socket": "/x"}}}}, "exporter/config/ingest/socket"),
    ({"exporter": {"env": [{"name": "A", "value": 1}]}}, "exporter/env/0/value"),
    ({"exporter": {"web": {"probe": "https"}}}, "exporter/web/probe"),
    ({"alerter": {"config": {"storage": {"sqlite": "/x"}}}}, "alerter/config/storage/sqlite"),
    ({"alerter": {"secrets": [{"name": "slack"}]}}, "alerter/secrets/0"),
    ({"alerter": {"persistence": {"size": "10 GB"}}}, "alerter/persistence/size"),
    ({"alerter": {"persistence": {"accessMode": "ReadWriteMany"}}}, "accessMode"),
    ({"alerter": {"podDisruptionBudget": {"maxUnavailable": "50%"}}}, "maxUnavailable"),
    ({"dashboards": {"labels": {"grafana_dashboard": 1}}}, "grafana_dashboard"),
    ({"alerter": {"ingress": {"enabled": True}}}, "alerter.ingress.host must be set"),
    ({"exporter": {"web": {"existingSecret": "web"}}}, "say in alerter.config.sources"),
]


def restricted(spec):
    """What the Pod Security level `restricted` refuses of a pod."""
    found = [key for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    kinds = {"name", "configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret"}
    found += [v["name"] for v in spec.get("volumes", []) if not set(v) <= kinds]
    pod = spec.get("securityContext", {})
    for container in spec.get("initContainers", []) + spec["containers"]:
        own = merged(
            {k: v for k, v in pod.items() if k in ("runAsNonRoot", "runAsUser", "seccompProfile")},
            container.get("securityContext", {}),
        )
        capabilities = own.get("capabilities", {})
        checks = {
            "privileged": not own.get("privileged"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "drop": capabilities.get("drop") == ["ALL"],
            "add": set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"},
            "runAsNonRoot": own.get("runAsNonRoot") is True and own.get("runAsUser") != 0,
            "seccomp": own.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
            "hostPort": not any("hostPort" in p for p in container.get("ports", [])),
        }
        found += [f"{container['name']}: {name}" for name, well in checks.items() if not well]
    return found


def goes_to(spec, labels):
    """Whether a pod may go to a node with these labels, as the scheduler judges."""

    def holds(e):
        value = labels.get(e["key"])
        return {
            "In": value in e.get("values", []),
            "NotIn": value not in e.get("values", []),
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }[e["operator"]]

    node = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = node["nodeSelectorTerms"]
    selected = spec.get("nodeSelector", {}).items() <= labels.items()
    return selected and any(all(map(holds, t["matchExpressions"])) for t in terms)


@unittest.skipUnless(chart, NEEDS)
class Chart(unittest.TestCase):
    def test_every_object_is_what_kubernetes_takes(self):
        for case, values in CASES.items():
            for o in objects(values):
                for version in (OLDEST, NEWEST):
                    with self.subTest(case, kind=o["kind"], name=o["metadata"]["name"]):
                        self.assertIsNone(wrong(o, version))
        profile = {"exporter": {"appArmorProfile": "Unconfined"}}
        daemon_set = one(objects(profile), "DaemonSet", "stepwatch-exporter")
        self.assertIsNone(wrong(daemon_set, NEWEST))
        self.assertIn("appArmorProfile", wrong(daemon_set, OLDEST), "it came with 1.30")

    def test_a_misspelt_key_is_found(self):
        found = objects(EVERYTHING)
        deployment = one(found, "Deployment", "stepwatch-alerter")
        deployment["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
        self.assertIn("volumeMount", wrong(deployment, NEWEST))
        monitor = one(found, "PodMonitor", "stepwatch-exporter")
        monitor["spec"]["podMetricsEndpoints"][0]["honourLabels"] = True
        self.assertEqual(wrong(monitor, NEWEST), ["/spec/podMetricsEndpoints/0/honourLabels"])

    def test_helm_finds_nothing_to_say(self):
        result = lint(str(Path(chart.copied().name) / chart.CHART.name))
        messages = result["messages"] if isinstance(result, dict) else result
        said = [m for m in messages if "icon is recommended" not in str(m)]
        self.assertEqual(said, [])

    def test_names_of_a_release(self):
        for release, prefix in [("stepwatch", "stepwatch"), ("gpu", "gpu-stepwatch")]:
            names = {o["metadata"]["name"] for o in objects(BOTH, name=release)}
            self.assertLessEqual({f"{prefix}-exporter", f"{prefix}-exporter-cpu"}, names)
            self.assertLessEqual({f"{prefix}-alerter"}, names)
        long = objects(merged(BOTH, {"dashboards": {"enabled": True}}), name="x" * 53)
        self.assertLess(max(len(o["metadata"]["name"]) for o in long), 64)

    def test_what_is_named_exists(self):
        for case, values in CASES.items():
            found = objects(values)
            # Those that the values name are not the chart's.
            names = {(o["kind"], o["metadata"]["name"]) for o in found}
            names |= {("PersistentVolumeClaim", "mine"), ("ServiceAccount", "pager")}
            names |= {("ServiceAccount", "default")}
            for spec in (pod_template(o)["spec"] for o in found if pod_template(o)):
                mounted = {m["name"] for c in spec["containers"] for m in c["volumeMounts"]}
                self.assertEqual(mounted, {v["name"] for v in spec["volumes"]}, case)
                for volume in spec["volumes"]:
                    if "configMap" in volume:
                        self.assertIn(("ConfigMap", volume["configMap"]["name"]), names)
                    if "persistentVolumeClaim" in volume:
                        claim = volume["persistentVolumeClaim"]["claimName"]
                        self.assertIn(("PersistentVolumeClaim", claim), names)
                account = spec.get("serviceAccountName", "default")
                self.assertIn(("ServiceAccount", account), names)
                self.assertIs(spec["automountServiceAccountToken"], False)

    def test_selectors_find_what_they_are_for(self):
        for case, values in CASES.items():
            found = objects(values)
            pods = [pod_template(o)["metadata"]["labels"] for o in found if pod_template(o)]
            services = [o["metadata"]["labels"] for o in found if o["kind"] == "Service"]
            for o in found:
                spec = o.get("spec", {})
                selector = spec.get("selector") or spec.get("podSelector")
                if selector:
                    among = services if o["kind"] == "ServiceMonitor" else pods
                    wanted = selector.get("matchLabels", selector).items()
                    hit = [labels for labels in among if wanted <= labels.items()]
                    self.assertTrue(hit, f"{case}: {o['kind']} {o['metadata']['name']}")

    def test_selectors_keep_programs_and_sets_apart(self):
        found = objects(BOTH)
        selectors = [
            o["spec"]["selector"]["matchLabels"]
            for o in found
            if o["kind"] in ("DaemonSet", "Deployment")
        ]
        pods = [pod_template(o)["metadata"]["labels"] for o in found if pod_template(o)]
        for selector in selectors:
            self.assertEqual(len([p for p in pods if selector.items() <= p.items()]), 1)
        service = one(found, "Service", "stepwatch-exporter")
        self.assertEqual(service["spec"]["clusterIP"], "None")
        hit = [p for p in pods if service["spec"]["selector"].items() <= p.items()]
        self.assertEqual(len(hit), 2, "the alerter finds both sets by one name")

    def test_each_node_has_at_most_one_exporter(self):
        found = objects(BOTH)
        gpu = pod_template(one(found, "DaemonSet", "stepwatch-exporter"))["spec"]
        cpu = pod_template(one(found, "DaemonSet", "stepwatch-exporter-cpu"))["spec"]
        present, client = "nvidia.com/gpu.present", "nvidia.com/gpu.deploy.client"
        pci = "feature.node.kubernetes.io/pci-{}.present"
        for labels, goes in [
            ({present: "true"}, (True, False)),
            ({present: "true", client: "true"}, (True, False)),
            ({present: "true", client: "paused-for-mig-change"}, (False, False)),
            ({present: "false"}, (False, True)),
            ({}, (False, True)),
            # Where nobody runs GPU feature discovery.
            ({pci.format("10de"): "true"}, (True, False)),
            ({pci.format("0300_10de"): "true"}, (True, False)),
            ({pci.format("0302_10de"): "true"}, (True, False)),
            ({pci.format("0200_15b3"): "true"}, (False, True)),
            ({pci.format("10de"): "true", client: "paused-for-mig-change"}, (False, False)),
            ({"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}, (True, False)),
            ({"k8s.amazonaws.com/accelerator": "nvidia-tesla-v100"}, (True, False)),
        ]:
            self.assertEqual((goes_to(gpu, labels), goes_to(cpu, labels)), goes, labels)
        other = {"nodeSelector": {"gpu": "yes"}, "affinity": None}
        found = objects({"exporter": {"gpu": other}})
        other = pod_template(one(found, "DaemonSet", "stepwatch-exporter"))["spec"]
        self.assertEqual((other["nodeSelector"], "affinity" in other), ({"gpu": "yes"}, False))
        self.assertEqual(gpu["runtimeClassName"], "nvidia")
        self.assertNotIn("runtimeClassName", cpu)
        self.assertNotIn("NVIDIA", json.dumps(cpu["containers"][0]["env"]))

    def test_all_but_the_exporter_is_restricted(self):
        for case, values in CASES.items():
            for o in objects(values):
                pod = pod_template(o)
                if pod and o["kind"] != "DaemonSet":
                    self.assertEqual(restricted(pod["spec"]), [], case)
                    for container in pod["spec"]["containers"]:
                        self.assertTrue(container["securityContext"]["readOnlyRootFilesystem"])
        daemon_set = one(objects(), "DaemonSet", "stepwatch-exporter")
        found = restricted(pod_template(daemon_set)["spec"])
        self.assertLessEqual(
            {"hostNetwork", "hostPID", "proc", "exporter: runAsNonRoot"}, set(found)
        )

    def test_the_alerter_is_one(self):
        for values in ({}, EVERYTHING):
            deployment = one(objects(values), "Deployment", "stepwatch-alerter")["spec"]
            self.assertEqual(
                (deployment["replicas"], deployment["strategy"]), (1, {"type": "Recreate"})
            )
        claim = one(objects(), "PersistentVolumeClaim", "stepwatch-alerter")
        self.assertEqual(claim["spec"]["accessModes"], ["ReadWriteOnce"])
        self.assertEqual(claim["metadata"]["annotations"], {"helm.sh/resource-policy": "keep"})

    def test_rights_of_the_exporter_follow_the_values(self):
        def container(values):
            daemon_set = one(objects({"exporter": values}), "DaemonSet", "stepwatch-exporter")
            pod = pod_template(daemon_set)
            return pod, pod["spec"]["containers"][0]

        _, given = container({"capabilities": ["SYSLOG"], "appArmorProfile": "Unconfined"})
        self.assertEqual(
            given["securityContext"]["capabilities"], {"drop": ["ALL"], "add": ["SYSLOG"]}
        )
        self.assertEqual(given["securityContext"]["appArmorProfile"], {"type": "Unconfined"})
        pod, _ = container({"kernelLog": "nri"})
        devices = pod["metadata"]["annotations"]["devices.nri.io/container.exporter"]
        kmsg = {"path": "/dev/kmsg", "type": "c", "major": 1, "minor": 11}
        self.assertEqual(yaml.safe_load(devices), [kmsg])
        _, privileged = container({"kernelLog": "privileged"})
        # Kubernetes refuses or ignores the others beside privileged.
        self.assertEqual(
            privileged["securityContext"],
            {
                "runAsUser": 0,
                "runAsNonRoot": False,
                "readOnlyRootFilesystem": True,
                "privileged": True,
            },
        )
        pod, mounted = container({"hostPaths": [{"name": "data", "path": "/data"}]})
        mount = [m for m in mounted["volumeMounts"] if m["name"] == "data"]
        self.assertEqual(mount[0]["mountPropagation"], "HostToContainer")
        self.assertTrue(mount[0]["readOnly"])
        written = [m["mountPath"] for m in mounted["volumeMounts"] if not m.get("readOnly")]
        self.assertEqual(written, ["/run/stepwatch", "/var/lib/stepwatch-exporter"])

    def test_probes_follow_tls(self):
        found = objects(EVERYTHING)
        for kind, name, probe in [
            ("DaemonSet", "stepwatch-exporter", {"tcpSocket": {"port": "metrics"}}),
            (
                "Deployment",
                "stepwatch-alerter",
                {"httpGet": {"path": "/-/ready", "port": "metrics", "scheme": "HTTPS"}},
            ),
        ]:
            container = pod_template(one(found, kind, name))["spec"]["containers"][0]
            self.assertEqual(container["readinessProbe"], probe | {"timeoutSeconds": 5})
            self.assertIn("--web.config.file=/etc/stepwatch-web/web.yml", container["args"])

    def test_wrong_values_are_refused(self):
        for values, said in REFUSED:
            with self.subTest(values=values), self.assertRaises(HelmError) as refused:
                objects(values)
            self.assertIn(said, str(refused.exception))

    def test_the_schema_describes_every_value(self):
        schema = json.loads((chart.CHART / "values.schema.json").read_text())
        values = yaml.safe_load((chart.CHART / "values.yaml").read_text())

        def walk(schema_of, value, path):
            shape = schema_of
            if "$ref" in shape:
                shape = schema["$defs"][shape["$ref"].removeprefix("#/$defs/")]
            if path:
                self.assertTrue(shape.get("description"), path)
            if "additionalProperties" not in shape or not isinstance(value, dict):
                return
            if shape["additionalProperties"] is False:
                written = set(shape["properties"]) - {"global"}
                self.assertEqual(written, set(value), path)
                for key, below in value.items():
                    walk(shape["properties"][key], below, f"{path}/{key}")

        walk(schema, values, "")
        self.assertIs(schema["additionalProperties"], False)

    def test_no_secret_is_made(self):
        for values in CASES.values():
            self.assertNotIn("Secret", {o["kind"] for o in objects(values)})
        pod = pod_template(one(objects(EVERYTHING), "Deployment", "stepwatch-alerter"))["spec"]
        mounts = {m["name"]: m["mountPath"] for m in pod["containers"][0]["volumeMounts"]}
        secrets = {
            v["secret"]["secretName"]: mounts[v["name"]] for v in pod["volumes"] if "secret" in v
        }
        self.assertEqual(
            secrets,
            {
                "slack": "/run/secrets/stepwatch/slack",
                "pager.duty": "/run/secrets/stepwatch/pager.duty",
                "alerter-web": "/etc/stepwatch-web",
            },
        )

    def test_the_programs_take_their_configurations(self):
        checked = set()
        for case, values in CASES.items():
            for o in objects(values):
                for file, text in o.get("data", {}).items() if o["kind"] == "ConfigMap" else []:
                    if not file.endswith(".yml"):
                        continue
                    binary = program(f"stepwatch-{re.split('[-.]', file)[0]}")
                    if binary is None:
                        self.skipTest("the programs are not built")
                    checked.add(binary.name)
                    with tempfile.TemporaryDirectory() as directory:
                        path = Path(directory) / file
                        url = Path(directory) / "url"
                        url.write_text("postgres://stepwatch@db/stepwatch")
                        # Where Kubernetes mounts the Secret.
                        path.write_text(re.sub("url_file: .*", f"url_file: {url}", text))
                        address = {"STEPWATCH_ADVERTISE_URL": "http://10.0.0.7:9766"}
                        run = subprocess.run(
                            [binary, "config", "check", path],
                            capture_output=True,
                            text=True,
                            env={**os.environ, **address},
                        )
                    self.assertEqual(run.returncode, 0, f"{case}: {file}: {run.stderr}")
        self.assertEqual(checked, {"stepwatch-alerter", "stepwatch-exporter"})

    def test_a_configuration_is_what_the_values_say(self):
        found = objects(EVERYTHING)
        gpu = yaml.safe_load(one(found, "ConfigMap", "stepwatch-exporter")["data"]["exporter.yml"])
        cpu = yaml.safe_load(
            one(found, "ConfigMap", "stepwatch-exporter-cpu")["data"]["exporter.yml"]
        )
        self.assertEqual(gpu["stream"], {"max_bytes": 16777216})
        self.assertEqual(gpu["listen"], ":9765")
        self.assertEqual(gpu["collectors"]["gpu"], {"devices": "all"})
        self.assertEqual(cpu["collectors"]["gpu"], {"enabled": False})
        alerter = yaml.safe_load(
            one(found, "ConfigMap", "stepwatch-alerter")["data"]["alerter.yml"]
        )
        self.assertEqual(
            alerter["templates"], {"title": "{{ incident.place }}: {{ incident.name }}"}
        )
        self.assertEqual(alerter["sources"][0]["exporters"]["scheme"], "https")
        other = objects({"exporter": {"port": 9000}}, name="gpu")
        alerter = yaml.safe_load(
            one(other, "ConfigMap", "gpu-stepwatch-alerter")["data"]["alerter.yml"]
        )
        self.assertEqual(
            alerter["sources"], [{"exporters": {"dns": ["gpu-stepwatch-exporter:9000"]}}]
        )
        self.assertEqual(
            one(other, "Service", "gpu-stepwatch-exporter")["spec"]["ports"][0]["port"], 9000
        )
        alone = objects({"exporter": {"enabled": False}})
        alerter = yaml.safe_load(
            one(alone, "ConfigMap", "stepwatch-alerter")["data"]["alerter.yml"]
        )
        self.assertNotIn("sources", alerter)

    def test_another_configuration_is_another_pod(self):
        def checksum(values):
            deployment = one(objects(values), "Deployment", "stepwatch-alerter")
            return pod_template(deployment)["metadata"]["annotations"]["checksum/config"]

        changed = {"alerter": {"config": {"resolve_after": "2m"}}}
        self.assertNotEqual(checksum({}), checksum(changed))
        self.assertEqual(checksum({}), checksum({"commonLabels": {"team": "infra"}}))

    def test_the_hook_checks_what_is_installed(self):
        found = objects(merged(BOTH, {"alerter": {"secrets": ["slack"]}}))
        config = one(found, "ConfigMap", "stepwatch-config-check")
        job = one(found, "Job", "stepwatch-config-check")
        for o in (config, job):
            hook = o["metadata"]["annotations"]["helm.sh/hook"]
            self.assertEqual(hook, "pre-install,pre-upgrade")
        installed = {
            "exporter-gpu.yml": ("stepwatch-exporter", "exporter.yml"),
            "exporter-cpu.yml": ("stepwatch-exporter-cpu", "exporter.yml"),
            "alerter.yml": ("stepwatch-alerter", "alerter.yml"),
        }
        for file, (name, key) in installed.items():
            self.assertEqual(config["data"][file], one(found, "ConfigMap", name)["data"][key])
        containers = pod_template(job)["spec"]["containers"]
        checked = [c["args"][-1].removeprefix("/etc/stepwatch/") for c in containers]
        self.assertEqual(checked, list(installed))
        self.assertIn("/run/secrets/stepwatch/slack", json.dumps(containers[-1]["volumeMounts"]))
        neither = {"exporter": {"enabled": False}, "alerter": {"enabled": False}}
        self.assertEqual(objects(neither), [])

    def test_rules_and_dashboards_are_those_of_the_repository(self):
        found = objects(EVERYTHING)
        rule = one(found, "PrometheusRule", "stepwatch")
        [made] = yaml.safe_load_all((DEPLOY / "kubernetes" / "prometheus-rule.yml").read_text())
        self.assertEqual(rule["spec"], made["spec"])
        self.assertEqual(rule["metadata"]["labels"]["release"], "prometheus")
        boards = sorted((ROOT / "dashboards").glob("*.json"))
        for path in boards:
            config = one(found, "ConfigMap", f"stepwatch-dashboard-{path.stem}")
            self.assertEqual(config["metadata"]["namespace"], "grafana")
            self.assertEqual(config["metadata"]["labels"]["grafana_dashboard"], "1")
            [(name, text)] = config["data"].items()
            self.assertEqual(name, f"stepwatch-{path.name}")
            self.assertLess(len(text), 1 << 20)
            linked = path.read_text().replace(
                "http://alerter:9766", "https://stepwatch.example.org"
            )
            self.assertEqual(json.loads(text), json.loads(linked))
        count = [o for o in found if "dashboard-" in o["metadata"]["name"]]
        self.assertEqual(len(count), len(boards))

    def test_the_notes_say_what_is_missing(self):
        notes = chart.render({})["NOTES.txt"]
        for part in ("no receivers", "no watchdog", "no external_url", "enforce=privileged"):
            self.assertIn(part, notes)
        config = {
            "external_url": "https://x",
            "receivers": [{"name": "chat"}],
            "watchdog": {"url": "https://y"},
        }
        notes = chart.render({"alerter": {"config": config}, "exporter": {"enabled": False}})[
            "NOTES.txt"
        ]
        self.assertNotIn("no receivers", notes)
        self.assertIn("It follows no exporter", notes)
        self.assertNotIn("enforce=privileged", notes)


if __name__ == "__main__":
    unittest.main()

"""The chart with an alerter of several replicas on PostgreSQL.

python -m unittest discover -v -s tests
"""

import unittest

from support import NEEDS, chart, merged, objects, one, pod_template
from test_chart import REPLICAS

if chart:
    import yaml


@unittest.skipUnless(chart, NEEDS)
class Replicas(unittest.TestCase):
    def test_replicas_share_a_database_and_one_always_runs(self):
        found = objects(REPLICAS)
        deployment = one(found, "Deployment", "stepwatch-alerter")["spec"]
        update = {"maxUnavailable": 1, "maxSurge": 1}
        self.assertEqual(
            (deployment["replicas"], deployment["strategy"]),
            (3, {"type": "RollingUpdate", "rollingUpdate": update}),
        )
        self.assertNotIn("PersistentVolumeClaim", {o["kind"] for o in found})
        pod = deployment["template"]
        spread = [t["topologyKey"] for t in pod["spec"]["topologySpreadConstraints"]]
        self.assertEqual(spread, ["kubernetes.io/hostname", "topology.kubernetes.io/zone"])
        container = pod["spec"]["containers"][0]
        variables = [v["name"] for v in container["env"]]
        self.assertEqual(variables, ["POD_IP", "STEPWATCH_ADVERTISE_URL", "HTTPS_PROXY"])
        mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
        self.assertNotIn("data", mounts)
        config = one(found, "ConfigMap", "stepwatch-alerter")["data"]["alerter.yml"]
        postgres = yaml.safe_load(config)["storage"]
        self.assertEqual(
            postgres,
            {
                "postgres": {
                    "url_file": mounts["postgres"] + "/url",
                    "pool": 4,
                    "advertise_url_env": "STEPWATCH_ADVERTISE_URL",
                }
            },
        )
        budget = one(found, "PodDisruptionBudget", "stepwatch-alerter")["spec"]
        self.assertEqual((budget["minAvailable"], "maxUnavailable" in budget), (1, False))
        policy = one(found, "NetworkPolicy", "stepwatch-alerter")["spec"]
        labels = pod["metadata"]["labels"].items()
        own = [
            peer["podSelector"]["matchLabels"]
            for rule in policy["ingress"]
            for peer in rule["from"]
            if peer.get("podSelector", {}).get("matchLabels")
        ]
        self.assertTrue(any(selector.items() <= labels for selector in own), own)
        ports = [port["port"] for rule in policy["egress"] for port in rule["ports"]]
        self.assertIn(6432, ports)
        self.assertIn("metrics", ports)
        check = one(found, "Job", "stepwatch-config-check")
        alerter = [c for c in pod_template(check)["spec"]["containers"] if c["name"] == "alerter"]
        self.assertIn("STEPWATCH_ADVERTISE_URL", [v["name"] for v in alerter[0]["env"]])

    def test_an_address_of_the_user_replaces_that_of_the_pod(self):
        address = {"name": "STEPWATCH_ADVERTISE_URL", "value": "http://[$(POD_IP)]:9766"}
        found = objects(merged(REPLICAS, {"alerter": {"env": [address]}}))
        pod = pod_template(one(found, "Deployment", "stepwatch-alerter"))
        variables = pod["spec"]["containers"][0]["env"]
        self.assertEqual([v["name"] for v in variables], ["POD_IP", "STEPWATCH_ADVERTISE_URL"])
        self.assertEqual(variables[1], address)

    def test_a_single_replica_stays_until_the_next_one_is_ready(self):
        found = objects(merged(REPLICAS, {"alerter": {"replicas": 1}}))
        deployment = one(found, "Deployment", "stepwatch-alerter")["spec"]
        update = {"maxUnavailable": 0, "maxSurge": 1}
        self.assertEqual(
            deployment["strategy"], {"type": "RollingUpdate", "rollingUpdate": update}
        )

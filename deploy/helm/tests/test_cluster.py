"""What the chart needs of a cluster: Prometheus reaches what its rules expect, labels of nodes,
classes, and SELinux. What is missing is refused, or the notes and the README name it.
"""

import unittest

from support import (
    DEPLOY,
    NEEDS,
    NEWEST,
    chart,
    documents,
    merged,
    objects,
    one,
    pod_template,
    wrong,
)

if chart:
    from support import HelmError

BOTH = {"exporter": {"cpu": {"enabled": True}}}
RULES = {"prometheusRule": {"enabled": True}}
SCRAPED = {"alerter": {"serviceMonitor": {"enabled": True}}}
ALERTER_POLICY = {"alerter": {"networkPolicy": {"enabled": True}}}
EXPORTER_POLICY = {"exporter": {"hostNetwork": False, "networkPolicy": {"enabled": True}}}
PODS_SCRAPED = {"exporter": {"podMonitor": {"enabled": True}}}
ELSEWHERE = {"prometheusRule": {"enabled": True, "alerterScrapedElsewhere": True}}
OWN_PODS = {"podSelector": {}}
PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "prom"}}}


def peers(values, name):
    return one(objects(values), "NetworkPolicy", name)["spec"]["ingress"][0]["from"]


@unittest.skipUnless(chart, NEEDS)
class Cluster(unittest.TestCase):
    def refused(self, values, said):
        with self.assertRaises(HelmError) as refused:
            objects(values)
        self.assertIn(said, str(refused.exception))

    def test_rules_ask_for_an_alerter_that_is_scraped(self):
        said = "set alerter.serviceMonitor.enabled to true"
        self.refused(RULES, said)
        self.refused(merged(RULES, PODS_SCRAPED), said)
        # The monitor of an alerter that is not installed is not made.
        self.refused(merged(merged(RULES, SCRAPED), {"alerter": {"enabled": False}}), said)
        for values in (merged(RULES, SCRAPED), ELSEWHERE):
            self.assertTrue(one(objects(values), "PrometheusRule", "stepwatch"))

    def test_a_policy_that_keeps_prometheus_out_is_refused(self):
        said = "set prometheusNamespace"
        self.refused(merged(ALERTER_POLICY, SCRAPED), "alerter.networkPolicy.from")
        self.refused(merged(ALERTER_POLICY, SCRAPED), said)
        self.refused(merged(ALERTER_POLICY, ELSEWHERE), said)
        self.refused(merged(EXPORTER_POLICY, PODS_SCRAPED), "exporter.networkPolicy.from")
        self.refused(merged(EXPORTER_POLICY, ELSEWHERE), said)
        # Nothing says that a Prometheus scrapes these.
        self.assertEqual(peers(ALERTER_POLICY, "stepwatch-alerter"), [OWN_PODS])
        self.assertEqual(peers(EXPORTER_POLICY, "stepwatch-exporter"), [OWN_PODS])

    def test_a_policy_lets_the_namespace_of_prometheus_in(self):
        prom = {"prometheusNamespace": "prom"}
        both = merged(merged(ALERTER_POLICY, EXPORTER_POLICY), merged(SCRAPED, PODS_SCRAPED))
        for name in ("stepwatch-alerter", "stepwatch-exporter"):
            self.assertEqual(peers(merged(both, prom), name), [OWN_PODS, PROMETHEUS])
            policy = one(objects(merged(both, prom)), "NetworkPolicy", name)
            self.assertIsNone(wrong(policy, NEWEST))
        own = {"alerter": {"networkPolicy": {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}}}
        self.assertEqual(
            peers(merged(merged(ALERTER_POLICY, SCRAPED), own), "stepwatch-alerter"),
            [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
        )
        self.refused({"prometheusNamespace": "Prom"}, "prometheusNamespace")

    def test_a_policy_lets_in_the_alerter_that_reads_the_exporters(self):
        own = {"networkPolicy": {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}}
        names = {"app.kubernetes.io/name": "stepwatch-alerter"}
        labels = names | {"app.kubernetes.io/instance": "stepwatch"}
        alerter = {"podSelector": {"matchLabels": labels}}
        found = peers(merged(EXPORTER_POLICY, {"exporter": own}), "stepwatch-exporter")
        self.assertEqual(found, [*own["networkPolicy"]["from"], alerter])
        alone = {"exporter": own, "alerter": {"enabled": False}}
        found = peers(merged(EXPORTER_POLICY, alone), "stepwatch-exporter")
        self.assertEqual(found, own["networkPolicy"]["from"])
        # No peer at all is everybody, which naming one more would take back.
        everybody = merged(EXPORTER_POLICY, {"exporter": {"networkPolicy": {"from": []}}})
        everybody = merged(everybody, {"prometheusNamespace": "prom"})
        self.assertEqual(peers(everybody, "stepwatch-exporter"), [])

    def test_a_policy_lets_the_alerter_ask_the_dns_of_openshift(self):
        egress = one(objects(ALERTER_POLICY), "NetworkPolicy", "stepwatch-alerter")["spec"]["egress"]
        asked = {(port["port"], port["protocol"]) for port in egress[0]["ports"]}
        # Its pods listen there: a policy sees the port behind that of the Service.
        self.assertLessEqual({(5353, "UDP"), (5353, "TCP"), (53, "UDP"), (53, "TCP")}, asked)

    def test_probes_wait_for_a_node_that_is_busy(self):
        manifest = documents(DEPLOY / "kubernetes" / "cluster.yml")
        for o in objects(BOTH) + manifest:
            if o["kind"] not in ("DaemonSet", "Deployment"):
                continue
            [container] = pod_template(o)["spec"]["containers"]
            for probe, least in (("livenessProbe", 10), ("readinessProbe", 5)):
                wait = container[probe].get("timeoutSeconds", 1)
                self.assertGreaterEqual(wait, least, (o["metadata"]["name"], probe))

    def test_what_has_tls_is_scraped_by_tls(self):
        for probe, scheme in (("HTTP", None), ("HTTPS", "https"), ("TCP", "https")):
            web = {"web": {"existingSecret": "web", "probe": probe}}
            config = {"config": {"sources": [{"exporters": {"dns": ["x:9765"]}}]}}
            values = merged(
                merged(SCRAPED, PODS_SCRAPED), {"exporter": web, "alerter": merged(web, config)}
            )
            found = objects(values)
            pods = one(found, "PodMonitor", "stepwatch-exporter")["spec"]["podMetricsEndpoints"][0]
            service = one(found, "ServiceMonitor", "stepwatch-alerter")["spec"]["endpoints"][0]
            self.assertEqual((pods.get("scheme"), service.get("scheme")), (scheme, scheme), probe)
        other = merged(values, {"alerter": {"serviceMonitor": {"endpoint": {"scheme": "http"}}}})
        monitor = one(objects(other), "ServiceMonitor", "stepwatch-alerter")
        self.assertEqual(monitor["spec"]["endpoints"][0]["scheme"], "http", "the value counts")

    def test_no_pod_has_variables_of_services(self):
        for o in objects(BOTH):
            if pod_template(o):
                self.assertIs(pod_template(o)["spec"]["enableServiceLinks"], False, o["kind"])

    def test_openshift_chooses_the_user_of_the_alerter(self):
        chosen = {"runAsUser": None, "runAsGroup": None, "fsGroup": None}
        found = objects({"alerter": {"podSecurityContext": chosen}})
        context = pod_template(one(found, "Deployment", "stepwatch-alerter"))["spec"]
        self.assertEqual(context["securityContext"].keys() & chosen.keys(), set())
        self.assertIs(context["securityContext"]["runAsNonRoot"], True)

    def test_selinux_is_what_the_values_say(self):
        spc = {"seLinuxOptions": {"type": "spc_t"}}
        for values in (spc, spc | {"kernelLog": "privileged"}):
            daemon_set = one(objects({"exporter": values}), "DaemonSet", "stepwatch-exporter")
            [container] = pod_template(daemon_set)["spec"]["containers"]
            self.assertEqual(container["securityContext"]["seLinuxOptions"], {"type": "spc_t"})
            self.assertIsNone(wrong(daemon_set, NEWEST))
        daemon_set = one(objects(), "DaemonSet", "stepwatch-exporter")
        [container] = pod_template(daemon_set)["spec"]["containers"]
        self.assertNotIn("seLinuxOptions", container["securityContext"])

    def test_the_notes_say_what_a_node_needs(self):
        def notes(exporter, namespace="monitoring"):
            return chart.render({"exporter": exporter}, namespace=namespace)["NOTES.txt"]

        label = "kubectl label node NODE nvidia.com/gpu.present=true"
        runtime, priority = "kubectl get runtimeclass nvidia", "system-node-critical"
        for part in (label, runtime, priority, "get daemonset"):
            self.assertIn(part, notes({}))
        self.assertNotIn(label, notes({"gpu": {"enabled": False}}))
        self.assertNotIn("runtimeclass", notes({"gpu": {"runtimeClassName": ""}}))
        self.assertNotIn(priority, notes({}, namespace="kube-system"))
        self.assertNotIn(priority, notes({"priorityClassName": ""}))
        self.assertNotIn(label, notes({"enabled": False}))

    def test_the_readme_says_it_too(self):
        readme = " ".join((DEPLOY / "README.md").read_text().split())
        for part in (
            "kubectl label node NODE nvidia.com/gpu.present=true",
            "exporter.gpu.runtimeClassName",
            "kind: ResourceQuota",
            "exporter.seLinuxOptions: {type: spc_t}",
            "prometheusRule.alerterScrapedElsewhere",
        ):
            self.assertIn(part, readme)


if __name__ == "__main__":
    unittest.main()

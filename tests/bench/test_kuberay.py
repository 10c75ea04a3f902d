"""docs/kuberay.yaml has only fields that KubeRay's RayService (ray.io/v1) has, with their types.

The operator's own schema has over ten thousand lines, nearly all of them Kubernetes' pod template, and is in
no package. So the fields of RayService and RayCluster are written out here from KubeRay's API reference
(https://ray-project.github.io/kuberay/reference/api/), and of a pod's those that the manifest uses. The part
for Ray Serve is checked by Ray itself where it is installed.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

MANIFEST = Path(__file__).parents[2] / "docs" / "kuberay.yaml"


def struct(required: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    """Returns the schema of an object that has no other fields."""
    names = list(required)
    return {"type": "object", "properties": fields, "required": names, "additionalProperties": False}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


TEXT, BOOL, ANY = {"type": "string"}, {"type": "boolean"}, {"type": "object"}
COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
TEXTS = {"type": "object", "additionalProperties": TEXT}
# "500m", "8Gi": https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
QUANTITY = {
    "anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^\d+(\.\d+)?(m|k|[KMGTPE]i?|[MGTPE])?$"}]
}
QUANTITIES = {"type": "object", "additionalProperties": QUANTITY}
RESOURCES = struct(requests=QUANTITIES, limits=QUANTITIES)
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
KEY = struct(("name", "key"), name=NAME, key=TEXT, optional=BOOL)
ENV = array(struct(("name",), name=TEXT, value=TEXT, valueFrom=struct(secretKeyRef=KEY, configMapKeyRef=KEY)))
SOURCE = struct(("name",), name=NAME, optional=BOOL)
PORT = struct(("containerPort",), containerPort={**COUNT, "minimum": 1, "maximum": 65535}, name=NAME)
CONTAINER = struct(
    ("name", "image"),
    name=NAME,
    image=TEXT,
    ports=array(PORT),
    resources=RESOURCES,
    env=ENV,
    envFrom=array(struct(prefix=TEXT, secretRef=SOURCE, configMapRef=SOURCE)),
    command=array(TEXT),
    args=array(TEXT),
    volumeMounts=array(ANY),
    lifecycle=ANY,
)
SPREAD = struct(
    ("maxSkew", "topologyKey", "whenUnsatisfiable"),
    maxSkew={**COUNT, "minimum": 1},
    topologyKey=TEXT,
    whenUnsatisfiable={"enum": ["DoNotSchedule", "ScheduleAnyway"]},
    labelSelector=struct(matchLabels=TEXTS, matchExpressions=array(ANY)),
)
POD = struct(
    ("spec",),
    metadata=struct(labels=TEXTS, annotations=TEXTS),
    spec=struct(
        ("containers",),
        containers={**array(CONTAINER), "minItems": 1},
        terminationGracePeriodSeconds=COUNT,
        topologySpreadConstraints=array(SPREAD),
        nodeSelector=TEXTS,
        tolerations=array(ANY),
        volumes=array(ANY),
    ),
)
GROUP = {"rayStartParams": TEXTS, "template": POD}
CLUSTER = struct(
    ("headGroupSpec",),
    rayVersion=TEXT,
    enableInTreeAutoscaling=BOOL,
    autoscalerOptions=struct(
        upscalingMode={"enum": ["Default", "Aggressive", "Conservative"]},
        idleTimeoutSeconds=COUNT,
        resources=RESOURCES,
        image=TEXT,
        env=ENV,
    ),
    headGroupSpec=struct(
        ("rayStartParams", "template"),
        serviceType={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
        headService=ANY,
        enableIngress=BOOL,
        **GROUP,
    ),
    workerGroupSpecs=array(
        struct(
            ("groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"),
            groupName=NAME,
            replicas=COUNT,
            minReplicas=COUNT,
            maxReplicas=COUNT,
            numOfHosts=COUNT,
            **GROUP,
        )
    ),
)
RAY_SERVICE = struct(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayService"},
    metadata=struct(("name",), name=NAME, namespace=NAME, labels=TEXTS, annotations=TEXTS),
    spec=struct(
        ("serveConfigV2", "rayClusterConfig"), serveConfigV2=TEXT, rayClusterConfig=CLUSTER, serveService=ANY
    ),
)


@pytest.fixture
def manifest() -> dict[str, Any]:
    return yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))


def is_valid(manifest: dict[str, Any]) -> bool:
    return jsonschema_rs.validator_for(RAY_SERVICE).is_valid(manifest)


def test_the_manifest_is_a_ray_service(manifest):
    jsonschema_rs.validate(RAY_SERVICE, manifest)
    cluster = manifest["spec"]["rayClusterConfig"]
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    images = {
        container["image"]
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
        for container in group["template"]["spec"]["containers"]
    }
    assert len(images) == 1  # all nodes of a Ray cluster have the same versions
    assert cluster["rayVersion"] in images.pop()


def test_the_check_finds_mistakes(manifest):
    assert is_valid(manifest)

    def broken(change) -> bool:
        copied = deepcopy(manifest)
        change(copied["spec"]["rayClusterConfig"]["workerGroupSpecs"][0], copied)
        return not is_valid(copied)

    assert broken(lambda group, all: group.update(minReplica=1))
    assert broken(lambda group, all: group.update(replicas="3"))
    assert broken(lambda group, all: group.pop("template"))
    assert broken(lambda group, all: group["rayStartParams"].update({"num-cpus": 0}))
    assert broken(
        lambda group, all: group["template"]["spec"]["containers"][0].update(resources={"limit": {}})
    )
    assert broken(lambda group, all: all["spec"].update(serveConfigV2={"applications": []}))
    assert broken(lambda group, all: all.update(apiVersion="ray.io/v2"))


def test_the_application_is_what_ray_serve_takes(manifest):
    config = yaml.safe_load(manifest["spec"]["serveConfigV2"])
    (application,) = config["applications"]
    assert application["import_path"] == "glassloop.cluster:app" and application["route_prefix"] == "/"
    schema = pytest.importorskip(
        "ray.serve.schema", reason="Ray is not installed (pip install 'glassloop[ray]')"
    )
    assert schema.ServeDeploySchema.model_validate(config).applications[0].name == "glassloop"


def test_the_arguments_are_options_of_the_application_and_fit_the_pods(manifest):
    options = pytest.importorskip("glassloop.cluster.options")
    (application,) = yaml.safe_load(manifest["spec"]["serveConfigV2"])["applications"]
    (engine,) = options.AppOptions.from_dict(application["args"]).engines
    (worker,) = manifest["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert (engine.replicas, engine.most_replicas) == (worker["minReplicas"], worker["maxReplicas"])
    cores = int(worker["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
    assert engine.threads == cores - 1  # an ingress takes one

"""The manifest has the fields of KubeRay's resources, and its job fits the pods it asks for."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

CLUSTERS = Path(__file__).resolve().parents[3] / "examples" / "clusters"


def record(required: str = "", **fields: Any) -> dict[str, Any]:
    """The schema of a map that has these fields and no others."""
    return {
        "type": "object",
        "properties": fields,
        "required": required.split(),
        "additionalProperties": False,
    }


def items(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema, "minItems": 1}


# The fields that we use, as the operator's API (ray.io/v1) and Kubernetes' (v1) define them.
TEXT, COUNT, FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
RESOURCES = record(requests=TEXTS, limits=TEXTS)
CONTAINER = record(
    "name image resources",
    name=TEXT,
    image=TEXT,
    resources=RESOURCES,
    env=items(record("name", name=TEXT, value=TEXT)),
    volumeMounts=items(record("name mountPath", name=TEXT, mountPath=TEXT)),
)
VOLUME = record(
    "name",
    name=TEXT,
    emptyDir=record(medium={"enum": ["", "Memory"]}, sizeLimit=TEXT),
    persistentVolumeClaim=record("claimName", claimName=TEXT),
)
TEMPLATE = record(
    "spec", spec=record("containers", containers=items(CONTAINER), volumes=items(VOLUME))
)
GROUP = {"rayStartParams": TEXTS, "template": TEMPLATE}
CLUSTER = record(
    "headGroupSpec rayVersion",
    rayVersion=TEXT,
    authOptions=record("mode", mode={"enum": ["token", "disabled"]}),
    headGroupSpec=record("rayStartParams template", **GROUP),
    workerGroupSpecs=items(
        record(
            "groupName minReplicas maxReplicas rayStartParams template",
            groupName=TEXT,
            replicas=COUNT,
            minReplicas=COUNT,
            maxReplicas=COUNT,
            **GROUP,
        )
    ),
)
NAMED = record("name", name={"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"})
SCHEMAS = {
    "RayJob": record(
        "apiVersion kind metadata spec",
        apiVersion={"const": "ray.io/v1"},
        kind=TEXT,
        metadata=NAMED,
        spec=record(
            "entrypoint rayClusterSpec",
            entrypoint=TEXT,
            backoffLimit=COUNT,
            activeDeadlineSeconds={"type": "integer", "minimum": 1},
            shutdownAfterJobFinishes=FLAG,
            ttlSecondsAfterFinished=COUNT,
            rayClusterSpec=CLUSTER,
        ),
    ),
    "PersistentVolumeClaim": record(
        "apiVersion kind metadata spec",
        apiVersion={"const": "v1"},
        kind=TEXT,
        metadata=NAMED,
        spec=record(
            "accessModes resources",
            accessModes=items({"enum": ["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]}),
            resources=RESOURCES,
        ),
    ),
}


@pytest.fixture(scope="module")
def resources() -> dict[str, Any]:
    text = (CLUSTERS / "kuberay.yaml").read_text(encoding="utf-8")
    return {item["kind"]: item for item in yaml.safe_load_all(text)}


@pytest.fixture(scope="module")
def cluster(resources: dict[str, Any]) -> dict[str, Any]:
    return resources["RayJob"]["spec"]["rayClusterSpec"]


def containers(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [c for group in groups for c in group["template"]["spec"]["containers"]]


def test_its_fields_are_those_of_the_resources(resources: dict[str, Any]) -> None:
    assert set(resources) == set(SCHEMAS)
    for kind, resource in resources.items():
        jsonschema.validate(resource, SCHEMAS[kind])


def test_the_job_runs_on_as_many_nodes_as_there_are_pods(resources, cluster) -> None:
    from rlinf.cli import recipes
    from rlinf.config.load import build_config, find_config
    from rlinf.config.placement import component_world_sizes

    command, verb, recipe, *overrides = shlex.split(resources["RayJob"]["spec"]["entrypoint"])
    assert (command, verb) == ("rlinf", "train")
    pods = 1 + sum(group["replicas"] for group in cluster["workerGroupSpecs"])
    recipes.load(recipe, overrides, None)
    folder, stem = find_config(recipe, None)
    config = build_config(stem, overrides, folder)
    assert config.cluster.num_nodes == pods
    assert component_world_sizes(config.cluster, 0) == {"actor": 1, "rollout": 1, "env": pods - 1}


def test_all_pods_have_the_same_image_a_token_and_shared_memory(cluster) -> None:
    assert cluster["authOptions"] == {"mode": "token"}
    assert len({container["image"] for container in containers(cluster)}) == 1
    for container in containers(cluster):
        assert "/dev/shm" in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_volumes_are_there(resources, cluster) -> None:
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounted = {mount["name"] for c in pod["containers"] for mount in c["volumeMounts"]}
        assert mounted == volumes
    claim = resources["PersistentVolumeClaim"]["metadata"]["name"]
    claims = [
        v["persistentVolumeClaim"]
        for v in cluster["headGroupSpec"]["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in v
    ]
    assert claims == [{"claimName": claim}]


def test_the_version_of_ray_is_that_of_the_lock_file(cluster) -> None:
    locked = re.search(r"^ray==(.+)$", (CLUSTERS.parents[1] / "constraints.txt").read_text(), re.M)
    assert cluster["rayVersion"] == locked.group(1)
    image = re.search(
        r"^FROM rayproject/ray:(.+)-py311$", (CLUSTERS / "Dockerfile").read_text(), re.M
    )
    assert image.group(1) == locked.group(1)

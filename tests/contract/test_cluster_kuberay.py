"""cluster/kuberay/: KubeRay has every field, Ray reads the clusters, the network is closed."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr as read_by_ray,
)
from ray.serve.schema import ServeDeploySchema

from raybias.runtime.serve.app import TOKEN_VARIABLE, Serving
from support.documents import CLUSTER, KUBERAY, documents

SCHEMA = yaml.safe_load((Path(__file__).parent / "kuberay_1_7_1.yaml").read_text())
SPECS = {"RayCluster": "spec", "RayJob": "rayClusterSpec", "RayService": "rayClusterConfig"}
MANIFESTS = {
    manifest["kind"]: manifest
    for path in sorted(KUBERAY.glob("ray*.yaml"))
    for manifest in documents(path)
}
BASE = documents(KUBERAY / "base.yaml")
OURS = {"raybias/network": "ray"}


def cluster(kind: str) -> dict[str, Any]:
    spec: dict[str, Any] = MANIFESTS[kind]["spec"]
    return spec if kind == "RayCluster" else spec[SPECS[kind]]


def templates(kind: str) -> Iterator[dict[str, Any]]:
    yield cluster(kind)["headGroupSpec"]["template"]
    for group in cluster(kind)["workerGroupSpecs"]:
        yield group["template"]
    if kind == "RayJob":
        yield MANIFESTS[kind]["spec"]["submitterPodTemplate"]


@pytest.mark.parametrize("kind", SPECS)
def test_every_field_is_one_of_kuberay_s_and_ray_s_autoscaler_reads_them(kind: str) -> None:
    schema = SCHEMA | {"oneOf": [{"$ref": f"#/$defs/{kind}"}]}
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(MANIFESTS[kind], schema)
    spec = cluster(kind)
    config = read_by_ray({"metadata": MANIFESTS[kind]["metadata"], "spec": spec})
    types = config["available_node_types"]
    assert types["headgroup"]["resources"]["CPU"] == 0
    for name, each in types.items():
        if name != "headgroup":
            assert each["resources"]["GPU"] == 4
            assert each["min_workers"] <= each["max_workers"] <= 2
    assert spec["enableInTreeAutoscaling"] is True
    assert spec["autoscalerOptions"]["version"] == "v2"
    if kind != "RayService":
        assert types["gpu-spot"]["priority"] > types["gpu-on-demand"].get("priority", 0)


@pytest.mark.parametrize("kind", SPECS)
def test_every_pod_is_bounded_has_no_privileges_and_goes_where_its_price_is(kind: str) -> None:
    assert cluster(kind)["authOptions"] == {"mode": "token", "secretName": "raybias-auth"}
    assert MANIFESTS[kind]["metadata"]["namespace"] == "raybias"
    for template in templates(kind):
        assert template["metadata"]["labels"] == OURS
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            resources = container["resources"]
            assert resources["requests"] == resources["limits"]
            assert {"cpu", "memory"} <= resources["limits"].keys()
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            assert not [each for each in container.get("env", []) if "value" in each]
    for group in cluster(kind)["workerGroupSpecs"]:
        market = group["labels"]["ray.io/market-type"]
        pod = group["template"]["spec"]
        assert pod["nodeSelector"] == {"raybias/market": market}
        assert [each["value"] for each in pod["tolerations"] if "value" in each] == [market]
        assert pod["automountServiceAccountToken"] is False


def test_the_network_is_closed_but_for_what_is_named_and_privileges_are_refused() -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in BASE
                if each["kind"] == "NetworkPolicy"}  # fmt: skip
    closed = policies.pop("closed")
    assert closed == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for name, spec in policies.items():
        assert spec["podSelector"]["matchLabels"].items() >= OURS.items(), name
        for rule in spec.get("ingress", []):
            # An empty peer or a range of addresses would let strangers in.
            assert rule["from"], name
            for peer in rule["from"]:
                assert peer["podSelector"]["matchLabels"], name
        for rule in spec.get("egress", []):
            assert rule["to"], name
            assert "ports" in rule or name == "among-themselves"
    by_kind = {each["kind"]: each for each in BASE}
    labels = by_kind["Namespace"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert by_kind["ResourceQuota"]["spec"]["hard"]["services.loadbalancers"] == "0"


def test_the_service_s_application_is_one_that_serve_deploys() -> None:
    config = yaml.safe_load(MANIFESTS["RayService"]["spec"]["serveConfigV2"])
    (application,) = ServeDeploySchema.model_validate(config).applications
    module, _, name = application.import_path.partition(":")
    assert callable(getattr(import_module(module), name))
    serving = Serving.model_validate(application.args)
    (group,) = cluster("RayService")["workerGroupSpecs"]
    assert serving.gpus * serving.replicas <= 4 * group["maxReplicas"]
    assert not serving.anyone
    for template in templates("RayService"):
        names = [each["name"] for each in template["spec"]["containers"][0]["env"]]
        assert TOKEN_VARIABLE in names


def test_the_job_runs_what_is_in_the_image_and_a_spot_pod_that_ends_drains_its_node() -> None:
    assert cluster("RayJob") == cluster("RayCluster")
    for group in cluster("RayJob")["workerGroupSpecs"]:
        (container,) = group["template"]["spec"]["containers"]
        hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
        spot = group["groupName"] == "gpu-spot"
        assert ("/home/ray/raybias/cluster/spot_watch.py" in hook) == spot
        if spot:
            # The hook waits so long, and the processes are ended within the rest.
            assert int(hook[-1]) < group["template"]["spec"]["terminationGracePeriodSeconds"]
    words = MANIFESTS["RayJob"]["spec"]["entrypoint"].split()
    (file,) = (word for word in words if word.startswith("/home/ray/raybias/cluster/"))
    name = Path(file).name
    assert f"cluster/{name}" in (CLUSTER / "Containerfile").read_text()

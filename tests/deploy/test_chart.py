"""The Helm chart, rendered by Helm's own SDK and held against Kubernetes' schemas. Nothing here runs a cluster.

Wants `pip install helm-python-sdk kubernetes-validate`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from clients.wire import USER_HEADER
from deploy.check import main as check
from deploy.dashboards import render as dashboards
from deploy.launcher import RunningServer
from deploy.router import config
from deploy.router.limits import Limits
from ensembles.served import served

if find_spec("helm_python") is None:
    pytest.skip("pip install helm-python-sdk", allow_module_level=True)
kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
yaml = pytest.importorskip("yaml", reason="pip install pyyaml")

CHART = Path(__file__).resolve().parents[2] / "deploy" / "chart"
RELEASES = ("1.27", "1.31", "1.37")
OPERATOR = "monitoring.coreos.com/v1"  # no schemas of its kinds are at hand
CLAIM = {"artifact": {"claim": "models"}}
IMAGE = {"artifact": {"image": "registry/artifact:1"}}
ALL = {**CLAIM, "autoscaling": {"enabled": True}, "monitoring": {"enabled": True, "labels": {"team": "x"}}}


# In a process of its own: the SDK brings Go's runtime, which does not go well with gRPC's threads and forks here.
HELM = """
import json, sys
import helm_python as helm
chart, what = sys.argv[1:]
values = json.load(sys.stdin)
try:
    if what == "lint":
        found = helm.lint(chart, values, strict=True)["messages"]
    else:
        found = helm.Chart.load(chart).render(values, name="shop", namespace="models")
    print(json.dumps(found, default=str))
except helm.HelmError as error:
    sys.exit(str(error))
"""


class HelmError(Exception):
    pass


def helm(what: str, values: dict[str, Any]) -> Any:
    return _helm(what, json.dumps(values))


@cache
def _helm(what: str, values: str) -> Any:
    argv = [sys.executable, "-c", HELM, str(CHART), what]
    done = subprocess.run(argv, input=values, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise HelmError(done.stderr)
    return json.loads(done.stdout)


def rendered(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Every object of the chart under these values."""
    files = helm("render", values)
    texts = [text for name, text in files.items() if name.endswith(".yaml")]
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def one(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = (each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("values", [CLAIM, IMAGE, ALL], ids=["claim", "image", "all"])
def test_every_object_fits_kubernetes_schema(values: dict[str, Any], release: str) -> None:
    checked = []
    for each in rendered(values):
        if each["apiVersion"] != OPERATOR:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kubernetes_validate.validate(each, release, strict=True)
            checked.append(each["kind"])
    assert {"StatefulSet", "Deployment", "Service", "ConfigMap", "PodDisruptionBudget"} <= set(checked)
    assert ("HorizontalPodAutoscaler" in checked) == (values is ALL)


def test_helm_finds_nothing_to_mend() -> None:
    found = helm("lint", CLAIM)
    assert not [each for each in found if each["severity"] not in ("INFO", "1", 1)], found


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "artifact"),
        ({"artifact": {"claim": "a", "image": "b"}}, "artifact"),
        ({**CLAIM, "servers": {"replicas": 0}}, "replicas"),
        ({**CLAIM, "servers": {"ensembles": ["recommends"]}}, "ensembles"),
        ({**CLAIM, "router": {"waitMs": 0}}, "waitMs"),
        ({**CLAIM, "sevrers": {}}, "sevrers"),
        ({**CLAIM, "router": {"service": None}}, "router': missing property 'service'"),
        ({**CLAIM, "router": {"service": {"grpcPort": None}}}, "grpcPort"),
        ({**CLAIM, "image": {"pullPolicy": None}}, "pullPolicy"),
        ({**CLAIM, "servers": {"sharedMemory": None}}, "sharedMemory"),
        ({**IMAGE, "artifact": {**IMAGE["artifact"], "size": None}}, "size"),
        ({**ALL, "autoscaling": {"enabled": True, "maxReplicas": None}}, "maxReplicas"),
        (
            {**ALL, "autoscaling": {"enabled": True, "minReplicas": 9}},
            "minReplicas: is 9 .* at most maxReplicas, 8",
        ),
        ({**ALL, "monitoring": {"enabled": True, "labels": {"team": 7}}}, "labels"),
        ({**ALL, "monitoring": {"enabled": True, "interval": None}}, "interval"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], says: str) -> None:
    with pytest.raises(HelmError, match=says):
        rendered(values)


@pytest.mark.parametrize("values", [CLAIM, IMAGE, ALL], ids=["claim", "image", "all"])
def test_nobody_is_root_and_nothing_is_written_to_an_image(values: dict[str, Any]) -> None:
    pods = [
        each["spec"]["template"]["spec"] for each in rendered(values) if "template" in each.get("spec", {})
    ]
    assert len(pods) == 2
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 1000
        assert not pod["automountServiceAccountToken"]
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            rights = container["securityContext"]
            assert rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"]
            assert rights["capabilities"]["drop"] == ["ALL"] and container["resources"]["limits"]["memory"]
        mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_probes_are_real_requests() -> None:
    (server,) = one(rendered(CLAIM), "StatefulSet", "shop-servers")["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        command = server[probe]["exec"]["command"]
        assert command == ["python3", "-m", "deploy.check", "/artifact", "127.0.0.1:8000", "recommend"]


def test_every_ensemble_can_be_probed() -> None:
    names = [each.name for each in served(3, draft=True, ranker=True)]
    (server,) = one(
        rendered({**CLAIM, "servers": {"ensembles": names}}), "StatefulSet", "shop-servers"
    )["spec"]["template"]["spec"]["containers"]  # fmt: skip
    assert server["readinessProbe"]["exec"]["command"][-len(names) :] == names


@pytest.mark.parametrize(("values", "places"), [(CLAIM, 2), (ALL, 8)], ids=["two", "scaled"])
def test_the_router_is_the_one_that_is_tested(values: dict[str, Any], places: int, tmp_path: Path) -> None:
    text: str = one(rendered(values), "ConfigMap", "shop-router")["data"]["haproxy.cfg"]
    for said in (
        f"hash-balance-factor {config.BALANCE_FACTOR}", f"hdr({USER_HEADER})", config.OPEN_PATHS,
        f"gt {config.MOST_BYTES} ", *(f"/inference.GRPCInferenceService/{call}" for call in config.OPEN_CALLS),
        f"queue(be_grpc) ge {Limits().waiting} ",  # of each of two routers
    ):  # fmt: skip
        assert said in text
    assert text.count("    server s") == 2 * places
    if shutil.which("haproxy"):
        (tmp_path / "haproxy.cfg").write_text(text.replace("/run/haproxy", str(tmp_path)))
        command = ["haproxy", "-c", "-f", "haproxy.cfg"]
        found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr


def test_the_router_asks_for_whole_names() -> None:
    """HAProxy takes the name servers of /etc/resolv.conf and not its search list, which would end a short name."""
    text: str = one(rendered(CLAIM), "ConfigMap", "shop-router")["data"]["haproxy.cfg"]
    hosts = {
        line.split()[2].partition(":")[0] for line in text.splitlines() if line.startswith("    server s")
    }
    assert hosts == {f"shop-servers-{n}.shop-servers.models.svc.cluster.local" for n in range(2)}


def test_rules_and_dashboard_travel_along_unchanged() -> None:
    objects = rendered(ALL)
    assert one(objects, "PrometheusRule", "shop")["spec"] == yaml.safe_load(dashboards.RULES.read_text())
    carried = one(objects, "ConfigMap", "shop-dashboard")["data"]["genrec.json"]
    assert json.loads(carried) == json.loads(dashboards.DASHBOARD.read_text())
    assert {each["metadata"]["name"] for each in objects if each["kind"] == "PodMonitor"} == {
        "shop-server",
        "shop-router",
    }


@pytest.mark.serving
def test_the_probe_asks_a_real_server(
    tiny: Path, server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check([str(tiny), server.http_url, "recommend", "recommend_draft"]) == 0
    assert check([str(tiny), server.http_url, "recommend", "nothing"]) == 1
    assert "nothing: " in capsys.readouterr().err
    assert check([str(tiny), "127.0.0.1:9", "recommend"]) == 1
    assert check([str(tiny / "nowhere"), server.http_url, "recommend"]) == 1

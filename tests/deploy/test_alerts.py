"""Alerts over series that a test writes, as Prometheus' own promtool evaluates them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.dashboards import render

pytestmark = pytest.mark.skipif(not shutil.which("promtool"), reason="apt-get install prometheus")


def fires(alert: str, labels: list[str], values: list[int], folder: Path) -> bool:
    """Whether an alert fires once each of the series, by their names and labels, has had its value for ten minutes."""
    series = [{"series": each, "values": f"{value}x10"} for each, value in zip(labels, values, strict=True)]
    silent = {"eval_time": "10m", "alertname": alert, "exp_alerts": []}
    test = {"interval": "1m", "input_series": series, "alert_rule_test": [silent]}
    about = {"rule_files": [str(render.RULES)], "evaluation_interval": "1m", "tests": [test]}
    (folder / "test.yml").write_text(json.dumps(about))  # JSON is YAML
    command = ["promtool", "test", "rules", str(folder / "test.yml")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    said = found.stdout + found.stderr
    assert found.returncode == 0 or f"alertname: {alert}" in said, said
    return found.returncode != 0


@pytest.mark.parametrize(
    ("catalogues", "versions", "differ"),
    [(("a1", "a1"), (2, 1), True), (("a1", "a1"), (2, 2), False), (("a1", "b2"), (2, 1), False)],
    ids=["one server was not swapped", "all were", "in a rollout"],
)
def test_versions_differ_between_servers_of_one_catalogue(
    catalogues: tuple[str, ...], versions: tuple[int, ...], differ: bool, tmp_path: Path
) -> None:
    """Folders of two artifacts may have one name, as those of two days may."""
    servers = [
        f'genrec_catalogue_version{{job="genrec", instance="{n}", artifact="mine", catalogue="{catalogue}"}}'
        for n, catalogue in enumerate(catalogues)
    ]
    assert fires("GenrecCataloguesDiffer", servers, list(versions), tmp_path) is differ


def test_servers_that_nobody_named_the_catalogue_of_are_of_one(tmp_path: Path) -> None:
    """As the chart's monitors and compose have them."""
    servers = [f'genrec_catalogue_version{{job="genrec", instance="{n}"}}' for n in range(2)]
    assert fires("GenrecCataloguesDiffer", servers, [2, 1], tmp_path)

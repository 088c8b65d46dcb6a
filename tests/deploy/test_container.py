"""Images and compose, as far as a machine without Docker can tell: nothing here builds or runs an image."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.compose import render
from tests.serving.processes import until

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "deploy" / "compose"
DOCKERFILES = [ROOT / "deploy" / "Dockerfile", ROOT / "deploy" / "Dockerfile.cpu"]
PIN = re.compile(r"([a-z-]+)(?:\[[a-z,]+\])?==([0-9.]+)")


def copied(dockerfile: Path) -> list[str]:
    """Folders of the checkout that an image gets."""
    return re.findall(r"^COPY (?!--)(\S+) ", dockerfile.read_text(), re.MULTILINE)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_images_get_what_is_there_in_the_versions_that_are_tested(dockerfile: Path) -> None:
    assert copied(dockerfile) and all((ROOT / name).is_dir() for name in copied(dockerfile))
    tested = dict(PIN.findall((ROOT / "pyproject.toml").read_text()))
    pinned = dict(PIN.findall(dockerfile.read_text()))
    assert pinned.items() <= tested.items()


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_numba_caches_where_the_image_s_user_may_write(dockerfile: Path) -> None:
    """Else every start fails: numba finds no place for what it caches, the folder of the sources being root's."""
    served = dockerfile.read_text().rpartition("\nFROM ")[2]
    assert re.search(r"^USER 1000$", served, re.MULTILINE)
    assert re.search(r"^ENV .*\bNUMBA_CACHE_DIR=/tmp/", served, re.MULTILINE)


@pytest.mark.long
@pytest.mark.serving
def test_what_the_image_gets_is_enough_to_serve(tiny: Path, tmp_path: Path) -> None:
    """Its folders alone, in an empty environment: serve, answer the probe, end."""
    home, run = tmp_path / "genrec", tmp_path / "run"
    for name in copied(DOCKERFILES[1]):
        shutil.copytree(ROOT / name, home / name, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {
        "PATH": os.defpath, "PYTHONPATH": str(home), "NUMBA_CACHE_DIR": str(tmp_path / "numba"),
    }  # fmt: skip
    command = [
        sys.executable,
        "-m",
        "cli.main",
        "serve",
        str(tiny),
        f"--run-dir={run}",
        "--ensembles=recommend",
    ]
    process = subprocess.Popen(command, cwd=home, env=environment, start_new_session=True)
    try:
        until(lambda: (run / "server.json").exists() or process.poll() is not None)
        http = re.search(r'"http_url": "([^"]+)"', (run / "server.json").read_text())[1]
        check = [sys.executable, "-m", "deploy.check", str(tiny), http, "recommend"]
        found = subprocess.run(check, cwd=home, env=environment, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_the_router_of_compose_is_the_rendered_one() -> None:
    assert render.CONFIG.read_text() == render.configuration()
    text = (COMPOSE / "compose.yml").read_text()
    for ports in render.SERVERS:
        for option, port in (("http", ports.http), ("grpc", ports.grpc), ("metrics", ports.metrics)):
            assert f"--{option}-port={port}" in text
        assert f'"127.0.0.1:{ports.metrics}"' in (COMPOSE / "prometheus.yml").read_text()
    assert f'"127.0.0.1:{render.ROUTER.metrics}"' in (COMPOSE / "prometheus.yml").read_text()


def test_what_compose_mounts_is_there() -> None:
    mounted = re.findall(r"(\.{1,2}/\S+?):/", (COMPOSE / "compose.yml").read_text())
    assert len(mounted) == 6 and all((COMPOSE / name).is_file() for name in mounted)


def test_compose_is_whole() -> None:
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    services = yaml.safe_load((COMPOSE / "compose.yml").read_text())["services"]
    assert services.keys() == {"server-1", "server-2", "router", "prometheus", "grafana"}
    for name in ("server-1", "server-2"):
        assert services[name]["read_only"] and services[name]["cap_drop"] == ["ALL"]
    assert all(each["network_mode"] == "host" for each in services.values())


@pytest.mark.skipif(not shutil.which("promtool"), reason="apt-get install prometheus")
def test_prometheus_takes_configuration_and_rules(tmp_path: Path) -> None:
    for file in (COMPOSE / "prometheus.yml", ROOT / "deploy" / "dashboards" / "rules.yml"):
        shutil.copy(file, tmp_path)
    command = ["promtool", "check", "config", "prometheus.yml"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr

"""The router's configuration: what is filled in, and that HAProxy takes it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.ports import Ports
from deploy.router.config import BACKENDS, ServerPlace, render
from deploy.router.limits import MOST_CONNECTIONS, Limits
from genrec.errors import InputError


def text_of(places: list[ServerPlace], **limits: int) -> str:
    return render(places, 2, Limits(**limits), Ports(21001, 21002, 21003), Path("/dev/shm/admin"))


def test_both_protocols_know_the_same_servers_by_the_same_ids() -> None:
    text = text_of(
        [ServerPlace("a1", 8000, 8001, 100), ServerPlace("a2", 8010, 8011, 100), ServerPlace("b1")]
    )
    sections = {
        name: text.partition(f"\nbackend {name}\n")[2].partition("\nbackend ")[0] for name in BACKENDS
    }
    ids = {name: re.findall(r"server (\w+) .* (id \d+)", section) for name, section in sections.items()}
    assert ids["be_grpc"] == ids["be_http"] == [("a1", "id 1"), ("a2", "id 2"), ("b1", "id 3")]
    assert "server a2 127.0.0.1:8011 proto h2 check-proto h1 check port 8010" in sections["be_grpc"]
    assert "server a2 127.0.0.1:8010 check port 8010" in sections["be_http"]
    assert re.findall(r"server (\w+) .* disabled", text) == ["b1", "b1"]


def test_nothing_is_left_unfilled_and_limits_are_of_all_servers() -> None:
    text = text_of([ServerPlace("a1", 8000, 8001, 100)], in_flight=3, waiting=5, wait_ms=7)
    assert "$" not in text.replace("/?$ }", "")
    assert f"maxconn {MOST_CONNECTIONS}\n" in text and "maxconn 3" in text and "timeout queue 7ms" in text
    assert text.count("queue(be_grpc) ge 10") == text.count("queue(be_http) ge 10") == 1


def test_the_oldest_haproxy_knows_all_converters() -> None:
    """That of Ubuntu 22.04, whose Python is the oldest that we take: 2.4."""
    samples = re.findall(r"\{ req\.\S+|%\[[^]]+", text_of([]))
    used = {each for sample in samples for each in re.findall(r"(?<=[\w()],)[a-z][a-z0-9]+", sample)}
    assert used == {"bytes", "hex", "hex2i", "bool", "iif"}


@pytest.mark.parametrize("name", ["in_flight", "waiting", "wait_ms"])
def test_limits_are_named(name: str) -> None:
    for wrong in (0, 600_001):
        with pytest.raises(InputError, match=rf"{name}: is {wrong} \(accepted: 1 to \d+\)"):
            Limits(**{name: wrong})


@pytest.mark.skipif(not shutil.which("haproxy"), reason="apt-get install haproxy")
def test_haproxy_takes_it_without_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "haproxy.cfg"
    file.write_text(text_of([ServerPlace("a1", 8000, 8001, 100), ServerPlace("b1")]))
    found = subprocess.run(["haproxy", "-c", "-f", file], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "WARNING" not in found.stderr

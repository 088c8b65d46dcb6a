"""A server with known holes is not shown to the network by accident."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from cli.main import main
from deploy.address import RELEASE, check_address
from deploy.command import command, environment
from deploy.ports import Ports
from deploy.server_files import ServerFiles
from genrec.errors import InputError


def test_loopback_is_open_to_every_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RELEASE, raising=False)
    check_address("127.0.0.1", i_know=False)


@pytest.mark.parametrize(
    ("release", "fits"), [("", False), ("25.07", False), ("25.08", True), ("26.05", True)]
)
def test_other_addresses_want_a_current_release(
    monkeypatch: pytest.MonkeyPatch, release: str, fits: bool
) -> None:
    monkeypatch.setenv(RELEASE, release)
    if fits:
        check_address("0.0.0.0", i_know=False)
        return
    with pytest.raises(InputError, match=r"address: is 0\.0\.0\.0 .*CVE-2025-23310"):
        check_address("0.0.0.0", i_know=False)


def test_who_knows_is_warned(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv(RELEASE, raising=False)
    with caplog.at_level(logging.WARNING):
        check_address("0.0.0.0", i_know=True)
    assert "CVE-2025-23310" in caplog.text


@pytest.mark.parametrize("address", ["", "localhost:8000", "10.0.0.7"])
def test_an_address_where_the_launcher_could_not_ask_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="address: is"):
        check_address(address, i_know=True)


def test_the_command_line_refuses_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(RELEASE, raising=False)
    assert main(["serve", str(tiny), "--address", "0.0.0.0"]) == 2
    assert "address: is 0.0.0.0" in capsys.readouterr().err


def test_all_three_doors_are_on_the_address() -> None:
    files = ServerFiles(*(Path(name) for name in ("server", "library", "stub", "utilities")))
    argv = command(files, Path("m"), Path("b"), Ports(1, 2, 3), "t", "p", "c", "0.0.0.0")
    assert {f"--{door}-address=0.0.0.0" for door in ("http", "grpc", "metrics")} <= set(argv)
    assert not any("127.0.0.1" in each for each in argv)


@pytest.mark.parametrize(
    ("host", "asked"), [("127.0.0.1", False), ("localhost", False), ("[::1]", False), ("collector", True)]
)
def test_no_proxy_learns_of_spans_to_this_machine(
    monkeypatch: pytest.MonkeyPatch, host: str, asked: bool
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    files = ServerFiles(*[Path("server")] * 4)
    given = environment(files, {"GENREC_TRACE_URL": f"http://{host}:4318/v1/traces"}, 1)
    assert ("http_proxy" in given) == asked

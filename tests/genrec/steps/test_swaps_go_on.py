"""A swap is never waited for in vain, whenever the pointer moves and whatever goes wrong while it is followed."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clients.recommender import Recommender
from deploy import shared_memory, switch
from genrec.catalogue.versions import FOLDER, point, read_current
from genrec.settings import Settings
from genrec.steps import versioned
from genrec.steps.versioned import Versioned
from tests.genrec.steps.versions import with_versions
from tests.serving.processes import until
from tests.serving.servers import brief_server


def to(settings: Settings, version: int) -> None:
    point(settings.artifact, read_current(settings.artifact).to(version))


def test_the_pointer_moves_before_the_first_look(
    settings: Settings, process: Callable[[str], Versioned[str]]
) -> None:
    """The server was started with version 1; a switch came while it loaded, and later there is another."""
    to(settings, 2)
    both = process("first"), process("second")
    for version in (2, 3, 1, 2):
        to(settings, version)
        until(lambda version=version: all(one.current == version for one in both))
    assert all(one.of(1) == "artifact" and one.of(2) == "2" for one in both)


def test_the_version_of_the_start_stays_as_long_as_any_other(
    settings: Settings, process: Callable[[str], Versioned[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No look ever found it current, but requests may carry it that came a moment before the switch."""
    to(settings, 2)
    one = process("one")
    to(settings, 3)
    until(lambda: one.current == 3)
    switched = time.monotonic()
    until(lambda: one._needed[3] > switched)
    assert one.of(1) == "artifact"
    monkeypatch.setattr(versioned, "RETIRE_S", 0.0)
    until(lambda: 1 not in one._versions)


def test_what_goes_wrong_in_following_is_told_once_and_survived(
    settings: Settings,
    process: Callable[[str], Versioned[str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = process("one")
    wrong = iter([ZeroDivisionError("first"), *[KeyError("second")] * 5, *[MemoryError()] * 2])

    def look(artifact: Path) -> object:
        if error := next(wrong, None):
            raise error
        return read_current(artifact)

    monkeypatch.setattr(versioned, "read_current", look)
    to(settings, 2)
    with caplog.at_level(logging.ERROR):
        until(lambda: one.current == 2)
    told = [record.getMessage() for record in caplog.records]
    assert [t.rpartition("on: ")[2] for t in told] == [
        "ZeroDivisionError: first",
        "KeyError: 'second'",
        "MemoryError: ",
    ]
    assert all(t.startswith("one-") for t in told)


def test_a_pointer_that_nobody_can_look_at_takes_no_version_away(
    settings: Settings, process: Callable[[str], Versioned[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """As in a folder that is closed to this user. A link to itself stands for it: root may look anywhere."""
    to(settings, 2)
    one = process("one")
    until(lambda: one.current == 2)
    folder = settings.artifact / FOLDER
    folder.rename(settings.artifact / "aside")
    folder.symlink_to(folder)
    until(lambda: "could not follow the catalogue" in caplog.text or one.current != 2)
    assert one.current == 2


@pytest.mark.serving
def test_a_server_whose_pointer_moved_while_it_loaded_follows_the_next_switch(
    tiny: Path, items: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = with_versions(shutil.copytree(tiny, tmp_path / "artifact"))
    prepare = shared_memory.prepare

    def move_meanwhile(*given: object) -> None:
        prepare(*given)
        point(artifact, read_current(artifact).to(2))

    monkeypatch.setattr(shared_memory, "prepare", move_meanwhile)
    monkeypatch.setattr(switch, "PATIENCE_S", 30.0)
    with brief_server(artifact, beam_width=8, ensembles=("recommend",)) as server:
        for version in (3, 1):
            switch.switch(artifact, version)
            with Recommender(server.grpc_url) as recommender:
                assert recommender.recommend(items[:3], 5).catalogue_version == version
        assert server.restarts == 0

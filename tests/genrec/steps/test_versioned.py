"""Two phases: nobody serves a new version before everybody has loaded it, and nobody forgets one too early."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from genrec import metrics
from genrec.catalogue import agreement
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.versions import Current, folder_of, point, read_current
from genrec.errors import ArtifactError, InputError
from genrec.settings import Settings
from genrec.steps import versioned
from genrec.steps.versioned import Versioned


def until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def to(settings: Settings, version: int) -> Current:
    now = read_current(settings.artifact).to(version)
    point(settings.artifact, now)
    return now


def said(settings: Settings, step: str) -> agreement.Acknowledgement:
    found = agreement.acknowledgements(settings.swap)
    return next(a for process, a in found.items() if process.startswith(f"{step}-"))


def test_all_change_over_once_the_slowest_has_loaded(
    settings: Settings, process: Callable[..., Versioned[str]]
) -> None:
    go, begun = threading.Event(), threading.Event()

    def slow(folder: Path) -> str:
        if folder.name == "2":
            begun.set()
            go.wait(30)
        return folder.name

    fast, late = process("fast"), process("late", slow)
    wanted = to(settings, 2)
    until(lambda: begun.is_set() and said(settings, "fast").loaded == (1, 2))
    for _ in range(20):
        time.sleep(0.01)
        assert (fast.current, late.current) == (1, 1)
        assert fast.of(1) == late.of(1) == "artifact"  # requests go on meanwhile
    go.set()
    until(lambda: (fast.current, late.current) == (2, 2))
    assert fast.of(0) == late.of(2) == "2" and late.of(1) == "artifact"
    until(lambda: said(settings, "late") == agreement.Acknowledgement(wanted.serial, (1, 2), 2))


def test_who_has_loaded_it_for_an_earlier_pointer_is_waited_for(
    settings: Settings, process: Callable[..., Versioned[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """He may be about to forget it: he says so of the new pointer once he has looked at that. Nor does who waits for
    him forget it meanwhile.
    """
    monkeypatch.setattr(versioned, "RETIRE_S", 0.0)
    one, other = process("one"), "other-7"
    agreement.acknowledge(settings.swap, other, agreement.Acknowledgement(0, (1, 2), 1))
    wanted = to(settings, 2)
    until(lambda: said(settings, "one").loaded == (1, 2))
    for _ in range(20):
        time.sleep(0.01)
        assert one.current == 1
    agreement.acknowledge(settings.swap, other, agreement.Acknowledgement(wanted.serial, (1, 2), 1))
    until(lambda: one.current == 2)


def test_who_comes_late_begins_with_what_was_said_of_the_newest_pointer(settings: Settings) -> None:
    """Another who is new himself may have said nothing of it yet."""
    for name, serial, loaded, current in (("a-1", -1, (), 1), ("b-2", 4, (1, 3), 3), ("c-3", -1, (), 1)):
        agreement.acknowledge(settings.swap, name, agreement.Acknowledgement(serial, loaded, current))
    assert agreement.start_with(settings.swap) == (3, (1, 3))


def test_nobody_changes_over_while_one_still_starts(
    settings: Settings, process: Callable[..., Versioned[str]]
) -> None:
    """It loads what the others serve, and would serve that alone."""
    early, pointed = process("early"), list[Current]()

    def starts(folder: Path) -> str:
        if not pointed:
            pointed.append(to(settings, 2))
            until(lambda: said(settings, "early").loaded == (1, 2))
            for _ in range(20):
                time.sleep(0.01)
                assert early.current == 1
        return folder.name

    late = process("late", starts)
    until(lambda: (early.current, late.current) == (2, 2))


def test_what_one_refuses_nobody_serves(settings: Settings, process: Callable[..., Versioned[str]]) -> None:
    def picky(folder: Path) -> str:
        if folder.name == "2":
            raise ValueError("not this one")
        return folder.name

    before = metrics.CATALOGUE_REFUSALS.value()  # an alert goes by it
    easy, hard = process("easy"), process("hard", picky)
    to(settings, 2)
    until(lambda: said(settings, "hard").refused == "not this one")
    assert metrics.CATALOGUE_REFUSALS.value() > before
    until(lambda: said(settings, "easy").loaded == (1, 2))
    assert (easy.current, hard.current, easy.of(0)) == (1, 1, "artifact")
    assert not easy._follow(), "nobody is waited for: the pointer may stay so"
    to(settings, 3)
    until(lambda: (easy.current, hard.current) == (3, 3))
    assert said(settings, "hard").refused == ""


def test_a_corrupt_file_is_refused_by_name(
    settings: Settings, process: Callable[..., Versioned[str]]
) -> None:
    one = process("one")
    path = folder_of(settings.artifact, 2) / CATALOGUE
    path.write_bytes(path.read_bytes()[:-1])
    to(settings, 2)
    until(lambda: said(settings, "one").refused)
    assert str(path) in said(settings, "one").refused and one.current == 1
    (settings.artifact / "catalogues" / "current.json").write_text("?")
    with pytest.raises(ArtifactError, match=r"current\.json"):
        one._follow()
    assert one.of(0) == "artifact"
    point(settings.artifact, Current(3, 9))
    until(lambda: one.current == 3)


def test_the_last_two_stay_and_others_only_while_a_request_may_need_them(
    settings: Settings, process: Callable[..., Versioned[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = process("one")
    for version in (2, 3):
        wanted = to(settings, version)
        until(lambda version=version: one.current == version)
    until(lambda: said(settings, "one") == agreement.Acknowledgement(wanted.serial, (1, 2, 3), 3))
    assert [one.of(v) for v in (1, 2, 3)] == ["artifact", "2", "3"]
    monkeypatch.setattr(versioned, "RETIRE_S", 0.0)
    until(lambda: said(settings, "one").loaded == (2, 3))
    with pytest.raises(InputError, match=r"catalogue version 1 \(accepted: 0, or one that is loaded: 2, 3\)"):
        one.of(1)


def test_a_late_process_starts_with_the_versions_of_the_others(
    settings: Settings, process: Callable[..., Versioned[str]]
) -> None:
    """The server started with 1 and is on its way to 2: a request may carry either."""
    early = process("early")
    to(settings, 2)
    until(lambda: early.current == 2)
    late = process("late")
    assert (late.current, late.of(1), late.of(2)) == (2, "artifact", "2")


def test_who_comes_again_while_a_version_is_refused_serves_what_the_others_do(
    settings: Settings, process: Callable[..., Versioned[str]]
) -> None:
    """Not what the server once started with, which nobody else may have loaded any more."""
    early = process("early")
    to(settings, 2)
    until(lambda: early.current == 2)
    (folder_of(settings.artifact, 3) / CATALOGUE).write_bytes(b"")
    to(settings, 3)
    until(lambda: said(settings, "early").refused)
    late = process("late")
    assert (late.current, late.of(1), late.of(2)) == (2, "artifact", "2")


def test_without_a_server_the_current_version_is_loaded_and_kept(settings: Settings, tmp_path: Path) -> None:
    to(settings, 2)
    before = set(threading.enumerate())  # other tests' threads may take a moment to end
    alone = Versioned(Settings(settings.artifact, tmp_path / "no-arena"), "alone", lambda folder: folder.name)
    to(settings, 3)
    assert not [each for each in set(threading.enumerate()) - before if each.name == "genrec-catalogue"]
    assert (alone.current, alone.of(0)) == (2, "2")
    path = folder_of(settings.artifact, 3) / CATALOGUE
    path.write_bytes(b"")
    with pytest.raises(ArtifactError, match=str(path)):
        Versioned(Settings(settings.artifact, tmp_path / "no-arena"), "alone", lambda folder: folder.name)

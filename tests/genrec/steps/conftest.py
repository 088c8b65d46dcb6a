"""What tests of catalogue versions start from: a server's settings, and what stands for its processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from genrec.settings import Settings
from genrec.steps import versioned
from genrec.steps.versioned import Versioned
from tests.genrec.steps.versions import processes, settings_of_a_server, three_versions


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three_versions(tmp_path_factory.mktemp("twin"))


@pytest.fixture
def settings(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(versioned, "POLL_S", 0.005)
    return settings_of_a_server(plain, tmp_path)


@pytest.fixture
def process(settings: Settings) -> Iterator[Callable[..., Versioned[str]]]:
    with processes(settings) as make:
        yield make

"""What tests start from: of catalogue versions a server's settings and what stands for its processes, of users who come
again a step with a pool.
"""  # fmt: skip

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from genrec.engine import kept_prompts
from genrec.settings import Settings
from genrec.steps import versioned
from genrec.steps.versioned import Versioned
from tests.genrec.steps.kept import Start, starting
from tests.genrec.steps.versions import processes, settings_of_a_server, three_versions
from tests.oracles.twin import twin_artifact


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three_versions(tmp_path_factory.mktemp("twin"))


@pytest.fixture
def settings(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(versioned, "POLL_S", 0.005)
    monkeypatch.setattr(versioned, "SWAP_POLL_S", 0.005)
    return settings_of_a_server(plain, tmp_path)


@pytest.fixture
def process(settings: Settings) -> Iterator[Callable[..., Versioned[str]]]:
    with processes(settings) as make:
        yield make


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return twin_artifact(tmp_path_factory.mktemp("kept") / "artifact", (3, 7, 6), 90)


@pytest.fixture
def every_prompt_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """But the empty one."""
    monkeypatch.setattr(kept_prompts, "WORTH", 1)


@pytest.fixture
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Of the step that the test's module names."""
    with starting(request.module.STEP, tmp_path) as load:
        yield load


@pytest.fixture(params=[("twin", "twin"), ("tiny", "openvino")], ids=lambda each: each[0])
def kept_and_plain(request: pytest.FixtureRequest, start: Start) -> tuple[Path, Any, Any]:
    """An artifact, and the step with a pool that has not room for all users, and without one."""
    fixture, target = request.param
    artifact = request.getfixturevalue(fixture)
    return artifact, start(artifact, target, 1)[0], start(artifact, target, 0)[0]

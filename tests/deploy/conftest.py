"""A fleet of planted servers behind a real router, on its way from one artifact to another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from deploy.launcher import RunningServer
from deploy.ports import choose_ports
from deploy.router.config import ServerPlace
from deploy.router.fleet import Fleet, Generation
from deploy.router.haproxy import Router, running_router
from deploy.router.limits import Limits

OLD, NEW = Path("old"), Path("new")


@pytest.fixture
def router() -> Iterator[Router]:
    with running_router([ServerPlace("a1"), ServerPlace("b1")], 1, Limits(), choose_ports()) as running:
        yield running


def generation(artifact: Path, place: str, ended: list[Path]) -> Generation:
    """One server that nobody asks; it says when it is ended."""
    watched = SimpleNamespace(error=None, stop=lambda wait: None, prefix="")  # of whoever answers, or nobody
    server = RunningServer(choose_ports(), "", Path(), watched, ("recommend",), "")  # type: ignore[arg-type]
    stack = ExitStack()
    stack.callback(ended.append, artifact)
    return Generation(artifact, (place,), [server], stack, f"catalogue of {artifact}")


@pytest.fixture
def ended() -> list[Path]:
    return []


@pytest.fixture
def fleet(router: Router, ended: list[Path], tmp_path: Path) -> Fleet:
    """On its way from OLD to NEW."""
    made = Fleet(router, (("a1",), ("b1",)), {}, tmp_path / "targets.json")
    made.serving, made.coming = generation(OLD, "a1", ended), generation(NEW, "b1", ended)
    return made

"""Fixtures every room shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import tiny_artifact


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole artifact with random weights, L=3. Tests copy it before they change it."""
    return tiny_artifact(tmp_path_factory.mktemp("tiny") / "artifact")

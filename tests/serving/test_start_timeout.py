"""A start that takes long says what it does, and one that takes too long what it waits for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy import launcher
from deploy.launch import LaunchError, still_loading
from deploy.launcher import running_server
from genrec.errors import ArtifactError

BEFORE = 'I 7 model_lifecycle.cc:472] "loading: rank:1"\n'  # of an earlier start
LOG = r"""I 8 model_lifecycle.cc:472] "loading: generate:1"
I 8 model_lifecycle.cc:472] "loading: encode_history:1"
I 8 model_lifecycle.cc:472] "loading: prefill:1"
I 8 model_lifecycle.cc:472] "loading: decode_2:1"
I 8 model_lifecycle.cc:839] "successfully loaded 'encode_history'"
E 8 model_lifecycle.cc:642] "failed to load 'prefill' version 1: x.onnx:\nmissing\n\nAt:"
"""


def test_what_still_loads_is_neither_loaded_nor_failed(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    assert still_loading(log, 0) == []
    log.write_text(BEFORE + LOG)
    assert still_loading(log, len(BEFORE)) == ["decode_2", "generate"]


@pytest.mark.serving
def test_a_model_that_does_not_come_up_is_named(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = shutil.copytree(launcher.REPOSITORY, tmp_path / "models")
    (models / "validity_lookup" / "1" / "model.py").write_text("import time\n\ntime.sleep(3600)\n")
    monkeypatch.setattr(launcher, "REPOSITORY", models)
    with (
        pytest.raises(
            LaunchError,
            match=r"not ready after 4 s \(--start-timeout-s .* allows more\): .*loading: .*validity_lookup \(log",
        ),
        running_server(tiny, run_dir=tmp_path / "run", ensembles=("recommend",), start_timeout_s=4.0),
    ):
        pass


def test_a_start_that_checks_gigabytes_says_so(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_now: list[str] = []

    @contextmanager
    def seen(what: str) -> Iterator[None]:
        open_now.append(what)
        yield
        open_now.remove(what)

    def refuse(*_: object) -> None:
        raise ArtifactError(tiny, f"while {open_now}")

    monkeypatch.setattr(launcher, "ticking", seen)
    monkeypatch.setattr(launcher.manifest, "verify", refuse)
    with (
        pytest.raises(ArtifactError, match=r"while \['checking the artifact'\]"),
        running_server(tiny, run_dir=tmp_path / "run", ensembles=("recommend",)),
    ):
        pass

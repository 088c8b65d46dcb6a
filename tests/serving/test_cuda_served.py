"""Target `cuda` through a real server, on CPU tensors: the default target's answers and errors.

What only a GPU can show is checked by `perf.gpu.run`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from build.cuda.engines import build_engines as build_cuda
from deploy.launcher import RunningServer, _ensembles, _repository, running_server
from ensembles.lint import lint
from genrec import leftovers
from genrec.errors import ArtifactError
from tests.conftest import BEAM_WIDTH
from tests.serving.servers import brief_server
from tests.serving.wire import BAD_CHANGES, ask, cases, changed, refusal, tensors

pytestmark = pytest.mark.serving
ENSEMBLES = ("recommend", "recommend_draft")


@pytest.fixture(scope="module")
def cuda(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose generator runs in torch, in float32 on this CPU."""
    artifact = shutil.copytree(tiny, tmp_path_factory.mktemp("cuda") / "artifact")
    build_cuda(artifact, "f32", "cpu")
    with brief_server(artifact, target="cuda", beam_width=BEAM_WIDTH) as running:
        yield running
        prefix = running.supervisor.prefix
        # No use for one
        assert not [path for path in leftovers.files_of(prefix) if path.name.endswith("arena")]
    assert leftovers.files_of(prefix) == []


@pytest.mark.parametrize("module", [tritonclient.grpc, tritonclient.http], ids=["grpc", "http"])
@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_answers_are_those_of_the_default_target(
    server: RunningServer, cuda: RunningServer, items: list[int], ensemble: str, module: ModuleType
) -> None:
    url = cuda.grpc_url if module is tritonclient.grpc else cuda.http_url
    for arrays in cases(items):
        want, got = (
            ask(tritonclient.grpc, server.grpc_url, arrays, ensemble),
            ask(module, url, arrays, ensemble),
        )
        for name in ("item_ids", "report"):
            np.testing.assert_array_equal(got[name], want[name])
        np.testing.assert_allclose(got["scores"], want["scores"], atol=2e-4)


@pytest.mark.parametrize("change", BAD_CHANGES, ids=str)
def test_errors_are_those_of_the_default_target(
    server: RunningServer, cuda: RunningServer, items: list[int], change: dict[str, np.ndarray | None]
) -> None:
    arrays = changed(tensors(items[:2]), change)
    for ensemble in ENSEMBLES:
        assert refusal(cuda.grpc_url, arrays, ensemble) == refusal(server.grpc_url, arrays, ensemble)


def test_what_is_rendered(tiny: Path, tmp_path: Path) -> None:
    """No model for single passes: each would hold weights of its own on the device."""
    repository = tmp_path / "models"
    _repository(_ensembles(tiny, "cuda"), repository)
    models = {"encode_history", "generate", "prefill_draft", "draft_beam", "validity_lookup"}
    assert {path.name for path in repository.iterdir()} == {*models, *ENSEMBLES}
    assert lint(repository) == []


def test_engines_that_are_not_built_are_named(tiny: Path) -> None:
    with (
        pytest.raises(
            ArtifactError, match=rf"engines/cuda: has no engine; `genrec build {tiny} --target cuda`"
        ),
        running_server(tiny, target="cuda"),
    ):
        pass

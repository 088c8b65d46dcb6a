"""Errors that cross a process arrive whole: whoever waits for a worker reads what was wrong."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest
import torch

from clients.errors import BadRequest
from export.generator import export_generator
from genrec.errors import ArtifactError, DeadlineExceeded, GenrecError, InputError
from genrec.models.config import ModelConfig
from genrec.nn.checkpoint import load_generator, save_generator


@pytest.mark.parametrize(
    "error",
    [
        InputError("top_k", "is 0", "1 to 10"),
        ArtifactError(Path("model/draft.json"), "is missing"),
        BadRequest("top_k: is 0 (accepted: 1 to 10)"),
        DeadlineExceeded("too late"),
    ],
    ids=repr,
)
def test_an_error_survives_a_pickle(error: GenrecError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)


def test_what_an_export_worker_refuses_is_told(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelConfig, "graph_names", [])  # the draft's graph alone
    model = shutil.copytree(tiny / "model", tmp_path / "model")
    generator = load_generator(model)
    with torch.no_grad():
        generator.norm.weight.add_(1)
    save_generator(generator, model)  # the draft head beside it is another's now
    with pytest.raises(ArtifactError, match=r"draft\.safetensors.*another generator"):
        export_generator(model, tmp_path / "onnx")

"""A pipe in the place of a model's weights is refused; it would be waited for without end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from genrec.errors import ArtifactError
from genrec.models.config import ModelConfig
from genrec.nn.checkpoint import save_generator
from genrec.nn.draft_checkpoint import load_draft, save_draft
from genrec.nn.model import Generator
from genrec.nn.ranker_checkpoint import load_ranker, save_ranker
from tests.tiny import random_head, random_ranker


@pytest.mark.parametrize(("name", "load"), [("ranker", load_ranker), ("draft", load_draft)])
def test_a_pipe_is_no_weights(tmp_path: Path, name: str, load: Callable[[Path], torch.nn.Module]) -> None:
    generator = Generator(ModelConfig((3, 3), 4, hidden_size=8, head_dim=8, intermediate_size=8))
    save_generator(generator, tmp_path)
    save_ranker(random_ranker(generator), tmp_path)
    save_draft(random_head(generator.config), tmp_path)
    load(tmp_path)
    pipe = tmp_path / f"{name}.safetensors"
    pipe.unlink()
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDWR)  # so that who opens it does not wait
    with pytest.raises(ArtifactError, match=rf"{name}\.safetensors: is not a regular file"):
        load(tmp_path)
    os.close(held)

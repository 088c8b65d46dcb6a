"""Draft heads on disk, beside their generator: `draft.json` and `draft.safetensors`. No pickle."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from genrec.draft.options import FORMAT, VERSION, DraftConfig
from genrec.errors import ArtifactError
from genrec.files import check_regular
from genrec.models.config import ModelConfig
from genrec.models.registry import CONFIG
from genrec.nn.checkpoint import check_trained_on_this, generator_digest, write_weights
from genrec.nn.draft_head import DraftHead
from genrec.nn.model import Generator
from genrec.tensor_file import write_tensors

WEIGHTS, OPTIONS = "draft.safetensors", "draft.json"


def save_draft(head: DraftHead, folder: Path, generator: str | None = None) -> None:
    """Write `folder`/draft.json and `folder`/draft.safetensors, which remembers the generator of this digest.

    Without one it is the generator that is there.
    """
    of = generator_digest(folder) if generator is None else generator
    folder.mkdir(parents=True, exist_ok=True)
    head.options.save(folder / OPTIONS)
    write_weights(folder / WEIGHTS, head.state_dict(), generator=of)


def load_draft(folder: Path, of_this: bool = True) -> DraftHead:
    """Read a draft head, in evaluation mode. Raises ArtifactError naming what does not fit.

    `of_this` generator alone; else of an earlier one too, which has learnt further since.
    """
    path = folder / WEIGHTS
    head = DraftHead(ModelConfig.load(folder / CONFIG), DraftConfig.load(folder / OPTIONS))
    try:
        head.load_state_dict(load_file(check_regular(path)))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ArtifactError(path, f"not this generator's draft head: {error}") from error
    if of_this:
        check_trained_on_this(path, "draft")
    return head.eval()


@torch.no_grad()
def serving_tensors(generator: Generator, head: DraftHead) -> dict[str, NDArray[np.float32]]:
    """The head as `genrec.draft.head.Drafter` reads it, with what no request changes folded into tables."""
    config = generator.config
    tensors: dict[str, Tensor] = {}
    for level, (start, size) in enumerate(zip(config.code_offsets, config.codebook_sizes, strict=True), 1):
        hidden_head, state_head = head.hidden_head(level), head.state_head(level)
        if hidden_head is not None:
            tensors |= {f"hidden_{level}": hidden_head.weight.T, f"bias_{level}": hidden_head.bias}
        if state_head is not None:
            tensors[f"state_{level}"] = state_head.weight.T
        if level == config.levels or head.options.transition == "none":
            continue
        tensors[f"input_{level}"] = embedded = generator.embed_tokens.weight[start : start + size]
        if head.options.transition == "gru":
            cell, wide = head.cell(level), config.hidden_size
            fed = embedded @ cell.weight_ih.T + cell.bias_ih
            fed[:, : 2 * wide] += cell.bias_hh[: 2 * wide]  # the reset gate scales the last third's bias
            tensors |= {f"input_{level}": fed, f"recurrent_{level}": cell.weight_hh.T}
            tensors[f"recurrent_bias_{level}"] = cell.bias_hh[2 * wide :]
    return {name: np.ascontiguousarray(tensor.cpu().numpy(), np.float32) for name, tensor in tensors.items()}


def save_serving(generator: Generator, head: DraftHead, path: Path) -> None:
    """Write what `Drafter.load` reads."""
    metadata = {"format": FORMAT, "version": VERSION, "options": json.dumps(asdict(head.options))}
    write_tensors(path, serving_tensors(generator, head), metadata)

"""Generators on disk: `config.json` and `model.safetensors` with Hugging Face names. No pickle."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from genrec.errors import ArtifactError
from genrec.manifest import digest_file
from genrec.models.config import ModelConfig
from genrec.nn.model import Generator

WEIGHTS = "model.safetensors"
CONFIG = "config.json"


def hugging_face_name(name: str) -> str:
    """Hugging Face keeps everything but the head under `model.`."""
    return name if name.startswith("lm_head.") else f"model.{name}"


def save_generator(model: Generator, folder: Path) -> None:
    """Write `folder`/config.json and `folder`/model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save(folder / CONFIG)
    tensors = {hugging_face_name(k): v.detach().contiguous() for k, v in model.state_dict().items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)  # safetensors writes 0600; a server may run as someone else


def load_generator(folder: Path) -> Generator:
    """Read a generator, in float32 and evaluation mode; from one file or, as large models come, from shards.

    A checkpoint without `lm_head.weight` ties it to the embedding, as Hugging Face does. Raises ArtifactError
    naming what does not fit.
    """
    model = Generator(ModelConfig.load(folder / CONFIG))
    stored, path = _read(folder), folder / WEIGHTS
    stored.setdefault(
        "lm_head.weight", stored.get("model.embed_tokens.weight", model.lm_head.weight.detach())
    )
    state = {}
    for name, wanted in model.state_dict().items():
        found = stored.pop(hugging_face_name(name), None)
        if found is None:
            raise ArtifactError(path, f"lacks the tensor {hugging_face_name(name)}")
        if found.shape != wanted.shape:
            shapes = f"{tuple(found.shape)}, config.json wants {tuple(wanted.shape)}"
            raise ArtifactError(path, f"{hugging_face_name(name)} has shape {shapes}")
        state[name] = found.to(wanted.dtype)
    if stored:
        raise ArtifactError(
            path, f"has tensors that a {model.config.model_type} has not: {', '.join(sorted(stored)[:3])}"
        )
    model.load_state_dict(state)
    return model.eval()


def generator_digest(folder: Path) -> str:
    """How what is trained on a generator knows it: the sha256 of its weights, empty if they are in shards."""
    return digest_file(folder / WEIGHTS) if (folder / WEIGHTS).is_file() else ""


def _read(folder: Path) -> dict[str, Tensor]:
    """All tensors of `model.safetensors`, or of `model-*-of-*.safetensors`."""
    stored: dict[str, Tensor] = {}
    for path in sorted(folder.glob("model-*-of-*.safetensors")) or [folder / WEIGHTS]:
        try:
            stored |= load_file(path)
        except (OSError, SafetensorError) as error:
            raise ArtifactError(path, f"not a readable safetensors file: {error}") from error
    return stored

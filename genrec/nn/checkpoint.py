"""Generators on disk: `config.json` and `model.safetensors` with Hugging Face names. No pickle."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from genrec.config import ModelConfig
from genrec.errors import ArtifactError
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
    """Read a generator, in float32 and evaluation mode. Raises ArtifactError naming what does not fit.

    A checkpoint without `lm_head.weight` ties it to the embedding, as Hugging Face does.
    """
    path = folder / WEIGHTS
    model = Generator(ModelConfig.load(folder / CONFIG))
    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ArtifactError(path, f"not a readable safetensors file: {error}") from error
    stored.setdefault(
        "lm_head.weight", stored.get("model.embed_tokens.weight", model.lm_head.weight.detach())
    )
    state = {}
    for name, wanted in model.state_dict().items():
        found = stored.get(hugging_face_name(name))
        if found is None:
            raise ArtifactError(path, f"lacks the tensor {hugging_face_name(name)}")
        if found.shape != wanted.shape:
            shapes = f"{tuple(found.shape)}, config.json wants {tuple(wanted.shape)}"
            raise ArtifactError(path, f"{hugging_face_name(name)} has shape {shapes}")
        state[name] = found.to(wanted.dtype)
    model.load_state_dict(state)
    return model.eval()

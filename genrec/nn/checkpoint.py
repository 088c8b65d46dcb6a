"""Generators on disk: `config.json` and `model.safetensors` with Hugging Face names. No pickle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from genrec.errors import ArtifactError
from genrec.files import check_regular, read_json
from genrec.manifest import anew, digest_file
from genrec.models.config import ModelConfig
from genrec.models.registry import CONFIG
from genrec.nn.model import Generator
from genrec.tensor_file import written

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"  # where a large model is in shards
TYPES = (torch.float32, torch.float16, torch.bfloat16)
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def hugging_face_name(name: str) -> str:
    """Hugging Face keeps everything but the head under `model.`."""
    return name if name.startswith("lm_head.") else f"model.{name}"


def save_generator(model: Generator, folder: Path) -> None:
    """Write `folder`/config.json and `folder`/model.safetensors."""
    save_tensors({hugging_face_name(k): v for k, v in model.state_dict().items()}, model.config, folder)


def save_tensors(tensors: dict[str, Tensor], config: ModelConfig, folder: Path) -> None:
    """The same of tensors under Hugging Face's names, in the types that they have."""
    folder.mkdir(parents=True, exist_ok=True)
    config.save(folder / CONFIG)
    write_weights(folder / WEIGHTS, tensors)


def write_weights(path: Path, tensors: Mapping[str, Tensor], **metadata: str) -> None:
    """Write one safetensors file in torch's manner."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with written(path) as partial:
        save_file(whole, partial, metadata={"format": "pt", **metadata})


def load_generator(folder: Path) -> Generator:
    """Read a generator, in float32 and evaluation mode; from one file or, as large models come, from shards.

    Raises ArtifactError naming what does not fit.
    """
    config = ModelConfig.load(folder / CONFIG)
    state = fitting(read_tensors(folder), config, weights_file(folder))
    model = Generator(config)
    model.load_state_dict(state)
    return model.eval()


def fitting(stored: dict[str, Tensor], config: ModelConfig, path: Path) -> dict[str, Tensor]:
    """Tensors under Hugging Face's names under those of a `Generator`, if they are all that it has, and of its shapes.

    Without `lm_head.weight` the head is tied to the embedding. Raises ArtifactError naming `path`, where they are from.
    """
    if config.num_hidden_layers > len(stored):  # else a false number would make layers without end
        problem = f"has {len(stored)} tensors, config.json says num_hidden_layers {config.num_hidden_layers}"
        raise ArtifactError(path, problem)
    with torch.device("meta"):
        model = Generator(config)
    left = dict(stored)
    if EMBEDDING in left:
        left.setdefault(HEAD, left[EMBEDDING])
    state = {}
    for name, wanted in model.state_dict().items():
        found = left.pop(hugging_face_name(name), None)
        if found is None:
            raise ArtifactError(path, f"lacks the tensor {hugging_face_name(name)}")
        if found.shape != wanted.shape:
            shapes = f"{tuple(found.shape)}, config.json wants {tuple(wanted.shape)}"
            raise ArtifactError(path, f"{hugging_face_name(name)} has shape {shapes}")
        if found.dtype not in TYPES:
            known = ", ".join(map(str, TYPES))
            raise ArtifactError(path, f"{hugging_face_name(name)} is {found.dtype}, not one of {known}")
        state[name] = found
    if left:
        raise ArtifactError(
            path, f"has tensors that a {config.model_type} has not: {', '.join(sorted(left)[:3])}"
        )
    return state


def generator_digest(folder: Path) -> str:
    """How what is trained on a generator knows it: the sha256 of its weights, empty if they are in shards."""
    return digest_file(folder / WEIGHTS) if (folder / WEIGHTS).is_file() else ""


def check_trained_on_this(path: Path, stage: str) -> None:
    """Raises ArtifactError for weights of `stage`, read before, of another generator than the one beside them."""
    with safe_open(path, framework="pt") as file:
        trained_on = (file.metadata() or {}).get("generator", "")
    if trained_on != generator_digest(path.parent):
        raise ArtifactError(
            path, f"was trained on another generator than {WEIGHTS}{anew(path.parents[1], stage)}"
        )


def weights_file(folder: Path) -> Path:
    """What says which tensors there are: the one file, as for transformers, or else the index of shards."""
    one = (folder / WEIGHTS).is_file() or not (folder / INDEX).is_file()
    return folder / (WEIGHTS if one else INDEX)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of `model.safetensors`, or of the shards that its index names. Raises ArtifactError."""
    stored: dict[str, Tensor] = {}
    for path in _files(folder):
        try:
            found = load_file(check_regular(path))
        except (OSError, SafetensorError) as error:
            raise ArtifactError(path, f"not a readable safetensors file: {error}") from error
        if twice := sorted(stored.keys() & found):
            raise ArtifactError(path, f"has the tensor {twice[0]}, which another file of the model has too")
        stored |= found
    return stored


def _files(folder: Path) -> list[Path]:
    index = weights_file(folder)
    if index.name != INDEX:
        return [index]
    try:
        names = sorted({str(name) for name in read_json(index)["weight_map"].values()})
    except (KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(index, "has no `weight_map` that says which file holds which tensor") from error
    for name in names:
        if name != Path(name).name:
            raise ArtifactError(index, f"names the file {name!r}, which is not beside it")
        if not (folder / name).is_file():
            raise ArtifactError(index, f"names the file {name}, which is not there; it names {len(names)}")
    return [folder / name for name in names]

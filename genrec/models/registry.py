"""Which code a model type is: adding a row here, a torch module and a writer in `export/` adds an architecture."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from genrec.errors import ArtifactError
from genrec.files import read_json
from genrec.models.config import MODEL_TYPES

DOMAIN = "genrec"  # of the ONNX nodes that are functions of ours, and of the operations in their places
FUNCTIONS = (
    "genrec.functions"  # metadata of an ONNX file: JSON, name of a function -> how often the model implies it
)
CONFIG = "config.json"


class Family(NamedTuple):
    """By name, as the writer is in a room to the right and imports torch."""

    config: str  # the configuration's class
    writer: str  # the module that reads its weights and writes its ONNX: see `export.generator`


DECODER = Family("genrec.models.config:ModelConfig", "export.decoder")
FAMILIES = dict.fromkeys(MODEL_TYPES, DECODER)


def family_of(model_folder: Path) -> Family:
    """Of the model in a folder, by its config.json. Raises ArtifactError."""
    path = model_folder / CONFIG
    try:
        kind = read_json(path).get("model_type", MODEL_TYPES[0])
    except AttributeError as error:
        raise ArtifactError(path, f"not a readable model configuration: {error}") from error
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ArtifactError(path, f"model_type is {kind!r}, not one of {', '.join(FAMILIES)}")
    return FAMILIES[kind]


def config_of(model_folder: Path) -> Any:
    """The configuration of the model in a folder, in its own class. Raises ArtifactError."""
    return named(family_of(model_folder).config).load(model_folder / CONFIG)


def named(place: str) -> Any:
    """What `module:name` says."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)

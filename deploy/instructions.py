"""Says which instruction set the engines of a server run in: in its log, and in the configuration of its ensembles."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from genrec.artifact import load_config
from genrec.engine.instructions import chosen, engine_of
from genrec.engine.load import load_layout
from genrec.settings import Settings
from genrec.target import DEFAULT

NODES = "openvino"  # chooses by itself, where no operation of ours was compiled


def instruction_set(settings: Settings) -> str:
    """The name of the set; of targets without one, the target's. Raises ArtifactError when none of them runs here."""
    if settings.target != DEFAULT:
        return settings.target
    kv_type = load_layout(settings, load_config(settings.artifact, settings.target)).kv_type
    found = chosen(engine_of(settings.artifact, settings.target), kv_type)
    return found.name if found else NODES


def describe(models: Path, ensembles: Iterable[str], name: str) -> None:
    """Add the parameter `instruction_set` to the configurations of ensembles, which clients may ask a server for."""
    for ensemble in ensembles:
        with (models / ensemble / "config.pbtxt").open("a") as file:
            file.write(f'parameters {{ key: "instruction_set" value {{ string_value: "{name}" }} }}\n')

"""How a draft head works. Apart from the head itself, which imports numba: `prefill_draft` does without it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from genrec.errors import InputError
from genrec.files import read_json
from genrec.json_fields import made_of
from genrec.models.config import ModelConfig
from genrec.tensor_file import read_metadata, readable

FILE_NAME = "draft_head.safetensors"  # in onnx/: exported like the graphs
FORMAT, VERSION = "genrec-draft-head", "1"
TRANSITIONS = ("gru", "add", "none")


@dataclass(frozen=True)
class DraftConfig:
    """How equation 3 moves the state, and whether placeholders follow the prompt (NEZHA, Table 4).

    `none` leaves the state out of equation 2 as well; `none` without placeholders is the paper's MTP.
    """

    transition: str = "gru"
    placeholders: bool = True

    def __post_init__(self) -> None:
        if self.transition not in TRANSITIONS:
            raise InputError("transition", f"is {self.transition!r}", f"one of {', '.join(TRANSITIONS)}")

    def placeholder_tokens(self, config: ModelConfig) -> int:
        """How many follow a prompt."""
        return config.levels if self.placeholders else 0

    def save(self, path: Path) -> None:
        """Write draft.json."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> DraftConfig:
        """Read draft.json. Raises ArtifactError."""
        return made_of(cls, read_json(path), path)


def options_in(metadata: Mapping[str, str]) -> DraftConfig:
    """Those that the metadata of a draft head's file name."""
    return DraftConfig(**json.loads(metadata["options"]))


def load_options(artifact: Path) -> DraftConfig:
    """Those of the artifact's draft head. Raises ArtifactError."""
    path = artifact / "onnx" / FILE_NAME
    with readable(path, "draft head"):
        return options_in(read_metadata(path, FORMAT, VERSION))


def has_draft(artifact: Path) -> bool:
    """Whether the artifact can serve drafts (NEZHA)."""
    return (artifact / "onnx" / FILE_NAME).is_file()

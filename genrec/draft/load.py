"""The draft head of an artifact, where there is one."""

from __future__ import annotations

from pathlib import Path

from genrec.draft.head import Drafter
from genrec.draft.options import FILE_NAME as DRAFT_HEAD
from genrec.draft.options import has_draft
from genrec.errors import ArtifactError, InputError
from genrec.models.config import ModelConfig


def check_decoder(artifact: Path, decoder: str) -> None:
    """`beam`, `staged` or `draft`. Raises InputError; ArtifactError when the artifact has no draft head."""
    if decoder not in ("beam", "staged", "draft"):
        raise InputError("decoder", f"is {decoder!r}", "beam, staged, draft")
    if decoder == "draft" and not has_draft(artifact):
        raise ArtifactError(
            artifact / "onnx" / DRAFT_HEAD,
            "is missing; `genrec train --draft alone` and `genrec export` make it",
        )


def load_drafter(artifact: Path, config: ModelConfig) -> Drafter:
    """The draft head's arrays."""
    return Drafter.load(artifact / "onnx" / DRAFT_HEAD, config)

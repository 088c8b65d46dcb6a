"""`engines.json` beside the plans: what they were built with, checked before a server loads them.

A plan loads only in the TensorRT that built it, on the compute capability it was built for, and with the plugin
library it was built with; Triton would tell of a mismatch late and in part (a plugin that fails to load is only
logged). So the launch refuses first.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from genrec.errors import ArtifactError
from genrec.files import read_json, write_whole
from genrec.manifest import digest_file, problem_of

NAME = "engines.json"


@dataclass(frozen=True)
class Place:
    """Where plans are built or loaded: image tag (YY.MM), TensorRT version, compute capability (`9.0`), plugin hash."""

    tag: str
    tensorrt: str
    compute_capability: str
    plugin_sha256: str


def write(folder: Path, place: Place, kv_type: str) -> None:
    """Record the plans of `folder`; the file is replaced as a whole."""
    plans = {path.name: digest_file(path) for path in sorted(folder.glob("*.plan"))}
    about = {**asdict(place), "kv_type": kv_type, "plans": plans}
    write_whole(folder / NAME, json.dumps(about, indent=2) + "\n")


def check(folder: Path, here: Place) -> str:
    """The plans' KV type, if they are as they were built and were built for a place like this. Raises ArtifactError."""
    path = folder / NAME
    try:
        written = read_json(path)
        built, plans, kv_type = (
            Place(**{k: written[k] for k in asdict(here)}),
            written["plans"],
            written["kv_type"],
        )
        problem = problem_of(plans)
    except (KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(path, f"not a manifest of engines: {error!r}") from error
    if problem:
        raise ArtifactError(path, f"not a manifest of engines: {problem}")
    for field, mine in asdict(here).items():
        theirs = getattr(built, field)
        if theirs != mine:
            raise ArtifactError(
                path, f"built with {field} {theirs!r}, here it is {mine!r}; build the engines again"
            )
    for name, sha in plans.items():
        if digest_file(folder / name) != sha:
            raise ArtifactError(folder / name, "is not the plan that was built")
    return str(kv_type)

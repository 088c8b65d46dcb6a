"""`manifest.json`: which stage made which file from what, so that a second run reuses what is still good.

Per stage: `key`, a hash over settings and inputs; `outputs`, the sha256 of every file; `facts`, for people.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from genrec.errors import ArtifactError
from genrec.files import is_absent, locked_folder, made_aside, put, read_json, sync
from genrec.hashing import hashed, sha256_of
from genrec.words import command

NAME = "manifest.json"
NEXT = f"{NAME}.partial"  # what it will be
# Of a file that was changed later than this, another change may leave all times alike.
SETTLED_NS = 2_000_000_000
# Verbs that make a stage anew; `genrec import` made those of an imported artifact.
COMMANDS = {
    "data": "data", "tokenise": "data", "train": "train", "draft": "train --draft alone",
    "ranker": "train --ranker", "hstu": "train --recipe hstu-ranker", "hstu-next": "train --recipe hstu-next",
    "export": "export", "validity": "build", "openvino": "build", "cuda": "build --target cuda",
}  # fmt: skip
# Personal, and all that serves does without it: an artifact may be served with this file left out.
OF_USERS = frozenset({"histories.parquet", "users.parquet"})
OF = "of"  # a fact: the sha256 of each file that a stage was made of
PARTS = {"key": str, "outputs": dict, "facts": dict}


def digest_file(path: Path) -> str:
    """sha256 of a file. Raises ArtifactError when it cannot be read."""
    return sha256_of(path, lambda count: None)


class Digests:
    """`digest_file` that reads a file again only when it may have changed; what it knows is in memory alone."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, ...], str]] = {}

    def __call__(self, path: Path) -> str:
        """sha256 of a file. Raises ArtifactError when it cannot be read."""
        try:
            at = path.stat()
        except OSError as error:
            raise ArtifactError(path, f"cannot be read: {error.strerror}") from error
        # Times of change cannot be set back, as those of modification can.
        stamp = (at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns)
        known, sha = self._known.get(path, ((), ""))
        if known != stamp:
            sha = digest_file(path)
            self._known[path] = (stamp if time.time_ns() - at.st_ctime_ns > SETTLED_NS else (), sha)
        return sha


def stage_key(settings: dict[str, Any], inputs: Iterable[Path] = ()) -> str:
    """Hash of everything a stage's outputs follow from. Raises ArtifactError."""
    facts = {"settings": settings, "inputs": [sha for _, sha in hashed(inputs)]}
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def read(artifact: Path) -> dict[str, Any]:
    """The manifest, empty when there is none yet. Raises ArtifactError."""
    return _read(artifact / NAME)


def _read(path: Path) -> dict[str, Any]:
    if is_absent(path):
        return {}
    found = read_json(path)
    if not isinstance(found, dict):
        raise ArtifactError(path, "is not a manifest: not an object with a stage under every name")
    for stage, entry in found.items():
        problem = _problem(entry)
        if problem:
            raise ArtifactError(path, f"is not a manifest: stage {stage!r} {problem}")
    return found


def _problem(entry: Any) -> str | None:
    """What is wrong with the entry of a stage, in words."""
    for part, kind in PARTS.items():
        if not isinstance(entry, dict) or not isinstance(entry.get(part), kind):
            return f"has no `{part}` of type {kind.__name__}"
    if not isinstance(entry["facts"].get(OF) or {}, dict):
        return f"has `{OF}` among its facts of another type than dict"
    return problem_of(entry["outputs"])


def problem_of(outputs: Mapping[str, Any]) -> str | None:
    """What is wrong, in words, with names of files of a folder and their sha256."""
    for name, sha in outputs.items():
        if not name or "\0" in name or name.startswith("/") or ".." in name.split("/"):
            return f"names the file {name!r}, which no file in this folder can have"
        if not isinstance(sha, str):
            return f"has no sha256 of {name!r}"
    return None


def is_good(artifact: Path, stage: str, key: str) -> bool:
    """Whether the stage was made with this key and all its files are as it left them."""
    entry = read(artifact).get(stage)
    return entry is not None and entry["key"] == key and _as_made(artifact, entry["outputs"])


def _as_made(artifact: Path, outputs: Mapping[str, str]) -> bool:
    files = [artifact / name for name in outputs]
    return all(map(Path.is_file, files)) and all(
        sha == made for (_, sha), made in zip(hashed(files), outputs.values(), strict=True)
    )


def record(artifact: Path, stage: str, key: str, outputs: Iterable[Path], facts: dict[str, Any]) -> None:
    """Enter a finished stage; the file is replaced as a whole.

    What it names is on the disk by then: what the stage was made from, as a checkpoint, may be removed.
    """
    _enter(artifact, stage, key, dict(hashed(sorted(outputs))), facts)


@contextmanager
def renewed(artifact: Path, stage: str, key: str, folder: Path, facts: dict[str, Any]) -> Iterator[Path]:
    """An empty folder that takes the place of `folder` in the end, as by `made_aside`; its files are the outputs.

    They are hashed and on the disk before that: a kill in these seconds leaves the old files and their entry.
    """
    with made_aside(folder) as new:
        yield new
        files = sorted(path for path in new.rglob("*") if path.is_file())
        hashes = {folder / path.relative_to(new): sha for path, sha in hashed(files)}
        for path in files:
            sync(path)
    _enter(artifact, stage, key, hashes, facts)


@contextmanager
def unchanged(files: Iterable[Path]) -> Iterator[None]:
    """What is made within is of these files, one by one, as they are now. Raises ArtifactError where another process
    has replaced one at the end.
    """
    digest = Digests()
    before = {path: digest(path) for path in files}
    yield
    for path, sha in before.items():
        if digest(path) != sha:
            raise ArtifactError(path, "was made anew by another process meanwhile; run this again")


def _enter(artifact: Path, stage: str, key: str, hashes: Mapping[Path, str], facts: dict[str, Any]) -> None:
    outputs = {str(path.relative_to(artifact)): sha for path, sha in hashes.items()}
    for name in {each for path in map(Path, outputs) for each in (path, *path.parents)}:
        sync(artifact / name)
    with locked_folder(artifact):
        put(_with(artifact, stage, {"key": key, "outputs": outputs, "facts": facts}), artifact / NAME)


def replace(
    artifact: Path, stage: str, made: Mapping[str, Any], written: Mapping[Path, Path], facts: dict[str, Any]
) -> None:
    """Put files that were `written` aside in the place of outputs of a finished stage, whose key stays.

    The manifest follows at once: a start that verifies in between is a matter of two renames, not of hashing. Raises
    ArtifactError where the stage is no longer as it was `made`: another process has replaced it meanwhile.
    """
    hashes = {str(written[aside].relative_to(artifact)): sha for aside, sha in hashed(written)}
    with locked_folder(artifact):
        if read(artifact).get(stage) != made:
            problem = f"{stage} was made anew by another process meanwhile; run this again"
            raise ArtifactError(artifact / NAME, problem)
        partial = _with(artifact, stage, {**made, "outputs": {**made["outputs"], **hashes}, "facts": facts})
        sync(partial)
        sync(artifact)  # from here on `complete` can end what a kill or a loss of power ends
        for aside, path in written.items():
            put(aside, path)
        put(partial, artifact / NAME)


def complete(artifact: Path) -> None:
    """Enter a stage whose files a process had put in place when it was killed: its entry was written before them."""
    with locked_folder(artifact), suppress(ArtifactError):
        entered = read(artifact)
        for stage, entry in _read(artifact / NEXT).items():
            if entry != entered.get(stage) and _as_made(artifact, entry["outputs"]):
                put(_with(artifact, stage, entry), artifact / NAME)


@contextmanager
def making(artifact: Path, stage: str) -> Iterator[None]:
    """While one process makes a stage, others of this machine, or of its container, do not.

    Raises ArtifactError where another is at it; one that is killed is not, and if that was at its very end it is
    completed first.
    """
    folder = artifact.stat()
    name = hashlib.sha256(os.fsencode(stage)).hexdigest()[:32]  # a socket's may have 107 bytes
    with socket.socket(socket.AF_UNIX) as claim:
        try:
            claim.bind(f"\0genrec-making-{folder.st_dev}-{folder.st_ino}-{name}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise ArtifactError(artifact, f"another process makes its {stage} now; wait for it") from error
        complete(artifact)
        yield


def _with(artifact: Path, stage: str, entry: dict[str, Any]) -> Path:
    """The manifest with this entry, beside the one that counts."""
    partial = artifact / NEXT
    partial.write_text(json.dumps({**read(artifact), stage: entry}, indent=2) + "\n")
    return partial


def recorded(artifact: Path, name: str) -> str | None:
    """sha256 of the file `name`, as the stage that made it entered it; None where no stage did."""
    found = (entry["outputs"].get(name) for entry in read(artifact).values())
    return next(filter(None, found), None)


def made_of(artifact: Path, name: str, stages: Iterable[str]) -> str | None:
    """The sha256 of the file `name` that the first of `stages` was made of whose facts tell; None where none does."""
    entries = read(artifact)
    told = (entries.get(stage, {"facts": {}})["facts"].get(OF) or {} for stage in stages)
    return next((of[name] for of in told if name in of), None)


def outdated(artifact: Path) -> str:
    """A sentence where the model was trained anew after its last export, or exported after the last build.

    "" where it was not, or nobody knows. Of an HSTU ranker that learns on, deltas follow: it is none of these.
    """
    if changed := _replaced(artifact, "export"):
        made, by = "onnx", f"{command('export', artifact)} and {command('build', artifact)} make it anew"
    elif changed := _replaced(artifact, "openvino"):
        made, by = "engines/openvino", f"{command('build', artifact)} makes it anew"
    return f"{artifact / made} is of an earlier {', '.join(changed)}: {by}" if changed else ""


def check_inputs(artifact: Path, stage: str) -> None:
    """Refuse what a stage made of files that others have replaced since (its fact OF). Raises ArtifactError."""
    if changed := _replaced(artifact, stage):
        made = artifact / next(iter(read(artifact)[stage]["outputs"]), NAME)
        raise ArtifactError(made, f"is of an earlier {', '.join(changed)}{anew(artifact, stage)}")


def _replaced(artifact: Path, stage: str) -> list[str]:
    """Of what a stage was made of, as far as its facts tell, the files that are others now."""
    of = read(artifact).get(stage, {"facts": {}})["facts"].get(OF)
    names = of if isinstance(of, dict) else {}
    return [name for name, sha in names.items() if recorded(artifact, name) != sha]


def anew(artifact: Path, stage: str, facts: Mapping[str, Any] | None = None) -> str:
    """The end of an error about a stage with these facts: which command makes it anew; "" where none does."""
    if facts and "imported" in facts:
        return f"; {command('import CHECKPOINT', artifact)} makes it anew"
    verb, _, options = COMMANDS.get(stage, "").partition(" ")
    return f"; {command(verb, artifact, options)} makes it anew" if verb else ""


def _is_left_out(path: Path) -> bool:
    """Whether no file lies there. Of one that nobody can look at, a link without an end say, that is not known."""
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ENOENT
    return False


def verify(artifact: Path, digest: Callable[[Path], str] = digest_file) -> None:
    """Refuse an artifact with a file missing or not as it was made. Raises ArtifactError naming the file.

    Histories of users may be missing, but not be others. A process that verifies again and again gives a `Digests`.
    """
    manifest = read(artifact)
    if not manifest:
        raise ArtifactError(artifact / NAME, "is missing: not an artifact folder")
    for stage, entry in manifest.items():
        for name, sha in entry["outputs"].items():
            if name in OF_USERS and _is_left_out(artifact / name):
                continue
            if digest(artifact / name) != sha:
                problem = f"is not the file that stage `{stage}` made{anew(artifact, stage, entry['facts'])}"
                raise ArtifactError(artifact / name, problem)

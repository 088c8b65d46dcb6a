"""Checkpoints that any number of ranks can take up (MTGRBoost, section 5.2).

    <folder>/current.json           which save is whole: renamed into place last
    <folder>/<step>/checkpoint.json ranks, features, optimizer
    <folder>/<step>/<rank>.json     a rank's files with their sizes and hashes, its place in the data
    <folder>/<step>/<rank>.<dimension>.<part>.safetensors   its rows: ids, vectors, state, marks
    <folder>/<step>/<rank>.random.safetensors, dense.safetensors

An id belongs to the rank `fmix64(id) mod ranks`, whatever wrote it. So where W ranks saved and W' load, rank r reads
only the files f with f = r mod gcd(W, W'), and keeps the ids that are its own; the paper's modulo for sizes that are
multiples of each other is the special case.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as as_bytes

from genrec.errors import ArtifactError, InputError
from genrec.files import open_file, read_json, sync, write_whole
from genrec.json_fields import check_fields, made_of
from training.embedding.optimizers import as_json
from training.embedding.table import DynamicTable, Rows
from training.sharded.embeddings import ShardedEmbeddings
from training.sharded.features import FeatureConfig
from training.sharded.world import World

CURRENT, ABOUT, DENSE = "current.json", "checkpoint.json", "dense.safetensors"
FORMAT, VERSION = "genrec-checkpoint", 1
NO_ROWS = {"name": "none"}  # of a model that has dense weights alone
SAID = {
    "step": int,
    "ranks": int,
    "features": list,
    "optimizer": dict,
    "stamp": int,
}  # by ABOUT, of every format
PART_BYTES = 32 << 20  # of rows in a file: what saving and loading take of memory


class Restored(NamedTuple):
    """What a checkpoint has beside rows: the step, rows of each data shard that are done, and the dense tensors."""

    step: int
    position: dict[str, int]
    dense: dict[str, torch.Tensor]


def files_for(rank: int, ranks: int, saved: int) -> list[int]:
    """The ranks of `saved` whose files may hold ids of `rank` of `ranks`."""
    common = math.gcd(ranks, saved)
    return list(range(rank % common, saved, common))


def save(
    folder: Path, world: World, embeddings: ShardedEmbeddings, step: int,
    position: Mapping[str, int], dense: Mapping[str, torch.Tensor],
) -> None:  # fmt: skip
    """Every rank writes its own rows; the save counts when all have. All ranks call it.

    `position` has this rank's shards; `dense` is alike on all ranks. Raises ArtifactError on every rank when one cannot
    write; what was saved before stands then, as it does when a process is killed at any moment.
    """
    target = folder / f"{step:09d}"

    def prepare() -> None:
        if read_current(folder) == target.name:
            raise ArtifactError(target, "is saved already")
        shutil.rmtree(target, ignore_errors=True)  # of a save that was killed
        target.mkdir(parents=True)

    def write_mine() -> None:
        files = _write_rows(target, world.rank, embeddings)
        files |= _write(target / f"{world.rank}.random.safetensors", world.random_state())
        if world.rank == 0:
            files |= _write(target / DENSE, dict(dense))
            _write_json(target / ABOUT, {"step": step, "ranks": world.ranks, **_about(embeddings)})
        _write_json(target / f"{world.rank}.json", {"files": files, "position": dict(position)})

    def commit() -> None:
        sync(target)
        write_whole(folder / CURRENT, json.dumps({"step": target.name}))
        for old in folder.iterdir():  # which takes long where there are many files
            if old.is_dir() and old.name != target.name:
                shutil.rmtree(old, ignore_errors=True)

    lead = world.rank == 0
    _together(world, target, prepare if lead else None)
    try:
        _together(world, target, write_mine)
        _together(world, target, commit if lead else None)
    except ArtifactError:
        if lead and read_current(folder) != target.name:
            shutil.rmtree(target, ignore_errors=True)  # a full disk is not left fuller
        raise


def load(folder: Path, world: World, embeddings: ShardedEmbeddings) -> Restored:
    """Take this rank's rows of the last whole save into empty tables; torch's random state too.

    At another number of ranks, or on another device, the random state begins anew from the step and the rank. Raises
    ArtifactError for what is missing, damaged or of other features, and InputError for tables that are not empty.
    """
    if any(len(each.table) for each in embeddings.sharded.values()):
        raise InputError("embeddings", "have rows already", "empty tables to load into")
    target = folder / (read_current(folder) or "none")
    about = check_fields(read_json(target / ABOUT), {}, target / ABOUT)
    _check(target / ABOUT, about, embeddings)
    saved, step = about["ranks"], about["step"]
    ranks = [_rank_json(target, rank) for rank in range(saved)]
    for rank in files_for(world.rank, world.ranks, saved):
        for name in ranks[rank]["files"]:
            if name.partition(".")[2].partition(".")[0].isdigit():
                _put(target, name, ranks[rank]["files"], world, embeddings)
    own = f"{world.rank}.random.safetensors"
    states = _read(target / own, ranks[world.rank]["files"][own]) if saved == world.ranks else {}
    if not world.take_random_state(states):
        world.seed_dropout(step)
    embeddings.stamp = about["stamp"]
    position: dict[str, int] = {}
    for each in ranks:  # a rank may have told of shards that another has read further since
        for shard, rows in each["position"].items():
            position[shard] = max(rows, position.get(shard, 0))
    return Restored(step, position, _read(target / DENSE, ranks[0]["files"][DENSE]))


def read_current(folder: Path) -> str | None:
    """The name of the last whole save; None when there is none. Raises ArtifactError."""
    path = folder / CURRENT
    if not path.is_file():
        return None
    try:
        return f"{int(read_json(path)['step']):09d}"
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ArtifactError(path, f"does not name a save: {error!r}") from error


def _together(world: World, target: Path, work: Callable[[], None] | None) -> None:
    """Do `work` on the ranks that have some, and go on together. Raises ArtifactError everywhere if one failed."""
    problem: Exception | None = None
    try:
        if work:
            work()
    except (OSError, SafetensorError, ArtifactError) as error:
        problem = error
    world.meet()  # a slow disk is no lost rank
    told = world.gather(np.array([problem is None], np.int64))
    if not told.all():
        ranks = ", ".join(map(str, np.flatnonzero(1 - told[:, 0])))
        mine = np.array([*f"{problem}\n".encode(errors="replace")] if problem else [], np.uint8)
        reason = world.gather_rows(mine).tobytes().decode().splitlines()[0]
        message = f"rank {ranks} could not save: {reason}; the checkpoint before it stands"
        raise ArtifactError(target, message) from problem


def _about(embeddings: ShardedEmbeddings) -> dict[str, Any]:
    optimizers = [as_json(each.table.optimizer) for each in embeddings.sharded.values()]
    features = [asdict(feature) for feature in embeddings.features]
    return {
        "format": FORMAT, "version": VERSION, "features": features,
        "optimizer": optimizers[0] if optimizers else NO_ROWS, "stamp": embeddings.stamp,
    }  # fmt: skip


def _check(path: Path, about: dict[str, Any], embeddings: ShardedEmbeddings) -> None:
    mine = _about(embeddings)
    if (about.get("format"), about.get("version")) != (FORMAT, VERSION):
        raise ArtifactError(path, f"is not a {FORMAT} of version {VERSION}")
    check_fields(about, SAID, path)
    check_fields(about["optimizer"], {"name": str}, path, "optimizer")
    if about["ranks"] < 1:
        raise ArtifactError(path, f"ranks: is {about['ranks']} (accepted: 1 or more)")
    of_features = [asdict(made_of(FeatureConfig, each, path, "features")) for each in about["features"]]
    was, now = ([_spell(each) for each in of] for of in (of_features, mine["features"]))
    if was != now:
        gone, new = [each for each in was if each not in now], [each for each in now if each not in was]
        parts = [f"{how} {', '.join(each)}" for how, each in (("without", new), ("with", gone)) if each]
        said = ", ".join(parts) or "the same in another order"
        raise ArtifactError(path, f"was saved with other features: {said}")
    if about["optimizer"]["name"] != mine["optimizer"]["name"]:
        names = about["optimizer"]["name"], mine["optimizer"]["name"]
        raise ArtifactError(path, f"has the state of {names[0]}, not of {names[1]}")


def _spell(feature: dict[str, Any]) -> str:
    return f"{feature['name']} (table {feature['table']}, dimension {feature['dimension']})"


def _write_rows(target: Path, rank: int, embeddings: ShardedEmbeddings) -> dict[str, Any]:
    files: dict[str, Any] = {}
    for dimension, sharded in embeddings.sharded.items():
        table = sharded.table
        most = max(PART_BYTES // (8 + 4 * (dimension + table.state.width + 2)), 1)
        for part, rows in enumerate(table.export(most)):
            tensors = {name: torch.from_numpy(each) for name, each in rows._asdict().items()}
            files |= _write(target / f"{rank}.{dimension}.{part}.safetensors", tensors)
    return files


def _put(target: Path, name: str, files: dict[str, Any], world: World, embeddings: ShardedEmbeddings) -> None:
    """Rows of one file that belong to this rank."""
    dimension = int(name.split(".")[1])
    tensors = _read(target / name, files[name])
    table: DynamicTable = embeddings.sharded[dimension].table
    try:
        rows = Rows(*(tensors[field].numpy() for field in Rows._fields))
        places, counts = table.kernels.by_owner(rows.ids, world.ranks)
        first = int(counts[: world.rank].sum())
        mine = places[first : first + counts[world.rank]]
        table.put(Rows(*(each[mine] for each in rows)))
    except (KeyError, InputError) as error:
        raise ArtifactError(target / name, f"does not hold rows of dimension {dimension}: {error}") from error


def _rank_json(target: Path, rank: int) -> dict[str, Any]:
    path = target / f"{rank}.json"
    if not path.is_file():
        raise ArtifactError(path, f"is missing: what rank {rank} saved is not whole")
    said = check_fields(read_json(path), {"files": dict, "position": dict}, path)
    check_fields(said["position"], dict.fromkeys(said["position"], int), path, "position")
    own = (f"{rank}.random.safetensors", *([DENSE] if rank == 0 else []))
    files = check_fields(said["files"], dict.fromkeys((*said["files"], *own), dict), path, "files")
    for name, each in files.items():
        check_fields(each, {"bytes": int, "sha256": str}, path, f"files: {name}")
    return said


def _write(path: Path, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """One file, on the disk when this returns; its name, size and hash."""
    data = as_bytes({name: each.cpu().contiguous() for name, each in tensors.items()})
    _write_bytes(path, data)
    return {path.name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}}


def _read(path: Path, known: dict[str, Any]) -> dict[str, torch.Tensor]:
    with open_file(path) as file:
        data = file.read()
    if len(data) != known["bytes"]:
        raise ArtifactError(path, f"has {len(data)} bytes, not the {known['bytes']} that were saved")
    if hashlib.sha256(data).hexdigest() != known["sha256"]:
        raise ArtifactError(path, "is not what was saved: its hash differs")
    return read_tensors(data)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    _write_bytes(path, json.dumps(value).encode())


def _write_bytes(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())

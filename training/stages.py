"""The stages a person calls, over an artifact folder: prepare -> tokenise -> train."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file

from genrec.catalogue.items import Catalogue
from genrec.catalogue.semantic_id import MOST_LEARNT, check_sizes
from genrec.errors import ArtifactError, InputError
from genrec.files import check_regular, check_spared, read_json
from genrec.json_fields import check_fields
from genrec.manifest import NAME, recorded, stage_key
from genrec.nn.checkpoint import save_generator
from genrec.rank.user_features import USERS
from genrec.tensor_file import write_tensors
from genrec.words import counted
from training.data.histories import Histories, stored_items
from training.data.interactions import files_of, unread_columns
from training.data.sources import WHEELS, Source, open_source, read_tables
from training.data.steps import Steps
from training.data.tokenise import EVERY_ITEM, item_vectors, lists_of, read_semantic_ids, training_part
from training.data.writing import HISTORIES, ITEMS, write_data
from training.generator.recipes import Recipe, recipe_for
from training.generator.train import train_generator
from training.sharded.world import World
from training.vectors.quantise import codebook_means, collisions, quantise

CATALOGUE = "catalogue.parquet"
CODEBOOKS = "codebooks.safetensors"
SOURCE = "source.json"  # the name of the data set, which has a recipe of its own
# By `genrec data`, in an artifact
WRITTEN = (HISTORIES, ITEMS, USERS, SOURCE, CATALOGUE, CODEBOOKS, NAME)
VECTOR_RANK = 64  # of text and of co-occurrence each
SEED = 0  # of vectors and codes


def prepare(
    out: Path,
    source: str | None = None,
    interactions: Path | None = None,
    items: Path | None = None,
    cache: Path | None = None,
    cluster: str | None = None,
    users: Path | None = None,
    semantic_ids: Path | None = None,
    key: str = "",
) -> list[str]:
    """`out`/histories.parquet and items.parquet from a named set, a folder, or two files. Returns the report.

    A third file, `users`, becomes `out`/users.parquet; a set or a folder may have one itself.
    `cluster` is the address of a Ray cluster that reads and sorts, `local` for one that is started here. Wheels of
    named sets are kept in `cache` (default: `.downloads` beside `out`). `semantic_ids` are those that the items will
    have: a file that lacks some is refused before interactions are read. `key` stands for all files. Raises InputError.
    """

    def write(found: Source) -> list[str]:
        given = (found.described, found.users, semantic_ids)
        check_spared([*files_of(found.interactions), *filter(None, given)], out, WRITTEN)
        if not found.users and (out / USERS).exists() and recorded(out, USERS) is None:
            problem = "is none of `genrec data`, which would remove it"
            raise InputError(str(out / USERS), problem, "another name for it; as --users it is read")
        if semantic_ids is not None:
            published_codes(semantic_ids, found.keys.to_pylist())
        notes = write_data(found, out, cluster, key)
        if unread := unread_columns(found.interactions):
            notes.append(f"columns of {found.interactions.name} that are not read: {', '.join(unread)}")
        return notes

    if source is not None and (interactions or items or users):
        given = "interactions" if interactions else "items" if items else "users"
        raise InputError(given, f"is given beside --source {source}", "one of the two")
    if source is not None:
        with open_source(source, cache or out.parent / ".downloads") as found:
            notes = write(found)
    elif interactions is not None and items is not None:
        notes = write(replace(read_tables(interactions, items), users=users))
    elif interactions is None and items is None:
        raise InputError("source", "is missing", "a name, a folder, or --interactions with --items")
    else:
        missing, given = ("items", "interactions") if items is None else ("interactions", "items")
        raise InputError(missing, "is missing", f"a CSV, TSV or Parquet file, beside --{given}")
    said: dict[str, object] = {"name": Path(source).name if source else "own"}
    if source and source not in WHEELS:
        said["folder"] = True  # a named set's recipe suits its namesake, its ratings do not
    (out / SOURCE).write_text(json.dumps(said) + "\n")
    return notes


def recipe(out: Path) -> Recipe:
    """The settings of the data set that `prepare` wrote to `out`. Raises ArtifactError."""
    path = out / SOURCE
    name = check_fields(read_json(path), {"name": str}, path)["name"] if path.exists() else ""
    histories = metadata_of(out / "histories.parquet", "histories")
    return recipe_for(name, metadata_of(out / "items.parquet", "items").num_rows, stored_items(histories))


def metadata_of(path: Path, kind: str) -> pq.FileMetaData:
    """Of a Parquet file. Raises ArtifactError."""
    try:
        return pq.read_metadata(check_regular(path))
    except (OSError, pa.ArrowException) as error:
        raise ArtifactError(path, f"not a readable {kind} file: {error}") from error


def tokenise(
    out: Path, codebook_sizes: tuple[int, ...] | None = None, semantic_ids: Path | None = None
) -> list[str]:
    """`out`/catalogue.parquet with trained or published semantic IDs. Returns the report.

    Ended in the middle, it goes on after the last whole step of `out`/.tokenise.
    """
    if semantic_ids is not None:
        check_spared([semantic_ids], out, WRITTEN)
    items, settings = load_items(out), recipe(out)
    ids = items["item_id"].to_numpy()
    given = None if semantic_ids is None else published_codes(semantic_ids, items["key"].to_pylist())
    learnt = (
        None if given is not None else check_sizes(codebook_sizes or settings.codebook_sizes, MOST_LEARNT)
    )
    inputs = [out / name for name in ("histories.parquet", "items.parquet")]
    key = stage_key(
        {"stage": "tokenise", "seed": SEED, "recipe": settings.as_json(), "sizes": learnt}, inputs
    )
    with Steps(out / ".tokenise", key) as steps:
        rows, offsets = training_part(out / "histories.parquet", ids)
        popularity = np.bincount(rows, minlength=len(ids))
        vectors = item_vectors(items, rows, offsets, VECTOR_RANK, settings.text_weight, SEED, steps)
        del rows, offsets  # the largest there is; what follows needs vectors alone
        sizes, codes = given or (learnt, quantise(vectors, learnt, SEED, steps))
        books = codebook_means(vectors, codes, sizes)
        Catalogue(ids, codes, items["title"].to_pylist(), popularity, sizes).save(steps.scratch / CATALOGUE)
        write_tensors(steps.scratch / CODEBOOKS, {f"level_{n}": book for n, book in enumerate(books, 1)})
        for name in (CODEBOOKS, CATALOGUE):
            os.replace(steps.scratch / name, out / name)
    shared, sharing = collisions(codes)
    return [
        f"{counted(len(ids), 'item')}, {counted(len(sizes), 'level')} of {' x '.join(map(str, sizes))} codes",
        f"{counted(shared, 'semantic ID is', 'semantic IDs are')} shared by {sharing} items"
        if shared
        else "every item has a semantic ID of its own",
    ]


def published_codes(path: Path, keys: list[str]) -> tuple[tuple[int, ...], np.ndarray]:
    """Codebook sizes, and codes int32[n, L] of the items `keys`. Raises InputError for an item without."""
    codes = lists_of(read_semantic_ids(path), keys, path, EVERY_ITEM).astype(np.int32)
    return check_sizes([int(c) + 1 for c in codes.max(axis=0)]), codes


def train(
    world: World, out: Path, settings: Recipe, state: Path, seed: int = 0, minutes: float | None = None
) -> dict[str, object]:  # fmt: skip
    """`out`/model/, or what of it a training that was ended in `state` lacks. Returns what happened.

    All ranks call it. Raises RankLost, ArtifactError.
    """
    histories, catalogue = load_histories(out), Catalogue.load(out / CATALOGUE)
    best, report = train_generator(
        world, histories, catalogue, settings, state, seed, minutes, load_codebooks(out)
    )
    if world.rank == 0:
        save_generator(best, out / "model")
    return report


def load_histories(out: Path) -> Histories:
    """`out`/histories.parquet. Raises ArtifactError."""
    return Histories.load(out / "histories.parquet")


def load_codebooks(out: Path) -> list[torch.Tensor]:
    """What every code stands for, per level float32[T_l, d]; none where `tokenise` wrote none. Raises ArtifactError."""
    path = out / CODEBOOKS
    if not path.exists():
        return []
    try:
        stored = load_file(check_regular(path))
        return [torch.from_numpy(stored[f"level_{level}"]) for level in range(1, len(stored) + 1)]
    except (OSError, SafetensorError, KeyError) as error:
        raise ArtifactError(path, f"not readable codebooks: {error}") from error


def load_items(out: Path) -> pa.Table:
    """`out`/items.parquet: item_id, key, title, genre, sorted by item id. Raises ArtifactError."""
    path = out / "items.parquet"
    if not path.is_file():
        raise ArtifactError(path, "does not exist; prepare the data first")
    try:
        return pq.read_table(check_regular(path)).combine_chunks()
    except (OSError, pa.ArrowException) as error:
        raise ArtifactError(path, f"not a readable items file: {error}") from error

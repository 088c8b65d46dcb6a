"""The stages a person calls, over an artifact folder: prepare -> tokenise -> train -> quality."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from genrec.catalogue.items import Catalogue
from genrec.catalogue.semantic_id import check_sizes
from genrec.errors import ArtifactError, InputError
from genrec.files import check_regular, read_json
from genrec.nn.checkpoint import load_generator
from genrec.progress import ticking
from training import train as trainer
from training.data import Histories, write_data
from training.evaluate import evaluate, popularity_baseline, transition_baseline
from training.recipes import Recipe, recipe_for
from training.recommend import model_recommender
from training.sources import open_source, read_tables
from training.tokenise import codebook_means, collisions, item_vectors, quantise, read_semantic_ids

CODEBOOKS = "codebooks.safetensors"
SOURCE = "source.json"  # the name of the data set, which has a recipe of its own
VECTOR_RANK = 64  # of text and of co-occurrence each


def prepare(
    out: Path,
    source: str | None = None,
    interactions: Path | None = None,
    items: Path | None = None,
    cache: Path | None = None,
) -> list[str]:
    """`out`/histories.parquet and items.parquet from a named set, a folder, or two files. Returns the report.

    Wheels of named sets are kept in `cache` (default: `.downloads` beside `out`). Raises InputError.
    """
    if source is not None:
        found = open_source(source, cache or out.parent / ".downloads")
    elif interactions is not None and items is not None:
        found = read_tables(interactions, items)
    else:
        raise InputError("source", "is missing", "a name, a folder, or --interactions with --items")
    with ticking("histories"):
        notes = write_data(found, out)
    (out / SOURCE).write_text(json.dumps({"name": Path(source).name if source else "own"}) + "\n")
    return notes


def recipe(out: Path) -> Recipe:
    """The settings of the data set that `prepare` wrote to `out`."""
    histories = load_histories(out)
    name = read_json(out / SOURCE)["name"] if (out / SOURCE).exists() else ""
    return recipe_for(name, len(load_items(out)["key"]), len(histories.items))


def tokenise(
    out: Path,
    codebook_sizes: tuple[int, ...] | None = None,
    semantic_ids: Path | None = None,
    seed: int = 0,
) -> list[str]:
    """`out`/catalogue.parquet with trained or published semantic IDs. Returns the report."""
    items, histories = load_items(out), load_histories(out)
    ids, keys = np.array(items["item_id"], np.int64), items["key"]
    past = histories.cut(2)
    rows = np.searchsorted(ids, past.items)  # items.parquet is sorted by id and holds every item
    popularity = np.bincount(rows, minlength=len(ids))
    settings = recipe(out)
    texts = [f"{title} {genre}" for title, genre in zip(items["title"], items["genre"], strict=True)]
    with ticking("item vectors"):
        vectors = item_vectors(texts, past, rows, VECTOR_RANK, settings.text_weight, seed)
    if semantic_ids is not None:
        given = read_semantic_ids(semantic_ids)
        missing = [key for key in keys if key not in given]
        if missing:
            problem = f"lacks {len(missing)} of {len(keys)} items, the first is {missing[0]!r}"
            raise InputError(str(semantic_ids), problem, "a semantic ID for every item")
        codes = np.array([given[key] for key in keys], np.int32)
        sizes = check_sizes([int(c) + 1 for c in codes.max(axis=0)])
    else:
        sizes = check_sizes(codebook_sizes or settings.codebook_sizes)
        codes = quantise(vectors, sizes, seed)
    Catalogue(ids, codes, items["title"], popularity, sizes).save(out / "catalogue.parquet")
    books = codebook_means(vectors, codes, sizes)
    save_file({f"level_{level}": book for level, book in enumerate(books, 1)}, out / CODEBOOKS)
    shared, sharing = collisions(codes)
    return [
        f"{len(ids)} items, {len(sizes)} levels of {' x '.join(map(str, sizes))} codes",
        f"{shared} semantic IDs are shared by {sharing} items"
        if shared
        else "every item has a semantic ID of its own",
    ]


def train(
    out: Path,
    seed: int = 0,
    threads: int = 0,
    minutes: float | None = None,
    epochs: int | None = None,
    resume: bool = False,
) -> dict[str, object]:
    """`out`/model/ by the recipe of the data; the log is `out`/training/report.json. Returns it."""
    settings = recipe(out)
    if epochs is not None:
        settings = replace(settings, epochs=epochs)
    catalogue = Catalogue.load(out / "catalogue.parquet")
    report = trainer.train(
        load_histories(out), catalogue, settings, out / "model", out / "training",
        seed, threads, minutes, resume, load_codebooks(out),
    )  # fmt: skip
    (out / "training" / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


def quality(
    out: Path, beam_width: int = 128, remove_seen: bool = True, users: int | None = None
) -> dict[str, object]:
    """Test figures of the model and both baselines over the same users: {"model": ..., "popularity": ...}."""
    catalogue, histories = Catalogue.load(out / "catalogue.parquet"), load_histories(out)
    asked = histories if users is None else histories.sample(users, seed=0)
    contenders = {
        "popularity": popularity_baseline(catalogue),
        "transition counts": transition_baseline(catalogue, histories),
        "model": model_recommender(load_generator(out / "model"), catalogue, beam_width),
    }
    figures = {n: evaluate(r, asked, "test", remove_seen, label=n) for n, r in contenders.items()}
    return {**figures, "beam_width": beam_width}


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


def load_items(out: Path) -> dict[str, list]:
    """`out`/items.parquet: item_id, key, title, genre, sorted by item id. Raises ArtifactError."""
    path = out / "items.parquet"
    if not path.is_file():
        raise ArtifactError(path, "does not exist; prepare the data first")
    try:
        return pq.read_table(check_regular(path)).to_pydict()
    except (OSError, pa.ArrowException) as error:
        raise ArtifactError(path, f"not a readable items file: {error}") from error

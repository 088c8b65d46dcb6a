"""What a ranker learns to order: the generator's best unseen items at places of every history, made once and kept.

A place is a user and a cut: the first `cut` items are the history, the one behind them is the target.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError, InputError
from genrec.files import check_regular, scratch_in
from genrec.manifest import stage_key
from genrec.models.prompt import prompt_of
from genrec.nn.beam import Tree, beam_search, rank_items
from genrec.nn.checkpoint import generator_digest, load_generator
from genrec.nn.device import device_of
from genrec.nn.model import Generator
from genrec.progress import counting
from genrec.tensor_file import write_tensors
from training.data.histories import Histories
from training.generator.evaluate import SPLITS
from training.padding import padded

FILE_NAME = "rank_candidates.safetensors"  # in training/
CANDIDATES, BEAM_WIDTH = 100, 128
HELD_OUT = "held_out"  # the key of validation and test, which those of training do not change
SHORTEST = 2  # items of a history that a place of training has
BATCH = 64


@dataclass(frozen=True, eq=False)
class Candidates:
    """m places: `user`, `cut` int32[m] and the `target`'s catalogue row int32[m]; `rows` int32[m, 100] are the best
    unseen items, -1 where there are no more, `scores` float32[m, 100] their log-probabilities, -inf there.
    """

    user: np.ndarray
    cut: np.ndarray
    target: np.ndarray
    rows: np.ndarray
    scores: np.ndarray

    def __len__(self) -> int:
        return len(self.user)

    def at(self, picked: np.ndarray) -> Candidates:
        """Some of the places, by number or by mask."""
        return Candidates(*(each[picked] for each in vars(self).values()))


def known_rows(histories: Histories, catalogue: Catalogue) -> list[np.ndarray]:
    """Catalogue rows of every history, items that the catalogue lacks left out: int64 per user."""
    rows = (catalogue.rows_of(items) for items in histories.rows())
    return [each[each >= 0].astype(np.int64) for each in rows]


def places_of(lengths: np.ndarray, split: str, per_history: int) -> np.ndarray:
    """Places int64[m, 2] (user, cut), shortest first, of histories of `lengths` int64[U].

    One of every history for `test` and `validation`; for `train` at most `per_history` of the targets before those.
    """
    if split != "train":
        cuts = [
            (user, length - SPLITS[split]) for user, length in enumerate(lengths) if length > SPLITS[split]
        ]
    else:
        rng = np.random.default_rng(0)
        cuts = [
            (user, cut)
            for user, length in enumerate(lengths)
            for cut in rng.permutation(np.arange(SHORTEST, length - 2))[:per_history]
        ]
    found = np.array(cuts, np.int64).reshape(-1, 2)
    return found[np.argsort(found[:, 1], kind="stable")]


def prompts(
    rows: list[np.ndarray], places: np.ndarray, tokens: np.ndarray, most: int,
    whole: Callable[[np.ndarray], np.ndarray] = np.ravel,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """What the user's KV is computed from, as `generate` cuts it: int64[B, S] padded right, lengths int64[B].

    `rows` per user, `places` [B, 2], `tokens` int[n, m] of an item by catalogue row, the newest `most` items; `whole`
    makes one line of theirs.
    """
    return padded([whole(tokens[rows[user][:cut][-most:]]) for user, cut in places])


def make_candidates(
    generator: Generator, catalogue: Catalogue, rows: list[np.ndarray], places: np.ndarray, label: str,
    quiet: bool = False,
) -> Candidates:  # fmt: skip
    """The generator's best unseen items of every place [m, 2], by the search that measures it."""
    config, tree = generator.config, Tree.of(catalogue).to(device_of(generator))
    tokens = catalogue.codes + np.array(config.code_offsets)
    found = np.empty((len(places), CANDIDATES), np.int32)
    scores = np.empty((len(places), CANDIDATES), np.float32)
    with counting(label, len(places), "place", disable=quiet) as bar:
        for start in range(0, len(places), BATCH):
            part = places[start : start + BATCH]
            seen = [np.unique(rows[user][:cut]) for user, cut in part]
            asked = prompts(rows, part, tokens, config.max_history, partial(prompt_of, config))
            leaves, values = beam_search(generator, tree, *asked, seen, BEAM_WIDTH)
            span = slice(start, start + len(part))
            found[span], scores[span] = rank_items(tree, leaves, values, seen, CANDIDATES)
            bar.update(len(part))
    target = np.array([rows[user][cut] for user, cut in places], np.int32)
    # safetensors writes what lies in memory, strides or not
    user, cut = np.ascontiguousarray(places.T, np.int32)
    return Candidates(user, cut, target, found, scores)


def load_candidates(
    artifact: Path, per_history: int, device: torch.device | str = "cpu"
) -> dict[str, Candidates]:
    """Split -> candidates of the generator in `artifact`/model, made on `device` where they are not yet there or of
    another one.

    Splits are `train`, `validation` and `test`. With `per_history` 0 nobody reads those of `train`: any will do, and
    none are made. Raises ArtifactError, and InputError where there is nothing to learn.
    """
    path = artifact / "training" / FILE_NAME
    generator = load_generator(artifact / "model").to(device)
    inputs = [artifact / name for name in ("histories.parquet", "catalogue.parquet")]
    settings = {
        "generator": generator_digest(artifact / "model"),
        "candidates": CANDIDATES,
        "beam_width": BEAM_WIDTH,
    }
    keys = {
        "key": stage_key(settings | {"per_history": per_history}, inputs),
        HELD_OUT: stage_key(settings, inputs),
    }
    kept = _read(path, keys, "key" if per_history else HELD_OUT) if path.exists() else None
    if kept is not None:
        return kept
    path.parent.mkdir(parents=True, exist_ok=True)
    catalogue = Catalogue.load(artifact / "catalogue.parquet")
    rows = known_rows(Histories.load(artifact / "histories.parquet"), catalogue)
    lengths = np.array([len(each) for each in rows])
    places = {split: places_of(lengths, split, per_history) for split in ("train", *reversed(SPLITS))}
    for split, each in places.items():
        if not len(each) and (per_history or split != "train"):
            limit = f"a history of {SHORTEST + 3} items or more"
            raise InputError("histories", f"have no place to make candidates of for {split}", limit)
    made = {
        split: make_candidates(generator, catalogue, rows, each, f"candidates, {split}")
        for split, each in places.items()
    }
    tensors = {f"{split}.{name}": each for split, of in made.items() for name, each in vars(of).items()}
    # Ranks that torchrun started make them at the same time.
    with scratch_in(path.parent) as scratch:
        write_tensors(scratch / FILE_NAME, tensors, keys)
        os.replace(scratch / FILE_NAME, path)
    return made


def _read(path: Path, keys: Mapping[str, str], name: str) -> dict[str, Candidates] | None:
    """What the file holds; nothing if its key of this `name` is another. Raises ArtifactError."""
    try:
        with safe_open(check_regular(path), framework="numpy") as file:
            if (file.metadata() or {}).get(name) != keys[name]:
                return None
            return {
                split: Candidates(
                    *(file.get_tensor(f"{split}.{name}") for name in Candidates.__annotations__)
                )
                for split in ("train", *SPLITS)
            }
    except (OSError, SafetensorError) as error:
        raise ArtifactError(path, f"not readable candidates, delete it: {error}") from error

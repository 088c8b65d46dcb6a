"""Histories and answers with titles, for people."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cli.options import numbers
from clients.client import Client
from clients.rank_wire import Ranking
from clients.recommender import Recommender
from clients.request import by_name, request_tensors
from clients.wire import Protocols, Recommendation, parse
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.keys import ITEMS, find_ids, find_names, load_keys
from genrec.catalogue.typed import split_keys
from genrec.catalogue.versions import catalogue_id, folder_of
from genrec.errors import GenrecError, InputError
from genrec.rank.kinds import EVENT_INPUTS
from genrec.settings import MOST_VALUES
from genrec.steps.known_features import KnownFeatures
from genrec.steps.known_users import KnownUsers
from genrec.words import counted
from training.data.histories import Histories
from training.data.keys import is_plain

Ask = Callable[..., Recommendation]  # of history, top_k and what of `request_tensors` excludes items
NEWEST = 5  # items of a history whose titles are shown


def user_of(artifact: Path, user: str) -> Histories:
    """A user's history alone, as much of it as a request may have, with its times where the data set has them; named
    by his id, or as the source spells him. Raises InputError.
    """
    path = artifact / "histories.parquet"
    histories = Histories.load(path, times=True)
    names = pq.read_table(path, columns=["user"])["user"].to_numpy()
    ids = pa.array(histories.user_ids).cast(pa.string()).to_numpy(zero_copy_only=False)
    found = np.concatenate((np.flatnonzero(ids == user), np.flatnonzero(names == user)))
    if not len(found):
        limit = f"one of {counted(len(histories), 'user')}, e.g. {names[0] or histories.user_ids[0]}"
        raise InputError("user", f"{user} is not in the data", limit)
    return histories.of(found[:1]).newest(MOST_VALUES)


def known_of(artifact: Path, user: int) -> dict[str, list[int]]:
    """What a ranker may read of a user beside items: times and ratings of his history, and features, where known."""
    history = KnownUsers(artifact).complete({"user_id": np.array([[user]])}, ["times", "ratings"])
    features = {"features": KnownFeatures(artifact).of(user)[None]}
    return {name: each[0].tolist() for name, each in {**history, **features}.items() if name in EVENT_INPUTS}


def items_of(artifact: Path, field: str, given: str) -> list[int]:
    """Ids of a list as 1,2,3, or of one of keys, as the source spells items: 007 is no number, but perhaps a key.

    Raises InputError, ArtifactError.
    """
    limit, keys = "ids alone as 1,2,3", split_keys(given, field)
    if not all(map(is_plain, keys)) and len(known := load_keys(artifact)):
        return find_ids(known, keys, field, limit)
    try:
        return numbers(given)
    except argparse.ArgumentTypeError as error:
        raise InputError(field, f"is {given!r}", f"{limit}; for keys the artifact lacks {ITEMS}") from error


ENSEMBLES = {"beam": "recommend", "draft": "recommend_draft"}


def ask_server(url: str, protocol: Protocols, decoder: str = "beam", deadline_ms: int | None = None) -> Ask:
    """Ask over the network, one connection per call: for people, not for load."""

    def ask(history: list[int], top_k: int, **excluding: Any) -> Recommendation:
        with Recommender(url, protocol, model=ENSEMBLES[decoder]) as recommender:
            return recommender.recommend(history, top_k, deadline_ms=deadline_ms, **excluding)

    return ask


def ask_local(artifact: Path, beam_width: int, decoder: str = "beam") -> Ask:
    """Ask the local runtime."""

    def ask(history: list[int], top_k: int, **excluding: Any) -> Recommendation:
        from ensembles.local import LocalRecommender

        request = request_tensors(history, top_k, **excluding)
        with LocalRecommender(artifact, beam_width, decoder=decoder) as local:
            (answer,) = local.runtime.run([request])
        if isinstance(answer, GenrecError):
            raise by_name(answer, excluding.get("exclude_groups"), excluding.get("only_groups"))
        return parse(SimpleNamespace(as_numpy=answer.get))

    return ask


def why_untitled(artifact: Path, url: str, protocol: Protocols, version: int) -> str:
    """Why items that a server answered with a catalogue version get no titles of the artifact: "" where they do."""
    if why := other_catalogue(artifact, name_of_server(url, protocol)):
        return f"no titles: {why}"
    if not (folder_of(artifact, version) / CATALOGUE).exists():
        return f"no titles: the server serves version {version} of the catalogue, which {artifact} lacks"
    return ""


def name_of_server(url: str, protocol: Protocols) -> str:
    """What it calls itself; "" where it does not say: it may be closed to us."""
    try:
        with Client(url, protocol) as client:
            return client.server_name()
    except GenrecError:
        return ""


def other_catalogue(artifact: Path, name: str) -> str:
    """That a server of this name may serve other items than the artifact's: "" where that says that it does not."""
    known = name.endswith(f"-{catalogue_id(artifact)}")
    return "" if known else f"the server does not say that it serves the catalogue of {artifact}"


def answer_lines(artifact: Path, history: list[int], answer: Recommendation, untitled: str = "") -> list[str]:
    """The newest titles of the history, then the titles answered with their scores, ids, and keys where these are not
    the ids; ids alone, and why, where `untitled` says why.
    """
    notes = [f"answered by {answer.by}", *_unread(answer)]
    return [*_lines(artifact, history, answer, untitled), "  " + ", ".join(notes)]


def _unread(answer: Recommendation | Ranking) -> list[str]:
    """What of the history was not read, and why."""
    dropped = f"{counted(answer.dropped, 'item')} dropped, not in version {answer.catalogue_version}"
    cut = f"{counted(answer.cut, 'older item')} cut off"
    return [*([dropped] if answer.dropped else []), *([cut] if answer.cut else [])]


def ranking_lines(artifact: Path, history: list[int], answer: Ranking, untitled: str = "") -> list[str]:
    """The same of a ranking."""
    tokens = counted(answer.user_reused, "token")
    reused = f"KV of {tokens} of the user and {answer.items_reused} of candidates was there"
    notes = [f"ranked by {answer.by}", *_unread(answer), reused]
    notes += [f"{counted(answer.left_out, 'candidate')} left out"] if answer.left_out else []
    return [*_lines(artifact, history, answer, untitled), "  " + ", ".join(notes)]


def _lines(artifact: Path, history: list[int], answer: Recommendation | Ranking, untitled: str) -> list[str]:
    pairs = zip(answer.item_ids, answer.scores, strict=True)
    if untitled:
        lines = [f"  {untitled}", f"  last of {len(history)}: " + "; ".join(map(str, history[-NEWEST:]))]
        return lines + [f"  {score:8.3f}  [{item}]" for item, score in pairs]
    version = answer.catalogue_version
    catalogue = Catalogue.load(folder_of(artifact, version) / CATALOGUE)

    def title(item: int) -> str:
        row = int(catalogue.rows_of([item])[0])
        return catalogue.titles[row] if row >= 0 else f"{names.get(item, item)} (not in version {version})"

    def name(item: int) -> str:
        return f"[{item}]  {names[item]}" if item in names else f"[{item}]"

    names = find_names(load_keys(artifact), [*answer.item_ids.tolist(), *history[-NEWEST:]])
    lines = [f"  last of {len(history)}: " + "; ".join(title(i) for i in history[-NEWEST:])]
    return lines + [f"  {score:8.3f}  {title(item)}  {name(item)}" for item, score in pairs]

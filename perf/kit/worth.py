"""What the answers are worth whose speed is told: are they items, different ones, and as many as were asked for?

Counted against the catalogue's files, not believed from the server, and never inside a timed region. A client for load
leaves answers unread, and perf_analyzer keeps none: then the same server is asked a few of the same histories after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from clients.aio import AsyncRecommender
from clients.errors import Overloaded
from clients.rank_wire import Ranking
from clients.wire import Recommendation
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import folder_of
from perf.kit import asking
from perf.kit.endpoints import Endpoint

CHECKED = 32  # histories that are asked after a load
IN_FLIGHT = 4  # of them: batches are looked at too
WRONG = "WRONG ANSWERS: "

Answer = Recommendation | Ranking


class Worth(NamedTuple):
    """Of the answers checked; a share is None where none was, or where the catalogue that answered is not here.

    1 is due of all three, except that a server whose drafts are verified at the last level may answer too few items.
    """

    valid_share: float | None  # of all items answered: those that are in the catalogue
    distinct_share: float | None  # of the answers: those without an item twice
    enough_share: float | None  # of the answers: those with top_k items, or all that there are
    answers_checked: int


def ask(server: Endpoint, histories: Sequence[ArrayLike], top_k: int = 10) -> list[Answer]:
    """Answers to the first CHECKED of these histories, without what is refused. Raises the client's other errors."""

    async def session() -> list[Answer]:
        found, left = list[Answer](), iter(histories[:CHECKED])
        ranks = server.ensemble in asking.RANKING
        reading = (
            asking.sending(server) if ranks else AsyncRecommender(server.grpc_url, model=server.ensemble)
        )
        async with reading as client:

            async def one_by_one() -> None:
                for history in left:
                    with suppress(Overloaded):
                        found.append(await client.recommend(history, top_k))

            await asyncio.gather(*(one_by_one() for _ in range(IN_FLIGHT)))
        return found

    return asyncio.run(session())


def worth_of(
    artifact: Path, answers: Sequence[Answer], top_k: int = 10, excluded: Sequence[ArrayLike] | None = None
) -> Worth:
    """Each answer against the catalogue version that it reports; `excluded`: see `worth`. Raises ArtifactError."""
    return worth(with_catalogues(artifact, answers), top_k, excluded)


def with_catalogues(artifact: Path, answers: Sequence[Answer]) -> list[tuple[Answer, Catalogue | None]]:
    """Each answer with the catalogue version that it reports, None where that is not here. Raises ArtifactError."""
    catalogues = {
        version: Catalogue.load(path, titles=False) if path.is_file() else None
        for version in {answer.catalogue_version for answer in answers}
        for path in [folder_of(artifact, version) / CATALOGUE]
    }
    return [(answer, catalogues[answer.catalogue_version]) for answer in answers]


def worth(
    answers: Sequence[tuple[Answer, Catalogue | None]],
    top_k: int,
    excluded: Sequence[ArrayLike] | None = None,
) -> Worth:
    """Answers, each with the catalogue that it must be from, or None where that is not known.

    `excluded` has for each the item ids of the history that it was to leave out; None: nothing was left out of any.
    """
    valid = [
        known
        for answer, of in answers
        if of is not None
        for known in (of.rows_of(answer.item_ids) >= 0).tolist()
    ]
    distinct = [len(np.unique(answer.item_ids)) == len(answer.item_ids) for answer, _ in answers]
    out = [[]] * len(answers) if excluded is None else excluded
    enough = [
        len(answer.item_ids) >= _due(answer, of, top_k, ids)
        for (answer, of), ids in zip(answers, out, strict=True)
    ]
    all_known = all(of is not None for _, of in answers)
    return Worth(_share(valid) if all_known else None, _share(distinct), _share(enough), len(answers))


def _due(answer: Answer, of: Catalogue | None, top_k: int, excluded: ArrayLike) -> int:
    """How many items an answer must have: no ranking has more than its candidates, and none more than there are left
    without the `excluded` ones.
    """
    most = asking.CANDIDATES if isinstance(answer, Ranking) else top_k
    if of is None:
        return min(top_k, most)
    out = of.rows_of(np.unique(np.asarray(excluded, np.int64)))
    return min(top_k, most, len(of) - int((out >= 0).sum()))


def _share(flags: Sequence[bool]) -> float | None:
    return float(np.mean(flags)) if flags else None


def line(found: Worth) -> str:
    """For people; loud where a share is not 1."""
    *shares, checked = found
    texts = ["not known" if share is None else f"{share:.2%}" for share in shares]
    what = "items valid {}, answers of distinct items {}, with enough items {}".format(*texts)
    return f"{'' if is_right(found) else WRONG}{what}; {checked} answers checked"


def is_right(found: Worth) -> bool:
    """Whether nothing is known to be wrong."""
    return all(share is None or share == 1 for share in found[:3])


def lines(arms: Mapping[str, Worth]) -> str:
    """A line for every arm."""
    return "\n".join(f"{name}: {line(found)}" for name, found in arms.items())

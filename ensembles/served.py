"""Which ensembles an artifact is served by."""

from __future__ import annotations

from ensembles.description import Ensemble
from ensembles.recommend import recommend
from ensembles.recommend_draft import recommend_draft
from ensembles.recommend_staged import recommend_staged
from genrec.target import DEFAULT, target_of


def served(levels: int, draft: bool, target: str = DEFAULT) -> tuple[Ensemble, ...]:
    """`recommend` and `recommend_staged`; `recommend_draft` too when the generator has a draft head.

    Whether `recommend_staged` is among them the target's row says.
    """
    staged = (recommend_staged(levels),) if target_of(target).staged else ()
    drafts = (recommend_draft(),) if draft else ()
    return (recommend(), *staged, *drafts)

"""Which ensembles an artifact is served by."""

from __future__ import annotations

from ensembles.description import Ensemble
from ensembles.recommend import recommend
from ensembles.recommend_draft import recommend_draft


def served(levels: int, draft: bool) -> tuple[Ensemble, ...]:
    """`recommend`, and `recommend_draft` beside it when the generator has a draft head."""
    return (recommend(levels), recommend_draft()) if draft else (recommend(levels),)

"""Which ensembles an artifact is served by."""

from __future__ import annotations

from ensembles.description import Ensemble
from ensembles.recommend import recommend
from ensembles.recommend_draft import recommend_draft
from ensembles.recommend_staged import recommend_staged


def served(levels: int, draft: bool) -> tuple[Ensemble, ...]:
    """`recommend` and `recommend_staged`; `recommend_draft` too when the generator has a draft head."""
    both = (recommend(), recommend_staged(levels))
    return (*both, recommend_draft()) if draft else both

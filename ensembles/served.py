"""Which ensembles an artifact is served by."""

from __future__ import annotations

from ensembles.description import Ensemble
from ensembles.recommend import recommend
from ensembles.recommend_draft import recommend_draft
from ensembles.recommend_staged import recommend_staged


def served(levels: int, draft: bool, target: str = "openvino") -> tuple[Ensemble, ...]:
    """`recommend` and `recommend_staged`; `recommend_draft` too when the generator has a draft head.

    Target `cuda` leaves out `recommend_staged`: its KV would go to the host and back between any two passes, and each
    of its models would hold weights of its own on the device.
    """
    staged = () if target == "cuda" else (recommend_staged(levels),)
    drafts = (recommend_draft(),) if draft else ()
    return (recommend(), *staged, *drafts)

"""Which rankers a plan can run. The server reads it too, where no onnx is installed."""

from __future__ import annotations

from pathlib import Path

from genrec.rank.head import has_ranker
from genrec.rank.options import RankerConfig

RANK = "score_candidates"  # the plan
SERVED = "whose user's KV is the generator's (shared), of semantic IDs (history codes), in order split"


def plan_ranker(artifact: Path) -> RankerConfig | None:
    """The artifact's ranker, if its user's KV is what the generator's prefill leaves and it can be read in order split.

    Raises ArtifactError.
    """
    if not has_ranker(artifact):
        return None
    options = RankerConfig.of(artifact, "tensorrt")
    fits = options.shared and options.history == "codes" and "split" in options.orders
    return options if fits else None


def item_tokens(artifact: Path) -> int:
    """t of that ranker; 1 where there is none."""
    ranker = plan_ranker(artifact)
    return ranker.item_tokens if ranker else 1

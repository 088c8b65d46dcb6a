"""Ensemble `recommend` for the target `cuda`: what lies between the prompt and the last beam is one model.

encode_history -> generate -> validity_lookup. A loop that must be faster than hops allow runs inside one Python
model; the models at both ends are those of `ensembles.recommend`, and so are inputs, outputs and errors.
"""

from __future__ import annotations

from ensembles.description import Ensemble, Model, Step, WarmUp
from ensembles.recommend import (
    ENCODE_HISTORY,
    EXCLUDED,
    ITEM_IDS,
    NO_PROMPT,
    PREFILL_DELAY_US,
    PREFIXES,
    REPORT,
    REQUEST,
    SCORES,
    TICKET,
    TOKENS,
    VALIDITY_LOOKUP,
)

GENERATE = Model(
    "generate",
    inputs=(TOKENS, TICKET, EXCLUDED),
    outputs=(PREFIXES, SCORES),
    queue_delay_us=PREFILL_DELAY_US,
    warmups=(WarmUp("no_prompt", {"tokens": (32,), "excluded": (1,)}, NO_PROMPT),),
)


def recommend_cuda() -> Ensemble:
    """The ensemble; L does not show in it."""
    request = {tensor.name: tensor.name for tensor in REQUEST}
    ticket, excluded = {"ticket": "ticket"}, {"excluded": "excluded"}
    beams = {name: f"last_{name}" for name in ("prefixes", "scores")}
    steps = (
        Step("encode_history", request, {"tokens": "tokens", **ticket, **excluded}),
        Step("generate", {"tokens": "tokens", **ticket, **excluded}, beams),
        Step(
            "validity_lookup",
            {**beams, **ticket, **excluded},
            {n: n for n in ("item_ids", "scores", "report")},
        ),
    )
    models = (ENCODE_HISTORY, GENERATE, VALIDITY_LOOKUP)
    return Ensemble("recommend", REQUEST, (ITEM_IDS, SCORES, REPORT), models, steps)

"""Ensemble `recommend_draft`: as `recommend`, with the decode passes replaced by the model's own draft (NEZHA).

encode_history -> prefill_draft -> draft_beam -> validity_lookup. Same inputs, outputs and errors as `recommend`,
whatever L, and the models at both ends are the very same. What outlives a step is 1 + L hidden states, so there is
no slot of the arena to run out of: under overload it is the deadline that sheds.
"""

from __future__ import annotations

from ensembles.description import Ensemble, Model, Step, Tensor, WarmUp
from ensembles.recommend import (
    ANSWER,
    ENCODE_HISTORY,
    EXCLUDED,
    KEEP_FOR,
    NO_PROMPT,
    PATHS,
    REQUEST,
    SCORES,
    TICKET,
    TOKENS,
    VALIDITY_LOOKUP,
)

STATES = Tensor("states", "FP32", (-1,))
DRAFTED = Tensor("drafted", "INT64", (2,))

PREFILL_DRAFT = Model(
    "prefill_draft",
    inputs=(TOKENS, TICKET, KEEP_FOR),
    outputs=(STATES,),
    max_batch=128,  # as `generate`: the step batches by tokens itself
    # A real pass, since it leaves nothing behind: the engine compiles before the first request.
    warmups=(WarmUp("one_token", {"tokens": (1,)}, {"ticket": (1, 1, 0, 0, 0, 0)}),),
)
DRAFT_BEAM = Model(
    "draft_beam",
    inputs=(STATES, TICKET, EXCLUDED),
    outputs=(PATHS, SCORES, DRAFTED),
    warmups=(WarmUp("no_prompt", {"states": (1,), "excluded": (1,)}, NO_PROMPT),),
)


def recommend_draft() -> Ensemble:
    """The ensemble; L does not show in it."""
    request = {tensor.name: tensor.name for tensor in REQUEST}
    ticket, excluded = {"ticket": "ticket"}, {"excluded": "excluded"}
    prompt = {"tokens": "tokens", "owner": "owner"}
    ids = ("paths", "scores")
    steps = (
        Step("encode_history", request, {**prompt, **ticket, **excluded}),
        Step("prefill_draft", {**prompt, **ticket}, {"states": "states"}),
        Step("draft_beam", {"states": "states", **ticket, **excluded}, {n: f"drafted_{n}" for n in ids}),
        Step(
            "validity_lookup",
            {**{n: f"drafted_{n}" for n in ids}, **ticket, **excluded},
            {t.name: t.name for t in ANSWER},
        ),
    )
    models = (ENCODE_HISTORY, PREFILL_DRAFT, DRAFT_BEAM, VALIDITY_LOOKUP)
    return Ensemble("recommend_draft", REQUEST, ANSWER, models, steps)

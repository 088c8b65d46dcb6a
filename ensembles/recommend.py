"""Ensemble `recommend`: a history in, valid items out; all passes of the generator are one model.

encode_history -> generate -> validity_lookup. The chain is strictly linear (every step reads something of the step
before it), which hazard H4 asks for. Tensors as in docs/contracts.md. `ensembles.recommend_staged` is the same with
a hop of Triton between any two passes; docs/serving.md compares them.
"""

from __future__ import annotations

from ensembles.description import Ensemble, Model, Step, Tensor, WarmUp, optional
from genrec.report import Report
from genrec.steps.ticket import Ticket

# Triton counts inputs and takes one for another. So all of a request are optional to it, and the first step names what
# is missing.
HISTORY = Tensor("history", "INT64", (-1,), optional=True)  # of a known `user_id`, his own
TOP_K = Tensor("top_k", "INT32", (1,), optional=True)
# In the place of `top_k`, where a ranking follows: how many it is given, and how many of them it answers
RETRIEVE = Tensor("retrieve", "INT32", (1,), optional=True)
RANK_TOP_K = Tensor("rank_top_k", "INT32", (1,), optional=True)
USER_ID = Tensor("user_id", "INT64", (1,), optional=True)
DEADLINE_MS = Tensor("deadline_ms", "INT32", (1,), optional=True)
EXCLUDE_HISTORY = Tensor("exclude_history", "BOOL", (1,), optional=True)
EXCLUDE = Tensor("exclude", "INT64", (-1,), optional=True)
ONLY = Tensor("only", "INT64", (-1,), optional=True)
EXCLUDE_GROUPS = Tensor("exclude_groups", "INT64", (-1,), optional=True)
ONLY_GROUPS = Tensor("only_groups", "INT64", (-1,), optional=True)
EXCLUSIONS = (EXCLUDE_HISTORY, EXCLUDE, ONLY, EXCLUDE_GROUPS, ONLY_GROUPS)
REQUEST = (HISTORY, TOP_K, USER_ID, DEADLINE_MS, *EXCLUSIONS)

TOKENS = Tensor("tokens", "INT32", (-1,))
TICKET = Tensor("ticket", "INT64", (len(Ticket._fields),))
EXCLUDED = Tensor("excluded", "INT32", (-1,))
OWNER = Tensor("owner", "INT64", (3,))  # whether a user is named, which, and when the request came
(KEEP_FOR,) = optional(OWNER)  # without it nothing is kept
PATHS = Tensor("paths", "INT64", (-1,))
SCORES = Tensor("scores", "FP32", (-1,))
ITEM_IDS = Tensor("item_ids", "INT64", (-1,))
REPORT = Tensor("report", "INT64", (len(Report._fields),))
ANSWER = (ITEM_IDS, SCORES, REPORT)

# Warm-up values where zero would be an error: top_k is at least 1. A ticket with 0 prompt tokens takes the
# short way, and version 0 is the current one.
TOP_1 = {"top_k": (1,)}
NO_PROMPT = {"ticket": (1, 0, 0, 0, 0, 0)}

ENCODE_HISTORY = Model(
    "encode_history",
    inputs=(*REQUEST, RETRIEVE, RANK_TOP_K),
    outputs=(TOKENS, TICKET, EXCLUDED, OWNER),
    warmups=(WarmUp("one_item", {"history": (1,)}, TOP_1),),
)
# No waiting for company here: the step batches by tokens itself (genrec/schedule/scheduler.py). Between two looks into
# Triton's queue it runs a batch. What is left there is in no estimate, and its time runs out: with 32 at a look, beyond
# the capacity requests waited for two thirds of their deadline before anybody knew of them.
GENERATE = Model(
    "generate",
    inputs=(TOKENS, TICKET, EXCLUDED, KEEP_FOR),
    outputs=(PATHS, SCORES),
    warmups=(WarmUp("no_prompt", {"tokens": (1,), "excluded": (1,)}, NO_PROMPT),),
    max_batch=128,
)
VALIDITY_LOOKUP = Model(
    "validity_lookup",
    inputs=(PATHS, SCORES, TICKET, EXCLUDED),
    outputs=ANSWER,
    warmups=(WarmUp("no_prompt", {"paths": (1,), "scores": (1,), "excluded": (1,)}, NO_PROMPT),),
)


def recommend() -> Ensemble:
    """The ensemble; L does not show in it."""
    request = {tensor.name: tensor.name for tensor in REQUEST}
    ticket, excluded = {"ticket": "ticket"}, {"excluded": "excluded"}
    prompt = {"tokens": "tokens", "owner": "owner"}
    beams = {name: f"last_{name}" for name in ("paths", "scores")}
    steps = (
        Step("encode_history", request, {**prompt, **ticket, **excluded}),
        Step("generate", {**prompt, **ticket, **excluded}, beams),
        Step("validity_lookup", {**beams, **ticket, **excluded}, {t.name: t.name for t in ANSWER}),
    )
    return Ensemble("recommend", REQUEST, ANSWER, (ENCODE_HISTORY, GENERATE, VALIDITY_LOOKUP), steps)

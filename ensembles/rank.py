"""Ensemble `rank`: a history and candidates in, ranked items out.

encode_candidates -> prefix_choice -> score_candidates -> rank_lookup. The chain is strictly linear, which
hazard H4 asks for. Tensors as in docs/contracts.md.
"""

from __future__ import annotations

from ensembles.description import Ensemble, Model, Step, Tensor, WarmUp, optional
from ensembles.recommend import (
    DEADLINE_MS,
    HISTORY,
    ITEM_IDS,
    NO_PROMPT,
    OWNER,
    SCORES,
    TICKET,
    TOKENS,
    TOP_1,
    TOP_K,
    USER_ID,
)
from genrec.report import RankReport

CANDIDATES = Tensor("candidates", "INT64", (-1,), optional=True)
CANDIDATE_SCORES = Tensor("candidate_scores", "FP32", (-1,), optional=True)
# What an HSTU ranker reads too: of every event a rating and seconds, when it is asked for, numbers of what is known of
# the user.
EVENTS = (
    Tensor("ratings", "INT32", (-1,), optional=True),
    Tensor("times", "INT64", (-1,), optional=True),
    Tensor("now", "INT64", (1,), optional=True),
    Tensor("features", "INT32", (-1,), optional=True),
)
REQUEST = (HISTORY, CANDIDATES, TOP_K, CANDIDATE_SCORES, USER_ID, DEADLINE_MS, *EVENTS)
FIRST = optional(TICKET, OWNER)  # of the step before, where a retrieval comes first

CANDIDATE_TOKENS = Tensor("candidates", "INT32", (-1,))
CODES = Tensor("codes", "INT32", (-1,))
# Left out where nothing is ranked: `pre_infer` wants the user's entry alone.
RANKED = optional(CANDIDATE_TOKENS, CODES)
PRIOR = Tensor("prior", "FP32", (-1,))
LEFT_OUT = Tensor("left_out", "INT32", (1,))
PLAN = Tensor("plan", "INT64", (3,))
REUSE = Tensor("reuse", "INT64", (-1,))  # of a ranking 4; of a pre-inference its report
DELTA = Tensor("delta", "INT64", (1,))
REPORT = Tensor("report", "INT64", (len(RankReport._fields),))
ANSWER = (ITEM_IDS, SCORES, REPORT)

ENCODE_CANDIDATES = Model(
    "encode_candidates",
    inputs=(*REQUEST, *FIRST),
    outputs=(TOKENS, TICKET, OWNER, CANDIDATE_TOKENS, CODES, ITEM_IDS, PRIOR, LEFT_OUT),
    # As behind a retrieval that found nothing the catalogue has: 0 is no item.
    warmups=(WarmUp("nothing_found", {"history": (1,), "candidates": (1,)}, {**NO_PROMPT, **TOP_1}),),
)
PREFIX_CHOICE = Model(
    "prefix_choice",
    inputs=(TOKENS, TICKET, OWNER, CANDIDATE_TOKENS),
    outputs=(PLAN,),
    warmups=(WarmUp("no_prompt", {"tokens": (1,), "owner": (3,), "candidates": (1,)}, NO_PROMPT),),
)
# No waiting for company here: the step answers later, and puts together what waits for the engine.
SCORE_CANDIDATES = Model(
    "score_candidates",
    inputs=(TOKENS, TICKET, OWNER, *RANKED, PLAN),
    outputs=(SCORES, REUSE, DELTA),
    # Nothing is read of tokens but that they are there: an item's number of them is the ranker's.
    warmups=(
        WarmUp(
            "no_prompt",
            {"tokens": (1,), "owner": (3,), "candidates": (1,), "codes": (1,), "plan": (3,)},
            NO_PROMPT,
        ),
    ),
)
RANK_LOOKUP = Model(
    "rank_lookup",
    inputs=(ITEM_IDS, PRIOR, SCORES, REUSE, DELTA, PLAN, TICKET, LEFT_OUT),
    outputs=ANSWER,
    warmups=(
        WarmUp(
            "no_prompt",
            {
                **{name: (1,) for name in ("item_ids", "prior", "scores", "delta", "left_out")},
                "reuse": (4,),
                "plan": (3,),
            },
            NO_PROMPT,
        ),
    ),
)
MODELS = (ENCODE_CANDIDATES, PREFIX_CHOICE, SCORE_CANDIDATES, RANK_LOOKUP)


def rank_steps(request: dict[str, str], before: str = "") -> tuple[Step, ...]:
    """The four steps; `request` feeds the first, and the names of what they make begin with `before`."""
    made = {tensor.name: f"{before}{tensor.name}" for tensor in ENCODE_CANDIDATES.outputs}
    if not before:  # what comes in and what goes out has these names
        made |= {"candidates": "candidate_tokens", "item_ids": "known_ids"}
    ranked = {"scores": "rank_scores", "reuse": "reuse", "delta": "delta"}

    def of(model: Model) -> dict[str, str]:
        names = {**made, "plan": "plan", **ranked}
        return {tensor.name: names[tensor.name] for tensor in model.inputs}

    return (
        Step("encode_candidates", request, made),
        Step("prefix_choice", of(PREFIX_CHOICE), {"plan": "plan"}),
        Step("score_candidates", of(SCORE_CANDIDATES), ranked),
        Step("rank_lookup", of(RANK_LOOKUP), {tensor.name: tensor.name for tensor in ANSWER}),
    )


def rank() -> Ensemble:
    """The ensemble; neither L nor t shows in it."""
    steps = rank_steps({tensor.name: tensor.name for tensor in REQUEST})
    return Ensemble("rank", REQUEST, ANSWER, MODELS, steps)

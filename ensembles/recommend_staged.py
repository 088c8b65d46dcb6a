"""Ensemble `recommend_staged`: as `recommend`, with every pass of the generator a model; the loop over L unrolled.

encode_history -> prefill -> beam_search -> (decode -> beam_search) x (L-1) -> validity_lookup. The chain is
strictly linear (every step reads something of the step before it), which hazard H4 asks for. Tensors as in
docs/contracts.md.
"""

from __future__ import annotations

from ensembles.description import Ensemble, Model, Step, Tensor, WarmUp, optional
from ensembles.recommend import (
    ANSWER,
    ENCODE_HISTORY,
    EXCLUDED,
    NO_PROMPT,
    PATHS,
    REQUEST,
    SCORES,
    TICKET,
    TOKENS,
    VALIDITY_LOOKUP,
)
from genrec.errors import InputError

MAX_LEVELS = 8
# A hop between Python models costs 0.4 to 0.9 ms whatever the batch; waiting about as long for company pays
# only where requests share a pass of the engine. Prefill does; in decode a request's beams are a batch of
# their own already. Elsewhere a batch is what is queued.
PREFILL_DELAY_US = 500

KV = Tensor("kv", "INT64", (4,))
NODES = Tensor("nodes", "INT32", (-1,))
CODES = Tensor("codes", "INT32", (-1,))  # of the beams that the next pass is to score
PARENTS = Tensor("parents", "INT32", (-1,))
LEVEL = Tensor("level", "INT32", (1,))

BEAMS = (PATHS, NODES, SCORES, CODES, PARENTS, LEVEL)
# There is no level 0. A kv of zeros is the arena's scratch slot.
FIRST_LEVEL = {"level": (1,)}


PREFILL = Model(
    "prefill",
    inputs=(TOKENS, TICKET),
    outputs=(KV,),
    queue_delay_us=PREFILL_DELAY_US,
    warmups=(WarmUp("no_prompt", {"tokens": (1,)}, NO_PROMPT),),
)
DECODE = Model(
    "decode",
    inputs=(KV, TICKET, CODES, PARENTS, LEVEL),
    outputs=(KV,),
    warmups=(WarmUp("scratch", {"kv": (4,), "codes": (1,), "parents": (1,)}, {**NO_PROMPT, **FIRST_LEVEL}),),
)


def _beam_search(levels: int) -> Model:
    first = WarmUp("first", {"kv": (4,), "excluded": (1,)}, NO_PROMPT)
    beams = {"paths": (1,), "nodes": (1,), "scores": (1,)}
    later = WarmUp("later", {**first.dims, **beams}, {**NO_PROMPT, **FIRST_LEVEL})
    return Model(
        "beam_search",
        inputs=(KV, TICKET, EXCLUDED, *optional(PATHS, NODES, SCORES, LEVEL)),
        outputs=BEAMS,
        warmups=(first, later) if levels > 1 else (first,),
    )


def _models(levels: int) -> tuple[Model, ...]:
    """The models of the chain; a semantic ID of one code needs no decode step."""
    decode = (DECODE,) if levels > 1 else ()
    return (ENCODE_HISTORY, PREFILL, _beam_search(levels), *decode, VALIDITY_LOOKUP)


def _beams(level: int, *names: str) -> dict[str, str]:
    """Model tensor -> ensemble tensor of what `beam_search` leaves at `level`."""
    return {name: f"{name}_{level}" for name in names}


def _steps(levels: int) -> list[Step]:
    request = {tensor.name: tensor.name for tensor in REQUEST}
    ticket, excluded = {"ticket": "ticket"}, {"excluded": "excluded"}
    encoded = {"tokens": "tokens", **ticket, **excluded}
    steps = [
        Step("encode_history", request, encoded),
        Step("prefill", {"tokens": "tokens", **ticket}, {"kv": "kv_1"}),
    ]
    for level in range(1, levels + 1):
        beams: dict[str, str] = {}
        if level > 1:
            last = _beams(level - 1, "codes", "parents", "level")
            steps.append(Step("decode", {"kv": f"kv_{level - 1}", **ticket, **last}, {"kv": f"kv_{level}"}))
            beams = _beams(level - 1, "paths", "nodes", "scores", "level")
        # What nobody reads at the last level is not mapped, so it does not leave the model either.
        left = ("paths", "scores") if level == levels else tuple(tensor.name for tensor in BEAMS)
        steps.append(
            Step("beam_search", {"kv": f"kv_{level}", **ticket, **excluded, **beams}, _beams(level, *left))
        )
    last = _beams(levels, "paths", "scores")
    steps.append(Step("validity_lookup", {**last, **ticket, **excluded}, {t.name: t.name for t in ANSWER}))
    return steps


def recommend_staged(levels: int) -> Ensemble:
    """The ensemble for semantic IDs of L = `levels` codes. Raises InputError outside 1..8."""
    if not 1 <= levels <= MAX_LEVELS:
        raise InputError("levels", f"is {levels}", f"1 to {MAX_LEVELS}")
    return Ensemble("recommend_staged", REQUEST, ANSWER, _models(levels), tuple(_steps(levels)))

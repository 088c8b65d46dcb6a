"""Ensemble `pre_infer`: a user's history in, and what becomes of the wish to have his prefix ready for a ranking.

encode_prefix -> score_candidates (RelayGR). It answers at once; the prefix is computed behind the answer, in the
queue of the rankings. It is told all that the ranking will say of the user.
"""

from __future__ import annotations

from ensembles.description import Ensemble, Model, Step, Tensor, WarmUp
from ensembles.rank import EVENTS, PLAN, SCORE_CANDIDATES
from ensembles.recommend import HISTORY, OWNER, TICKET, TOKENS, USER_ID
from genrec.rank.kinds import PAST_INPUTS

DEADLINE_MS = Tensor("deadline_ms", "INT64", (1,), optional=True)  # until the ranking is due
PAST = tuple(each for each in EVENTS if each.name in PAST_INPUTS)  # `now` is the ranking's own
REQUEST = (HISTORY, USER_ID, DEADLINE_MS, *PAST)
# A `genrec.report.PreInferReport`; -1, as rankings give fewer numbers
REPORT = Tensor("report", "INT64", (-1,))

ENCODE_PREFIX = Model(
    "encode_prefix",
    inputs=REQUEST,
    outputs=(TOKENS, TICKET, OWNER, PLAN),
    warmups=(WarmUp("one_item", {"history": (1,), "user_id": (1,)}),),  # 0 is no item
)


def pre_infer() -> Ensemble:
    """The ensemble; neither L nor t shows in it."""
    made = {tensor.name: tensor.name for tensor in ENCODE_PREFIX.outputs}
    steps = (
        Step("encode_prefix", {tensor.name: tensor.name for tensor in REQUEST}, made),
        Step("score_candidates", made, {"reuse": REPORT.name}),
    )
    return Ensemble("pre_infer", REQUEST, (REPORT,), (ENCODE_PREFIX, SCORE_CANDIDATES), steps)

"""How many processes of a model pay: the same requests to servers that differ by one model's instances.

    genrec bench instances artifacts/ml-100k

The counts in the descriptions of `ensembles/` are those that pay; `genrec serve --instances` sets others. The engine of
`recommend` has streams instead (`genrec bench ablation`). Load generator and server share the machine's cores.
"""

from __future__ import annotations

from collections.abc import Sequence

from perf.slo.served_arms import DRAFT, ServedArm, compare

STAGED = "recommend_staged"


def _with(ensemble: str, *models: str) -> ServedArm:
    name = f"{ensemble}, two of {' and '.join(models)}" if models else ensemble
    counts = dict.fromkeys(models, 2)
    return ServedArm(name, ensemble, {"ensembles": (ensemble,), "instances": counts})


ARMS = (
    _with("recommend"),
    _with("recommend", "encode_history"),
    _with("recommend", "validity_lookup"),
    _with(STAGED),
    _with(STAGED, "beam_search"),
    _with(STAGED, "prefill", "decode"),
    _with(DRAFT),
    _with(DRAFT, "draft_beam"),
    _with(DRAFT, "prefill_draft"),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table, and one JSON object as the last line."""
    compare("instances", __doc__, ARMS, argv)


if __name__ == "__main__":
    main()

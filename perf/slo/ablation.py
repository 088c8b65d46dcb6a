"""What each part of the scheduling is worth (xGR, figure 18): the same requests to servers that differ by one part.

    genrec bench ablation artifacts/ml-100k

A model of Triton for every pass; all passes in one process; batches by tokens; several streams; drafts, for which the
artifact needs a draft head. Load generator and server share the machine's cores.
"""

from __future__ import annotations

from collections.abc import Sequence

from perf.slo.served_arms import DRAFT, ServedArm, compare

ARMS = (
    ServedArm("a model for every pass", "recommend_staged"),
    ServedArm("one process", options={"streams": 1, "batch_tokens": 1}),
    ServedArm("+ batches by tokens", options={"streams": 1}),
    ServedArm("+ two streams", options={"streams": 2}),
    ServedArm("drafts instead of decode passes", DRAFT),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table, and one JSON object as the last line."""
    compare("ablation", __doc__, ARMS, argv)


if __name__ == "__main__":
    main()

"""How good is HSTU for the next item, over the whole catalogue and over the generator's candidates?

    genrec bench next_quality artifacts/ml-1m artifacts/beauty

Measures what `genrec train ARTIFACT --recipe hstu-next` has left there, as `genrec evaluate` does: the newest item of
every user, items of his history taken out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from genrec import manifest
from genrec.nn.hstu_checkpoint import load_hstu_next
from perf.kit import report
from perf.quality.rank_quality import ratio
from training.hstu_next.measure import GENERATOR, TOGETHER, WHOLE, hstu_next_table, measure_hstu_next


def measure(artifact: Path) -> dict[str, Any]:
    """Figures of one artifact, and how its model was made. Raises InputError, ArtifactError."""
    found = measure_hstu_next(artifact)
    print(f"{artifact.name}\n{hstu_next_table(found)}", flush=True)
    facts = manifest.read(artifact)["hstu-next"]["facts"]
    learnt = {"epochs": facts["log"][-1]["epoch"], "seed": facts["seed"], "seconds": facts["seconds"]}
    return {**found, "model": vars(load_hstu_next(artifact / "model").config), "learnt": learnt}


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table per artifact and, last, one JSON object."""
    parser = report.arguments("next_quality", __doc__)
    parser.add_argument("artifacts", type=Path, nargs="+")
    a = parser.parse_args(argv)
    run = report.begin(a)
    found = {each.name: measure(each) for each in a.artifacts}
    claims = {
        "whole_ndcg10": {name: of[WHOLE]["NDCG@10"] for name, of in found.items()},
        "ranked_over_generator_ndcg10": {
            name: ratio(of[TOGETHER]["NDCG@10"], of[GENERATOR]["NDCG@10"])
            for name, of in found.items()
            if TOGETHER in of
        },
    }
    run.publish({**claims, "artifacts": found}, repeats=1)


if __name__ == "__main__":
    main()

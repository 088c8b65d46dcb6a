"""What `genrec bench rank_quality` claims of figures, by hand."""

from __future__ import annotations

from typing import Any

from perf.quality.rank_quality import NEXT, ratios


def trained(**orders: tuple[float, float]) -> list[dict[str, Any]]:
    """A training whose lists have these NDCG@10 by order: alone, and with the generator's part."""
    names = "alone", "with generator"
    return [
        {
            "orders": {
                order: {name: {"NDCG@10": value} for name, value in zip(names, values, strict=True)}
                for order, values in orders.items()
            }
        }
    ]


def test_lists_without_a_hit_are_figures_too() -> None:
    found = {
        "generator": {"NDCG@10": 0.1}, "split": trained(split=(0.1, 0.2)), "user": trained(user=(0.0, 0.1)),
        "both": trained(user=(0.2, 0.2), item=(0.3, 0.3)), NEXT: [{"with generator": {"NDCG@10": 0.0}}],
    }  # fmt: skip
    claimed = ratios(found)
    assert claimed["ranked_over_generator_ndcg10"] == 0, "of `next`, which was run"
    assert claimed["split_over_user_ndcg10"] is None, "over `user`, which was run and has 0"
    without = ratios({name: of for name, of in found.items() if name not in (NEXT, "user")})
    assert without["ranked_over_generator_ndcg10"] == 2 and without["split_over_user_ndcg10"] == 0.5

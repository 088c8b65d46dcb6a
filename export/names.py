"""What the files of an export are called, and what makes them others."""

from genrec.rank.options import RankerConfig

OPSET = 20
GRAPHS = 5  # raised when the graphs of the same weights become others, so that artifacts are exported anew
DRAFT = "prefill_draft"
RANK_PREFILL, EXTEND = "rank_prefill", "extend"
RANK_ORDERS = {"split": "rank_split", "user": "rank_user", "item": "rank_item"}


def rank_graphs(options: RankerConfig) -> list[str]:
    """Of a ranker: entries made longer, an order each, and a prefill where the generator's is not its own too."""
    own = [] if options.shared else [RANK_PREFILL]
    return [EXTEND, *own, *(RANK_ORDERS[order] for order in options.orders)]

"""What the files of an export are called, and what makes them others."""

from genrec.models.config import ModelConfig
from genrec.rank.options import RankerConfig

OPSET = 20
GRAPHS = 10  # raised when the graphs of the same weights become others, so that artifacts are exported anew
DRAFT = "prefill_draft"
RESUME, RESUME_DRAFT = "resume", "resume_draft"
DECODE_ALL = "decode_all"
RANK_PREFILL, EXTEND = "rank_prefill", "extend"
RANK_ORDERS = {"split": "rank_split", "user": "rank_user", "item": "rank_item"}


def more_graphs(config: ModelConfig) -> list[str]:
    """Of a generator, besides its prefill and decodes: those that only some requests can use."""
    return [RESUME, *([DECODE_ALL] if config.levels > 2 else [])]


def rank_graphs(options: RankerConfig) -> list[str]:
    """Of a ranker: entries, entries made longer, and an order each."""
    return [RANK_PREFILL, EXTEND, *(RANK_ORDERS[order] for order in options.orders)]

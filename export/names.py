"""What the files of an export are called, and what makes them others."""

OPSET = 20
GRAPHS = 4  # raised when the graphs of the same weights become others, so that artifacts are exported anew
DRAFT = "prefill_draft"
RANK_PREFILL, EXTEND = "rank_prefill", "extend"
RANK_ORDERS = {"split": "rank_split", "user": "rank_user", "item": "rank_item"}

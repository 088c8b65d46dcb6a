"""What the files of an export are called, and what makes them others."""

OPSET = 20
GRAPHS = 4  # raised when the graphs of the same weights become others, so that artifacts are exported anew
DRAFT = "prefill_draft"

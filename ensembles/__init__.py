"""The ensembles: what is chained, as plain data, and what Triton is told of it."""

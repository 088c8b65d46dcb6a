"""Data sets, semantic IDs, the trainer and its quality figures. Knows nothing of serving."""

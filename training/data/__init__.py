"""Data sets: read, sorted and numbered, cut into histories, with semantic IDs for their items."""

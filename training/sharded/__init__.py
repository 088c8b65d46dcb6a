"""Embeddings over several processes: merged tables, two exchanges per look-up (MTGRBoost, sections 4.2 and 4.3)."""

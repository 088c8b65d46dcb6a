"""Ranking, as it is served: what a ranker was trained for, and the tokens of items."""

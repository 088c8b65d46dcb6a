"""What is kept in shards: checkpoints of sharded embeddings, and sequences to learn from (MTGRBoost, section 5)."""

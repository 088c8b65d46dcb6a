"""What the files of a catalogue version are called."""

CATALOGUE = "catalogue.parquet"
VALIDITY = "validity.safetensors"  # the tree of semantic IDs
VALID_IDS = "valid_ids.safetensors"  # the hash set of those that are items
ITEM_TOKENS = "item_tokens.safetensors"  # optional: what a ranker reads for an item

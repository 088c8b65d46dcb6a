"""What the files of a catalogue version are called."""

CATALOGUE = "catalogue.parquet"
VALIDITY = "validity.safetensors"  # the tree of semantic IDs
VALID_IDS = "valid_ids.safetensors"  # the hash set of those that are items
GROUPS = "groups.safetensors"  # optional: which items are in which named group
ITEM_TOKENS = "item_tokens.safetensors"  # optional: what a ranker reads for an item

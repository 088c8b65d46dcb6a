"""Dynamic embedding tables: rows that appear when their ids do (MTGRBoost, section 4.1)."""

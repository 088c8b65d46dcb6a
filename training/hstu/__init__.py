"""The HSTU ranker, which learns from ratings which items a user likes (MTGR; MTGRBoost, section 2)."""

"""The ranker over the generator: its candidates, trained, measured."""

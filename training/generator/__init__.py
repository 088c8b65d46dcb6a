"""The generator and its draft head: trained, trained further, measured."""

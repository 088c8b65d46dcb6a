"""The HSTU model of the next item (Zhai et al. 2024)."""

"""genrec: the library under every room of genrec-triton.

Shapes in docstrings and comments use one legend:

B requests, W beams, S prompt tokens, L levels, N layers, H query heads, G KV heads, D head size,
V vocabulary, T codebook size (T_l at level l), C candidates, K top-k, P paths (P_l at level l), U unshared tokens.

Levels count from 1 in text; arrays over levels are indexed from 0.
"""

from genrec.kernel_cache import provide

__version__ = "0.1.0"

provide()

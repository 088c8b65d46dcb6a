"""The only place of the library that knows Triton."""

"""The attention kernel and whole requests on a GPU: built, checked and timed by one script, `perf.gpu.run`."""

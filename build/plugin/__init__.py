"""The attention of a decode step as a TensorRT plugin: kernel, glue, oracle."""

"""The tensorrt target in Triton's container: engines as an init step, a manifest, a launch that holds them to it."""

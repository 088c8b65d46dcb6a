"""CUDA and CPU kernels (attention, fused operations), the TensorRT plugin, OpenVINO operations, and a slow twin."""

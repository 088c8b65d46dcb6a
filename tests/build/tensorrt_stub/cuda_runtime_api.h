// The few calls of the CUDA runtime that build/plugin/plugin.cpp makes, for a device of as many multiprocessors as is said.
#pragma once

#include <cstddef>
#include <cstring>

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;  // of the real header beside this one
enum cudaError_t { cudaSuccess = 0 };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };

inline int stub_multiprocessors = 4;
inline cudaError_t cudaGetDevice(int* device) { *device = 0; return cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { *value = stub_multiprocessors; return cudaSuccess; }
inline cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) { std::memset(memory, value, bytes); return cudaSuccess; }

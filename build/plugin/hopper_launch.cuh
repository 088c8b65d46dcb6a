// Launching the kernel of hopper.cuh: when it is taken, its tensor maps, its grid.
#pragma once

#include "hopper.cuh"

namespace genrec {

// Of the current device, as 10 * major + minor; 0 where there is none.
inline int capability() {
#ifdef __CUDACC__
  int device = 0, major = 0, minor = 0;
  if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess)
    return 0;
  return 10 * major + minor;
#elif defined(XATTENTION_CAPABILITY)  // of the device that is emulated
  return XATTENTION_CAPABILITY;
#else
  return 0;
#endif
}

// More than half of a tile must be rows, else tiles of 64 waste less.
inline bool on_hopper(const Shape& s) {
  return (s.size == 64 || s.size == 128) && s.span > 0 && s.beams * (s.heads / s.kv_heads) > HOPPER_ROWS / 2 && capability() == 90;
}

// Splits of S for the least time of all blocks, one at a time on each multiprocessor. Its measure is a tenth of the time of
// a stage of keys: what a block does before and after its stages takes two stages, a merge three and 0.7 per split, which
// one block does alone (on an H100, `genrec bench gpu`).
inline int hopper_splits(const Shape& s, int tiles, int multiprocessors) {
  const int blocks = tiles * s.kv_heads * s.requests, stages = (s.span + HOPPER_KEYS - 1) / HOPPER_KEYS;
  int best = 1;
  long least = 0;
  for (int splits = 1; splits <= stages && s.kv_heads * splits < 65536; ++splits) {
    const long rounds = (long(blocks) * splits + multiprocessors - 1) / multiprocessors;
    const long time = 10 * rounds * ((stages + splits - 1) / splits + 2) + (splits > 1 ? 30 + 7 * splits : 0);
    if (splits == 1 || time < least) best = splits, least = time;
  }
  return best;
}

#ifdef __CUDACC__

// [B * G, S, D] of shared keys or values, in boxes of a panel; by the driver, which the library is not linked to.
template <typename T> int map_tensor(TensorMap* map, const void* from, const Shape& s) {
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
#else
    const cudaError_t status = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(status == cudaSuccess && result == cudaDriverEntryPointSuccess ? found : nullptr);
  }();
  if (!encode) return int(cudaErrorNotSupported);
  const cuuint64_t sizes[3] = {cuuint64_t(s.size), cuuint64_t(s.span), cuuint64_t(s.requests) * s.kv_heads};
  const cuuint64_t strides[2] = {2 * sizes[0], 2 * sizes[0] * sizes[1]};  // in bytes, of all dimensions but the first
  const cuuint32_t box[3] = {64, HOPPER_KEYS, 1}, steps[3] = {1, 1, 1};
  const CUtensorMapDataType type = std::is_same_v<T, Float16> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUresult made = encode(map, type, 3, const_cast<void*>(from), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                               CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return made == CUDA_SUCCESS ? 0 : int(cudaErrorInvalidValue);
}

template <typename T, int D>
__global__ void __launch_bounds__(HOPPER_THREADS, 1)
    hopper_tiles(Shape s, Tensors t, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900 && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "compile for sm_90a, not sm_90: devices of capability 9.0 take this kernel"
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
  __trap();  // no such device is given this kernel
#else
  extern __shared__ __align__(1024) unsigned char memory[];
  attend_on_hopper<T, D>(s, t, &k, &v, memory + (1024 - shared_address(memory) % 1024) % 1024);
#endif
}

template <typename T, int D> int launch_hopper(dim3 grid, const Shape& s, const Tensors& t, void* stream) {
  constexpr int bytes = Stages<D>::BYTES + 1024;
  TensorMap k, v;
  if (const int status = map_tensor<T>(&k, t.shared_k, s)) return status;
  if (const int status = map_tensor<T>(&v, t.shared_v, s)) return status;
  const cudaError_t allowed = cudaFuncSetAttribute(hopper_tiles<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (allowed != cudaSuccess) return int(allowed);
  hopper_tiles<T, D><<<grid, HOPPER_THREADS, bytes, static_cast<cudaStream_t>(stream)>>>(s, t, k, v);
  return int(cudaGetLastError());
}

#else

struct dim3 { unsigned x, y, z; };

template <typename T, int D> int launch_hopper(dim3 grid, const Shape& s, const Tensors& t, void*) {
  const auto map = [&](const void* from) {
    return TensorMap{static_cast<const unsigned char*>(from), s.size, s.span, s.requests * s.kv_heads, HOPPER_KEYS};
  };
  const TensorMap k = map(t.shared_k), v = map(t.shared_v);
  emulate::launch_with_background(grid.x, grid.y, grid.z, HOPPER_THREADS, Stages<D>::BYTES,
                                  [&](void* memory) { attend_on_hopper<T, D>(s, t, &k, &v, memory); });
  return 0;
}

#endif

}  // namespace genrec

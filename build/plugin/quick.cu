// Entry points for TensorRT's ahead-of-time quick plugins: one kernel, parameters exactly (inputs, int32 extras, output).
//
// Their PTX is baked into the plan, so no plugin library is needed where it is served. A quick plugin has no workspace,
// so there are no splits of S here. Launch: grid (ceil(W * R / 64), G, B), 128 threads, Tile<T, D>::BYTES of shared memory.
#include "xattention.cuh"

#define XATTENTION_QUICK(NAME, T, D)                                                                                       \
  extern "C" __global__ void __launch_bounds__(genrec::THREADS)                                                            \
      NAME(const void* q, const void* shared_k, const void* shared_v, const void* unshared_k, const void* unshared_v,      \
           const int64_t* prompt_length, int beams, int heads, int kv_heads, int span, int unshared, void* out) {          \
    extern __shared__ __align__(16) unsigned char memory[];                                                                \
    const genrec::Shape shape{int(gridDim.z), beams, heads, kv_heads, D, span, unshared, 1};                               \
    const genrec::Tensors tensors{q, shared_k, shared_v, unshared_k, unshared_v, prompt_length, out, nullptr, nullptr};    \
    genrec::attend<T, D>(shape, tensors, memory);                                                                          \
  }

XATTENTION_QUICK(xattention_f16_32, genrec::Float16, 32)
XATTENTION_QUICK(xattention_f16_64, genrec::Float16, 64)
XATTENTION_QUICK(xattention_f16_128, genrec::Float16, 128)
XATTENTION_QUICK(xattention_bf16_32, genrec::BFloat16, 32)
XATTENTION_QUICK(xattention_bf16_64, genrec::BFloat16, 64)
XATTENTION_QUICK(xattention_bf16_128, genrec::BFloat16, 128)

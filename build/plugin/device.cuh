// The few things the kernels ask of the machine, on a GPU (sm_80 and later). `emulate.hpp` has the same list for a CPU.
//
// Fragment layouts are those of PTX's mma.m16n8k16 and ldmatrix: with q = lane / 4 and p = 2 * (lane % 4),
//   A (16x16): a0 = (q, p), a1 = (q + 8, p), a2 = (q, p + 8), a3 = (q + 8, p + 8), two neighbours along k each;
//   B (16x8):  b0 = rows p, p + 1 of column q, b1 = rows p + 8, p + 9;   C (16x8): c0, c1 = (q, p), c2, c3 = (q + 8, p).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#define XATT_FN __device__ __forceinline__
#define XATT_UNROLL _Pragma("unroll")
#define XATT_UNROLL_TWO _Pragma("unroll 2")

namespace genrec {

struct Float16 { uint16_t bits; };
struct BFloat16 { uint16_t bits; };

XATT_FN int thread_index() { return threadIdx.x; }
XATT_FN int block_x() { return blockIdx.x; }
XATT_FN int block_y() { return blockIdx.y; }
XATT_FN int block_z() { return blockIdx.z; }
XATT_FN int blocks_x() { return gridDim.x; }
XATT_FN void sync_block() { __syncthreads(); }
// `threads` threads, whole warps of a block, wait for one another; so many named barriers, 1 to 15, are not sync_block's.
XATT_FN void sync_at(int barrier, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }
XATT_FN float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
XATT_FN float power_of_two(float x) {  // one instruction; 0 where exp2f would be subnormal
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
XATT_FN float larger(float a, float b) { return fmaxf(a, b); }

XATT_FN float widen(float x) { return x; }
XATT_FN float widen(Float16 x) { return __half2float(__ushort_as_half(x.bits)); }
XATT_FN float widen(BFloat16 x) { return __bfloat162float(__ushort_as_bfloat16(x.bits)); }

template <typename T> XATT_FN T narrow(float x);
template <> XATT_FN float narrow<float>(float x) { return x; }
template <> XATT_FN Float16 narrow<Float16>(float x) { return {__half_as_ushort(__float2half_rn(x))}; }
template <> XATT_FN BFloat16 narrow<BFloat16>(float x) { return {__bfloat16_as_ushort(__float2bfloat16_rn(x))}; }

// Two numbers in one register, the first in its lower half.
template <typename T> XATT_FN uint32_t pack(float first, float second);
template <> XATT_FN uint32_t pack<Float16>(float first, float second) {
  uint32_t both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}
template <> XATT_FN uint32_t pack<BFloat16>(float first, float second) {
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}

// c += a * b for one 16x8 tile, by the whole warp.
template <typename T> XATT_FN void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <> XATT_FN void mma<Float16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> XATT_FN void mma<BFloat16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
XATT_FN void load_matrices(uint32_t (&r)[4], const void* row) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
XATT_FN void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// 16 bytes into shared memory, in the background; zeros when not `real` (nothing is read then).
XATT_FN void copy_16(void* shared, const void* global, bool real) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = real ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global), "r"(bytes) : "memory");
}
XATT_FN void copies_close() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> XATT_FN void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

// Whether this block is the last of `total` to come here, with threads 0 to `threads` - 1; it then sees what the others
// wrote, and leaves `counter` at 0.
XATT_FN bool last_to_arrive(int* counter, int total, int threads) {
  __shared__ bool last;
  __threadfence();
  sync_at(1, threads);
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1) == total - 1;
    if (last) *counter = 0;
  }
  sync_at(1, threads);
  __threadfence();
  return last;
}

}  // namespace genrec

// What the kernel for Hopper asks of the machine beside device.cuh (sm_90a). `emulate_hopper.hpp` has the same list for a CPU.
//
// wgmma: a warpgroup (four warps from a multiple of four) computes c [64, N] += a [64, 16] b [16, N]. Warp w of it holds rows
// 16 * w .. 16 * w + 15 of a and c in the layouts of mma.m16n8k16; b lies in shared memory and is named by a descriptor.
// It runs in the background: until wgmma_wait, neither c nor a may be touched, nor b overwritten.
#pragma once

#include <cuda.h>

#include <type_traits>

#include "device.cuh"

namespace genrec {

using TensorMap = CUtensorMap;
struct Arrivals { uint64_t state; };  // an mbarrier: a phase ends when all threads have arrived and all bytes landed

XATT_FN uint32_t shared_address(const void* shared) { return static_cast<uint32_t>(__cvta_generic_to_shared(shared)); }

XATT_FN void expect_arrivals(Arrivals* at, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(at)), "r"(count) : "memory");
}
// What ordinary stores wrote to shared memory, mbarriers too, is there for TMA and wgmma; a barrier must follow.
XATT_FN void show_to_engines() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
XATT_FN void arrive(Arrivals* at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(at)) : "memory");
}
XATT_FN void arrive_before_bytes(Arrivals* at, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(at)), "r"(bytes) : "memory");
}
// Until the phase of this parity has ended; the one before the first has parity 1 and has ended.
XATT_FN void wait_for(Arrivals* at, int parity) {
  uint32_t ended;
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(ended) : "r"(shared_address(at)), "r"(parity) : "memory");
  } while (!ended);
}

// The map's box from (plane, key, column) on to shared memory, by one thread; zeros where the tensor has ended.
XATT_FN void copy_box(void* shared, const TensorMap* map, int column, int key, int plane, Arrivals* at) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
               ::"r"(shared_address(shared)), "l"(map), "r"(column), "r"(key), "r"(plane), "r"(shared_address(at)) : "memory");
}

XATT_FN void arrive_at(int barrier, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }

// A thread's registers from here on, of those that all warpgroups of the block have together.
template <int N> XATT_FN void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> XATT_FN void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

XATT_FN void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
XATT_FN void wgmma_close() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> XATT_FN void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }

// Keeps the compiler from moving what uses `c` to before a wgmma_wait that stands above.
template <int N> XATT_FN void settle(float (&c)[N][4]) {
  XATT_UNROLL for (int n = 0; n < N; ++n) {
    XATT_UNROLL for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(c[n][i])::"memory");
  }
}

#define XATT_4(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define XATT_16(c, n) XATT_4(c, n), XATT_4(c, n + 1), XATT_4(c, n + 2), XATT_4(c, n + 3)
#define XATT_32(c, n) XATT_16(c, n), XATT_16(c, n + 4)
#define XATT_WGMMA_64(TYPE)                                                                                                \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE       \
               " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,"  \
               "%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, %38;\n}"                                                \
               : XATT_32(c, 0)                                                                                             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "n"(int(TRANSPOSED)))
#define XATT_WGMMA_128(TYPE)                                                                                               \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE      \
               " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,"  \
               "%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,"  \
               "%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, p, 1, 1, %70;\n}"                        \
               : XATT_32(c, 0), XATT_32(c, 8)                                                                              \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "n"(int(TRANSPOSED)))

// c += a b, or c = a b unless `add`. N is 64 or 128; b's rows lie across N when TRANSPOSED, else along k.
template <typename T, bool TRANSPOSED, int TILES>
XATT_FN void wgmma(float (&c)[TILES][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  constexpr bool half = std::is_same_v<T, Float16>;
  static_assert(TILES == 8 || TILES == 16, "columns");
  if constexpr (TILES == 8 && half) XATT_WGMMA_64("f16");
  if constexpr (TILES == 8 && !half) XATT_WGMMA_64("bf16");
  if constexpr (TILES == 16 && half) XATT_WGMMA_128("f16");
  if constexpr (TILES == 16 && !half) XATT_WGMMA_128("bf16");
}

}  // namespace genrec

// The C ABI over the kernels: choice of kernel, grid, workspace. Compiled by nvcc, or by a C++ compiler for the emulation.
#include "xattention.h"

#include "hopper_launch.cuh"
#include "xattention.cuh"

namespace genrec {
namespace {

Shape shape_of(const XAttentionShape& s) {
  return {s.requests, s.beams, s.heads, s.kv_heads, s.size, s.span, s.unshared, s.splits};
}
int div_up(int a, int b) { return (a + b - 1) / b; }
bool on_tensor_cores(const XAttentionShape& s) {
  return s.type != XATTENTION_F32 && (s.size == 16 || s.size == 32 || s.size == 64 || s.size == 128);
}
bool with_wgmma(const XAttentionShape& s) { return on_tensor_cores(s) && on_hopper(shape_of(s)); }
int rows_of_a_tile(const XAttentionShape& s) { return with_wgmma(s) ? HOPPER_ROWS : ROWS; }
int tiles_of(const XAttentionShape& s) { return div_up(s.beams * (s.heads / s.kv_heads), rows_of_a_tile(s)); }
bool fits(const XAttentionShape& s) {
  return s.requests > 0 && s.beams > 0 && s.kv_heads > 0 && s.heads > 0 && s.heads % s.kv_heads == 0 && s.size > 0 &&
         s.size <= LARGEST && s.span >= 0 && s.unshared > 0 && s.splits > 0 && s.type >= 0 && s.type <= XATTENTION_BF16 &&
         (s.splits == 1 || on_tensor_cores(s)) && s.requests < 65536 && s.kv_heads * s.splits < 65536;
}

#ifdef __CUDACC__
template <typename T, int D> __global__ void __launch_bounds__(THREADS, Tile<T, D>::BLOCKS) tiles(Shape s, Tensors t) {
  extern __shared__ __align__(16) unsigned char memory[];
  attend<T, D>(s, t, memory);
}
template <typename T> __global__ void __launch_bounds__(THREADS) single_rows(Shape s, Tensors t) { attend_by_row<T>(s, t); }

template <typename T, int D> int launch_tiles(dim3 grid, const Shape& s, const Tensors& t, void* stream) {
  tiles<T, D><<<grid, THREADS, Tile<T, D>::BYTES, static_cast<cudaStream_t>(stream)>>>(s, t);
  return int(cudaGetLastError());
}
template <typename T> int launch_rows(dim3 grid, const Shape& s, const Tensors& t, void* stream) {
  single_rows<T><<<grid, THREADS, 0, static_cast<cudaStream_t>(stream)>>>(s, t);
  return int(cudaGetLastError());
}
#else
template <typename T, int D> int launch_tiles(dim3 grid, const Shape& s, const Tensors& t, void*) {
  // Poisoned between blocks: a block must not find what another left.
  alignas(16) static unsigned char memory[Tile<T, D>::BYTES];
  emulate::launch(grid.x, grid.y, grid.z, THREADS, [&] {
    if (thread_index() == 0) std::memset(memory, 0xff, sizeof memory);
    sync_block();
    attend<T, D>(s, t, memory);
  });
  return 0;
}
template <typename T> int launch_rows(dim3 grid, const Shape& s, const Tensors& t, void*) {
  emulate::launch(grid.x, grid.y, grid.z, THREADS, [&] { attend_by_row<T>(s, t); });
  return 0;
}
#endif

template <typename T> int launch(const XAttentionShape& given, const Tensors& t, void* stream) {
  const Shape s = shape_of(given);
  const dim3 grid{unsigned(tiles_of(given)), unsigned(s.kv_heads * s.splits), unsigned(s.requests)};
  const bool wgmma = with_wgmma(given);
#define XATTENTION_TRY(D)                                                     \
  if constexpr (D >= 64)                                                      \
    if (wgmma && s.size == D) return launch_hopper<T, D>(grid, s, t, stream); \
  if (s.size == D) return launch_tiles<T, D>(grid, s, t, stream)
#ifdef XATTENTION_ONLY  // one head size, where compiling four takes too long
  XATTENTION_TRY(XATTENTION_ONLY);
#else
  XATTENTION_TRY(16);
  XATTENTION_TRY(32);
  XATTENTION_TRY(64);
  XATTENTION_TRY(128);
#endif
  const dim3 rows{unsigned(div_up(s.beams * s.heads, WARPS)), 1, unsigned(s.requests)};
  return launch_rows<T>(rows, s, t, stream);
}

}  // namespace
}  // namespace genrec

using namespace genrec;

int xattention_splits(const XAttentionShape* s, int multiprocessors) {
  if (!on_tensor_cores(*s)) return 1;
  if (with_wgmma(*s)) return hopper_splits(shape_of(*s), tiles_of(*s), multiprocessors);
  const int blocks = tiles_of(*s) * s->kv_heads * s->requests, wanted = div_up(2 * multiprocessors, blocks);
  const int most = s->span < 256 ? 1 : s->span / 128;
  return wanted < most ? wanted : most;
}

const char* xattention_kernel(const XAttentionShape* s) {
  return !on_tensor_cores(*s) ? "rows" : with_wgmma(*s) ? "wgmma" : "mma";
}

size_t xattention_counters(const XAttentionShape* s) {
  return s->splits == 1 ? 0 : (size_t(s->requests) * s->kv_heads * tiles_of(*s) * sizeof(int) + 255) / 256 * 256;
}

size_t xattention_workspace(const XAttentionShape* s) {
  if (s->splits == 1) return 0;
  const size_t parts = size_t(s->requests) * s->kv_heads * tiles_of(*s) * s->splits;
  return xattention_counters(s) + parts * rows_of_a_tile(*s) * (s->size + 2) * sizeof(float);
}

int xattention(const XAttentionShape* s, const void* q, const void* shared_k, const void* shared_v, const void* unshared_k,
               const void* unshared_v, const int64_t* prompt_length, const void* own_q, const int64_t* rows, void* out,
               void* workspace, void* stream) {
  if (!fits(*s) || (s->splits > 1 && !workspace)) return -1;
  char* const memory = static_cast<char*>(workspace);
  const Tensors t{q, shared_k, shared_v, unshared_k, unshared_v, prompt_length, own_q, rows, out,
                  s->splits == 1 ? nullptr : reinterpret_cast<float*>(memory + xattention_counters(s)), reinterpret_cast<int*>(memory)};
  if (s->type == XATTENTION_F16) return launch<Float16>(*s, t, stream);
  if (s->type == XATTENTION_BF16) return launch<BFloat16>(*s, t, stream);
  const dim3 grid{unsigned(div_up(s->beams * s->heads, WARPS)), 1, unsigned(s->requests)};
  return launch_rows<float>(grid, shape_of(*s), t, stream);
}

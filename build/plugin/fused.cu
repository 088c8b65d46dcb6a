// The C ABI over the fused kernels: types, how many elements are moved at once, grids. For nvcc, or a C++ compiler.
#include "fused.h"

#include <initializer_list>

#include "fused.cuh"
#include "select.cuh"

namespace genrec::fused {
namespace {

constexpr int64_t MOST_Y = 65535;  // blocks of a grid along y and z
int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

#ifdef __CUDACC__
template <typename T, int N, int LANES> __global__ void __launch_bounds__(THREADS) heads_kernel(Heads s, HeadTensors t) { turn_head<T, N, LANES>(s, t); }
template <typename T, int N> __global__ void __launch_bounds__(THREADS) inherit_kernel(Inherit s, const T* from, const int64_t* parents, T* to) { inherit<T, N>(s, from, parents, to); }
template <typename T, int N> __global__ void __launch_bounds__(THREADS) norm_kernel(int size, T* x, const T* y, const T* weight, T* out, float eps) {
  __shared__ float sums[WARPS];
  add_norm<T, N>(size, x, y, weight, out, eps, sums);
}
template <typename T, int N> __global__ void __launch_bounds__(THREADS) swiglu_kernel(int size, const T* x, T* out) { swiglu<T, N>(size, x, out); }
__global__ void __launch_bounds__(CHOOSING) expand_kernel(Expand s, Level t, Beams from, Beams to) {
  __shared__ Choice choice;
  expand(s, t, from, to, choice);
}
#define FUSED_LAUNCH(kernel, grid, threads, ...) \
  (kernel<<<grid, threads, 0, static_cast<cudaStream_t>(stream)>>>(__VA_ARGS__), int(cudaGetLastError()))
#else
struct dim3 { unsigned x, y, z; };
template <typename T, int N, int LANES> void heads_kernel(const Heads& s, const HeadTensors& t) { turn_head<T, N, LANES>(s, t); }
template <typename T, int N> void inherit_kernel(const Inherit& s, const T* from, const int64_t* parents, T* to) { inherit<T, N>(s, from, parents, to); }
template <typename T, int N> void norm_kernel(int size, T* x, const T* y, const T* weight, T* out, float eps) {
  static float sums[WARPS];
  add_norm<T, N>(size, x, y, weight, out, eps, sums);
}
template <typename T, int N> void swiglu_kernel(int size, const T* x, T* out) { swiglu<T, N>(size, x, out); }
void expand_kernel(const Expand& s, const Level& t, const Beams& from, const Beams& to) {
  static Choice choice;  // poisoned: a block must not find what another left
  if (thread_index() == 0) std::memset(&choice, 0xff, sizeof choice);
  sync_block();
  expand(s, t, from, to, choice);
}
#define FUSED_LAUNCH(kernel, grid, threads, ...) \
  ((void)stream, genrec::emulate::launch(grid.x, grid.y, grid.z, threads, [&] { kernel(__VA_ARGS__); }), 0)
#endif

// Whether N elements at a time may be moved: of every size, stride and address; an address may be null.
bool by(int n, int element, std::initializer_list<int64_t> sizes, std::initializer_list<const void*> addresses) {
  bool fits = true;
  for (const int64_t size : sizes) fits = fits && size % n == 0;
  for (const void* const address : addresses) fits = fits && reinterpret_cast<uintptr_t>(address) % (n * element) == 0;
  return fits;
}

template <typename T> int run_heads(const FusedHeads& f, const HeadTensors& t, float eps, void* stream) {
  const Heads s{int(f.positions), int(f.heads), int(f.kv_heads), int(f.size), f.table_request, f.table_position,
                f.kv_request, f.kv_position, f.kv_head, eps};
  constexpr int N = 16 / sizeof(T), FEW = 8;
  const bool packs = by(N, sizeof(T), {f.size / 2, f.table_request, f.table_position, f.kv_request, f.kv_position, f.kv_head},
                        {t.product, t.q_norm, t.k_norm, t.cos, t.sin, t.q, t.k, t.v});
  const int64_t of_a_block = THREADS / (packs ? FEW : 32);
  const dim3 grid{unsigned(div_up(f.heads + 2 * f.kv_heads, of_a_block)), unsigned(f.positions), unsigned(f.requests)};
  return packs ? FUSED_LAUNCH((heads_kernel<T, N, FEW>), grid, THREADS, s, t) : FUSED_LAUNCH((heads_kernel<T, 1, 32>), grid, THREADS, s, t);
}

template <typename T> int run_inherit(const FusedInherit& f, const void* from, const int64_t* parents, void* to, void* stream) {
  constexpr int N = 16 / sizeof(T);
  const Inherit s{int(f.requests), int(f.parents), int(f.width), int(f.size), int(f.token)};
  const dim3 grid{unsigned(f.width), unsigned(f.planes), unsigned(f.requests)};
  const T* const own = static_cast<const T*>(from);
  T* const room = static_cast<T*>(to);
  return by(N, sizeof(T), {f.size, f.token}, {from, to}) ? FUSED_LAUNCH((inherit_kernel<T, N>), grid, THREADS, s, own, parents, room)
                                                         : FUSED_LAUNCH((inherit_kernel<T, 1>), grid, THREADS, s, own, parents, room);
}

template <typename T> int run_norm(const FusedRows& f, void* x, const void* y, const void* weight, void* out, float eps, void* stream) {
  constexpr int N = 16 / sizeof(T);
  const dim3 grid{unsigned(f.rows), 1, 1};
  const int size = int(f.size);
  T *const a = static_cast<T*>(x), *const to = static_cast<T*>(out);
  const T *const b = static_cast<const T*>(y), *const w = static_cast<const T*>(weight);
  return by(N, sizeof(T), {f.size}, {x, y, weight, out}) ? FUSED_LAUNCH((norm_kernel<T, N>), grid, THREADS, size, a, b, w, to, eps)
                                                         : FUSED_LAUNCH((norm_kernel<T, 1>), grid, THREADS, size, a, b, w, to, eps);
}

template <typename T> int run_swiglu(const FusedRows& f, const void* x, void* out, void* stream) {
  constexpr int N = 16 / sizeof(T);
  const bool packs = by(N, sizeof(T), {f.size}, {x, out});
  const dim3 grid{unsigned(f.rows), unsigned(div_up(f.size, THREADS * (packs ? N : 1))), 1};
  const int size = int(f.size);
  const T* const from = static_cast<const T*>(x);
  T* const to = static_cast<T*>(out);
  return packs ? FUSED_LAUNCH((swiglu_kernel<T, N>), grid, THREADS, size, from, to) : FUSED_LAUNCH((swiglu_kernel<T, 1>), grid, THREADS, size, from, to);
}

bool fits(const FusedRows& f) {
  return f.rows > 0 && f.rows <= INT32_MAX && f.size > 0 && f.size <= MOST_Y * THREADS;
}

}  // namespace
}  // namespace genrec::fused

using namespace genrec::fused;
#define FUSED_BY_TYPE(type, run, ...)                                    \
  (type == 0   ? run<float>(__VA_ARGS__)                                 \
   : type == 1 ? run<genrec::Float16>(__VA_ARGS__)                       \
   : type == 2 ? run<genrec::BFloat16>(__VA_ARGS__) : -1)

int fused_heads(const FusedHeads* f, const void* product, const void* q_norm, const void* k_norm, const void* cos,
                const void* sin, void* q, void* k, void* v, float eps, void* stream) {
  const bool fits = f->requests > 0 && f->requests <= MOST_Y && f->positions > 0 && f->positions <= MOST_Y && f->heads >= 0 &&
                    f->kv_heads >= 0 && f->heads + f->kv_heads > 0 && f->size > 0 && f->size % 2 == 0 && f->size <= LARGEST;
  if (!fits) return -1;
  const HeadTensors t{product, q_norm, k_norm, cos, sin, q, k, v};
  return FUSED_BY_TYPE(f->type, run_heads, *f, t, eps, stream);
}

int fused_inherit(const FusedInherit* f, const void* from, const int64_t* parents, void* to, void* stream) {
  const bool fits = f->requests > 0 && f->requests <= MOST_Y && f->planes > 0 && f->planes <= MOST_Y && f->parents > 0 &&
                    f->parents <= INT32_MAX && f->width > 0 && f->width <= INT32_MAX && f->token > 0 && f->size >= f->token && f->size <= INT32_MAX / 2;
  return fits ? FUSED_BY_TYPE(f->type, run_inherit, *f, from, parents, to, stream) : -1;
}

int fused_add_norm(const FusedRows* f, void* x, const void* y, const void* weight, void* out, float eps, void* stream) {
  return fits(*f) ? FUSED_BY_TYPE(f->type, run_norm, *f, x, y, weight, out, eps, stream) : -1;
}

int fused_swiglu(const FusedRows* f, const void* x, void* out, void* stream) {
  return fits(*f) ? FUSED_BY_TYPE(f->type, run_swiglu, *f, x, out, stream) : -1;
}

int fused_expand(const FusedExpand* f, const float* logits, const int64_t* pointers, const int64_t* codes,
                 const uint8_t* blocked, const FusedBeams* from, const FusedBeams* to, int32_t* keys, int* counters, void* stream) {
  const bool fits = f->requests > 0 && f->requests <= MOST_Y && f->parents > 0 && f->parents <= INT32_MAX && f->family > 0 &&
                    f->family <= INT32_MAX / f->parents && f->nodes > 0 && f->width > 0 && f->width <= f->parents * f->family;
  if (!fits) return -1;
  const Expand s{int(f->requests), int(f->parents), int(f->family), int(f->size), int(f->width), f->nodes};
  const Level t{logits, pointers, codes, blocked, keys, counters};
  const Beams before{from->paths, from->nodes, from->scores, from->parents, from->bad};
  const Beams after{to->paths, to->nodes, to->scores, to->parents, to->bad};
  const dim3 grid{unsigned(div_up(f->parents, CHOOSING / 32)), 1, unsigned(f->requests)};
  return FUSED_LAUNCH(expand_kernel, grid, CHOOSING, s, t, before, after);
}

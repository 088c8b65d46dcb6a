/* The C ABI of the kernels between the products: heads, residual and norm, SwiGLU, a step of beam search, and what it hands down.
   Types are those of xattention.h. All return 0, or -1 for a shape that no kernel takes, or the CUDA error of the launch. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* B, X, H, G, D, the type, and in elements the strides of the tables [B, X, D/2] and of k and v [B, X, G, D]; a stride
   of 0 is a table that all share. H or G may be 0. */
typedef struct {
  int64_t requests, positions, heads, kv_heads, size, type, table_request, table_position, kv_request, kv_position, kv_head;
} FusedHeads;

/* RMS norm (none where the weights are null) and rotation of product [B, X, (H + 2G) D] -> q [B, X, H, D], k, v. */
int fused_heads(const FusedHeads* shape, const void* product, const void* q_norm, const void* k_norm, const void* cos,
                const void* sin, void* q, void* k, void* v, float eps, void* stream);

/* Planes, B, W', W, the elements of a beam's earlier tokens (U * G * D) and of one token (G * D), and the type. */
typedef struct {
  int64_t planes, requests, parents, width, size, token, type;
} FusedInherit;

/* to [planes, B, W, U + 1, G, D] has the U earlier tokens of each beam's parent in from [planes, B, W', U, G, D]; the last
   is left alone. parents [B, W]. */
int fused_inherit(const FusedInherit* shape, const void* from, const int64_t* parents, void* to, void* stream);

/* Rows, their size, the type. */
typedef struct {
  int64_t rows, size, type;
} FusedRows;

/* x += y (nothing where y is null), out = x / rms(x) * weight: x, y, out [rows, size]. */
int fused_add_norm(const FusedRows* shape, void* x, const void* y, const void* weight, void* out, float eps, void* stream);

/* x [rows, 2 * size] -> out [rows, size]: silu(first half) * second half. */
int fused_swiglu(const FusedRows* shape, const void* x, void* out, void* stream);

/* B, W', the widest family F, T, the nodes P of the level, and the beams W to keep: at most W' * F. */
typedef struct {
  int64_t requests, parents, family, size, nodes, width;
} FusedExpand;

/* Of paths, nodes, scores, parents [B, W] and bad [B]: genrec/engine/cuda/beams.py says what they hold. */
typedef struct {
  int64_t *paths, *nodes;
  float* scores;
  int64_t* parents;
  uint8_t* bad;
} FusedBeams;

/* logits [B, W', T], pointers and codes [P] of the level, blocked [B, P] or null; beams `from` of the level before -> `to`.
   keys [B, W' * F] is room to work in; counters [B, 2] must be 0 at a launch, and are 0 after it. */
int fused_expand(const FusedExpand* shape, const float* logits, const int64_t* pointers, const int64_t* codes,
                 const uint8_t* blocked, const FusedBeams* from, const FusedBeams* to, int32_t* keys, int* counters, void* stream);

#ifdef __cplusplus
}
#endif

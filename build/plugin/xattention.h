/* The C ABI of the attention kernel: what the TensorRT glue, the cuda target and the tests call. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { XATTENTION_F32 = 0, XATTENTION_F16 = 1, XATTENTION_BF16 = 2 };

/* B, W, H, G, D, S, U of the legend, the number of splits of S, and the type of all tensors but prompt_length. */
typedef struct {
  int requests, beams, heads, kv_heads, size, span, unshared, splits, type;
} XAttentionShape;

/* The kernel that a launch on the current device takes: "wgmma" (hopper.cuh), "mma" or "rows" (xattention.cuh). */
const char* xattention_kernel(const XAttentionShape* shape);

/* Splits of S that keep every multiprocessor at work, no split under 128 keys; 1 where the kernel cannot split. */
int xattention_splits(const XAttentionShape* shape, int multiprocessors);

/* Bytes of workspace for a shape, 0 without splits. Its first xattention_counters() bytes must be 0 at a launch, and are 0 after it. */
size_t xattention_workspace(const XAttentionShape* shape);
size_t xattention_counters(const XAttentionShape* shape);

/* Launch on `stream` (a cudaStream_t); 0, or -1 for a shape that no kernel takes, or the CUDA error of the launch.
   own_q [B, W, H, D] reads the unshared tokens in the place of q; rows [B, W] say which row of unshared [M, U, G, D] is a
   beam's. Either may be null. */
int xattention(const XAttentionShape* shape, const void* q, const void* shared_k, const void* shared_v,
               const void* unshared_k, const void* unshared_v, const int64_t* prompt_length, const void* own_q,
               const int64_t* rows, void* out, void* workspace, void* stream);

#ifdef __cplusplus
}
#endif

/* SPDX-License-Identifier: Apache-2.0
 * KV caches in the memory of a CUDA device, for C: many sequences of one factory, known by numbers
 * (kvspan/cuda.h says which recipes and shapes a device has). A step of a layer is append, attend,
 * settle, for a batch of sequences of different lengths in one go.
 *
 * Rows are in device memory. A stream is a cudaStream_t, NULL the default one; calls of one cache
 * go to one stream, or to streams that wait for each other. Append, attend, settle and rebuild
 * return at once: none of them allocates, waits for the device or copies to or from it, so that a
 * step can be recorded in a graph. A cache belongs to the device that was current when it was made.
 * Calls on one cache may not run at the same time. Statuses, kvspan_last_error and struct_size are
 * those of kvspan/kvspan.h; wrong arguments are found before anything is touched.
 *
 * Needs no header of CUDA. Only a library built with -DKVSPAN_CUDA=ON has these functions.
 */
#ifndef KVSPAN_KVSPAN_CUDA_H
#define KVSPAN_KVSPAN_CUDA_H

#include <kvspan/kvspan.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvspan_cuda kvspan_cuda;

typedef struct kvspan_cuda_options {
  size_t struct_size;
  /* Of codes and rows of all sequences, taken at once. 0: what max_sequences of max_tokens each
   * need, but at most four fifths of what is free. */
  size_t budget_bytes;
  int32_t max_sequences; /* 0: 64 */
  int32_t max_tokens;    /* of one sequence; 0: 32768 */
  /* Coded tokens that one launch reads, over all its sequences. 0: max_tokens. */
  int64_t launch_tokens;
  /* Coded tokens that kvspan_cuda_rebuild takes apart at once. 0: there is no such call. */
  int32_t rebuild_tokens;
} kvspan_cuda_options;

/* Rows [tokens, heads, dim] in device memory, read or written; numbers of a row lie side by side.
 */
typedef struct kvspan_cuda_rows {
  size_t struct_size;
  const void* data;
  kvspan_number number;
  int64_t token_stride, head_stride; /* in numbers; 0: dense */
} kvspan_cuda_rows;
typedef struct kvspan_cuda_out {
  size_t struct_size;
  void* data;
  kvspan_number number;
  int64_t token_stride, head_stride;
} kvspan_cuda_out;

/* The part of a sequence in a call, each at most once. All of an array have the same struct_size.
 */
typedef struct kvspan_cuda_step {
  size_t struct_size;
  int32_t sequence;
  int32_t tokens; /* new rows, or queries: the last so many of the sequence */
} kvspan_cuda_step;

/* With the recipe and codes of a factory, which need not live on. Recipes and shapes that are not
 * on the device are refused by name. */
KVSPAN_API kvspan_code kvspan_cuda_create(const kvspan_factory* factory,
                                          const kvspan_cuda_options* options, kvspan_cuda** cache);
/* NULL is allowed. */
KVSPAN_API void kvspan_cuda_free(kvspan_cuda* cache);

/* An empty sequence. KVSPAN_OUT_OF_BUDGET when there are max_sequences. */
KVSPAN_API kvspan_code kvspan_cuda_add(kvspan_cuda* cache, int32_t* sequence);
/* An independent continuation: memory is shared until one of the two writes to it. */
KVSPAN_API kvspan_code kvspan_cuda_fork(kvspan_cuda* cache, int32_t sequence, void* stream,
                                        int32_t* fork);
KVSPAN_API kvspan_code kvspan_cuda_remove(kvspan_cuda* cache, int32_t sequence);

/* Rows of the sequences one after the other: keys [sum of tokens, kv_heads, key_dim] after RoPE,
 * values [sum of tokens, kv_heads, value_dim]. KVSPAN_OUT_OF_BUDGET when the budget is spent or
 * max_tokens reached; then nothing has been written. */
KVSPAN_API kvspan_code kvspan_cuda_append(kvspan_cuda* cache, int32_t layer,
                                          const kvspan_cuda_step* steps, int32_t count,
                                          const kvspan_cuda_rows* keys,
                                          const kvspan_cuda_rows* values, void* stream);
/* queries [sum of tokens, query_heads, key_dim] after RoPE, not scaled; the last of a step is at
 * the sequence's last position, and each sees positions up to its own. out [sum of tokens,
 * query_heads, value_dim]. */
KVSPAN_API kvspan_code kvspan_cuda_attend(kvspan_cuda* cache, int32_t layer,
                                          const kvspan_cuda_step* steps, int32_t count,
                                          const kvspan_cuda_rows* queries,
                                          const kvspan_cuda_out* out, void* stream);
/* Rows that are no longer recent become codes. `tokens` of the steps is not read. */
KVSPAN_API kvspan_code kvspan_cuda_settle(kvspan_cuda* cache, int32_t layer,
                                          const kvspan_cuda_step* steps, int32_t count,
                                          void* stream);
/* The sequence's rows of positions from `first` on as attention sees them: [tokens - first,
 * kv_heads, dim]. Needs rebuild_tokens. */
KVSPAN_API kvspan_code kvspan_cuda_rebuild(kvspan_cuda* cache, int32_t layer, int32_t sequence,
                                           int32_t first, const kvspan_cuda_out* keys,
                                           const kvspan_cuda_out* values, void* stream);

/* Tokens that all layers of a sequence hold. */
KVSPAN_API kvspan_code kvspan_cuda_tokens(const kvspan_cuda* cache, int32_t sequence,
                                          int32_t* tokens);
/* Forgets every token at position >= n: any n from kvspan_cuda_least_tokens on, or 0. */
KVSPAN_API kvspan_code kvspan_cuda_truncate(kvspan_cuda* cache, int32_t sequence, int32_t n);
KVSPAN_API kvspan_code kvspan_cuda_least_tokens(const kvspan_cuda* cache, int32_t sequence,
                                                int32_t* tokens);
/* What a sequence holds, pages that it shares counted whole; `shared` is what all have in common.
 * Its struct_size is set before the call. */
KVSPAN_API kvspan_code kvspan_cuda_get_bytes(const kvspan_cuda* cache, int32_t sequence,
                                             kvspan_bytes* bytes);
/* Bytes of the budget that are in use, shared pages counted once; 0 for NULL. */
KVSPAN_API size_t kvspan_cuda_used_bytes(const kvspan_cuda* cache);

/* The bytes that kvspan_save gives of a host's cache of the same factory: kvspan_load takes them,
 * and kvspan_cuda_load those of kvspan_save, into a new sequence. Both wait for the stream. */
KVSPAN_API kvspan_code kvspan_cuda_save(const kvspan_cuda* cache, int32_t sequence,
                                        kvspan_sink sink, void* context, void* stream);
KVSPAN_API kvspan_code kvspan_cuda_load(kvspan_cuda* cache, const void* bytes, size_t size,
                                        void* stream, int32_t* sequence);

#ifdef __cplusplus
}
#endif

#endif /* KVSPAN_KVSPAN_CUDA_H */

/* SPDX-License-Identifier: Apache-2.0
 * kvspan's KV cache for C and for whatever can call C: one opaque handle per sequence.
 *
 * A step of a layer is append (new rows enter), attend (queries read everything held), settle (rows
 * that are no longer recent are coded). Arrays are dense, row-major f32; the caller owns them and
 * they are not kept. Calls on different handles may run at the same time, those on one may not.
 * Every call that can fail returns a status; kvspan_last_error says in words what was found and
 * what is allowed. After an error the cache holds what it held before the call.
 */
#ifndef KVSPAN_KVSPAN_H
#define KVSPAN_KVSPAN_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define KVSPAN_API __attribute__((visibility("default")))
#else
#define KVSPAN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Values are part of the interface and never change. */
typedef enum kvspan_code {
  KVSPAN_OK = 0,
  KVSPAN_INVALID_ARGUMENT = 1,
  KVSPAN_NOT_FOUND = 2,
  KVSPAN_CORRUPT_DATA = 3,
  KVSPAN_UNSUPPORTED = 4,
  KVSPAN_OUT_OF_BUDGET = 5, /* memory included */
  KVSPAN_IO = 6,
  KVSPAN_CANCELLED = 7
} kvspan_code;

typedef enum kvspan_rope_pairs {
  KVSPAN_ROPE_NEIGHBOURS = 0, /* (x[2i], x[2i+1]) */
  KVSPAN_ROPE_HALVES = 1      /* (x[i], x[i + rope_dims/2]) */
} kvspan_rope_pairs;

/* One attention layer. Query head h reads KV head h / (query_heads / kv_heads). */
typedef struct kvspan_layer {
  int32_t query_heads; /* a multiple of kv_heads */
  int32_t kv_heads;
  int32_t key_dim;   /* of one head */
  int32_t value_dim; /* of one head */
  int32_t window;    /* a query at t sees positions > t - window; 0: all before it */
  float logit_scale; /* scores are logit_scale * q.k */
  float soft_cap;    /* c > 0: scores become c tanh(score / c); 0: none */
  int32_t rope_dims; /* leading coordinates that rotate; 0: none */
  kvspan_rope_pairs rope_pairs;
  const double* rope_angles; /* [rope_dims / 2], radians per position */
  float rope_magnitude;      /* scales rotated coordinates; 0 is read as 1 */
  int32_t chunk;             /* a query at t sees positions >= t - t % chunk; 0: all before it */
  /* [query_heads] or NULL: a query at t gives a token at s its score - alibi[h] (t - s). */
  const float* alibi;
  /* [query_heads] or NULL: one more term e^sinks[h] in the sum that weights are divided by. */
  const float* sinks;
} kvspan_layer;

/* Bytes held, as allocated. `total` leaves out `shared`. */
typedef struct kvspan_bytes {
  size_t full_rank, coefficients, scales, bases, sketches, positions, shared, total;
} kvspan_bytes;

typedef struct kvspan_cache kvspan_cache;

/* Makes an empty cache. `recipe` names the method ("full"); `threads` (1 to 256) work on a call,
 * the calling one included. On success *cache is to be freed with kvspan_free. */
KVSPAN_API kvspan_code kvspan_create(const kvspan_layer* layers, int32_t layer_count,
                                     const char* recipe, int32_t threads, kvspan_cache** cache);
/* NULL is allowed. */
KVSPAN_API void kvspan_free(kvspan_cache* cache);

/* n rows of a layer, oldest first: keys [n, kv_heads, key_dim] after RoPE, values [n, kv_heads,
 * value_dim], positions [n], increasing and beyond every position before. Numbers have to be
 * finite. */
KVSPAN_API kvspan_code kvspan_append(kvspan_cache* cache, int32_t layer, int32_t n,
                                     const float* keys, const float* values,
                                     const int32_t* positions);
/* n queries [n, query_heads, key_dim] after RoPE, not scaled, each seeing positions up to its own
 * (increasing); out [n, query_heads, value_dim]. */
KVSPAN_API kvspan_code kvspan_attend(kvspan_cache* cache, int32_t layer, int32_t n,
                                     const float* queries, const int32_t* positions, float* out);
KVSPAN_API kvspan_code kvspan_settle(kvspan_cache* cache, int32_t layer);

/* An independent continuation with as many threads; memory is shared until one of the two writes.
 */
KVSPAN_API kvspan_code kvspan_fork(const kvspan_cache* cache, kvspan_cache** fork);
/* Forgets every token at position >= n: any n from kvspan_least_tokens on, or 0. Rows before n stay
 * as they are stored, coded or not, and what a method has learnt stays. */
KVSPAN_API kvspan_code kvspan_truncate(kvspan_cache* cache, int32_t n);
/* The smallest number of tokens above 0 that kvspan_truncate can go back to now: above 1 where a
 * method has dropped tokens because of later ones. */
KVSPAN_API int32_t kvspan_least_tokens(const kvspan_cache* cache);

/* All that a cache holds and has learnt, as bytes. *size is the room in `bytes` before the call and
 * what the cache needs after it; with bytes NULL, or too small (KVSPAN_INVALID_ARGUMENT), nothing
 * is written but *size. */
KVSPAN_API kvspan_code kvspan_save(const kvspan_cache* cache, void* bytes, size_t* size);
/* Makes the cache that kvspan_save wrote, of the same layers and recipe; from here on the two do
 * the same, bit for bit. Bytes that were damaged, or written for another recipe or shape, are
 * KVSPAN_CORRUPT_DATA, with the field and its byte in kvspan_last_error. */
KVSPAN_API kvspan_code kvspan_load(const kvspan_layer* layers, int32_t layer_count,
                                   const char* recipe, int32_t threads, const void* bytes,
                                   size_t size, kvspan_cache** cache);

/* The next position; 0 when empty. */
KVSPAN_API int32_t kvspan_tokens(const kvspan_cache* cache);
KVSPAN_API kvspan_code kvspan_get_bytes(const kvspan_cache* cache, kvspan_bytes* bytes);
/* Why the last failing call of this thread failed; "" if none has. Valid until its next call. */
KVSPAN_API const char* kvspan_last_error(void);

#ifdef __cplusplus
}
#endif

#endif /* KVSPAN_KVSPAN_H */

/* SPDX-License-Identifier: Apache-2.0
 * kvspan's KV cache for C and for whatever can call C: a factory for a model and recipe, and one
 * opaque handle per sequence. kvspan/kvspan_moments.h calibrates a model from any engine.
 *
 * A step of a layer is append (new rows enter), attend (queries read everything held), settle (rows
 * that are no longer recent are coded); kvspan_step does all three for a batch of sequences. Arrays
 * are dense and row-major; the caller owns them and they are not kept. Calls on different handles
 * may run at the same time, those on one may not.
 * Every call that can fail returns a status; kvspan_last_error says in words what was found and
 * what is allowed. After an error a cache holds the tokens it held before the call. No exception leaves
 * the library, and it prints nothing. It ends the program, with a line on standard error, only
 * where its own code is wrong.
 *
 * Structures begin with struct_size, their sizeof as the caller was compiled. Later versions add
 * fields at the end. Fields that an older caller does not have are read as 0. Bytes of a newer caller
 * behind the fields that the library knows must be 0, otherwise KVSPAN_UNSUPPORTED; in structures that
 * the library fills they become 0.
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

/* The numbers of rows that enter: who has f16 or bf16 need not widen them. An integer, not an enum: its size
 * does not depend on the compiler, and a wrong value is refused. */
typedef int32_t kvspan_number;
enum { KVSPAN_F32 = 0, KVSPAN_F16 = 1, KVSPAN_BF16 = 2 };

typedef enum kvspan_rope_pairs {
  KVSPAN_ROPE_NEIGHBOURS = 0, /* (x[2i], x[2i+1]) */
  KVSPAN_ROPE_HALVES = 1      /* (x[i], x[i + rope_dims/2]) */
} kvspan_rope_pairs;

/* One attention layer. Query head h reads KV head h / (query_heads / kv_heads). All layers of an
 * array have the same struct_size. */
typedef struct kvspan_layer {
  size_t struct_size;
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

/* Bytes held, as allocated. `total` leaves out `shared`, the codes that caches of a factory share.
 */
typedef struct kvspan_bytes {
  size_t struct_size;
  size_t full_rank, coefficients, scales, bases, sketches, positions, shared, total;
} kvspan_bytes;

/* Takes the next bytes of what is saved; anything but 0 ends the saving with KVSPAN_IO. */
typedef int (*kvspan_sink)(void* context, const void* bytes, size_t size);
/* Called while codes are designed, by one thread at a time; anything but 0 ends it with
 * KVSPAN_CANCELLED. */
typedef int (*kvspan_progress)(void* context, size_t done, size_t total);

typedef struct kvspan_factory kvspan_factory;
typedef struct kvspan_cache kvspan_cache;

/* 1,000,000 major + 1,000 minor + patch, of the library; and as text. */
KVSPAN_API uint32_t kvspan_version(void);
KVSPAN_API const char* kvspan_version_text(void);
/* Why the last failing call of this thread failed; "" if none has. Valid until its next call. */
KVSPAN_API const char* kvspan_last_error(void);
/* *needed: 1 where the recipe can only be made with a calibration of the model, else 0. */
KVSPAN_API kvspan_code kvspan_needs_calibration(const char* recipe, int32_t* needed);

/* What a factory is made of. Where the recipe needs a calibration, either the bytes of a
 * calibration file, from which codes are designed, or codes that a factory of the same layers and
 * recipe saved. */
typedef struct kvspan_factory_options {
  size_t struct_size;
  const kvspan_layer* layers;
  int32_t layer_count;
  const char* recipe; /* "full", "quant:bits=8", ...: docs/reference/recipes.md */
  const void* calibration;
  size_t calibration_size;
  const void* codes;
  size_t codes_size;
  kvspan_progress progress; /* NULL: nobody asks */
  void* progress_context;
} kvspan_factory_options;

/* Copies what it needs. Codes that were damaged or are of another recipe or shape are refused;
 * those of another version of kvspan's designs are KVSPAN_UNSUPPORTED: design them anew. */
KVSPAN_API kvspan_code kvspan_factory_create(const kvspan_factory_options* options,
                                             kvspan_factory** factory);
/* NULL is allowed. Caches live on without their factory. */
KVSPAN_API void kvspan_factory_free(kvspan_factory* factory);
/* Canonical; lives as long as the factory. NULL for NULL. */
KVSPAN_API const char* kvspan_factory_recipe(const kvspan_factory* factory);
KVSPAN_API kvspan_code kvspan_factory_save_codes(const kvspan_factory* factory, kvspan_sink sink,
                                                 void* context);

/* An empty cache; any thread may make caches of one factory. `threads` (1 to 256) work on a call,
 * the calling one included. To be freed with kvspan_free. */
KVSPAN_API kvspan_code kvspan_make(const kvspan_factory* factory, int32_t threads,
                                   kvspan_cache** cache);
/* The cache that kvspan_save wrote, of the same layers, recipe and codes; from here on the two do
 * the same, bit for bit. Anything else is KVSPAN_CORRUPT_DATA, with the field and its byte in
 * kvspan_last_error. */
KVSPAN_API kvspan_code kvspan_load(const kvspan_factory* factory, int32_t threads,
                                   const void* bytes, size_t size, kvspan_cache** cache);
/* All that a cache holds and has learnt, piece by piece. */
KVSPAN_API kvspan_code kvspan_save(const kvspan_cache* cache, kvspan_sink sink, void* context);
/* NULL is allowed. */
KVSPAN_API void kvspan_free(kvspan_cache* cache);

/* n rows of a layer, oldest first: keys [n, kv_heads, key_dim] after RoPE, values [n, kv_heads,
 * value_dim], positions [n], increasing and beyond every position before. Numbers have to be
 * finite. */
KVSPAN_API kvspan_code kvspan_append(kvspan_cache* cache, int32_t layer, int32_t n,
                                     kvspan_number number, const void* keys, const void* values,
                                     const int32_t* positions);
/* n queries [n, query_heads, key_dim] after RoPE, not scaled, each seeing positions up to its own
 * (increasing); out [n, query_heads, value_dim]. */
KVSPAN_API kvspan_code kvspan_attend(kvspan_cache* cache, int32_t layer, int32_t n,
                                     kvspan_number number, const void* queries,
                                     const int32_t* positions, float* out);
KVSPAN_API kvspan_code kvspan_settle(kvspan_cache* cache, int32_t layer);

/* One sequence's part of a batch: n new tokens, whose rows enter and whose queries are answered. */
typedef struct kvspan_part {
  size_t struct_size;
  kvspan_cache* cache; /* each at most once in a batch */
  int32_t n;
  kvspan_number number;
  const void *keys, *values, *queries;
  const int32_t* positions;
  float* out;
} kvspan_part;
/* Append, attend and settle of one layer for all parts, shared out among the threads of the first
 * part's cache. After an error some caches may be ahead of others: kvspan_truncate(cache,
 * kvspan_tokens(cache)) takes back the rows of the layers that are. */
KVSPAN_API kvspan_code kvspan_step(int32_t layer, const kvspan_part* parts, int32_t count);

/* An independent continuation with as many threads; memory is shared until one of the two writes.
 */
KVSPAN_API kvspan_code kvspan_fork(const kvspan_cache* cache, kvspan_cache** fork);
/* Forgets every token at position >= n: any n from kvspan_least_tokens on, or 0. Rows before n stay
 * as they are stored, coded or not, and what a method has learnt stays. */
KVSPAN_API kvspan_code kvspan_truncate(kvspan_cache* cache, int32_t n);
/* The smallest number of tokens above 0 that kvspan_truncate can go back to now: above 1 where a
 * method has dropped tokens because of later ones. */
KVSPAN_API int32_t kvspan_least_tokens(const kvspan_cache* cache);
/* Forgets all tokens and what was learnt from them. */
KVSPAN_API kvspan_code kvspan_clear(kvspan_cache* cache);
/* The next position; 0 when empty. */
KVSPAN_API int32_t kvspan_tokens(const kvspan_cache* cache);
/* bytes->struct_size is set before the call. */
KVSPAN_API kvspan_code kvspan_get_bytes(const kvspan_cache* cache, kvspan_bytes* bytes);

#ifdef __cplusplus
}
#endif

#endif /* KVSPAN_KVSPAN_H */

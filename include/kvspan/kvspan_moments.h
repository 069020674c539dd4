/* SPDX-License-Identifier: Apache-2.0
 * A model's calibration from any engine, for C (kvspan/moments.h says what is gathered and how text
 * is cut into windows): for every block of tokens and every layer kvspan_moments_add, and at the
 * end kvspan_moments_finish, which gives the bytes of a calibration file.
 */
#ifndef KVSPAN_KVSPAN_MOMENTS_H
#define KVSPAN_KVSPAN_MOMENTS_H

#include <kvspan/kvspan.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvspan_moments kvspan_moments;

typedef struct kvspan_moments_options {
  size_t struct_size;
  const kvspan_layer* layers;
  int32_t layer_count;
  int32_t window;  /* tokens of a whole window, each a sequence from position 0; 0: 4096 */
  int32_t skip;    /* tokens that do not count at the start of each: attention sinks */
  int64_t tokens;  /* that will count in all */
  int32_t samples; /* rows to keep at most; 0: 1024 */
  int32_t block;   /* most rows of a call; 0: 512 */
  int32_t threads; /* that work on a call; 0: 1 */
  /* Following layers that each layer has moments with, 0 to 5. Above 0 all layers of a block come
   * in order before the next block does, each with the same positions. */
  int32_t neighbours;
} kvspan_moments_options;

KVSPAN_API kvspan_code kvspan_moments_create(const kvspan_moments_options* options,
                                             kvspan_moments** moments);
/* NULL is allowed. */
KVSPAN_API void kvspan_moments_free(kvspan_moments* moments);

/* What follows the attention output of a layer: the matrix [hidden, query_heads * value_dim] that
 * takes it to the residual stream. Without it all directions of values count alike. */
KVSPAN_API kvspan_code kvspan_moments_set_output(kvspan_moments* moments, int32_t layer,
                                                 int32_t hidden, const float* weights);
/* n tokens of a window, in order: keys, values and queries as kvspan_append and kvspan_attend take
 * them; residual [n, hidden], what enters the layer, or NULL. */
KVSPAN_API kvspan_code kvspan_moments_add(kvspan_moments* moments, int32_t layer, int32_t n,
                                          kvspan_number number, const void* keys,
                                          const void* values, const void* queries,
                                          const int32_t* positions, const float* residual,
                                          int32_t hidden);
/* The calibration, under the model's name and fingerprint (any texts that tell models apart). Fails
 * where a layer has not seen as many tokens as the options said. */
KVSPAN_API kvspan_code kvspan_moments_finish(const kvspan_moments* moments, const char* model,
                                             const char* fingerprint, kvspan_sink sink,
                                             void* context);

#ifdef __cplusplus
}
#endif

#endif /* KVSPAN_KVSPAN_MOMENTS_H */

/* SPDX-License-Identifier: Apache-2.0
 * What the examples in C have in common: activations of a made-up model, bytes that calls hand over, and
 * errors that are said.
 */
#ifndef MADE_UP_TEXT_H
#define MADE_UP_TEXT_H

#include <kvspan/kvspan.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes that grow as they come. */
typedef struct {
  unsigned char* data;
  size_t size;
} bytes;

static int take(void* context, const void* piece, size_t size) {
  bytes* to = context;
  unsigned char* more = realloc(to->data, to->size + size);
  if (more == NULL) return 1;
  memcpy(more + to->size, piece, size);
  to->data = more;
  to->size += size;
  return 0;
}

static int failed(kvspan_code status) {
  if (status != KVSPAN_OK) fprintf(stderr, "error %d: %s\n", (int)status, kvspan_last_error());
  return status != KVSPAN_OK;
}

static float noise(void) {
  static unsigned long long state = 7;
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return (float)((double)(state >> 33) / 2147483648.0 - 1.0);
}

/* Rows of up to 64 numbers near six directions, as real ones lie near a few. */
static void fill(float* rows, int count, int dim) {
  enum { DIRECTIONS = 6, MOST = 64 };
  static float directions[DIRECTIONS][MOST];
  if (directions[0][0] == 0.0f) {
    for (int i = 0; i < DIRECTIONS * dim; ++i) directions[i / dim][i % dim] = noise();
  }
  for (int row = 0; row < count; ++row) {
    float* to = rows + (size_t)row * (size_t)dim;
    for (int j = 0; j < dim; ++j) to[j] = 0.05f * noise();
    for (int k = 0; k < DIRECTIONS; ++k) {
      const float c = noise() / (float)(1 + k);
      for (int j = 0; j < dim; ++j) to[j] += c * directions[k][j];
    }
  }
}

/* A whole text: rows of all heads of each token, and its positions. */
static void fill_text(int tokens, int kv_heads, int query_heads, int dim, float* keys, float* values,
                      float* queries, int32_t* positions) {
  fill(keys, tokens * kv_heads, dim);
  fill(values, tokens * kv_heads, dim);
  fill(queries, tokens * query_heads, dim);
  for (int t = 0; t < tokens; ++t) positions[t] = t;
}

#endif /* MADE_UP_TEXT_H */

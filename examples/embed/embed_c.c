/* SPDX-License-Identifier: Apache-2.0
 * An engine's side of kvspan, in C: it calibrates a model while that reads, designs codes once, and
 * keeps two sequences in `bands` at 2 bits beside one at full rank. The "model" is a text of
 * made-up activations (made_up_text.h). cc embed_c.c $(pkg-config --cflags --libs kvspan) -lm -o embed_c
 * && ./embed_c
 */
#include <kvspan/kvspan.h>
#include <kvspan/kvspan_moments.h>
#include <math.h>

#include "made_up_text.h"

enum { KV_HEADS = 2, QUERY_HEADS = 4, DIM = 32, TOKENS = 2048, BLOCK = 64 };

static float keys[TOKENS * KV_HEADS * DIM], values[TOKENS * KV_HEADS * DIM];
static float queries[TOKENS * QUERY_HEADS * DIM];
static int32_t positions[TOKENS];

/* One block of a text for each cache, in one call. */
static int step(kvspan_cache** caches, float** outs, int count, int at) {
  kvspan_part parts[3];
  memset(parts, 0, sizeof parts);
  for (int i = 0; i < count; ++i) {
    parts[i].struct_size = sizeof parts[i];
    parts[i].cache = caches[i];
    parts[i].n = BLOCK;
    parts[i].number = KVSPAN_F32;
    parts[i].keys = keys + (size_t)at * KV_HEADS * DIM;
    parts[i].values = values + (size_t)at * KV_HEADS * DIM;
    parts[i].queries = queries + (size_t)at * QUERY_HEADS * DIM;
    parts[i].positions = positions + at;
    parts[i].out = outs[i];
  }
  return failed(kvspan_step(0, parts, count));
}

int main(void) {
  kvspan_layer layer = {.struct_size = sizeof layer,
                        .query_heads = QUERY_HEADS,
                        .kv_heads = KV_HEADS,
                        .key_dim = DIM,
                        .value_dim = DIM,
                        .logit_scale = 2.0f};
  fill_text(TOKENS, KV_HEADS, QUERY_HEADS, DIM, keys, values, queries, positions);

  /* Once for a model: what passes through its attention becomes a calibration. */
  kvspan_moments_options gather = {.struct_size = sizeof gather,
                                   .layers = &layer,
                                   .layer_count = 1,
                                   .window = TOKENS,
                                   .tokens = TOKENS,
                                   .threads = 2};
  kvspan_moments* moments = NULL;
  bytes calibration = {0}, codes = {0}, saved = {0};
  if (failed(kvspan_moments_create(&gather, &moments))) return 1;
  for (int at = 0; at < TOKENS; at += BLOCK) {
    if (failed(kvspan_moments_add(moments, 0, BLOCK, KVSPAN_F32, keys + at * KV_HEADS * DIM,
                                  values + at * KV_HEADS * DIM, queries + at * QUERY_HEADS * DIM,
                                  positions + at, NULL, 0))) {
      return 1;
    }
  }
  if (failed(kvspan_moments_finish(moments, "made up", "0", take, &calibration))) return 1;
  kvspan_moments_free(moments);

  /* Once for a recipe: codes, which later starts load instead. */
  kvspan_factory_options options = {.struct_size = sizeof options,
                                    .layers = &layer,
                                    .layer_count = 1,
                                    .recipe = "bands:bits=2",
                                    .calibration = calibration.data,
                                    .calibration_size = calibration.size};
  kvspan_factory *designed = NULL, *factory = NULL, *exact = NULL;
  if (failed(kvspan_factory_create(&options, &designed)) ||
      failed(kvspan_factory_save_codes(designed, take, &codes))) {
    return 1;
  }
  options.calibration = NULL;
  options.codes = codes.data;
  options.codes_size = codes.size;
  if (failed(kvspan_factory_create(&options, &factory))) return 1;
  options.codes = NULL;
  options.recipe = "full";
  if (failed(kvspan_factory_create(&options, &exact))) return 1;

  kvspan_cache* caches[3] = {NULL, NULL, NULL};
  if (failed(kvspan_make(exact, 2, &caches[0])) || failed(kvspan_make(designed, 2, &caches[1])) ||
      failed(kvspan_make(factory, 2, &caches[2]))) {
    return 1;
  }
  static float out[3][BLOCK * QUERY_HEADS * DIM];
  float* outs[3] = {out[0], out[1], out[2]};
  double error = 0.0, energy = 0.0;
  for (int at = 0; at < TOKENS; at += BLOCK) {
    if (step(caches, outs, 3, at)) return 1;
    for (int i = 0; at >= TOKENS / 2 && i < BLOCK * QUERY_HEADS * DIM; ++i) {
      error += pow((double)out[1][i] - out[0][i], 2.0);
      energy += pow(out[0][i], 2.0);
    }
  }
  kvspan_bytes full = {.struct_size = sizeof full}, bands = {.struct_size = sizeof bands};
  kvspan_cache* copy = NULL;
  if (failed(kvspan_get_bytes(caches[0], &full)) || failed(kvspan_get_bytes(caches[1], &bands)) ||
      failed(kvspan_save(caches[1], take, &saved)) ||
      failed(kvspan_load(factory, 2, saved.data, saved.size, &copy))) {
    return 1;
  }
  printf("kvspan %s, %s\n", kvspan_version_text(), kvspan_factory_recipe(factory));
  printf("%d tokens: %zu bytes, full rank %zu, %.1f times as many; outputs differ by %.2f %%\n",
         (int)kvspan_tokens(caches[1]), bands.total, full.total,
         (double)full.total / (double)bands.total, 100.0 * sqrt(error / energy));
  printf("from saved codes: %s; saved in %zu bytes and loaded: %d tokens\n",
         memcmp(out[1], out[2], sizeof out[1]) == 0 ? "the same bits" : "other bits", saved.size,
         (int)kvspan_tokens(copy));
  kvspan_free(copy);
  for (int i = 0; i < 3; ++i) kvspan_free(caches[i]);
  kvspan_factory_free(designed);
  kvspan_factory_free(factory);
  kvspan_factory_free(exact);
  free(calibration.data);
  free(codes.data);
  free(saved.data);
  return 0;
}

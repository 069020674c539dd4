/* SPDX-License-Identifier: Apache-2.0
 * The KV cache from C: two query heads on one KV head, 100 tokens whose values are their numbers.
 * Zero queries weigh all tokens alike, so the last one sees their mean, 49.5. */
#include <kvspan/kvspan.h>
#include <stdio.h>
#include <stdlib.h>

static int failed(kvspan_code status) {
  if (status != KVSPAN_OK) fprintf(stderr, "error %d: %s\n", (int)status, kvspan_last_error());
  return status != KVSPAN_OK;
}

int main(void) {
  const kvspan_layer layer = {
      .query_heads = 2, .kv_heads = 1, .key_dim = 8, .value_dim = 8, .logit_scale = 0.35f};
  kvspan_cache *cache = NULL, *copy = NULL;
  if (failed(kvspan_create(&layer, 1, "full", 2, &cache))) return 1;

  float out[16] = {0};
  for (int32_t t = 0; t < 100; ++t) {
    float keys[8] = {0}, values[8], queries[16] = {0};
    for (int i = 0; i < 8; ++i) values[i] = (float)t;
    if (failed(kvspan_append(cache, 0, 1, keys, values, &t)) ||
        failed(kvspan_attend(cache, 0, 1, queries, &t, out)) || failed(kvspan_settle(cache, 0))) {
      return 1;
    }
  }
  kvspan_bytes held;
  size_t size = 0; /* first its size, then the cache itself */
  if (failed(kvspan_get_bytes(cache, &held)) || failed(kvspan_save(cache, NULL, &size))) return 1;
  void* saved = malloc(size);
  if (saved == NULL || failed(kvspan_save(cache, saved, &size)) ||
      failed(kvspan_load(&layer, 1, "full", 2, saved, size, &copy)) ||
      failed(kvspan_truncate(copy, 10))) {
    return 1;
  }
  printf("%d tokens in %zu bytes, %d left in the copy; mean value %.2f\n",
         (int)kvspan_tokens(cache), held.total, (int)kvspan_tokens(copy), out[0]);
  free(saved);
  kvspan_free(copy);
  kvspan_free(cache);
  return 0;
}

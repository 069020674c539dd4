/* SPDX-License-Identifier: Apache-2.0
 * The KV cache from C: one layer, two query heads on one KV head, a text of 100 tokens whose values
 * are their numbers. Zero queries weigh all tokens alike, so the last one sees their mean, 49.5. */
#include <kvspan/kvspan.h>
#include <stdio.h>

static int failed(kvspan_code status) {
  if (status != KVSPAN_OK) fprintf(stderr, "error %d: %s\n", (int)status, kvspan_last_error());
  return status != KVSPAN_OK;
}

int main(void) {
  kvspan_layer layer = {0};
  layer.query_heads = 2;
  layer.kv_heads = 1;
  layer.key_dim = 8;
  layer.value_dim = 8;
  layer.logit_scale = 0.35f;
  kvspan_cache* cache = NULL;
  kvspan_cache* fork = NULL;
  if (failed(kvspan_create(&layer, 1, "full", 2, &cache))) return 1;

  float out[16] = {0};
  for (int32_t t = 0; t < 100; ++t) {
    float keys[8] = {0}, values[8], queries[16] = {0};
    for (int i = 0; i < 8; ++i) values[i] = (float)t;
    if (failed(kvspan_append(cache, 0, 1, keys, NULL, values, &t)) ||
        failed(kvspan_attend(cache, 0, 1, queries, &t, out)) || failed(kvspan_settle(cache, 0))) {
      return 1;
    }
  }
  kvspan_bytes bytes;
  if (failed(kvspan_fork(cache, &fork)) || failed(kvspan_truncate(fork, 10)) ||
      failed(kvspan_get_bytes(cache, &bytes))) {
    return 1;
  }
  printf("%d tokens in %zu bytes, %d in the fork; mean value %.2f\n", (int)kvspan_tokens(cache),
         bytes.total, (int)kvspan_tokens(fork), out[0]);
  kvspan_free(fork);
  kvspan_free(cache);
  return 0;
}

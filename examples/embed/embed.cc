// SPDX-License-Identifier: Apache-2.0
// A cache for one layer: append rows, attend, save and load. Two query heads share one KV head. The
// values of token t are all t and every key is equal, so attention at t is the mean of 0..t.
#include <cstdio>
#include <numeric>
#include <vector>

#include "kvspan/cache.h"

static int failed(const kvspan::Error& error) {
  return std::fprintf(stderr, "%s\n", error.message.c_str()), 1;
}

int main() {
  constexpr std::int32_t kTokens = 100, kDim = 64;
  kvspan::LayerShape layer;
  layer.query_heads = 2;
  layer.kv_heads = 1;
  layer.key_dim = layer.value_dim = kDim;
  layer.logit_scale = 0.125f;
  const auto factory = kvspan::CacheFactory::create({{layer}}, "full");
  if (!factory) return failed(factory.error());
  const auto cache = factory->make();

  std::vector<float> keys(kTokens * kDim, 1.0f), queries(kTokens * 2 * kDim, 1.0f), values;
  for (int t = 0; t < kTokens; ++t) values.insert(values.end(), kDim, static_cast<float>(t));
  std::vector<float> out(queries.size());
  std::vector<std::int32_t> at(kTokens);
  std::iota(at.begin(), at.end(), 0);
  // One thread is a team of one; several threads would each make these three calls.
  kvspan::TeamState state;
  kvspan::Team team(state, 0, 1);
  const auto scratch = kvspan::make_attention_scratch();
  const kvspan::TensorView<const float, 3> k(keys.data(), {kTokens, 1, kDim});
  kvspan::Status done = cache->append(0, {k, {values.data(), k.shape}, at}, team);
  if (done) {
    done = cache->attend(0, {{queries.data(), {kTokens, 2, kDim}}, at},
                         {out.data(), {kTokens, 2, kDim}}, *scratch, team);
  }
  if (done) done = cache->settle(0, team);
  if (!done) return failed(done.error());

  const auto saved = cache->save();
  if (!saved) return failed(saved.error());
  const auto copy = factory->load(*saved);
  if (!copy) return failed(copy.error());
  std::printf("%s: %d tokens in %zu bytes; the last token sees the mean value %.2f\n",
              (*copy)->recipe().c_str(), static_cast<int>((*copy)->tokens()),
              (*copy)->bytes().total, out.back());
}

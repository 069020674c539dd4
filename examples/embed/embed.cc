// SPDX-License-Identifier: Apache-2.0
// A cache for one layer: append rows, attend, save and load. Two query heads share one KV head. The
// values of token t are all t and every key is equal, so attention at t is the mean of 0..t.
#include <cstdio>
#include <numeric>
#include <vector>

#include "kvspan/cache.h"

int main() {
  constexpr std::int32_t kTokens = 100, kDim = 64;
  kvspan::LayerShape layer;
  layer.query_heads = 2;
  layer.kv_heads = 1;
  layer.key_dim = layer.value_dim = kDim;
  layer.logit_scale = 0.125f;
  auto factory = kvspan::CacheFactory::create({{layer}}, "full");
  if (!factory) return std::fprintf(stderr, "%s\n", factory.error().message.c_str()), 1;
  const auto cache = factory->make();

  std::vector<float> keys(kTokens * kDim, 1.0f), values, queries(kTokens * 2 * kDim, 1.0f);
  for (int t = 0; t < kTokens; ++t) values.insert(values.end(), kDim, static_cast<float>(t));
  std::vector<std::int32_t> positions(kTokens);
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<float> out(queries.size());

  // One thread is a team of one; several threads would each make these three calls.
  kvspan::TeamState state;
  kvspan::Team team(state, 0, 1);
  const auto scratch = kvspan::make_attention_scratch();
  const kvspan::KvRows rows{{keys.data(), {kTokens, 1, kDim}},
                            {keys.data(), {kTokens, 1, kDim}},
                            {values.data(), {kTokens, 1, kDim}},
                            positions};
  kvspan::Status done = cache->append(0, rows, team);
  if (done) {
    done = cache->attend(0, {{queries.data(), {kTokens, 2, kDim}}, positions},
                         {out.data(), {kTokens, 2, kDim}}, *scratch, team);
  }
  if (done) done = cache->settle(0, team);
  if (!done) return std::fprintf(stderr, "%s\n", done.error().message.c_str()), 1;

  auto saved = cache->save();
  if (!saved) return std::fprintf(stderr, "%s\n", saved.error().message.c_str()), 1;
  auto copy = factory->load(*saved);
  if (!copy) return std::fprintf(stderr, "%s\n", copy.error().message.c_str()), 1;
  std::printf("%s: %d tokens in %zu bytes; the last token sees the mean value %.2f\n",
              (*copy)->recipe().c_str(), static_cast<int>((*copy)->tokens()),
              (*copy)->bytes().total, out.back());
}

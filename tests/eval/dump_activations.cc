// SPDX-License-Identifier: Apache-2.0
// Writes the files of data/activations: keys and queries after RoPE and values of one layer of a
// model, or of some of its KV heads, over the first tokens of a text, as f16.
//     dump_activations MODEL TEXT LAYER FIRST_KV_HEAD KV_HEADS TOKENS OUT
// A file is six lines of text, the last one empty, and then the numbers, little-endian:
// keys [tokens, kv_heads, key_dim], values [tokens, kv_heads, value_dim],
// queries [tokens, query_heads, key_dim].
#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "base/half.h"
#include "eval/perplexity/windows.h"
#include "io/atomic_file.h"
#include "llama/engine.h"
#include "llama/tokenizer.h"
#include "tests/eval/recording_cache.h"

namespace kvspan {
namespace {

using Rows = std::vector<testing::RecordingCache::Row>;

void append_halves(const Rows& rows, std::size_t first, std::size_t count, std::string& out) {
  for (const auto& row : rows) {
    for (std::size_t i = first; i < first + count; ++i) {
      const Half half = to_half(row.numbers[i]);
      out.push_back(static_cast<char>(half.bits & 255));
      out.push_back(static_cast<char>(half.bits >> 8));
    }
  }
}

int dump(char** arguments) {
  const auto number = [&](int i) { return static_cast<std::size_t>(std::atoi(arguments[i])); };
  const std::size_t layer = number(3), head = number(4), heads = number(5), tokens = number(6);
  const auto engine = Engine::load(arguments[1], {2, 64}).value();
  const auto tokenizer = Tokenizer::open(arguments[1]).value();
  const auto bytes = read_file(arguments[2]).value();
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  WindowOptions cut;
  cut.length = tokens;
  cut.most = 1;
  const auto windows = cut_windows(*tokenizer, text, cut).value();
  testing::RecordingCache cache(engine->cache_shape());
  if (!engine->prefill(cache, windows.front())) return 1;

  const LayerShape& shape = engine->cache_shape().layers.at(layer);
  const auto group = static_cast<std::size_t>(shape.query_heads / shape.kv_heads);
  const auto dk = static_cast<std::size_t>(shape.key_dim);
  const auto dv = static_cast<std::size_t>(shape.value_dim);
  std::string out = "kvspan activations 1\n";
  out += fmt::format("model {} layer {} first_kv_head {}\n", engine->info().name, layer, head);
  out += fmt::format("tokens {} query_heads {} kv_heads {} key_dim {} value_dim {}\n", tokens,
                     heads * group, heads, dk, dv);
  out += fmt::format("logit_scale {}\n", shape.logit_scale);
  out += fmt::format("rope {} {} {}",
                     shape.rope.pairs == Rope::Pairs::kNeighbours ? "neighbours" : "halves",
                     shape.rope.rotated_dims, shape.rope.magnitude);
  for (const double angle : shape.rope.angles) out += fmt::format(" {}", angle);
  out += "\n\n";
  const auto& rows = cache.layers[layer];
  append_halves(rows.keys, head * dk, heads * dk, out);
  append_halves(rows.values, head * dv, heads * dv, out);
  append_halves(rows.queries, head * group * dk, heads * group * dk, out);
  return write_file(arguments[7], std::string_view(out)) ? 0 : 1;
}

}  // namespace
}  // namespace kvspan

int main(int count, char** arguments) {
  if (count == 8) return kvspan::dump(arguments);
  fmt::print(stderr,
             "usage: dump_activations MODEL TEXT LAYER FIRST_KV_HEAD KV_HEADS TOKENS OUT\n");
  return 2;
}

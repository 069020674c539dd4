// SPDX-License-Identifier: Apache-2.0
#include "method/shape_fields.h"

#include <utility>

#include "base/fail.h"

namespace kvspan {
namespace {

// Each number of a layer's shape, with its name.
template <class Use>
void each_number(const LayerShape& layer, const Use& use) {
  use("query heads", layer.query_heads);
  use("KV heads", layer.kv_heads);
  use("key dimension", layer.key_dim);
  use("value dimension", layer.value_dim);
  use("window", layer.window);
  use("logit scale", layer.logit_scale);
  use("soft cap", layer.soft_cap);
  use("form of attention", static_cast<std::int32_t>(layer.rope.pairs) | (layer.chunk > 0 ? 2 : 0) |
                               (layer.alibi.empty() ? 0 : 4) | (layer.sinks.empty() ? 0 : 8));
  use("rotated dimensions", layer.rope.rotated_dims);
  use("RoPE magnitude", layer.rope.magnitude);
  for (const double angle : layer.rope.angles) use("RoPE angle", angle);
  if (layer.chunk > 0) use("chunk", layer.chunk);
  for (const float slope : layer.alibi) use("ALiBi slope", slope);
  for (const float sink : layer.sinks) use("sink", sink);
}

}  // namespace

void put_shape(const CacheShape& shape, ByteWriter& out) {
  out.put(static_cast<std::uint32_t>(shape.layers.size()));
  for (const LayerShape& layer : shape.layers) {
    each_number(layer, [&](std::string_view, auto number) { out.put(number); });
  }
}

Status expect_shape(const CacheShape& shape, ByteReader& in) {
  KVSPAN_TRY(const auto layers, in.get<std::uint32_t>("number of layers"));
  if (layers != shape.layers.size()) {
    return in.wrong("number of layers", sizeof(layers), layers,
                    fmt::format("{}, as this shape has", shape.layers.size()));
  }
  for (std::size_t i = 0; i < shape.layers.size(); ++i) {
    Status same;
    each_number(shape.layers[i], [&](std::string_view field, auto wanted) {
      if (!same) return;
      auto read = in.get<decltype(wanted)>(field);
      if (!read) {
        same = std::move(read).error();
      } else if (*read != wanted) {
        same = in.wrong(fmt::format("{} of layer {}", field, i), sizeof(wanted), *read,
                        fmt::format("{}, as this shape has", wanted));
      }
    });
    KVSPAN_CHECK_OK(same);
  }
  return {};
}

}  // namespace kvspan

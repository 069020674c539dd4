// SPDX-License-Identifier: Apache-2.0
// prune, window, streaming, and the selectors that join other methods.
#include <utility>

#include "base/fail.h"
#include "method/drop_policy.h"
#include "method/drop_selectors.h"
#include "method/prepare_parts.h"
#include "method/read_selectors.h"

namespace kvspan::detail {
namespace {

std::int32_t whole(const RecipePart& part, std::string_view key) {
  return static_cast<std::int32_t>(part.count(key));
}

using MakeSelector = std::function<std::unique_ptr<Selector>(const std::shared_ptr<Ledger>&)>;

MakeSelector heavy(const HeavyOptions& options, std::int32_t history) {
  return [=](const std::shared_ptr<Ledger>& ledger) {
    return std::make_unique<HeavySelector>(options, history, ledger);
  };
}

MakeSelector maker_of(const RecipePart& s, std::size_t layer) {
  if (s.name() == "snapkv") {
    return [options = SnapkvOptions{s.amount("keep"), whole(s, "window"), whole(s, "pool"),
                                    s.word("pooling") == "mean"}](const auto& ledger) {
      return std::make_unique<SnapkvSelector>(options, ledger);
    };
  }
  if (s.name() == "h2o") {
    HeavyOptions options;
    if (s.has("heavy") && s.has("recent")) {
      options.recent = s.amount("recent");
      options.keep = {options.recent.is_share, options.recent.value + s.amount("heavy").value};
    } else {
      options.keep = s.amount("keep");
      options.recent = {
          options.keep.is_share,
          options.keep.is_share
              ? options.keep.value / 2
              : static_cast<double>(static_cast<std::int64_t>(options.keep.value) / 2)};
    }
    return heavy(options, kAllQueries);
  }
  if (s.name() == "scissorhands") {
    HeavyOptions options;
    options.keep = s.amount("keep");
    options.recent = {false, static_cast<double>(s.count("recent"))};
    options.history_only = true;
    options.drop = s.amount("drop");
    return heavy(options, whole(s, "history"));
  }
  ReadOptions options;
  options.keep = s.amount("keep");
  if (s.name() == "quest") {
    if (layer < static_cast<std::size_t>(s.count("skip"))) return {};
    options.page = whole(s, "page");
  } else {
    options.page = whole(s, "chunk");
    options.landmarks = true;
    options.outliers = whole(s, "outliers");
    options.recent = whole(s, "recent");
  }
  return [options](const auto& ledger) { return std::make_unique<ReadSelector>(options, ledger); };
}

}  // namespace

PreparedLayers prepare_tokens(const PrepareInput& in) {
  const RecipePart& m = in.method;
  std::vector<PreparedLayer> layers;
  for (const LayerShape& shape : in.shape.layers) {
    PreparedLayer layer;
    for (std::int32_t h = 0; h < shape.kv_heads; ++h) {
      PreparedGroup group;
      group.options.first_head = h;
      group.options.ends = m.word("store") == "f32" ? Element::kF32 : Element::kF16;
      if (m.declares("sink")) group.options.sink = whole(m, "sink");
      if (m.name() == "prune") {
        group.make_policy = [keep = m.amount("keep"), recent = whole(m, "recent")](const auto&) {
          return std::make_unique<PrunePolicy>(keep, recent);
        };
      } else {
        group.make_policy = [size = whole(m, "size")](const auto&) {
          return std::make_unique<WindowPolicy>(size);
        };
      }
      layer.groups.push_back(std::move(group));
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

Status add_selector(const CacheShape& shape, const RecipePart& selector,
                    std::vector<PreparedLayer>& layers) {
  if (selector.name() == "h2o" && selector.has("heavy") && selector.has("recent") &&
      selector.amount("heavy").is_share != selector.amount("recent").is_share) {
    return fail(ErrorCode::kInvalidArgument,
                "h2o: heavy and recent are a number of tokens and a share; allowed: both numbers, "
                "or both shares");
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (selector.method().tokens == TokenUse::kReadsSome && !shape.layers[i].alibi.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  "{} chooses tokens by their keys alone, and in layer {} distance counts too "
                  "(alibi); allowed: layers without alibi",
                  selector.name(), i);
    }
    std::vector<PreparedGroup>& groups = layers[i].groups;
    // Heads choose their own tokens, unless the method codes them together.
    if (groups.size() == 1 && !groups[0].make_policy && shape.layers[i].kv_heads > 1) {
      const PreparedGroup all = groups[0];
      groups.assign(static_cast<std::size_t>(shape.layers[i].kv_heads), all);
      for (std::size_t h = 0; h < groups.size(); ++h) {
        groups[h].options.first_head = static_cast<std::int32_t>(h);
        groups[h].options.heads = 1;
      }
    }
    for (PreparedGroup& group : groups) group.make_selector = maker_of(selector, i);
  }
  return {};
}

}  // namespace kvspan::detail

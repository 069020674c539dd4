// SPDX-License-Identifier: Apache-2.0
// A cache that is easy to know: what it holds of a token depends on that token and all before it, as in a
// model, it is written layer by layer with the last tokens apart, and going back forgets.
#pragma once

#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "base/byte_stream.h"
#include "kvspan/saved_cache.h"

namespace kvspan::testing {

class FakeCache {
 public:
  void read(std::span<const std::int32_t> tokens) {
    for (const std::int32_t token : tokens) {
      const std::uint64_t before = states_.empty() ? 1 : states_.back();
      states_.push_back((before ^ static_cast<std::uint64_t>(token)) * 0x9e3779b97f4a7c15ull + 7);
    }
  }
  void truncate(std::size_t n) { states_.resize(std::min(n, states_.size())); }
  std::size_t tokens() const { return states_.size(); }
  bool operator==(const FakeCache&) const = default;

  // Tokens before the last 64 in runs of 16, twice: for two layers.
  SavedCache save() const {
    ByteWriter out;
    SavedCache saved;
    out.put(static_cast<std::uint64_t>(states_.size()));
    const std::size_t coded = states_.size() > 64 ? (states_.size() - 64) / 16 * 16 : 0;
    for (int layer = 0; layer < 2; ++layer) {
      out.put(layer);
      for (std::size_t i = 0; i < states_.size(); ++i) {
        if (i < coded && i % 16 == 0) {
          saved.runs.push_back({out.bytes().size(), 16 * 8, static_cast<std::int32_t>(i) + 16});
        }
        out.put(states_[i] + static_cast<std::uint64_t>(layer));
      }
    }
    saved.bytes = std::move(out.bytes());
    return saved;
  }
  static std::optional<FakeCache> load(std::span<const std::byte> bytes) {
    ByteReader in(bytes, "fake");
    const auto n = in.get<std::uint64_t>("tokens");
    FakeCache cache;
    if (!n || *n > bytes.size()) return std::nullopt;
    cache.states_.resize(*n);
    for (int layer = 0; layer < 2; ++layer) {
      const auto number = in.get<int>("layer");
      if (!number || *number != layer) return std::nullopt;
      for (std::uint64_t& state : cache.states_) {
        const auto read = in.get<std::uint64_t>("state");
        if (!read || (layer == 1 && *read != state + 1)) return std::nullopt;
        state = *read - static_cast<std::uint64_t>(layer) ;
      }
    }
    if (in.left() != 0) return std::nullopt;
    return cache;
  }

 private:
  std::vector<std::uint64_t> states_;
};

inline FakeCache read_anew(std::span<const std::int32_t> tokens) {
  FakeCache cache;
  cache.read(tokens);
  return cache;
}

}  // namespace kvspan::testing

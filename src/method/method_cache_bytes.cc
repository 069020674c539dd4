// SPDX-License-Identifier: Apache-2.0
// A whole cache as bytes: docs/reference/formats/cache.md.
#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "base/byte_frame.h"
#include "base/fail.h"
#include "cache/code/code_bytes.h"
#include "method/method_cache.h"
#include "method/shape_fields.h"
#include "method/state_bytes.h"

namespace kvspan {
namespace {

constexpr FrameFormat kFormat{"cache", "KVSPCACH", kCacheVersion, kOldestCacheVersion};
constexpr std::size_t kLongestRecipe = 4096;

// The codes that sequences share, each once.
std::vector<std::shared_ptr<const Code>> known_codes(const Prepared& prepared) {
  std::vector<std::shared_ptr<const Code>> codes;
  for (const PreparedLayer& layer : prepared.layers) {
    for (const PreparedGroup& group : layer.groups) {
      for (const auto& code : group.codes) {
        if (std::find(codes.begin(), codes.end(), code) == codes.end()) codes.push_back(code);
      }
    }
  }
  return codes;
}

// The same error, with the group that it is about.
Error in_group(Error error, std::size_t layer, std::size_t group) {
  error.message += fmt::format(" (layer {}, group {})", layer, group);
  return error;
}

}  // namespace

Status MethodCache::Member::save(const StateWriter& to) const {
  group.save(to);
  const std::vector<float> waiting = received_by_token();
  to.out.put(static_cast<std::uint32_t>(waiting.size()));
  to.out.put_all(std::span<const float>(waiting));
  to.out.put(static_cast<std::uint8_t>(group_received));
  if (policy) KVSPAN_CHECK_OK(policy->save(to));
  if (selector) selector->save(to);
  return {};
}

Status MethodCache::Member::load(const StateReader& from) {
  KVSPAN_CHECK_OK(group.load(from));
  ByteReader& in = from.in;
  KVSPAN_TRY(const auto count,
             get_between<std::uint32_t>("tokens with unsettled attention", 0,
                                        static_cast<std::uint32_t>(group.list().tokens()), in));
  KVSPAN_CHECK_OK(in.expect_at_least("unsettled attention", count * sizeof(float)));
  received.resize(count);
  KVSPAN_CHECK_OK(in.get_finite("unsettled attention", std::span<float>(received),
                                std::numeric_limits<float>::max()));
  if (from.version >= 4) {
    KVSPAN_TRY(const auto added, get_between<std::uint8_t>("unsettled attention is in the scores", 0, 1, in));
    group_received = added != 0;
  }
  if (policy) {
    KVSPAN_CHECK_OK(policy->load(group, from));
  } else if (!group.options().follows) {
    KVSPAN_CHECK_OK(check_segments(group, {}, in));
  }
  if (selector) KVSPAN_CHECK_OK(selector->load(group, from));
  return {};
}

Status MethodCache::save(const ByteSink& sink, std::vector<SavedRun>* runs) const {
  try {
    const std::vector<std::shared_ptr<const Code>> known = known_codes(*prepared_);
    const auto write = [&](ByteWriter& out) -> Status {
      if (runs != nullptr) runs->clear();
      out.put_text(prepared_->recipe);
      put_shape(prepared_->shape, out);
      CodeWriter codes(known, out);
      for (const Layer& layer : layers_) {
        // Selectors alone ask for it; without one, equal tokens are saved as equal bytes.
        const bool asked = std::any_of(layer.members.begin(), layer.members.end(),
                                       [](const Member& member) { return member.selector != nullptr; });
        out.put(asked ? layer.queries : 0);
        for (const Member& member : layer.members) KVSPAN_CHECK_OK(member.save({out, codes, runs}));
      }
      return {};
    };
    return write_frame(kFormat, 0, write, sink);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfBudget, "no memory for the bytes of {} tokens", tokens());
  }
}

Status MethodCache::load_layers(ByteReader& in, std::uint32_t version) {
  const std::vector<std::shared_ptr<const Code>> known = known_codes(*prepared_);
  KVSPAN_TRY(CodeReader codes, CodeReader::open(known, in, ledger_));
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    std::int32_t next = 0;
    if (version < 4) {
      KVSPAN_TRY(next, get_between<std::int32_t>("next position", 0, kMostTokens, in));
    }
    KVSPAN_TRY(layer.queries,
               get_between<std::int32_t>("queries of the last call", 0,
                                         std::numeric_limits<std::int32_t>::max(), in));
    for (std::size_t g = 0; g < layer.members.size(); ++g) {
      Member& member = layer.members[g];
      if (Status loaded = member.load({in, codes, ledger_, version, next}); !loaded) {
        return in_group(std::move(loaded).error(), l, g);
      }
      if (member.group.extent().next != layer.next()) {
        return fail(ErrorCode::kCorruptData,
                    "{}: the next position before byte {} is {}; allowed: {}, as in the group before (layer {}, "
                    "group {})",
                    in.what(), in.offset(), member.group.extent().next, layer.next(), l, g);
      }
    }
  }
  share_stores();
  return in.expect_left("end", 0);
}

Result<std::unique_ptr<MethodCache>> MethodCache::load(std::shared_ptr<const Prepared> prepared,
                                                       std::span<const std::byte> bytes) {
  KVSPAN_TRY(OpenFrame frame, open_frame(kFormat, bytes));
  ByteReader& in = frame.payload;
  if (frame.kind != 0) {
    return fail(ErrorCode::kCorruptData, "{}: kind at byte 12 is {}; allowed: 0", kFormat.what,
                frame.kind);
  }
  try {
    KVSPAN_TRY(const std::string recipe, in.get_text("recipe", kLongestRecipe));
    if (recipe != prepared->recipe) {
      return in.wrong("recipe", recipe.size(), fmt::format("'{}'", recipe), prepared->recipe);
    }
    KVSPAN_CHECK_OK(expect_shape(prepared->shape, in));
    auto cache = std::make_unique<MethodCache>(std::move(prepared));
    KVSPAN_CHECK_OK(cache->load_layers(in, frame.version));
    return cache;
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfBudget, "no memory to load {} bytes", bytes.size());
  }
}

}  // namespace kvspan

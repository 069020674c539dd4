// SPDX-License-Identifier: Apache-2.0
#include "cli/prompt_cache_bytes.h"

#include <algorithm>

#include "base/byte_frame.h"
#include "base/fail.h"

namespace kvspan::cli {
namespace {

constexpr FrameFormat kFrame{"prompt cache", kPromptCacheMagic, 1};
constexpr std::size_t kLongestText = 4096;

}  // namespace

bool starts_as_prompt_cache(std::span<const std::byte> bytes) {
  return bytes.size() >= kPromptCacheMagic.size() &&
         std::equal(kPromptCacheMagic.begin(), kPromptCacheMagic.end(), bytes.begin(),
                    [](char c, std::byte b) { return static_cast<std::byte>(c) == b; });
}

Status write_prompt_cache(const std::string& fingerprint, const KvCache& cache, std::span<const Token> tokens,
                          const ByteWriter::Sink& sink) {
  const auto write = [&](ByteWriter& out) -> Status {
    out.put_text(fingerprint);
    out.put_text(cache.recipe());
    out.put(static_cast<std::uint32_t>(tokens.size()));
    out.put_all(tokens);
    return cache.save([&](std::span<const std::byte> piece) -> Status {
      out.put_bytes(piece);
      return {};
    });
  };
  return write_frame(kFrame, 0, write, sink);
}

Result<PromptCache> read_prompt_cache(std::span<const std::byte> bytes, const std::string& fingerprint,
                                      const CacheFactory& caches) {
  KVSPAN_TRY(OpenFrame frame, open_frame(kFrame, bytes));
  ByteReader& in = frame.payload;
  KVSPAN_TRY(const std::string model, in.get_text("model", kLongestText));
  KVSPAN_TRY(const std::string recipe, in.get_text("recipe", kLongestText));
  if (model != fingerprint) {
    return fail(ErrorCode::kUnsupported, "it is of another model, with fingerprint {}", model);
  }
  if (recipe != caches.recipe()) {
    return fail(ErrorCode::kUnsupported, "it is of the recipe {}, and the cache is {}", recipe, caches.recipe());
  }
  PromptCache out;
  KVSPAN_TRY(const auto count, in.get<std::uint32_t>("number of tokens"));
  KVSPAN_CHECK_OK(in.expect_at_least("tokens", std::size_t{count} * sizeof(Token)));
  out.tokens.resize(count);
  KVSPAN_CHECK_OK(in.get_all("tokens", std::span<Token>(out.tokens)));
  KVSPAN_TRY(const auto rest, in.get_bytes("cache", in.left()));
  KVSPAN_TRY(out.cache, caches.on_host().load(rest));
  if (out.cache->tokens() != static_cast<std::int32_t>(count)) {
    return fail(ErrorCode::kCorruptData, "its cache holds {} tokens, not the {} that are listed", out.cache->tokens(),
                count);
  }
  return out;
}

}  // namespace kvspan::cli

// SPDX-License-Identifier: Apache-2.0
// Prompt cache files, which chats save beside their conversation too (FILE.kv).
#include <numeric>

#include "cli/prompt_cache_bytes.h"
#include "tests/fuzz/framed.h"
#include "tests/fuzz/known_caches.h"
#include "tests/fuzz/steps.h"
#include "tests/fuzz/target.h"

namespace kvspan::fuzz {
namespace {

const std::string kFingerprint = "00112233445566778899aabbccddeeff";

std::vector<std::byte> written(const KvCache& cache) {
  std::vector<Token> tokens(static_cast<std::size_t>(cache.tokens()));
  std::iota(tokens.begin(), tokens.end(), 300);
  std::vector<std::byte> bytes;
  const Status status = cli::write_prompt_cache(kFingerprint, cache, tokens, [&](std::span<const std::byte> piece) -> Status {
    bytes.insert(bytes.end(), piece.begin(), piece.end());
    return {};
  });
  must(status.has_value(), "the prompt cache is not written: {}", status ? "" : status.error().message);
  return bytes;
}

// Few: saved_cache tries all.
std::vector<KnownCache*> some_caches() {
  std::vector<KnownCache*> some;
  for (KnownCache& known : known_caches()) {
    const bool wanted = known.recipe() == "full" || known.recipe() == "quant:sink=4,recent=16" ||
                        known.recipe() == "bands:bits=3,anchor=32,sink=16,recent=32";
    if (wanted && known.factory() != nullptr) some.push_back(&known);
  }
  return some;
}

bool run(std::span<const std::uint8_t> input) {
  KnownCache* const known = known_cache(input);
  if (known == nullptr) return false;
  static const std::vector<std::byte> like = written(*known->factory()->make());
  const std::vector<std::byte> bytes = framed(like, input.subspan(2));
  must(cli::starts_as_prompt_cache(bytes), "a prompt cache is not known as one");
  const auto read = cli::read_prompt_cache(bytes, kFingerprint, *known->factory());
  if (!read) return false;
  must(read->cache->tokens() == static_cast<std::int32_t>(read->tokens.size()), "{} tokens are listed, {} are held",
       read->tokens.size(), read->cache->tokens());
  step(*read->cache, known->model(), read->cache->tokens(), 2);
  return true;
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (KnownCache* const known : some_caches()) {
    const auto whole = written(*known->filled()), empty = written(*known->factory()->make());
    all.push_back(unframed(whole, known->name()));
    all.push_back(unframed(empty, known->name()));
  }
  return all;
}

}  // namespace

extern const Target prompt_cache_target{"prompt_cache", "prompt cache files, which chats have too", 1 << 16, run, seeds};

}  // namespace kvspan::fuzz

// SPDX-License-Identifier: Apache-2.0
#include "store/store_key.h"

#include <string_view>

#include "io/sha256.h"

namespace kvspan {
namespace {

void add_text(Sha256& hash, std::string_view text) {
  // With its length, so that no two lists of texts run together to the same bytes.
  const std::uint64_t size = text.size();
  hash.add(std::as_bytes(std::span(&size, 1)));
  hash.add(std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace

std::string StoreIdentity::key() const {
  Sha256 hash;
  for (const std::string_view text :
       {std::string_view("kvspan store 1"), std::string_view(model), std::string_view(recipe),
        std::string_view(calibration), std::string_view(name_space)}) {
    add_text(hash, text);
  }
  return hash.finish();
}

std::vector<std::string> chain_keys(const std::string& identity,
                                    std::span<const std::int32_t> tokens) {
  std::vector<std::string> keys;
  for (std::size_t at = 0; at + kBlockTokens <= tokens.size(); at += kBlockTokens) {
    Sha256 hash;
    add_text(hash, "tokens");
    add_text(hash, keys.empty() ? identity : keys.back());
    hash.add(std::as_bytes(tokens.subspan(at, kBlockTokens)));
    keys.push_back(hash.finish());
  }
  return keys;
}

std::string content_key(const std::string& identity, std::span<const std::byte> bytes) {
  Sha256 hash;
  add_text(hash, "bytes");
  add_text(hash, identity);
  hash.add(bytes);
  return hash.finish();
}

}  // namespace kvspan

// SPDX-License-Identifier: Apache-2.0
// What entries of a store are found by. All keys are SHA-256 in hexadecimal, so that nothing that
// anybody types or sends becomes part of a file name or of a command.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvspan {

inline constexpr std::int32_t kBlockTokens = 256;
inline constexpr std::size_t kKeyLength = 64;

// Caches are exchanged only between programs for which all of this is equal. Who does not know the
// name space can neither find nor make an entry of it.
struct StoreIdentity {
  std::string model;        // fingerprint of the file
  std::string recipe;       // canonical
  std::string calibration;  // fingerprint; empty: none
  std::string name_space;   // of a tenant

  std::string key() const;
};

// Key of the first 256, 512, ... tokens, as far as they fill blocks: each is the hash of the one
// before and of its block's tokens.
std::vector<std::string> chain_keys(const std::string& identity,
                                    std::span<const std::int32_t> tokens);

// Key of bytes that are found by what they are.
std::string content_key(const std::string& identity, std::span<const std::byte> bytes);

}  // namespace kvspan

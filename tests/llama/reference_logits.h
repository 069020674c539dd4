// SPDX-License-Identifier: Apache-2.0
// Reads data/fixtures/<name>.logits, whose layout data/fixtures/README.md describes.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "llama/engine.h"

namespace kvspan::testing {

struct ReferenceLogits {
  std::vector<Token> tokens;
  std::size_t vocabulary = 0;
  std::vector<float> logits;  // [tokens, vocabulary]
};

inline std::string fixture_path(const std::string& file) {
  return std::string(KVSPAN_SOURCE_DIR "/data/fixtures/") + file;
}

inline ReferenceLogits read_reference_logits(const std::string& name) {
  std::ifstream in(fixture_path(name + ".logits"), std::ios::binary);
  std::int32_t header[3] = {};
  in.read(reinterpret_cast<char*>(header), sizeof header);
  ReferenceLogits out;
  if (!in) return out;
  out.tokens.resize(static_cast<std::size_t>(header[1]));
  out.vocabulary = static_cast<std::size_t>(header[2]);
  out.logits.resize(out.tokens.size() * out.vocabulary);
  in.read(reinterpret_cast<char*>(out.tokens.data()),
          static_cast<std::streamsize>(out.tokens.size() * sizeof(Token)));
  in.read(reinterpret_cast<char*>(out.logits.data()),
          static_cast<std::streamsize>(out.logits.size() * sizeof(float)));
  if (!in) out.tokens.clear();
  return out;
}

}  // namespace kvspan::testing

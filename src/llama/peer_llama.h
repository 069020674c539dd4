// SPDX-License-Identifier: Apache-2.0
// llama.cpp itself, from the same pinned archive, running the same file: what speed and logits are
// compared with. Nothing of the engine depends on it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "llama/engine.h"

namespace kvspan {

struct PeerOptions {
  int threads = 1;
  std::int32_t context = 0;  // tokens of a sequence to make room for; 0: the model's
  std::int32_t block = 512;
  std::int32_t sequences = 1;
  std::int32_t gpu_layers = 0;
  std::string kv_type = "f16";  // f32, f16, q8_0 or q4_0
  bool flash_attention = true;  // llama.cpp's q8_0 and q4_0 values need it
};

class PeerLlama {
 public:
  static Result<std::unique_ptr<PeerLlama>> load(const std::string& path,
                                                 const PeerOptions& options);
  ~PeerLlama();

  std::int32_t tokens() const noexcept;
  // At most options.block tokens of every sequence, after those already read: one sequence after the
  // other, or all in one pass where there is one token.
  Status decode(std::span<const Token> tokens, BatchPart::Logits logits);
  // Row i of the last pass: of its i-th token for kAll, of the last token (row 0) for kLast.
  std::span<const float> logits(std::int32_t row) const noexcept;
  // Forgets every token at position >= n.
  Status truncate(std::int32_t n);
  // Whether a cached number takes fewer bits than f16.
  bool compressed() const noexcept;
  // What llama.cpp has allocated for the cache of its whole context, windows and room for a batch included.
  std::uint64_t kv_bytes() const;

 private:
  struct Impl;
  explicit PeerLlama(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvspan

// SPDX-License-Identifier: Apache-2.0
// Logits of several engines against one reference, token by token over one text.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "llama/engine.h"
#include "llama/peer_llama.h"

namespace kvspan {

// Something that reads tokens and gives all their logits.
class LogitSource {
 public:
  virtual ~LogitSource() = default;
  virtual std::string name() const = 0;
  // At most a block of tokens, after those already read.
  virtual Status read(std::span<const Token> tokens) = 0;
  // Of the i-th token of the last read.
  virtual std::span<const float> logits(std::int32_t i) const = 0;
};

// The engine with an empty cache of a recipe; the engine must outlive it.
Result<std::unique_ptr<LogitSource>> engine_logits(Engine& engine, const std::string& recipe);
std::unique_ptr<LogitSource> peer_logits(std::unique_ptr<PeerLlama> peer,
                                         const PeerOptions& options);

struct VerifyOptions {
  std::size_t compared = 2000;  // positions, spread evenly over the text
  std::size_t decoded = 64;     // last tokens, fed one by one and all compared
  std::int32_t block = 512;
};

struct Verification {
  std::string name;
  std::size_t compared = 0;
  double kl_mean = 0.0;
  double kl_max = 0.0;
  double kl_decoded = 0.0;  // mean over those fed one by one
  double top1 = 0.0;        // share of positions with the same most likely token
};

// One row for each of `subjects`. `progress` gets the number of tokens done.
Result<std::vector<Verification>> verify_logits(
    LogitSource& reference, std::span<const std::unique_ptr<LogitSource>> subjects,
    std::span<const Token> tokens, const VerifyOptions& options,
    const std::function<void(std::size_t)>& progress);

}  // namespace kvspan

// SPDX-License-Identifier: Apache-2.0
// The engine's logits against llama.cpp's, token by token over one text.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "model/engine.h"
#include "model/peer_llama.h"

namespace kvspan {

struct VerifyOptions {
  std::string recipe = "full";
  std::size_t compared = 2000;  // positions, spread evenly over the text
  std::size_t decoded = 64;     // the last so many tokens are fed one by one in both
};

struct Verification {
  std::size_t tokens = 0;
  std::size_t compared = 0;
  double kl_mean = 0.0;
  double kl_max = 0.0;
  double top1 = 0.0;        // share of positions with the same most likely token
  double kl_decoded = 0.0;  // mean over those fed one by one
};

// `progress` gets the number of tokens done.
Result<Verification> verify_against_peer(Engine& engine, PeerLlama& peer,
                                         std::span<const Token> tokens,
                                         const VerifyOptions& options,
                                         const std::function<void(std::size_t)>& progress);

}  // namespace kvspan

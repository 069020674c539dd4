// SPDX-License-Identifier: Apache-2.0
// Log-likelihood of continuations after their contexts, as lm-evaluation-harness computes it: the
// two are encoded together, split where the encoded context ends, and only the continuation counts.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "llama/tokenizer.h"

namespace kvspan {

// Tokens of which those from `begin` are scored, each given all before it.
struct Continuation {
  std::vector<Token> tokens;
  std::size_t begin = 0;  // >= 1
  bool truncated = false;
};

// Spaces that end the context count to the continuation. Beyond `most` tokens the oldest are left
// out. Fails where the continuation has no token, where none stands before it, and where it alone
// exceeds `most`.
Result<Continuation> encode_continuation(const Tokenizer& tokenizer, std::string_view context,
                                         std::string_view continuation, std::size_t most);

struct Likelihood {
  double log_likelihood = 0.0;  // nats, the sum over its tokens
  std::size_t tokens = 0;
  std::size_t greedy = 0;  // tokens that are the most likely ones where they stand
  bool is_greedy() const { return greedy == tokens; }
};

// One for each of `continuations`. What all have in common before their first scored token is read
// once into `cache`, which is empty and holds that afterwards; each goes on in a fork. Fails as
// decoding does, and on logits that are not finite.
Result<std::vector<Likelihood>> likelihoods(Engine& engine, KvCache& cache,
                                            std::span<const Continuation> continuations);

}  // namespace kvspan

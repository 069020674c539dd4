// SPDX-License-Identifier: Apache-2.0
#include "eval/tasks/likelihood.h"

#include <algorithm>
#include <cmath>

#include "base/expect.h"
#include "base/fail.h"
#include "eval/perplexity/divergence.h"

namespace kvspan {
namespace {

// Tokens that all share, and that no scored token is predicted from the last of.
std::size_t shared_tokens(std::span<const Continuation> continuations) {
  const Continuation& first = continuations.front();
  std::size_t shared = first.begin - 1;
  for (const Continuation& other : continuations) {
    shared = std::min(shared, other.begin - 1);
    const auto end = first.tokens.begin() + static_cast<std::ptrdiff_t>(shared);
    shared = static_cast<std::size_t>(
        std::mismatch(first.tokens.begin(), end, other.tokens.begin()).first -
        first.tokens.begin());
  }
  return shared;
}

// The prediction of token `at` from logits of the one before it.
Status add_prediction(std::span<const float> logits, Token token, std::vector<float>& scratch,
                      Likelihood& to) {
  const LogSoftmax softmax = log_softmax(logits, scratch);
  const double found = logits[static_cast<std::size_t>(token)] - softmax.log_sum;
  if (!std::isfinite(found)) {
    return fail(ErrorCode::kInvalidArgument, "its logits are not finite");
  }
  to.log_likelihood += found;
  to.greedy += softmax.best == token;
  ++to.tokens;
  return {};
}

// Adds what logit rows first_row.. say, which are those of tokens [from, to).
Status add_predictions(const Engine& engine, const Continuation& continuation, std::size_t from,
                       std::size_t to, std::int32_t first_row, std::vector<float>& scratch,
                       Likelihood& out) {
  for (std::size_t at = std::max(from, continuation.begin - 1); at < to; ++at) {
    const auto row = first_row + static_cast<std::int32_t>(at - from);
    KVSPAN_CHECK_OK(add_prediction(engine.logits(row), continuation.tokens[at + 1], scratch, out));
  }
  return {};
}

}  // namespace

Result<Continuation> encode_continuation(const Tokenizer& tokenizer, std::string_view context,
                                         std::string_view continuation, std::size_t most) {
  const std::size_t kept = context.find_last_not_of(" \t\n\r\v\f") + 1;
  const std::string whole = std::string(context) + std::string(continuation);
  KVSPAN_TRY(const auto before, tokenizer.encode(context.substr(0, kept), {}));
  Continuation out;
  KVSPAN_TRY(out.tokens, tokenizer.encode(whole, {}));
  out.begin = before.size();
  if (out.begin == 0) {
    return fail(ErrorCode::kInvalidArgument,
                "the prompt is empty, and the model has no token that begins a text");
  }
  if (out.tokens.size() <= out.begin) {
    return fail(ErrorCode::kInvalidArgument, "'{}' adds no token to what it follows", continuation);
  }
  // The last token is predicted, not read.
  if (out.tokens.size() > most + 1) {
    const std::size_t dropped = out.tokens.size() - (most + 1);
    if (dropped >= out.begin) {
      return fail(ErrorCode::kInvalidArgument, "{} tokens to score exceed the context of {}",
                  out.tokens.size() - out.begin, most);
    }
    out.tokens.erase(out.tokens.begin(), out.tokens.begin() + static_cast<std::ptrdiff_t>(dropped));
    out.begin -= dropped;
    out.truncated = true;
  }
  return out;
}

Result<std::vector<Likelihood>> likelihoods(Engine& engine, KvCache& cache,
                                            std::span<const Continuation> continuations) {
  KVSPAN_EXPECT(!continuations.empty() && cache.tokens() == 0, "continuations and an empty cache");
  const std::size_t shared = shared_tokens(continuations);
  if (shared > 0) {
    KVSPAN_CHECK_OK(engine.prefill(cache, std::span(continuations.front().tokens).first(shared)));
  }
  const auto block = static_cast<std::size_t>(engine.options().block);
  std::vector<Likelihood> out(continuations.size());
  std::vector<float> scratch;
  // As many as fit go through the model together; one that does not fit alone goes in blocks.
  for (std::size_t first = 0, last = 0; first < continuations.size(); first = last) {
    std::vector<std::unique_ptr<KvCache>> forks;
    std::vector<BatchPart> batch;
    std::size_t tokens = 0;
    for (; last < continuations.size(); ++last) {
      const auto& all = continuations[last].tokens;
      const std::size_t length = all.size() - 1 - shared;
      if (!batch.empty() && tokens + length > block) break;
      KVSPAN_TRY(auto fork, cache.fork());
      forks.push_back(std::move(fork));
      batch.push_back(
          {forks.back().get(), std::span(all).subspan(shared, length), BatchPart::Logits::kAll});
      tokens += length;
    }
    if (tokens <= block) {
      KVSPAN_CHECK_OK(engine.decode(batch));
      std::int32_t row = 0;
      for (std::size_t i = first; i < last; ++i) {
        const std::size_t end = continuations[i].tokens.size() - 1;
        KVSPAN_CHECK_OK(
            add_predictions(engine, continuations[i], shared, end, row, scratch, out[i]));
        row += static_cast<std::int32_t>(end - shared);
      }
      continue;
    }
    const std::span<const Token> rest = batch.front().tokens;
    for (std::size_t at = 0; at < rest.size(); at += block) {
      const std::size_t count = std::min(block, rest.size() - at);
      const BatchPart part{forks.front().get(), rest.subspan(at, count), BatchPart::Logits::kAll};
      KVSPAN_CHECK_OK(engine.decode({&part, 1}));
      KVSPAN_CHECK_OK(add_predictions(engine, continuations[first], shared + at,
                                      shared + at + count, 0, scratch, out[first]));
    }
  }
  return out;
}

}  // namespace kvspan

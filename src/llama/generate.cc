// SPDX-License-Identifier: Apache-2.0
#include "llama/generate.h"

#include <algorithm>

#include "base/expect.h"
#include "base/fail.h"

namespace kvspan {
namespace {

// Where the first complete stop string begins, or npos.
std::size_t find_stop(const std::string& text, const std::vector<std::string>& stops) {
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops) {
    if (!stop.empty()) first = std::min(first, text.find(stop));
  }
  return first;
}

// Bytes at the end of `text` that could still grow into a stop string.
std::size_t pending_stop(std::string_view text, const std::vector<std::string>& stops) {
  std::size_t longest = 0;
  for (const std::string& stop : stops) {
    for (std::size_t n = std::min(stop.size(), text.size()); n > longest; --n) {
      if (text.substr(text.size() - n) == std::string_view(stop).substr(0, n)) {
        longest = n;
        break;
      }
    }
  }
  return longest;
}

// Passes of an answer through the model, each with what a draft guesses to come next.
class Passes {
 public:
  Passes(Engine& engine, KvCache& cache, Draft* draft)
      : engine_(engine), cache_(cache), draft_(draft), prompt_(cache.tokens()) {}

  // Of the last pass: the row whose logits the next token is chosen by.
  std::int32_t row() const { return row_; }

  // Whether the last pass read this token already, as a right guess; row() is its row then.
  bool has_read(Token token) {
    const auto next = static_cast<std::size_t>(row_) + 1;
    if (next >= pass_.size() || pass_[next] != token) return false;
    ++row_;
    ++right_;
    return true;
  }

  // A pass for the last token of the answer and at most `most` guesses.
  Status read(const std::vector<Token>& answer, std::int32_t most) {
    KVSPAN_CHECK_OK(take_back_guesses(answer));
    pass_.assign(1, answer.back());
    row_ = 0;
    if (draft_ != nullptr) {
      KVSPAN_TRY(const auto guesses,
                 draft_->guess(answer, std::min(most, engine_.options().block - 1)));
      pass_.insert(pass_.end(), guesses.begin(), guesses.end());
    }
    const BatchPart part{&cache_, pass_, BatchPart::Logits::kAll};
    KVSPAN_CHECK_OK(engine_.decode({&part, 1}));
    guessed_ += pass_.size() - 1;
    return {};
  }

  // Leaves all tokens of the answer but the last in the cache.
  Status take_back_guesses(const std::vector<Token>& answer) {
    const auto chosen = static_cast<std::int32_t>(answer.size());
    const std::int32_t right = prompt_ + std::max(chosen - 1, 0);
    if (cache_.tokens() <= right) return {};
    const Status status = cache_.truncate(right);
    if (status) return {};
    return fail(ErrorCode::kUnsupported, "this cache cannot be used with a draft model: {}",
                status.error().message);
  }

  // The cache holds something else now: all tokens of the answer but the last, and what is before
  // them.
  void start_over(const std::vector<Token>& answer) {
    prompt_ = cache_.tokens() - static_cast<std::int32_t>(answer.size()) + 1;
    pass_.clear();
    row_ = 0;
    draft_ = nullptr;
  }

  std::int32_t prompt() const { return prompt_; }
  std::size_t guessed() const { return guessed_; }
  std::size_t right() const { return right_; }

 private:
  Engine& engine_;
  KvCache& cache_;
  Draft* draft_;
  std::int32_t prompt_;      // tokens that the cache held before the answer; below 0 where parts of
                             // the answer made room
  std::vector<Token> pass_;  // of the last decode: a token of the answer and guesses
  std::int32_t row_ = 0;
  std::size_t guessed_ = 0, right_ = 0;
};

}  // namespace

std::string_view name_of(StopReason reason) noexcept {
  switch (reason) {
    case StopReason::kEndToken:
      return "end";
    case StopReason::kStopString:
      return "stop string";
    case StopReason::kLength:
      return "length";
    case StopReason::kContext:
      return "context full";
    case StopReason::kCancelled:
      return "cancelled";
  }
  return "";
}

Result<Generation> generate(Engine& engine, const Tokenizer& tokenizer, KvCache& cache,
                            Sampler& sampler, const GenerateOptions& options,
                            const std::function<void(std::string_view)>& stream) {
  Generation out;
  std::size_t streamed = 0;
  const auto flush = [&](std::size_t end) {
    if (end > streamed && stream)
      stream(std::string_view(out.text).substr(streamed, end - streamed));
    streamed = std::max(streamed, end);
  };
  const std::int32_t context = options.context > 0
                                   ? std::min(options.context, engine.info().context)
                                   : engine.info().context;
  Passes passes(engine, cache, options.draft);
  for (;;) {
    if (static_cast<std::int32_t>(out.tokens.size()) >= options.max_tokens) break;
    KVSPAN_TRY(const Token token, sampler.sample(engine, passes.row()));
    out.tokens.push_back(token);
    if (tokenizer.is_end(token)) {
      out.reason = StopReason::kEndToken;
      break;
    }
    out.text += tokenizer.piece(token);
    if (const std::size_t at = find_stop(out.text, options.stop); at != std::string::npos) {
      out.text.resize(at);
      out.reason = StopReason::kStopString;
      break;
    }
    if (options.enough && options.enough(out.text)) {
      out.reason = StopReason::kStopString;
      break;
    }
    const std::size_t held =
        std::max(pending_stop(out.text, options.stop), incomplete_utf8_tail(out.text));
    flush(out.text.size() - held);
    const auto chosen = static_cast<std::int32_t>(out.tokens.size());
    if (chosen >= options.max_tokens) break;
    if (passes.has_read(token)) continue;
    std::int32_t room = context - passes.prompt() - chosen;
    if (room < 0) {
      if (!options.make_room) {
        out.reason = StopReason::kContext;
        break;
      }
      KVSPAN_CHECK_OK(passes.take_back_guesses(out.tokens));
      if (Status status = options.make_room(out.tokens); !status) {
        if (status.error().code != ErrorCode::kCancelled) return std::move(status).error();
        out.reason = StopReason::kCancelled;
        break;
      }
      passes.start_over(out.tokens);
      room = context - passes.prompt() - chosen;
      KVSPAN_EXPECT(room >= 0, "room was made");
    }
    // The last token of an answer need not be read.
    const std::int32_t most = std::min(room, options.max_tokens - chosen - 1);
    if (Status status = passes.read(out.tokens, most); !status) {
      if (status.error().code != ErrorCode::kCancelled) return std::move(status).error();
      out.reason = StopReason::kCancelled;
      break;
    }
  }
  KVSPAN_CHECK_OK(passes.take_back_guesses(out.tokens));
  out.guessed = passes.guessed();
  out.right = passes.right();
  flush(out.text.size());
  return out;
}

}  // namespace kvspan

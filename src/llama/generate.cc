// SPDX-License-Identifier: Apache-2.0
#include "llama/generate.h"

#include <algorithm>

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
  for (;;) {
    if (static_cast<std::int32_t>(out.tokens.size()) >= options.max_tokens) break;
    const Token token = sampler.sample(engine.logits(0));
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
    if (static_cast<std::int32_t>(out.tokens.size()) >= options.max_tokens) break;
    if (cache.tokens() + 1 > context) {
      out.reason = StopReason::kContext;
      break;
    }
    const BatchPart part{&cache, {&out.tokens.back(), 1}, BatchPart::Logits::kLast};
    if (Status status = engine.decode({&part, 1}); !status) {
      if (status.error().code != ErrorCode::kCancelled) return std::move(status).error();
      out.reason = StopReason::kCancelled;
      break;
    }
  }
  flush(out.text.size());
  return out;
}

}  // namespace kvspan

// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/answer.h"

#include "api/code_source.h"
#include "base/expect.h"
#include "base/fail.h"
#include "cli/chat/prompt.h"
#include "cli/output/format.h"
#include "cli/output/progress_bar.h"
#include "cli/output/voice.h"
#include "cli/terminal/terminal.h"
#include "io/stopwatch.h"

namespace kvspan::cli {
namespace {

Status read_prompt(Session& session, std::span<const Token> prompt, std::span<const Token> unread,
                   const std::function<void(std::size_t)>& progress) {
  KVSPAN_CHECK_OK(session.engine->prefill(*session.cache, unread, progress));
  return session.draft ? session.draft->start(prompt) : Status();
}

// Makes the cache hold `wanted` in place of `held`, reading what it has not.
Status read_instead(Session& session, std::vector<Token>& held, std::vector<Token> wanted) {
  KvCache& cache = *session.cache;
  std::size_t keep = std::min(common_prefix(held, wanted), wanted.size() - 1);
  // A method that cannot go back starts over.
  if (!cache.truncate(static_cast<std::int32_t>(keep))) {
    cache.clear();
    keep = 0;
  }
  const Status status =
      session.engine->prefill(cache, std::span<const Token>(wanted).subspan(keep), nullptr);
  held = std::move(wanted);
  held.resize(static_cast<std::size_t>(cache.tokens()));
  return status;
}

}  // namespace

void measure_cache(const Session& session, Answer& answer) {
  const KvCache& cache = *session.cache;
  const CacheBytes bytes = cache.bytes();
  answer.recipe = cache.recipe();
  answer.code = code_source(cache);
  answer.kv_bytes = bytes.total;
  answer.kv_bytes_shared = bytes.shared;
  answer.cache_tokens = cache.tokens();
  answer.kv_bytes_full = full_rank_f16_bytes(cache.shape(), cache.tokens());
}

Result<Answer> answer_prompt(Session& session, std::span<const Token> prompt, Sampler& sampler,
                             const GenerateOptions& options,
                             const std::function<void(std::string_view)>& stream,
                             const Shorten& shorten) {
  KvCache& cache = *session.cache;
  const auto held = static_cast<std::size_t>(cache.tokens());
  KVSPAN_EXPECT(held < prompt.size(), "part of the prompt is new");
  Answer answer;
  answer.prompt_tokens = prompt.size();
  const std::span<const Token> unread = prompt.subspan(held);
  sampler.start(prompt);

  const Stopwatch reading;
  {
    ProgressBar bar("reading", "tokens", unread.size());
    const Status status =
        read_prompt(session, prompt, unread, [&](std::size_t done) { bar.update(done); });
    if (!status && status.error().code != ErrorCode::kCancelled) return status.error();
    if (!status) answer.generation.reason = StopReason::kCancelled;
  }
  answer.read_seconds = reading.seconds();
  // A cache that Ctrl-C met in the middle of a step may be empty now.
  const auto holds = static_cast<std::size_t>(cache.tokens());
  answer.read_tokens = holds > held ? holds - held : 0;
  answer.held.assign(prompt.begin(), prompt.begin() + static_cast<long>(holds));

  if (answer.generation.reason != StopReason::kCancelled) {
    const Stopwatch decoding;
    std::size_t counted = 0;  // tokens of the answer that are in answer.held
    const auto held_before = [&](std::span<const Token> chosen) {
      answer.held.insert(answer.held.end(), chosen.begin() + static_cast<long>(counted),
                         chosen.end());
      answer.held.resize(static_cast<std::size_t>(cache.tokens()));
    };
    GenerateOptions with_draft = options;
    with_draft.draft = session.draft.get();
    if (shorten) {
      with_draft.make_room = [&](std::span<const Token> chosen) -> Status {
        held_before(chosen);
        KVSPAN_TRY(std::vector<Token> wanted, shorten(chosen));
        KVSPAN_EXPECT(!wanted.empty() && wanted.back() == chosen.back(), "it ends with the answer");
        wanted.pop_back();  // generate reads it
        ++answer.shifts;
        counted = chosen.size() - 1;
        return read_instead(session, answer.held, std::move(wanted));
      };
    }
    KVSPAN_TRY(answer.generation,
               generate(*session.engine, *session.tokenizer, cache, sampler, with_draft, stream));
    answer.decode_seconds = decoding.seconds();
    held_before(answer.generation.tokens);
    // All tokens but the last have been read.
    answer.decoded_tokens =
        answer.generation.tokens.empty() ? 0 : answer.generation.tokens.size() - 1;
  }
  measure_cache(session, answer);
  return answer;
}

Json to_json(const Answer& a) {
  Json json;
  json["recipe"] = a.recipe;
  if (!a.code.empty()) json["code"] = a.code;
  json["kv_bytes"] = a.kv_bytes;
  json["kv_bytes_full"] = a.kv_bytes_full;
  json["kv_ratio"] =
      ratio_or_null(static_cast<double>(a.kv_bytes_full), static_cast<double>(a.kv_bytes));
  json["kv_bytes_shared"] = a.kv_bytes_shared;
  json["cache_tokens"] = a.cache_tokens;
  json["prompt_tokens"] = a.prompt_tokens;
  json["read_tokens"] = a.read_tokens;
  json["tokens"] = a.generation.tokens.size();
  json["token_ids"] = a.generation.tokens;
  json["prefill_s"] = a.read_seconds;
  json["prefill_tok_s"] = ratio_or_null(static_cast<double>(a.read_tokens), a.read_seconds);
  json["decode_s"] = a.decode_seconds;
  json["decode_tok_s"] = ratio_or_null(static_cast<double>(a.decoded_tokens), a.decode_seconds);
  if (a.generation.guessed > 0) {
    json["draft_tokens"] = a.generation.guessed;
    json["draft_accepted"] = a.generation.right;
  }
  json["stop"] = std::string(name_of(a.generation.reason));
  json["text"] = a.generation.text;
  return json;
}

std::string kv_text(const Answer& a) {
  const std::string bytes = "KV " + format_bytes(a.kv_bytes);
  if (a.recipe == "full") return bytes;
  // The ends of a text stay as they are; what is between them has to grow first.
  if (a.kv_bytes >= a.kv_bytes_full) {
    return fmt::format("{} (nothing saved yet: {} tokens)", bytes, a.cache_tokens);
  }
  return fmt::format("{}, f16 / KV = {}", bytes, format_ratio(a.kv_bytes_full, a.kv_bytes));
}

std::string stats_line(const Answer& a) {
  const std::string reused =
      a.read_tokens == a.prompt_tokens ? "" : fmt::format(" ({} read)", a.read_tokens);
  const std::string draft =
      a.generation.guessed == 0
          ? ""
          : fmt::format(" ({} of {} guesses right)", a.generation.right, a.generation.guessed);
  return fmt::format("{}{} + {} tokens{} | prefill {} tok/s | decode {} tok/s | {} | {} | {}",
                     a.prompt_tokens, reused, a.generation.tokens.size(), draft,
                     format_rate(a.read_tokens, a.read_seconds),
                     format_rate(a.decoded_tokens, a.decode_seconds), kv_text(a), a.recipe,
                     name_of(a.generation.reason));
}

void print_stats(const Answer& answer) {
  std::fflush(stdout);
  say(styled(stats_line(answer), Style::kDim, describe_terminal(2)) + "\n");
}

}  // namespace kvspan::cli

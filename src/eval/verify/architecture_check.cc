// SPDX-License-Identifier: Apache-2.0
#include "eval/verify/architecture_check.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <span>
#include <vector>

#include "base/fail.h"
#include "llama/engine.h"
#include "llama/peer_llama.h"

namespace kvspan {
namespace {

std::vector<Token> random_tokens(std::int32_t count, std::int32_t vocabulary) {
  std::mt19937 random(1);
  std::vector<Token> tokens;
  for (std::int32_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<Token>(random() % static_cast<std::uint32_t>(vocabulary)));
  }
  return tokens;
}

using Decode = std::function<Status(std::span<const Token>)>;
using LogitsOf = std::function<std::span<const float>(std::int32_t)>;

// The compared logits, one row after the other.
Result<std::vector<float>> read_all(std::span<const Token> tokens,
                                    const ArchitectureCheckOptions& options, const Decode& decode,
                                    const LogitsOf& logits) {
  std::vector<float> kept;
  const std::size_t single_from = tokens.size() - static_cast<std::size_t>(options.decoded);
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t left = single_from > done ? single_from - done : 1;
    const std::size_t count = std::min(left, static_cast<std::size_t>(options.block));
    KVSPAN_CHECK_OK(decode(tokens.subspan(done, count)));
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t position = done + i;
      if (position < single_from && position % static_cast<std::size_t>(options.compared) != 0)
        continue;
      const auto row = logits(static_cast<std::int32_t>(i));
      kept.insert(kept.end(), row.begin(), row.end());
    }
    done += count;
  }
  return kept;
}

Result<std::vector<float>> peer_logits(const std::string& path, std::span<const Token> tokens,
                                       const ArchitectureCheckOptions& options, const char* kv_type,
                                       bool flash) {
  PeerOptions peer;
  peer.threads = options.threads;
  peer.context = (options.tokens + 255) / 256 * 256;
  peer.block = options.block;
  peer.kv_type = kv_type;
  peer.flash_attention = flash;
  KVSPAN_TRY(const auto llama, PeerLlama::load(path, peer));
  return read_all(
      tokens, options,
      [&](std::span<const Token> some) { return llama->decode(some, BatchPart::Logits::kAll); },
      [&](std::int32_t row) { return llama->logits(row); });
}

double largest_difference(std::span<const float> a, std::span<const float> reference) {
  double most = 0.0, top = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double{a[i]} - reference[i]);
    most = std::isnan(difference) ? INFINITY : std::max(most, difference);
    top = std::max(top, std::abs(double{reference[i]}));
  }
  return most / top;
}

Status compare(const std::string& path, const ArchitectureCheckOptions& options,
               ArchitectureCheck& row) {
  EngineOptions engine_options;
  engine_options.threads = options.threads;
  engine_options.block = options.block;
  engine_options.context = options.tokens;
  KVSPAN_TRY(const auto engine, Engine::load(path, engine_options));
  row.architecture = engine->info().architecture;
  const auto tokens = random_tokens(std::min(options.tokens, engine->info().context),
                                    engine->info().vocabulary);
  KVSPAN_TRY(auto cache, make_cache(engine->cache_shape(), options.recipe));
  const auto decode = [&](std::span<const Token> some) {
    const BatchPart part{cache.get(), some, BatchPart::Logits::kAll};
    return engine->decode({&part, 1});
  };
  KVSPAN_TRY(const auto ours,
             read_all(tokens, options, decode, [&](std::int32_t i) { return engine->logits(i); }));
  KVSPAN_TRY(const auto exact, peer_logits(path, tokens, options, "f32", false));
  KVSPAN_TRY(const auto stock, peer_logits(path, tokens, options, "f16", true));
  row.max_diff = largest_difference(ours, exact);
  row.max_diff_stock = largest_difference(stock, exact);
  row.runs = true;
  return {};
}

}  // namespace

Result<ArchitectureCheck> check_architecture(const std::string& model_path,
                                             const ArchitectureCheckOptions& options) {
  KVSPAN_TRY(const bool calibrated, needs_calibration(options.recipe));
  if (calibrated) {
    return Error{
        ErrorCode::kInvalidArgument,
        "recipe '" + options.recipe + "' needs a calibration, which random models have not"};
  }
  ArchitectureCheck row;
  if (Status status = compare(model_path, options, row); !status) {
    row.reason = status.error().message;
  }
  return row;
}

}  // namespace kvspan

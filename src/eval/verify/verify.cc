// SPDX-License-Identifier: Apache-2.0
#include "eval/verify/verify.h"

#include <algorithm>

#include "base/fail.h"
#include "eval/engine_caches.h"
#include "eval/perplexity/divergence.h"

namespace kvspan {
namespace {

class EngineLogits final : public LogitSource {
 public:
  EngineLogits(Engine& engine, std::unique_ptr<KvCache> cache)
      : engine_(engine), cache_(std::move(cache)) {}
  std::string name() const override { return "kvspan " + cache_->recipe(); }
  Status read(std::span<const Token> tokens) override {
    const BatchPart part{cache_.get(), tokens, BatchPart::Logits::kAll};
    return engine_.decode({&part, 1});
  }
  std::span<const float> logits(std::int32_t i) const override { return engine_.logits(i); }

 private:
  Engine& engine_;
  std::unique_ptr<KvCache> cache_;
};

class PeerLogits final : public LogitSource {
 public:
  PeerLogits(std::unique_ptr<PeerLlama> peer, const PeerOptions& options)
      : peer_(std::move(peer)),
        name_("llama.cpp " + options.kv_type +
              (options.flash_attention ? ", flash attention" : "")) {}
  std::string name() const override { return name_; }
  Status read(std::span<const Token> tokens) override {
    return peer_->decode(tokens, BatchPart::Logits::kAll);
  }
  std::span<const float> logits(std::int32_t i) const override { return peer_->logits(i); }

 private:
  std::unique_ptr<PeerLlama> peer_;
  std::string name_;
};

// Position p is compared when p * compared / tokens passes a whole number: evenly spread.
bool is_compared(std::size_t position, std::size_t compared, std::size_t tokens) {
  return position * compared / tokens != (position + 1) * compared / tokens;
}

}  // namespace

Result<std::unique_ptr<LogitSource>> engine_logits(Engine& engine, const std::string& recipe) {
  KVSPAN_TRY(const CacheFactory caches, engine_caches(engine, recipe));
  return std::unique_ptr<LogitSource>(std::make_unique<EngineLogits>(engine, caches.make()));
}

std::unique_ptr<LogitSource> peer_logits(std::unique_ptr<PeerLlama> peer,
                                         const PeerOptions& options) {
  return std::make_unique<PeerLogits>(std::move(peer), options);
}

Result<std::vector<Verification>> verify_logits(
    LogitSource& reference, std::span<const std::unique_ptr<LogitSource>> subjects,
    std::span<const Token> tokens, const VerifyOptions& options,
    const std::function<void(std::size_t)>& progress) {
  const std::size_t single_from = tokens.size() - std::min(options.decoded, tokens.size());
  std::vector<Verification> rows(subjects.size());
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t count =
        done < single_from
            ? std::min<std::size_t>(static_cast<std::size_t>(options.block), single_from - done)
            : 1;
    const auto part = tokens.subspan(done, count);
    KVSPAN_CHECK_OK(reference.read(part));
    for (std::size_t s = 0; s < subjects.size(); ++s) {
      KVSPAN_CHECK_OK(subjects[s]->read(part));
      for (std::size_t i = 0; i < count; ++i) {
        const bool single = done + i >= single_from;
        if (!single && !is_compared(done + i, options.compared, tokens.size())) continue;
        const auto expected = reference.logits(static_cast<std::int32_t>(i));
        const auto got = subjects[s]->logits(static_cast<std::int32_t>(i));
        const double kl = kl_divergence(expected, got);
        Verification& row = rows[s];
        row.kl_mean += kl;
        row.kl_max = std::max(row.kl_max, kl);
        if (single) row.kl_decoded += kl;
        row.top1 += argmax(expected) == argmax(got);
        ++row.compared;
      }
    }
    done += count;
    if (progress) progress(done);
  }
  for (std::size_t s = 0; s < subjects.size(); ++s) {
    const auto compared = static_cast<double>(std::max<std::size_t>(rows[s].compared, 1));
    rows[s].name = subjects[s]->name();
    rows[s].kl_mean /= compared;
    rows[s].top1 /= compared;
    rows[s].kl_decoded /=
        static_cast<double>(std::max<std::size_t>(tokens.size() - single_from, 1));
  }
  return rows;
}

}  // namespace kvspan

// SPDX-License-Identifier: Apache-2.0
#include "eval/perplexity/perplexity.h"

#include <algorithm>
#include <cmath>

#include "api/code_source.h"
#include "base/expect.h"
#include "base/fail.h"
#include "base/thread_pool.h"
#include "eval/bench/bench.h"
#include "eval/perplexity/divergence.h"

namespace kvspan {
namespace {

// One prediction of one cache.
struct Prediction {
  double nll = 0.0;
  double reference_nll = 0.0;
  double kl = 0.0;
  bool same_best = false;
  bool compressed = false;  // the past was held in fewer bytes than f16 takes
  std::int32_t position = 0;
  std::int32_t window = 0;
};

// A cache, or another engine, and what it has predicted.
struct PplSubject {
  std::unique_ptr<KvCache> cache;  // or
  std::unique_ptr<PeerLlama> peer;
  PerplexityRow row;
  std::vector<Prediction> predictions;
  bool compressed = false;  // what it holds before the block that is read
  bool running() const { return !row.failed; }
};

PerplexityFigures figures_of(std::span<const Prediction> predictions,
                             const std::function<bool(const Prediction&)>& counted) {
  PerplexityFigures out;
  std::vector<double> divergences;
  double nll = 0.0, reference = 0.0;
  for (const Prediction& p : predictions) {
    if (!counted(p)) continue;
    nll += p.nll;
    reference += p.reference_nll;
    out.kl += p.kl;
    out.top1 += p.same_best;
    divergences.push_back(p.kl);
  }
  out.positions = divergences.size();
  if (out.positions == 0) return out;
  const auto count = static_cast<double>(out.positions);
  out.ppl = std::exp(nll / count);
  out.dppl_pct = 100.0 * std::expm1((nll - reference) / count);
  out.kl /= count;
  out.top1 /= count;
  out.kl_p99 = quantile(std::move(divergences), 0.99);
  return out;
}

// Predictions come in order, so those of a block are neighbours.
std::vector<PositionBlock> blocks_of(std::span<const Prediction> predictions) {
  std::vector<PositionBlock> out;
  for (const Prediction& p : predictions) {
    const std::int32_t first = p.position / PositionBlock::kPositions * PositionBlock::kPositions;
    if (out.empty() || out.back().window != p.window || out.back().position != first) {
      out.push_back({p.window, first, 0, 0.0, 0.0});
    }
    PositionBlock& block = out.back();
    ++block.count;
    block.nll_diff += p.nll - p.reference_nll;
    block.kl += p.kl;
  }
  for (PositionBlock& block : out) {
    block.nll_diff /= block.count;
    block.kl /= block.count;
  }
  return out;
}

class Measurement {
 public:
  Measurement(Engine& engine, const PerplexityOptions& options)
      : engine_(engine),
        options_(options),
        threads_(engine.options().threads),
        vocabulary_(static_cast<std::size_t>(engine.info().vocabulary)) {}

  std::vector<PplSubject> subjects;  // the reference first

  Status read_window(std::span<const Token> window, const std::function<void(std::size_t)>& read);

 private:
  Status read_block(std::span<const Token> window, std::size_t begin, std::size_t end,
                    bool predicting, const std::function<void(std::size_t)>& read);
  void note_bytes(PplSubject& subject) const;
  bool is_compressed(const PplSubject& subject) const;
  void compare(PplSubject& subject, std::span<const Token> window, std::size_t begin,
               std::size_t count);

  Engine& engine_;
  PerplexityOptions options_;
  ThreadPool threads_;
  std::size_t vocabulary_;
  std::int32_t windows_ = 0;      // read or being read
  std::vector<float> reference_;  // [rows of a block, vocabulary]
  std::vector<LogSoftmax> reference_softmax_;
};

void Measurement::note_bytes(PplSubject& subject) const {
  PerplexityRow& row = subject.row;
  row.tokens = subject.peer ? subject.peer->tokens() : subject.cache->tokens();
  row.kv_bytes_full = full_rank_f16_bytes(engine_.cache_shape(), row.tokens);
  if (subject.peer) {
    row.kv_bytes = subject.peer->kv_bytes();
    return;
  }
  const CacheBytes bytes = subject.cache->bytes();
  row.kv_bytes = bytes.total;
  row.shared_bytes = bytes.shared;
  row.code = code_source(*subject.cache);
}

bool Measurement::is_compressed(const PplSubject& subject) const {
  if (subject.peer) return subject.peer->compressed();
  return subject.cache->bytes().total <
         full_rank_f16_bytes(engine_.cache_shape(), subject.cache->tokens());
}

// The engine's logits of positions begin.. against the reference's. The reference itself comes
// first, and is kept.
void Measurement::compare(PplSubject& subject, std::span<const Token> window, std::size_t begin,
                          std::size_t count) {
  const bool is_reference = &subject == &subjects.front();
  if (is_reference) {
    reference_.resize(count * vocabulary_);
    reference_softmax_.resize(count);
  }
  std::vector<Prediction> found(count);
  threads_.run([&](Team& team) {
    std::vector<float> scratch;
    for (std::size_t i; (i = static_cast<std::size_t>(team.take())) < count;) {
      const auto row = static_cast<std::int32_t>(i);
      const auto logits = subject.peer ? subject.peer->logits(row) : engine_.logits(row);
      const auto expected = std::span(reference_).subspan(i * vocabulary_, vocabulary_);
      const LogSoftmax softmax = log_softmax(logits, scratch);
      if (is_reference) {
        std::copy(logits.begin(), logits.end(), expected.begin());
        reference_softmax_[i] = softmax;
      }
      const LogSoftmax& reference = reference_softmax_[i];
      const auto target = static_cast<std::size_t>(window[begin + i + 1]);
      Prediction& p = found[i];
      p.position = static_cast<std::int32_t>(begin + i);
      p.window = windows_ - 1;
      p.nll = softmax.log_sum - logits[target];
      p.reference_nll = reference.log_sum - expected[target];
      p.same_best = softmax.best == reference.best;
      p.compressed = subject.compressed;
      if (!is_reference) p.kl = kl_divergence(expected, reference, logits, softmax, scratch);
    }
  });
  for (const Prediction& p : found) {
    if (!std::isfinite(p.nll) || !std::isfinite(p.kl)) {
      subject.row.failed = fmt::format("its logits at position {} are not finite", p.position);
      return;
    }
    subject.predictions.push_back(p);
  }
}

// Positions [begin, end) for every cache that still runs; those predict the token after them.
Status Measurement::read_block(std::span<const Token> window, std::size_t begin, std::size_t end,
                               bool predicting, const std::function<void(std::size_t)>& read) {
  for (PplSubject& subject : subjects) {
    if (subject.running()) {
      const BatchPart part{subject.cache.get(), window.subspan(begin, end - begin),
                           predicting ? BatchPart::Logits::kAll : BatchPart::Logits::kLast};
      subject.compressed = is_compressed(subject);
      Status status = subject.peer ? subject.peer->decode(part.tokens, part.logits)
                                   : engine_.decode({&part, 1});
      if (!status) {
        if (&subject == &subjects.front() || status.error().code == ErrorCode::kCancelled) {
          return status;
        }
        subject.row.failed = status.error().message;
      } else if (predicting) {
        // The window's last token predicts what is not in it.
        compare(subject, window, begin, std::min(end, window.size() - 1) - begin);
      }
      if (subject.cache && subject.running()) {
        subject.row.bytes_at.push_back({subject.cache->tokens(), subject.cache->bytes().total});
      }
      if (&subject == &subjects.front() && subject.row.failed) {
        return fail(ErrorCode::kInvalidArgument, "the reference {} fails: {}", subject.row.recipe,
                    *subject.row.failed);
      }
    }
    read(end - begin);
  }
  return {};
}

Status Measurement::read_window(std::span<const Token> window,
                                const std::function<void(std::size_t)>& read) {
  ++windows_;
  for (PplSubject& subject : subjects) {
    if (!subject.running()) continue;
    subject.row.bytes_at.clear();
    if (subject.cache) subject.cache->clear();
    if (subject.peer) KVSPAN_CHECK_OK(subject.peer->truncate(0));
  }
  const auto block = static_cast<std::size_t>(options_.block);
  const std::size_t half = window.size() / 2;
  for (std::size_t begin = 0; begin < window.size();) {
    const std::size_t limit = begin < half ? half : window.size();
    const std::size_t end = std::min(begin + block, limit);
    const bool predicting = begin >= half || options_.buckets > 0;
    KVSPAN_CHECK_OK(read_block(window, begin, end, predicting, read));
    begin = end;
  }
  for (PplSubject& subject : subjects) {
    if (subject.running()) note_bytes(subject);
  }
  return {};
}

void finish(PplSubject& subject, std::size_t length, int buckets) {
  const auto half = static_cast<std::int32_t>(length / 2);
  PerplexityRow& row = subject.row;
  row.blocks = blocks_of(subject.predictions);
  row.compressed_positions = static_cast<std::size_t>(
      std::count_if(subject.predictions.begin(), subject.predictions.end(),
                    [&](const Prediction& p) { return p.position >= half && p.compressed; }));
  row.figures =
      figures_of(subject.predictions, [&](const Prediction& p) { return p.position >= half; });
  for (int b = 0; b < buckets; ++b) {
    const auto begin = static_cast<std::int64_t>(length) * b / buckets;
    const auto end = static_cast<std::int64_t>(length) * (b + 1) / buckets;
    row.by_position.push_back(figures_of(subject.predictions, [&](const Prediction& p) {
      return p.position >= begin && p.position < end;
    }));
  }
}

}  // namespace

Result<PerplexityReport> measure_perplexity(
    Engine& engine, std::span<const std::vector<Token>> windows,
    std::span<const std::string> recipes, const CacheSource& source,
    const PerplexityOptions& options,
    const std::function<void(std::size_t done, std::size_t total)>& progress) {
  KVSPAN_EXPECT(!windows.empty() && windows.front().size() >= 4, "a window of at least 4 tokens");
  KVSPAN_EXPECT(options.block >= 1 && options.block <= engine.options().block,
                "a block that the engine takes");
  Measurement measurement(engine, options);
  std::vector<std::string> all{options.reference};
  all.insert(all.end(), recipes.begin(), recipes.end());
  for (const std::string& recipe : all) {
    // A recipe that cannot be made ends it: nothing has been spent yet, and it is best mended now.
    PplSubject subject;
    KVSPAN_TRY(subject.cache, source(recipe));
    subject.row.recipe = subject.cache->recipe();
    measurement.subjects.push_back(std::move(subject));
  }
  for (const std::string& type : options.peer_kv) {
    PplSubject subject;
    PeerOptions peer;
    peer.threads = engine.options().threads;
    peer.gpu_layers = engine.options().gpu_layers;
    peer.context = static_cast<std::int32_t>((windows.front().size() + 255) / 256 * 256);
    peer.block = options.block;
    peer.kv_type = type;
    KVSPAN_TRY(subject.peer, PeerLlama::load(engine.info().path, peer));
    subject.row.recipe = "llama.cpp " + type;
    measurement.subjects.push_back(std::move(subject));
  }

  PerplexityReport report;
  std::size_t total = 0, done = 0;
  for (const auto& window : windows) total += window.size() * measurement.subjects.size();
  for (const auto& window : windows) {
    KVSPAN_EXPECT(window.size() == windows.front().size(), "windows of equal length");
    Status status = measurement.read_window(window, [&](std::size_t tokens) {
      done += tokens;
      if (progress) progress(done, total);
    });
    if (!status && status.error().code == ErrorCode::kCancelled) {
      report.cancelled = true;
      break;
    }
    if (!status) return std::move(status).error();
    ++report.windows;
  }
  for (PplSubject& subject : measurement.subjects) {
    finish(subject, windows.front().size(), options.buckets);
    report.rows.push_back(std::move(subject.row));
  }
  return report;
}

}  // namespace kvspan

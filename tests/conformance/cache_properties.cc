// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/cache_properties.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "method/check_call.h"
#include "tests/attention/oracle.h"
#include "tests/method/held_positions.h"

namespace kvspan::conformance {
namespace {

using Cache = std::unique_ptr<KvCache>;
using Bytes = std::vector<std::byte>;

constexpr std::int32_t kTokens = 124;  // of the texts that queries are asked about

bool failed() {
  return ::testing::Test::HasFailure();
}

Bytes saved(const CacheSource& source, const KvCache& cache) {
  auto bytes = source.caches().save(cache);
  EXPECT_TRUE(bytes) << bytes.error().message;
  return bytes ? std::move(*bytes) : Bytes();
}
Cache fork(const CacheSource& source, const KvCache& cache) {
  auto copy = source.caches().fork(cache);
  EXPECT_TRUE(copy) << copy.error().message;
  return copy ? std::move(*copy) : nullptr;
}

int layers_of(const CacheSource& source) {
  return int(source.text().shape().layers.size());
}

// Steps of all layers; tokens are numbered as in the text.
void feed(const CacheSource& source, KvCache& cache, std::int32_t first, std::int32_t n,
          std::int32_t block) {
  for (std::int32_t at = first; at < first + n; at += block) {
    for (int layer = 0; layer < layers_of(source); ++layer) {
      LayerStep step(source, layer, at, std::min(block, first + n - at));
      for (const Status& status : {step.append(cache), step.attend(cache), step.settle(cache)}) {
        ASSERT_TRUE(status) << "token " << at << ": " << status.error().message;
      }
    }
  }
}

// --- What a query sees ---

// Queries of one call on a layer, and what they are answered.
struct Asked {
  std::vector<std::int32_t> positions;
  std::vector<float> rows;  // [n, query_heads, key_dim]
  std::vector<float> out;   // [n, query_heads, value_dim]
};

Status ask(const CacheSource& source, KvCache& cache, int layer, Asked& asked) {
  const LayerShape& shape = source.text().shape().layers[std::size_t(layer)];
  const std::size_t n = asked.positions.size(), heads = std::size_t(shape.query_heads);
  asked.out.assign(n * heads * std::size_t(shape.value_dim), -77.0f);
  const Queries queries{{asked.rows.data(), {n, heads, std::size_t(shape.key_dim)}},
                        asked.positions};
  const TensorView<float, 3> out(asked.out.data(), {n, heads, std::size_t(shape.value_dim)});
  const auto scratch = make_attention_scratch();
  return by_all(source.pool(), [&](Team& team) {
    return cache.attend(layer, queries, out, *scratch, team);
  });
}

// The rows of a layer that the last call read, by groups of heads.
struct HeldRows {
  std::vector<std::int32_t> first_heads;
  std::vector<RowBlock> groups;
};

HeldRows held_rows(const CacheSource& source, const KvCache& cache, int layer, bool last_read) {
  std::unique_ptr<MethodCache> loaded;
  const MethodCache* inside = source.caches().inside(cache);
  HeldRows held;
  if (inside == nullptr) {
    auto copy = source.caches().host().load(saved(source, cache));
    EXPECT_TRUE(copy) << copy.error().message;
    if (!copy) return held;
    loaded.reset(dynamic_cast<MethodCache*>(copy->release()));
    inside = loaded.get();
  }
  for (std::size_t g = 0; g < inside->groups(layer); ++g) {
    const Group& group = inside->group(layer, g);
    held.first_heads.push_back(group.options().first_head);
    held.groups.push_back(testing::held_rows(
        group, last_read ? inside->last_read(layer, g) : testing::stores_of(group)));
  }
  return held;
}

// Attention of query i, head h, to what it sees of the rows, in double. Empty where it sees none.
// `off`: how far scores may be off, which the answer is then by twice that of the largest value.
struct Answer {
  std::vector<double> out;
  double largest = 0.0, off = 0.0;
};

Answer answer_of(const LayerShape& shape, const HeldRows& held, const Asked& asked, std::size_t i,
                 std::int32_t head, double roundoff) {
  const std::int32_t kv_head = head / (shape.query_heads / shape.kv_heads);
  std::size_t g = held.groups.size() - 1;
  while (held.first_heads[g] > kv_head) --g;
  const RowBlock& rows = held.groups[g];
  const auto within = std::size_t(kv_head - held.first_heads[g]);
  const auto dk = std::size_t(shape.key_dim), dv = std::size_t(shape.value_dim);
  const float* q = asked.rows.data() + (i * std::size_t(shape.query_heads) + std::size_t(head)) * dk;
  const std::int32_t position = asked.positions[i];
  std::vector<double> scores;
  std::vector<const float*> values;
  Answer answer;
  double most = -std::numeric_limits<double>::infinity();
  for (std::size_t t = 0; t < rows.positions.size(); ++t) {
    if (!testing::sees(shape, position, rows.positions[t])) continue;
    const float* k = rows.keys.data() + (t * std::size_t(rows.heads) + within) * dk;
    double score = 0.0, kk = 0.0, qq = 0.0;
    for (std::size_t c = 0; c < dk; ++c) {
      score += double{q[c]} * k[c];
      kk += double{k[c]} * k[c];
      qq += double{q[c]} * q[c];
    }
    scores.push_back(score * shape.logit_scale);
    values.push_back(rows.values.data() + (t * std::size_t(rows.heads) + within) * dv);
    most = std::max(most, scores.back());
    answer.off = std::max(answer.off, roundoff * std::abs(shape.logit_scale) * std::sqrt(kk * qq));
  }
  if (scores.empty()) return answer;
  double sum = 0.0;
  for (double& score : scores) sum += score = std::exp(score - most);
  answer.out.assign(dv, 0.0);
  for (std::size_t t = 0; t < values.size(); ++t) {
    for (std::size_t c = 0; c < dv; ++c) {
      answer.out[c] += scores[t] / sum * values[t][c];
      answer.largest = std::max(answer.largest, std::abs(double{values[t][c]}));
    }
  }
  return answer;
}

// Queries of encoded rows are rounded to 8 bits, in steps of their largest number / 127, in the worst
// case all the same way: sqrt(d) / 254 of |q||k|. Weights are rounded in the same way.
double roundoff_of(const LayerShape& shape, bool coded) {
  const double halves = 0x1p-20;  // f32 sums of a row's numbers
  return coded ? std::sqrt(4.0 * shape.key_dim) / 254.0 : halves;
}

void expect_answers(const CacheSource& source, int layer, const HeldRows& held, const Asked& asked,
                    bool coded) {
  const LayerShape& shape = source.text().shape().layers[std::size_t(layer)];
  for (std::size_t i = 0; i < asked.positions.size(); ++i) {
    for (std::int32_t head = 0; head < shape.query_heads; ++head) {
      const Answer right = answer_of(shape, held, asked, i, head, roundoff_of(shape, coded));
      const float* got = asked.out.data() + (i * std::size_t(shape.query_heads) + std::size_t(head)) *
                                                std::size_t(shape.value_dim);
      const double within =
          right.largest * (2.0 * std::tanh(right.off) + (coded ? 3.0 / 127.0 : 0x1p-18));
      for (std::int32_t c = 0; c < shape.value_dim; ++c) {
        const double expected = right.out.empty() ? 0.0 : right.out[std::size_t(c)];
        ASSERT_NEAR(got[c], expected, within)
            << "layer " << layer << ", query at " << asked.positions[i] << " (" << i << " of "
            << asked.positions.size() << "), head " << head << ", number " << c;
      }
    }
  }
}

// Queries that weigh one token above all others: whether it is seen shows.
void aim(const LayerShape& shape, const HeldRows& held, std::int32_t position, Asked& asked) {
  const auto dk = std::size_t(shape.key_dim);
  for (std::int32_t head = 0; head < shape.query_heads; ++head) {
    const std::int32_t kv_head = head / (shape.query_heads / shape.kv_heads);
    std::size_t g = held.groups.size() - 1;
    while (held.first_heads[g] > kv_head) --g;
    const RowBlock& rows = held.groups[g];
    const auto found = std::lower_bound(rows.positions.begin(), rows.positions.end(), position);
    const auto t = std::size_t(std::min<std::ptrdiff_t>(found - rows.positions.begin(),
                                                        std::ptrdiff_t(rows.positions.size()) - 1));
    const float* k = rows.keys.data() +
                     (t * std::size_t(rows.heads) + std::size_t(kv_head - held.first_heads[g])) * dk;
    double square = 1e-6;
    for (std::size_t c = 0; c < dk; ++c) square += double{k[c]} * k[c];
    for (std::size_t c = 0; c < dk; ++c) {
      asked.rows.push_back(float(5.0 * k[c] / (square * shape.logit_scale)));
    }
  }
}

// Positions whose queries are asked: at both ends, where tiles and windows end, and beyond.
std::vector<std::int32_t> asked_positions(std::span<const std::int32_t> held, const Traits& traits) {
  const std::int32_t last = held.back();
  if (!traits.any_query) return {last};
  std::vector<std::int32_t> all{last + 1, last + 17, last + 60};
  for (const std::size_t i : {0u, 1u, 15u, 16u, 17u, 31u, 47u, 48u, 63u, 80u, 97u}) {
    if (i < held.size()) all.push_back(held[i]);
  }
  for (const std::size_t i : {1u, 2u, 8u, 33u}) {
    if (i <= held.size()) all.push_back(held[held.size() - i]);
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

// Asks one layer at each position, alone and together, aiming at tokens on both sides of what is seen.
void expect_sees(const CacheSource& source, const KvCache& cache, int layer, std::int32_t tokens) {
  const LayerShape& shape = source.text().shape().layers[std::size_t(layer)];
  const Traits& traits = source.traits();
  const HeldRows held = held_rows(source, cache, layer, false);
  if (failed() || held.groups.front().positions.empty()) return;
  const bool coded = cache.bytes().coefficients > 0 || !traits.exact;
  const auto positions = asked_positions(source.positions().first(std::size_t(tokens)), traits);
  const auto check = [&](Asked& asked) {
    // Queries are watched where a method learns from attention; the next ones ask another copy.
    const Cache copy = fork(source, cache);
    const Status status = ask(source, *copy, layer, asked);
    ASSERT_TRUE(status) << status.error().message;
    const bool partly = traits.reads_some;
    if (partly && source.caches().inside(*copy) == nullptr) return;
    const HeldRows read = partly ? held_rows(source, *copy, layer, true) : HeldRows();
    expect_answers(source, layer, partly ? read : held, asked, coded);
  };
  Asked together;
  for (const std::int32_t at : positions) {
    std::int32_t first = 0;
    if (shape.window > 0) first = std::max(first, at - shape.window + 1);
    if (shape.chunk > 0) first = std::max(first, at - at % shape.chunk);
    const std::int32_t aims[] = {at, at + 1, first, first - 1};
    for (const std::int32_t target : aims) {
      Asked alone{{at}, {}, {}};
      aim(shape, held, target, alone);
      check(alone);
      if (failed()) return;
    }
    together.positions.push_back(at);
    aim(shape, held, aims[together.positions.size() % 4], together);
  }
  if (traits.any_query) check(together);
}

}  // namespace

void sees_what_it_should(const CacheSource& source) {
  for (const std::int32_t block : {kTokens, 7, 1}) {
    SCOPED_TRACE("calls of " + std::to_string(block));
    const Cache cache = source.new_cache();
    feed(source, *cache, 0, kTokens - 20, block);
    if (failed()) return;
    for (int layer = 0; layer < layers_of(source); ++layer) {
      expect_sees(source, *cache, layer, kTokens - 20);
      // Rows that have not been settled yet.
      LayerStep more(source, layer, kTokens - 20, 20);
      const Status appended = more.append(*cache);
      ASSERT_TRUE(appended) << appended.error().message;
      expect_sees(source, *cache, layer, kTokens);
      if (failed()) return;
    }
  }
}

// --- Wrong calls ---

namespace {

// A call that has to be rejected and to change nothing.
class Refusals {
 public:
  Refusals(const CacheSource& source, KvCache& cache)
      : source_(source), cache_(cache), before_(saved(source, cache)) {}
  void expect(const std::string& what, const std::function<Status(Team&)>& call) {
    SCOPED_TRACE(what);
    const CacheBytes held = cache_.bytes();
    const std::int32_t tokens = cache_.tokens(), least = cache_.least_tokens();
    const Status outcome = by_all(source_.pool(), call);
    ASSERT_FALSE(outcome) << "accepted";
    EXPECT_EQ(outcome.error().code, ErrorCode::kInvalidArgument) << outcome.error().message;
    EXPECT_FALSE(outcome.error().message.empty());
    EXPECT_EQ(cache_.tokens(), tokens);
    EXPECT_EQ(cache_.least_tokens(), least);
    EXPECT_EQ(cache_.bytes().total, held.total);
    EXPECT_TRUE(saved(source_, cache_) == before_) << "a refused call changed what is held";
  }

 private:
  const CacheSource& source_;
  KvCache& cache_;
  Bytes before_;
};

// Rows of a layer that a test may damage.
struct OwnRows {
  std::vector<float> keys, values;
  std::vector<std::int32_t> positions;
  std::size_t n, heads, dk, dv;

  OwnRows(const CacheSource& source, int layer, std::int32_t first, std::int32_t count) {
    const KvRows rows = source.text().rows(std::size_t(layer), first, count);
    n = rows.keys.shape[0], heads = rows.keys.shape[1];
    dk = rows.keys.shape[2], dv = rows.values.shape[2];
    keys.assign(rows.keys.data, rows.keys.data + n * heads * dk);
    values.assign(rows.values.data, rows.values.data + n * heads * dv);
    positions.assign(rows.positions.begin(), rows.positions.end());
  }
  KvRows rows() const {
    return {{keys.data(), {n, heads, dk}}, {values.data(), {n, heads, dv}}, positions};
  }
};

void refuse_rows(const CacheSource& source, KvCache& cache, Refusals& refusals, std::int32_t n) {
  const int layer = layers_of(source) - 1;
  const OwnRows good(source, layer, 60, n);
  const auto refuse = [&](const std::string& what, const auto& damage) {
    if (failed()) return;
    OwnRows bad = good;
    damage(bad);
    refusals.expect(fmt::format("{}, {} rows", what, n),
                    [&](Team& team) { return cache.append(layer, bad.rows(), team); });
  };
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  refuse("NaN in the last key", [](OwnRows& r) { r.keys.back() = kNaN; });
  refuse("NaN in the first value", [](OwnRows& r) { r.values.front() = kNaN; });
  refuse("an infinite value",
         [](OwnRows& r) { r.values.back() = -std::numeric_limits<float>::infinity(); });
  if (const float limit = source.traits().row_limit; std::isfinite(limit)) {
    refuse("a key beyond f16", [&](OwnRows& r) { r.keys[r.keys.size() / 2] = limit; });
    refuse("a value beyond f16", [&](OwnRows& r) { r.values.front() = -2 * limit; });
  }
  refuse("a position that is held",
         [&](OwnRows& r) { r.positions.front() = source.positions()[59]; });
  refuse("a negative position", [](OwnRows& r) { r.positions.front() = -1; });
  refuse("a position beyond all", [](OwnRows& r) { r.positions.back() = kPositionLimit; });
  if (n > 1) {
    refuse("a position twice", [](OwnRows& r) { r.positions[1] = r.positions[0]; });
    refuse("falling positions",
           [](OwnRows& r) { std::swap(r.positions.front(), r.positions.back()); });
  }
  if (!source.traits().takes_views) return;
  const auto refuse_view = [&](const std::string& what, const auto& damage) {
    if (failed()) return;
    KvRows bad = good.rows();
    damage(bad);
    refusals.expect(fmt::format("{}, {} rows", what, n),
                    [&](Team& team) { return cache.append(layer, bad, team); });
  };
  refuse_view("a head too many", [](KvRows& r) { r.keys.shape[1] += 1; });
  refuse_view("a number too few", [](KvRows& r) { r.values.shape[2] -= 1; });
  refuse_view("more rows than positions", [](KvRows& r) { r.keys.shape[0] += 1; });
  refuse_view("no memory", [](KvRows& r) { r.values.data = nullptr; });
  refuse_view("numbers apart", [](KvRows& r) { r.keys.strides[2] = 2; });
}

}  // namespace

void rejects_wrong_calls(const CacheSource& source) {
  const Cache cache = source.new_cache();
  const auto scratch = make_attention_scratch();
  const int last = layers_of(source) - 1;
  {
    // Nothing is held yet.
    Refusals refusals(source, *cache);
    LayerStep step(source, 0, 0, 1);
    refusals.expect("attention to nothing", [&](Team& team) {
      const LayerShape& shape = source.text().shape().layers[0];
      return cache->attend(0, source.text().queries(0, 0, 1),
                           {step.out.data(),
                            {1, std::size_t(shape.query_heads), std::size_t(shape.value_dim)}},
                           *scratch, team);
    });
  }
  feed(source, *cache, 0, 60, 20);
  if (failed()) return;
  Refusals refusals(source, *cache);
  for (const std::int32_t n : {1, 3}) refuse_rows(source, *cache, refusals, n);
  const LayerShape& shape = source.text().shape().layers[std::size_t(last)];
  const auto heads = std::size_t(shape.query_heads), dv = std::size_t(shape.value_dim);
  std::vector<float> out(3 * heads * dv);
  const auto ask = [&](int layer, const Queries& queries, TensorView<float, 3> to) {
    return [&, layer, queries, to](Team& team) {
      return cache->attend(layer, queries, to, *scratch, team);
    };
  };
  const Queries good = source.text().queries(std::size_t(last), 57, 3);
  const TensorView<float, 3> to(out.data(), {3, heads, dv});
  std::vector<float> numbers(good.rows.data, good.rows.data + 3 * heads * std::size_t(shape.key_dim));
  std::vector<std::int32_t> positions(good.positions.begin(), good.positions.end());
  Queries own{{numbers.data(), good.rows.shape}, positions};
  for (const int layer : {-1, last + 1}) {
    const OwnRows rows(source, last, 60, 1);
    refusals.expect("rows of no layer",
                    [&](Team& team) { return cache->append(layer, rows.rows(), team); });
    refusals.expect("queries of no layer", ask(layer, own, to));
    refusals.expect("settling no layer", [&](Team& team) { return cache->settle(layer, team); });
  }
  numbers[5] = std::numeric_limits<float>::quiet_NaN();
  refusals.expect("NaN in a query", ask(last, own, to));
  numbers[5] = 0.5f;
  std::swap(positions[0], positions[2]);
  refusals.expect("falling query positions", ask(last, own, to));
  std::swap(positions[0], positions[2]);
  positions[0] = -1;
  refusals.expect("a negative query position", ask(last, own, to));
  positions[0] = source.positions()[57];
  if (source.traits().takes_views) {
    Queries bad = own;
    bad.rows.shape[1] -= 1;
    refusals.expect("a query head too few", ask(last, bad, to));
    TensorView<float, 3> narrow = to;
    narrow.shape[2] -= 1;
    refusals.expect("narrow outputs", ask(last, own, narrow));
  }
  // It continues as one that has had none of these calls.
  const Cache other = source.new_cache();
  feed(source, *other, 0, 60, 20);
  for (KvCache* each : {cache.get(), other.get()}) feed(source, *each, 60, 20, 4);
  EXPECT_TRUE(saved(source, *cache) == saved(source, *other));
}

// --- Half steps ---

void survives_half_steps(const CacheSource& source) {
  const Traits& traits = source.traits();
  const Cache cache = source.new_cache();
  feed(source, *cache, 0, 70, 35);
  if (failed()) return;
  const std::int32_t tokens = cache->tokens();
  const Bytes before = saved(source, *cache);
  const auto expect_ok = [](const Status& status) {
    EXPECT_TRUE(status) << status.error().message;
  };
  {
    // Rows of one layer alone are not a token yet, and go again.
    SCOPED_TRACE("rows taken back");
    const Cache half = fork(source, *cache);
    LayerStep step(source, 0, 70, 9);
    expect_ok(step.append(*half));
    EXPECT_EQ(half->tokens(), layers_of(source) > 1 ? tokens : tokens + 9);
    expect_ok(half->truncate(tokens));
    EXPECT_TRUE(saved(source, *half) == before);
    feed(source, *half, 70, 12, 4);
  }
  {
    // Layers that are ahead of others are truncated, and all continue; a loaded copy does the same.
    SCOPED_TRACE("layers taken back");
    const Cache half = fork(source, *cache);
    for (int layer = 0; layer + 1 < layers_of(source); ++layer) {
      LayerStep step(source, layer, 70, 30);
      expect_ok(step.append(*half));
      expect_ok(step.attend(*half));
      expect_ok(step.settle(*half));
    }
    if (layers_of(source) > 1) {
      EXPECT_EQ(half->tokens(), tokens);
    }
    expect_ok(half->truncate(tokens));
    EXPECT_EQ(half->tokens(), tokens);
    auto loaded = source.load_cache(saved(source, *half));
    ASSERT_TRUE(loaded) << loaded.error().message;
    for (KvCache* each : {half.get(), loaded->get()}) feed(source, *each, 70, 40, 8);
    EXPECT_TRUE(saved(source, *half) == saved(source, **loaded));
  }
  if (failed()) return;
  {
    // Saved or copied between the calls of a step, it ends the step alike.
    SCOPED_TRACE("saved in the middle");
    const Cache half = fork(source, *cache);
    std::vector<std::unique_ptr<LayerStep>> steps;
    for (int layer = 0; layer < layers_of(source); ++layer) {
      steps.push_back(std::make_unique<LayerStep>(source, layer, 70, 17));
      expect_ok(steps.back()->append(*half));
      if (layer % 2 == 0) expect_ok(steps.back()->attend(*half));
    }
    auto loaded = source.load_cache(saved(source, *half));
    ASSERT_TRUE(loaded) << loaded.error().message;
    const Cache copy = fork(source, *half);
    for (KvCache* each : {half.get(), loaded->get(), copy.get()}) {
      for (auto& step : steps) expect_ok(step->settle(*each));
    }
    EXPECT_TRUE(saved(source, **loaded) == saved(source, *half));
    EXPECT_TRUE(saved(source, *copy) == saved(source, *half));
  }
  if (failed() || traits.observes) return;
  {
    SCOPED_TRACE("settled late, and twice");
    const Cache late = fork(source, *cache);
    feed(source, *cache, 70, 40, 8);
    for (int layer = 0; layer < layers_of(source); ++layer) {
      LayerStep first(source, layer, 70, 13), rest(source, layer, 83, 27);
      expect_ok(first.append(*late));
      expect_ok(rest.append(*late));
      expect_ok(rest.attend(*late));
      const std::vector<float> out = rest.out;
      expect_ok(rest.attend(*late));
      EXPECT_TRUE(rest.out == out) << "asked again, it answers otherwise";
      expect_ok(rest.settle(*late));
      expect_ok(rest.settle(*late));
    }
    if (traits.splits && !failed()) {
      // As however a text is cut into calls (splits_alike).
      for (int layer = 0; layer < layers_of(source); ++layer) {
        LayerStep after(source, layer, 110, 1), same(source, layer, 110, 1);
        expect_ok(after.append(*cache));
        expect_ok(same.append(*late));
        expect_ok(after.attend(*cache));
        expect_ok(same.attend(*late));
        EXPECT_LE(testing::largest_difference(after.out, same.out), 1e-5);
      }
    }
  }
}

void names_gaps(const CacheSource& source) {
  // The first tokens are raw; then some layer has to encode a gap.
  const Cache cache = source.new_cache();
  Status outcome;
  std::int32_t at = 0;
  for (; outcome && at < kTokens; ++at) {
    for (int layer = 0; outcome && layer < layers_of(source); ++layer) {
      LayerStep step(source, layer, at, 1);
      outcome = step.append(*cache);
      if (outcome) outcome = step.attend(*cache);
      if (outcome) outcome = step.settle(*cache);
    }
  }
  if (outcome) return;  // it could encode them
  const ErrorCode code = outcome.error().code;
  EXPECT_TRUE(code == ErrorCode::kInvalidArgument || code == ErrorCode::kUnsupported)
      << outcome.error().message;
  EXPECT_NE(outcome.error().message.find("consecutive positions"), std::string::npos)
      << outcome.error().message;
  for (int layer = 0; layer < layers_of(source); ++layer) {
    if (cache->tokens() > 0) expect_sees(source, *cache, layer, at - 1);
  }
}

}  // namespace kvspan::conformance

// SPDX-License-Identifier: Apache-2.0
// Attention over bands against rebuilding every row and plain softmax in double.
#include "attention/bands/attend_bands.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <vector>

#include "attention/bands/bands_tokens.h"
#include "attention/bands/stretch_softmax.h"
#include "attention/certificate/certificate.h"
#include "base/cpu_level.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "cache/bands/bands_residuals.h"
#include "cache/rope.h"
#include "tests/attention/bands/random_bands.h"
#include "tests/attention/oracle.h"

namespace kvspan {
namespace attend_bands_test {

using namespace bands_testing;
using bands_testing::Problem;  // also where files that use another are compiled together

// Bounds of what attention rounds off: norms say that the rows that were coded are those that it reads.
std::vector<Certificate> bounds_of(const Problem& p) {
  const std::size_t n = p.positions.size(), heads = std::size_t(p.layer.query_heads);
  std::vector<Certificate> bounds(n * heads);
  BandsTokens tokens({p.code, p.values_code}, nullptr, true);
  tokens.keys() = p.keys;
  if (tokens.values() != nullptr) *tokens.values() = p.values;
  std::vector<std::uint8_t> keep(std::size_t(tokens.next_position()), p.some.empty());
  for (const std::int32_t tile : p.some) {
    std::fill_n(keep.begin() + tokens.first_position() + 16 * tile, 16, std::uint8_t{1});
  }
  const std::unique_ptr<TokenStore> some = tokens.chosen(keep);
  const std::vector<const TokenStore*> stores = {some ? some.get() : &tokens};
  for (std::int32_t h = 0; h < p.layer.kv_heads; ++h) {
    EXPECT_TRUE(certify(p.layer, stores, queries_of(p), h, {bounds.data(), {n, heads}}));
  }
  return bounds;
}

// Windows, chunks, biases, chosen tiles, older queries and scales of logits, by turns.
Problem varied_problem(int trial, std::int32_t anchor, bool exact, Random& random) {
  const auto tiles = std::int32_t(1 + random.below(trial % 5 == 0 ? 90 : 12));
  const auto n = std::int32_t(1 + random.below(trial % 9 == 0 ? 40 : 3));
  Problem p = random_problem(tiles, n, trial % 2 == 0, anchor, random, exact);
  if (trial % 4 > 1) ask_anywhere(p, random);
  p.layer.logit_scale *= float(std::pow(4.0, trial / 2 % 3 - 1));
  if (trial % 7 == 3) p.layer.window = 40;
  if (trial % 7 == 5) p.layer.chunk = 48;
  for (std::int32_t tile = 0; trial % 3 == 1 && tile < tiles; ++tile) {
    if (random.below(3) == 0) p.some.push_back(tile);
  }
  if (trial % 5 == 2) p.layer.alibi.assign(std::size_t(p.layer.query_heads), 0.05f);
  if (trial % 5 == 2) p.layer.alibi[0] = 0.4f;
  return p;
}

// What is off is within the certificate, which takes all roundings for the worst at once; how much
// larger it is than what they come to is held by the ceilings.
TEST(AttendBands, EqualsSoftmaxOverRebuiltRowsWithinTheCertificate) {
  Random random(21);
  for (const std::int32_t anchor : {0, 32, 64, -1}) {
    std::vector<double> logits, outputs;  // bound / error
    for (int trial = 0; trial < 40; ++trial) {
      const Problem p = varied_problem(trial, anchor, true, random);
      const auto heads = std::size_t(p.layer.query_heads), d = std::size_t(p.layer.value_dim);
      const std::vector<Certificate> bounds = bounds_of(p);
      std::vector<Attended> of_levels;
      for (const CpuLevel level : available_cpu_levels()) {
        ASSERT_TRUE(force_cpu_level(level));
        of_levels.push_back(attend(p));
      }
      Expected expected(p);
      expected.read_keys(p);
      for (std::size_t at = 0; at < bounds.size(); ++at) {
        expected.attend(p, at / heads, at % heads);
        for (const Attended& got : of_levels) {
          if (!expected.sees) {
            EXPECT_EQ(got.lse[at], -std::numeric_limits<float>::infinity());
            continue;
          }
          double off = 0.0;
          for (std::size_t j = 0; j < d; ++j) {
            off += std::pow(double{got.out[at * d + j]} - expected.out[j], 2.0);
          }
          ASSERT_LE(std::sqrt(off), bounds[at].output) << anchor << ", trial " << trial;
          // The log of a sum of e^l is no more off than the l are.
          const double sum = std::abs(double{got.lse[at]} - expected.lse);
          ASSERT_LE(sum, bounds[at].logits) << anchor << ", trial " << trial;
          if (sum > 0.0) logits.push_back(bounds[at].logits / sum);
          if (off > 0.0) outputs.push_back(bounds[at].output / std::sqrt(off));
        }
      }
    }
    std::sort(logits.begin(), logits.end());
    std::sort(outputs.begin(), outputs.end());
    std::printf("anchor %d: %zu rows; bound / error, least and median: logits %.1f %.1f, ", anchor,
                outputs.size(), logits.front(), logits[logits.size() / 2]);
    std::printf("output %.1f %.1f\n", outputs.front(), outputs[outputs.size() / 2]);
    // Twice the largest medians measured: 61 for logits and 115 for outputs. Rebuilt keys are off by
    // f32 alone, which the sum over tokens hides: there only the output, 24, tells something.
    if (anchor >= 0) {
      EXPECT_LE(logits[logits.size() / 2], 122.0) << anchor;
    }
    EXPECT_LE(outputs[outputs.size() / 2], anchor >= 0 ? 230.0 : 48.0) << anchor;
  }
}

// What attention rounds off: a query, turned to an anchor, to 1/127 of its largest number; what it is
// in coefficients, times the steps, to 1/127 of the largest of each range; of fine codes the widest in
// two digits; weights times gains to 1/127 of the largest. Each number is off by half a unit at most, evenly
// and independently of others: so deviations follow, of logits that are off by the same numbers.
class Roundings {
 public:
  explicit Roundings(const Problem& p)
      : p_(p),
        reader_(*p.code),
        dim_(std::size_t(p.layer.key_dim)),
        places_(std::size_t(p.code->places())) {
    const auto tokens = std::size_t(p.keys.tokens()), heads = std::size_t(p.layer.kv_heads);
    const BandsCode& values = *p.values_code;
    const auto value_places = std::size_t(values.places());
    std::vector<float> rows(dim_ * value_places);
    std::vector<double> x(dim_);
    offsets_.resize(tokens * heads * dim_);
    for (std::size_t t = 0; t < tokens; ++t) {
      const std::vector<std::int8_t> codes = codes_of(p.keys, t), value_codes = codes_of(p.value_store(), t);
      const double gain = gain_of(p.keys, t);
      value_gains_.push_back(gain_of(p.value_store(), t));
      for (std::size_t h = 0; h < heads; ++h) {
        const auto head = std::int32_t(h);
        reader_.read_key(head, codes.data(), p.keys.gains(std::int32_t(t / 16))[t % 16], x.data());
        keys_.insert(keys_.end(), x.begin(), x.end());
        for (const std::int8_t code : codes) keys_.push_back(gain * code);
        values.widen(values.value_rows(head), p.layer.value_dim, values.places(), rows.data());
        for (std::size_t at = 0; at < rows.size(); ++at) {
          const std::size_t place = at % value_places;
          offsets_[(t * heads + h) * dim_ + at / value_places] +=
              double{rows[at]} * double{values.steps()[place]} * value_codes[place];
        }
      }
    }
  }

  // How far a row's numbers may be off, and after them the logarithm of its sum: six deviations.
  std::vector<double> allowed(const Expected& expected, std::size_t i, std::size_t query_head) {
    const LayerShape& l = p_.layer;
    const auto heads = std::size_t(l.kv_heads);
    const std::size_t head = query_head / std::size_t(l.query_heads / l.kv_heads), columns = dim_ + 1;
    double largest = 0.0;
    for (std::size_t t = 0; t < expected.weights.size(); ++t) {
      largest = std::max(largest, expected.weights[t] * value_gains_[t]);
    }
    std::vector<double> variances(columns), squares(columns), biases(columns), seconds(columns), by(columns);
    sums_.assign((dim_ + places_) * columns, 0.0);
    units_.assign(dim_ + places_, 0.0);
    std::int32_t anchor = -1;
    for (std::size_t t = 0; t < expected.weights.size(); ++t) {
      const double weight = expected.weights[t];
      if (weight == 0.0) continue;
      const std::size_t row = t * heads + head;
      // What comes of a logit that is off: first order, and half the square of three deviations.
      for (std::size_t j = 0; j < dim_; ++j) by[j] = weight * (expected.v[row * dim_ + j] - expected.out[j]);
      by[dim_] = weight;
      const std::int32_t at = p_.code->anchor_of(p_.keys.first_position() + std::int32_t(t));
      if (at != anchor) {
        add_sums(variances);
        round(queries_of(p_).rows.row(i, query_head), std::int32_t(head), at);
        anchor = at;
      }
      const double* const numbers = keys_.data() + row * (dim_ + places_);
      double variance = 0.0;
      for (std::size_t k = 0; k < dim_ + places_ && !p_.code->before_rope(); ++k) {
        variance += units_[k] * units_[k] * numbers[k] * numbers[k] / 3.0;
        for (std::size_t j = 0; j < columns; ++j) sums_[k * columns + j] += numbers[k] * by[j];
      }
      for (std::size_t j = 0; j < columns; ++j) seconds[j] += 4.5 * variance * std::abs(by[j]);
      // Weights that are rounded to 0 are off by what they are: alike, unlike the others.
      const double rounded = std::min(weight * value_gains_[t], largest / 254.0);
      for (std::size_t j = 0; j < dim_; ++j) {
        const double off = rounded * offsets_[row * dim_ + j];
        biases[j] += off;
        squares[j] += off * off;
      }
    }
    add_sums(variances);
    for (std::size_t j = 0; j < columns; ++j) {
      biases[j] = std::abs(biases[j]) + seconds[j] + 6.0 * (std::sqrt(variances[j]) + std::sqrt(squares[j]));
    }
    return biases;
  }

 private:
  static std::vector<std::int8_t> codes_of(const BandsStore& store, std::size_t t) {
    std::vector<std::int8_t> tile(store.code().layout().unpacked_bytes());
    std::vector<std::int8_t> codes(std::size_t(store.code().places()));
    store.unpack(std::int32_t(t / 16), tile.data());
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = tile[i / 4 * 64 + t % 16 * 4 + i % 4];
    return codes;
  }
  static double gain_of(const BandsStore& store, std::size_t t) {
    return store.code().gain() ? double{log_gain(store.gains(std::int32_t(t / 16))[t % 16])} : 1.0;
  }
  // Tokens of an anchor are off by the same numbers; those of another by others.
  void add_sums(std::vector<double>& variances) {
    const std::size_t columns = variances.size();
    for (std::size_t at = 0; at < sums_.size(); ++at) {
      const double off = units_[at / columns] * sums_[at];
      variances[at % columns] += off * off / 3.0;
    }
    std::fill(sums_.begin(), sums_.end(), 0.0);
  }
  // Half units of a query's numbers, turned to an anchor, and of its coefficients, times the logits' scale.
  void round(const float* query, std::int32_t head, std::int32_t anchor) {
    const BandsCode& code = *p_.code;
    if (code.before_rope()) return;  // rebuilt keys meet the query as it is
    std::vector<float> u(query, query + dim_);
    if (code.anchor_block() > 0) {
      const Rope& rope = code.rope();
      std::vector<float> cosines(rope.angles.size()), sines(rope.angles.size());
      rope_turn(rope, -anchor, rope.magnitude, cosines.data(), sines.data());
      apply_turn(rope, cosines.data(), sines.data(), u.data());
    }
    const double unit = double{p_.layer.logit_scale} / 254.0;
    double most = 0.0;
    std::vector<double> moved(places_);
    for (std::size_t j = 0; j < dim_; ++j) {
      most = std::max(most, std::abs(double{u[j]}));
      for (std::size_t place = 0; place < places_; ++place) {
        moved[place] += double{u[j]} * double{reader_.key_rows(head)[j * places_ + place]};
      }
    }
    std::fill_n(units_.begin(), dim_, unit * most / (code.fine() ? kDigitBase : 1.0));
    double* const of_places = units_.data() + dim_;
    std::int32_t two_digits = 0;  // places, from the first of the range on
    for (const BandsCode::ScaleRange& range : code.scale_ranges()) {
      if (range.rest) {
        two_digits = 4 * range.quads;
        continue;
      }
      const std::int32_t first = 4 * range.first_quad, end = first + 4 * range.quads;
      double largest = 0.0;
      for (std::int32_t at = first; at < end; ++at) largest = std::max(largest, std::abs(moved[std::size_t(at)]));
      for (std::int32_t at = first; at < end; ++at) {
        of_places[at] = unit * largest / (at < first + two_digits ? kDigitBase : 1.0);
      }
      two_digits = 0;
    }
  }

  const Problem& p_;
  BandsResiduals reader_;
  std::size_t dim_, places_;
  std::vector<double> keys_;         // [tokens][heads][dim + places], coded parts and codes times gains
  std::vector<double> value_gains_;  // [tokens]
  std::vector<double> offsets_;      // [tokens][heads][dim], what codes of values stand for
  std::vector<double> units_, sums_;
};

TEST(AttendBands, EqualsSoftmaxOverRebuiltRowsWithinItsRoundings) {
  Random random(27);
  for (const std::int32_t anchor : {0, 32, 64, -1}) {
    std::vector<double> sums, outputs;  // allowed / error
    for (int trial = 0; trial < 40; ++trial) {
      const Problem p = varied_problem(trial, anchor, trial % 3 == 0, random);
      const auto heads = std::size_t(p.layer.query_heads), d = std::size_t(p.layer.value_dim);
      std::vector<Attended> of_levels;
      for (const CpuLevel level : available_cpu_levels()) {
        ASSERT_TRUE(force_cpu_level(level));
        of_levels.push_back(attend(p));
      }
      Expected expected(p);
      expected.read_keys(p);
      Roundings roundings(p);
      for (std::size_t at = 0; at < p.positions.size() * heads; at += p.keys.tiles() > 20 ? 5 : 1) {
        expected.attend(p, at / heads, at % heads);
        if (!expected.sees) continue;
        const std::vector<double> allowed = roundings.allowed(expected, at / heads, at % heads);
        // Sums of f32: some hundred roundings of numbers below 64.
        constexpr double kSums = 64.0 * 128.0 * 0x1p-24;
        const double light = (p.keys.tokens() / 128.0 + 1.0) * StretchSoftmax::kLightShare * expected.spread;
        for (const Attended& got : of_levels) {
          const double sum = std::abs(double{got.lse[at]} - expected.lse);
          ASSERT_LE(sum, allowed[d] + kSums) << anchor << ", trial " << trial;
          sums.push_back((allowed[d] + kSums) / std::max(sum, 1e-9));
          for (std::size_t j = 0; j < d; ++j) {
            const double off = std::abs(double{got.out[at * d + j]} - expected.out[j]);
            const double most = allowed[j] + kSums * (expected.spread + 1.0) + light;
            ASSERT_LE(off, most) << anchor << ", trial " << trial;
            outputs.push_back(most / std::max(off, 1e-9));
          }
        }
      }
    }
    std::sort(sums.begin(), sums.end());
    std::sort(outputs.begin(), outputs.end());
    // Six deviations are 9 times the median error of a normal number. Of an output, weights count as if half a unit
    // of the heaviest were rounded off each.
    if (anchor >= 0) {
      EXPECT_LE(sums[sums.size() / 2], 14.0) << anchor;
    }
    EXPECT_LE(outputs[outputs.size() / 2], 42.0) << anchor;
  }
}

// Without scores nothing but the tokens that are seen decides over the sum: one token more or less shows.
TEST(AttendBands, SumsOverEveryTokenThatIsSeenOnce) {
  Random random(28);
  for (int trial = 0; trial < 36; ++trial) {
    const std::int32_t anchor = std::array{0, 32, 64, -1}[std::size_t(trial % 4)];
    Problem p = varied_problem(trial, anchor, trial % 3 == 0, random);
    ask_for_counts(p);
    if (trial % 3 == 2) p.positions.erase(p.positions.begin() + 1, p.positions.end() - 1);  // few queries
    const auto heads = std::size_t(p.layer.query_heads);
    const Attended got = attend(p);
    Expected expected(p);
    for (std::size_t at = 0; at < p.positions.size() * heads; at += heads) {
      expected.attend(p, at / heads, 0);
      if (!expected.sees) {
        ASSERT_EQ(got.lse[at], -std::numeric_limits<float>::infinity()) << trial;
        continue;
      }
      ASSERT_NEAR(got.lse[at], expected.lse, 1e-4) << trial << ", position " << p.positions[at / heads];
    }
  }
}

// Its weight is 1, which nothing is rounded off of.
TEST(AttendBands, ATokenSeenAloneIsItsRow) {
  Random random(29);
  for (int trial = 0; trial < 16; ++trial) {
    const std::int32_t anchor = std::array{0, 32, 64, -1}[std::size_t(trial % 4)];
    Problem p = random_problem(3, 1, trial % 2 == 0, anchor, random);
    (trial % 3 == 0 ? p.layer.chunk : p.layer.window) = 1;
    ask_for_counts(p);
    const Attended got = attend(p);
    const Expected rows(p);
    const auto heads = std::size_t(p.layer.query_heads), d = std::size_t(p.layer.value_dim);
    for (std::size_t at = 0; at < p.positions.size() * heads; ++at) {
      const std::int32_t token = p.positions[at / heads] - p.keys.first_position();
      const bool held = token >= 0 && token < p.keys.tokens() &&
                        (p.keys.escaped(token / 16) >> token % 16 & 1) == 0;
      ASSERT_EQ(std::isfinite(got.lse[at]), held) << trial << ", token " << token;
      const std::size_t group = heads / std::size_t(p.layer.kv_heads);
      for (std::size_t j = 0; j < d; ++j) {
        const std::size_t from = (std::size_t(token) * std::size_t(p.layer.kv_heads) + at % heads / group) * d + j;
        ASSERT_NEAR(got.out[at * d + j], held ? rows.v[from] : 0.0f, 2e-5) << trial << ", token " << token;
      }
    }
  }
}

// Beside other tokens of much larger weight, tokens count as the mean of values, their weights as
// they are; with norms for certificates, and beside tokens of little weight, all are summed.
TEST(AttendBands, TokensThatHardlyCountCountAsTheMean) {
  Random random(26);
  for (int trial = 0; trial < 12; ++trial) {
    const bool exact = trial % 3 == 0;
    const Problem p = random_problem(70, 2, trial % 2 == 0, 64, random, exact);
    const auto heads = std::size_t(p.layer.query_heads), d = std::size_t(p.layer.value_dim);
    const Attended alone = attend(p);
    // 2^-14.4 and 2^4.3 of the others' weights: 9 stretches of tokens, below 2^-12 all together, or well
    // above it each.
    for (const float more : {10.0f, -3.0f}) {
      std::vector<float> others = alone.lse;
      for (float& x : others) x += more;
      const Attended got = attend(p, 1, others);
      const bool light = more > 0.0f && !exact;
      for (std::size_t at = 0; at < alone.lse.size(); ++at) {
        const double total = std::log1p(std::exp(double{more})) + double{alone.lse[at]};
        EXPECT_NEAR(got.lse[at], total, 1e-4);
        const double share = std::exp(double{alone.lse[at]} - total);
        const float* mean = p.values_code->value_mean(
            std::int32_t(at % heads / std::size_t(p.layer.query_heads / p.layer.kv_heads)));
        for (std::size_t j = 0; j < d; ++j) {
          const double from = light ? double{mean[j]} : double{alone.out[at * d + j]};
          // Scores are rounded alike in both; sums in f32, of numbers below 100.
          EXPECT_NEAR(got.out[at * d + j] / share, from, 1e-3) << trial << ", " << more;
        }
      }
    }
  }
}

TEST(AttendBands, AnyTeamGivesTheSameBits) {
  Random random(23);
  for (const std::int32_t anchor : {64, -1}) {
    for (const std::int32_t n : {2, 60}) {
      const Problem p = random_problem(100, n, true, anchor, random);
      const Attended one = attend(p), three = attend(p, 3);
      EXPECT_EQ(one.out, three.out) << anchor;
      EXPECT_EQ(one.lse, three.lse) << anchor;
    }
  }
}

}  // namespace attend_bands_test
}  // namespace kvspan

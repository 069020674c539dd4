// SPDX-License-Identifier: Apache-2.0
// Rows that are rebuilt for many queries: the rows against those that codes restore, then attention to them against
// plain softmax in double.
#include "attention/bands/attend_rebuilt.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "attention/bands/rebuilt_segment.h"
#include "attention/bands/rounded_rows.h"
#include "attention/bands/stretch_softmax.h"
#include "base/cpu_level.h"
#include "tests/attention/bands/random_bands.h"

namespace kvspan {
namespace attend_rebuilt_test {

using namespace bands_testing;
using bands_testing::Problem;  // also where files that use another are compiled together

constexpr RebuiltForm kForms[] = {RebuiltForm::kBytes, RebuiltForm::kHalves};

// Row `row` of a side of RoundedRows, digits lying one after the other.
void read_row(const std::int8_t* tiles, const float* scales, std::int32_t row, std::int32_t dim, std::int32_t digits,
              const float* mean, float* to) {
  const std::int8_t* const tile = tiles + std::ptrdiff_t(row / 16) * 16 * dim * digits;
  for (std::int32_t i = 0; i < dim; ++i) {
    double number = 0.0, unit = scales[row];
    for (std::int32_t digit = 0; digit < digits; ++digit, unit /= kDigitBase) {
      const std::int32_t place = digit * dim + i;
      number += unit * tile[place / 4 * 64 + row % 16 * 4 + place % 4];
    }
    to[i] = float(number + (mean != nullptr ? mean[i] : 0.0f));
  }
}

// Rows of all tokens, those of escaped ones zeros, as keys and values of Expected lie.
struct RebuiltRows {
  std::vector<float> keys, values;
  float coarsest = 0.0f;    // the largest scale of a value in bytes
  float last_digit = 0.0f;  // what the last digit of a value counts at most

  RebuiltRows(const Problem& p, RebuiltForm form) {
    const LayerShape& l = p.layer;
    const auto width = std::size_t(l.kv_heads * l.key_dim);
    keys.resize(std::size_t(p.keys.tokens()) * width);
    values.resize(keys.size());
    RoundedRows rows(l.kv_heads, l.key_dim, l.value_dim, 64, p.fine());
    RebuiltSegment segment(l.kv_heads, l.key_dim, l.value_dim, 64);
    const bool halves = form == RebuiltForm::kHalves;
    for (const BandsStore* store : {&p.keys, &p.value_store()}) {
      const BandsCode& code = store->code();
      RebuildTable table;
      table.prepare(code);
      std::vector<float> work(table.work_floats() + 16);
      for (std::int32_t part = 0; part < table.parts(); ++part) table.make(part, work.data());
      for (std::int32_t tile = 0, n = 0; tile < store->tiles(); tile += n) {
        n = table.together(*store, tile, store->tiles() - tile);
        Positions positions;
        for (std::int32_t t = 16 * tile; t < 16 * (tile + n); ++t) {
          if ((store->escaped(t / 16) >> (t % 16) & 1) == 0) positions.push(t, 64, nullptr);
        }
        segment.start(positions, p.value_store().code());
        RebuiltSink& to = halves ? static_cast<RebuiltSink&>(segment) : rows;
        table.rebuild(*store, tile, n, 0, to, work.data());
        std::int32_t row = 0;
        for (std::int32_t t = 16 * tile; t < 16 * (tile + n); ++t) {
          if ((store->escaped(t / 16) >> (t % 16) & 1) != 0) continue;
          for (std::int32_t h = 0; h < l.kv_heads; ++h) {
            const std::size_t at = std::size_t(t) * width + std::size_t(h * l.key_dim);
            if (halves) {
              const Segment& there = segment.list().segments().front();
              if (code.key_dim() > 0) there.keys.read(h, row, keys.data() + at);
              if (code.value_dim() == 0) continue;
              there.values.read(h, row, values.data() + at);
              for (std::int32_t i = 0; i < l.value_dim; ++i) {
                last_digit = std::max(last_digit, 0x1p-10f * std::abs(values[at + std::size_t(i)]));
              }
              continue;
            }
            if (code.key_dim() > 0) {
              read_row(rows.key_tiles(h, 0), rows.key_scales(h, 0), row, l.key_dim, RoundedRows::kKeyDigits, nullptr,
                       keys.data() + at);
            }
            if (code.value_dim() > 0) {
              read_row(rows.value_tiles(h, 0), rows.value_scales(h, 0), row, l.value_dim,
                       RoundedRows::value_digits(rows.fine()), code.value_mean(h), values.data() + at);
              coarsest = std::max(coarsest, *rows.value_scales(h, row));
              last_digit = rows.fine() ? coarsest / kDigitBase : coarsest;
            }
          }
          ++row;
        }
      }
    }
  }
};

float largest(std::span<const float> row) {
  float most = 0.0f;
  for (const float x : row) most = std::max(most, std::abs(x));
  return most;
}

// A query as RoundedRows rounds it.
void round_like_rows(bool fine, std::span<float> query) {
  const float most = largest(query), unit = 127.0f * (fine ? kDigitBase : 1.0f);
  for (float& x : query) x = most > 0.0f ? std::nearbyint(x * unit / most) * most / unit : 0.0f;
}

// How far a number of a rebuilt row may be off: its row of B is rounded to 8 bits with one scale for each range of
// components, so by 1/254 of the range's largest for each, or in two digits; turning mixes the two numbers of a pair, and
// adds their errors.
double allowed(const BandsStore& store, std::int32_t token, std::int32_t row) {
  const BandsCode& code = store.code();
  std::vector<float> c(std::size_t(code.places())), b(std::size_t(code.row_stride()));
  store.coefficients(token, c.data());
  const bool key = row < code.key_width();
  const std::int32_t dim = key ? code.key_dim() : code.value_dim(), within = key ? row : row - code.key_width();
  const BandsCode::Rows rows = key ? code.key_rows(within / dim) : code.value_rows(within / dim);
  const std::int32_t j = within % dim;
  code.widen({rows.numbers + std::ptrdiff_t(j) * code.row_stride(), rows.scales + j}, 1, code.row_stride(), b.data());
  double off = 0.0;
  for (const BandsCode::ScaleRange& range : code.scale_ranges()) {
    if (range.rest) continue;
    double largest = 0.0, codes = 0.0;
    for (std::int32_t p = 4 * range.first_quad; p < 4 * (range.first_quad + range.quads); ++p) {
      const double step = code.steps()[p];
      if (step == 0.0) continue;
      largest = std::max(largest, std::abs(b[std::size_t(p)] * step));
      codes += std::abs(c[std::size_t(p)] / step);  // times the gain
    }
    off += largest / 254.0 / (code.fine() ? kDigitBase : 1.0) * codes;
  }
  return off;
}

// How far rounding moves a number of a row of keys.
double rounding(const std::vector<float>& rows, std::size_t first, std::size_t dim, RebuiltForm form) {
  const double most = largest(std::span(rows).subspan(first, dim));
  return form == RebuiltForm::kHalves ? 0x1.001p-11 * most : most / kDigitBase / 254.0;
}

TEST(AttendRebuilt, RowsAreThoseThatCodesRestore) {
  Random random(31);
  int fine = 0;
  for (int trial = 0; trial < 20; ++trial) {
    const std::int32_t anchor = std::array{0, 32, 64, 128, -1}[std::size_t(trial % 5)];
    const Problem p = random_problem(std::int32_t(1 + random.below(10)), 1, trial % 2 == 0, anchor, random);
    fine += p.fine() ? 1 : 0;
    const Expected exact(p);
    const auto dim = std::size_t(p.layer.key_dim), width = std::size_t(p.layer.kv_heads) * dim;
    const BandsStore& values = p.value_store();
    std::vector<double> key_off(exact.k.size()), value_off(exact.v.size());
    for (std::size_t at = 0; at < key_off.size(); ++at) {
      const auto token = std::int32_t(at / width), j = std::int32_t(at % width);
      key_off[at] = allowed(p.keys, token, j);
      value_off[at] = allowed(values, token, values.code().key_width() + j);
    }
    for (const CpuLevel level : available_cpu_levels()) {
      ASSERT_TRUE(force_cpu_level(level));
      const RebuiltForm form = kForms[trial / 2 % 2];
      const RebuiltRows got(p, form);
      for (std::int32_t t = 0; t < p.keys.tokens(); ++t) {
        if ((p.keys.escaped(t / 16) >> (t % 16) & 1) != 0) continue;
        for (std::size_t j = 0; j < width; ++j) {
          const std::size_t at = std::size_t(t) * width + j;
          // Turning may bring any number of the head here.
          const auto head = key_off.begin() + std::ptrdiff_t(at - j % dim);
          const double keys = *std::max_element(head, head + std::ptrdiff_t(dim));
          const double off = rounding(got.keys, at - j % dim, dim, form);
          ASSERT_NEAR(got.keys[at], exact.k[at], 2.0 * keys + off + 1e-5) << trial << ", token " << t;
          ASSERT_NEAR(got.values[at], exact.v[at], value_off[at] + 0.501 * got.last_digit + 1e-5)
              << trial << ", token " << t;
        }
      }
    }
  }
  EXPECT_GT(fine, 4);
  EXPECT_LT(fine, 16);
}

// With `adds` beside other tokens, of values 0 and log-sum-exp .5.
Attended attend_to_rows_of(const Problem& p, RebuiltForm form, int threads, bool adds) {
  const auto n = p.positions.size(), heads = std::size_t(p.layer.query_heads), d = std::size_t(p.layer.value_dim);
  BandsTokens tokens({p.code, p.values_code}, nullptr);
  tokens.keys() = p.keys;
  if (tokens.values() != nullptr) *tokens.values() = p.values;
  Attended got{std::vector<float>(n * heads * d), std::vector<float>(n * heads, 0.5f)};
  AttentionScratch scratch;
  ThreadPool pool(threads);
  const StorePart part{0, &tokens};
  pool.run([&](Team& team) {
    const AttendCall call{p.layer, queries_of(p), {got.out.data(), {n, heads, d}}, {got.lse.data(), {n, heads}}, adds};
    EXPECT_TRUE(attend_rebuilt(call, std::span(&part, 1), form, scratch, team));
  });
  return got;
}

// Its weight is 1, which nothing is rounded off of.
TEST(AttendRebuilt, ATokenSeenAloneIsItsRow) {
  Random random(34);
  int fine = 0, seen = 0;
  for (int trial = 0; trial < 20; ++trial) {
    Problem p = random_problem(3, 1, trial % 2 == 0, 64, random);
    p.layer.window = 2;
    const std::int32_t last = p.keys.tokens() - 1;
    if ((p.keys.escaped(last / 16) >> 15 & 1) != 0) continue;
    const RebuiltForm form = kForms[trial / 2 % 2];
    const RebuiltRows rows(p, form);
    const Attended got = attend_to_rows_of(p, form, 1, false);
    const std::int32_t d = p.layer.value_dim, group = p.layer.query_heads / p.layer.kv_heads;
    for (std::int32_t i = 0; i < p.layer.query_heads * d; ++i) {
      const std::int32_t from = (last * p.layer.kv_heads + i / d / group) * d + i % d;
      EXPECT_NEAR(got.out[std::size_t(i)], rows.values[std::size_t(from)], 1e-5) << trial;
    }
    ++seen;
    fine += p.fine() ? 1 : 0;
  }
  EXPECT_GT(fine, 2);
  EXPECT_GT(seen, fine + 2);
}

TEST(AttendRebuilt, EqualsSoftmaxOverTheseRows) {
  Random random(32);
  for (int trial = 0; trial < 40; ++trial) {
    const std::int32_t anchor = std::array{0, 32, 64, -1}[std::size_t(trial / 2 % 4)];
    const auto tiles = std::int32_t(1 + random.below(trial % 8 == 0 ? 150 : 12));
    const auto n = std::int32_t(1 + random.below(40));
    Problem p = random_problem(tiles, n, trial % 2 == 0, anchor, random);
    if (trial % 7 == 3) p.layer.window = 40;
    if (trial % 7 == 5) p.layer.chunk = 48;
    if (trial % 5 == 2) p.layer.alibi.assign(std::size_t(p.layer.query_heads), 0.05f);
    if (trial % 4 > 1) ask_anywhere(p, random);
    const auto heads = std::size_t(p.layer.query_heads), d = std::size_t(p.layer.value_dim);
    Expected expected(p);
    const RebuiltForm form = kForms[trial / 8 % 2];
    const bool bytes = form == RebuiltForm::kBytes;
    const RebuiltRows rows(p, form);
    expected.k = rows.keys;
    expected.v = rows.values;
    Problem rounded = p;
    const auto key_dim = std::size_t(p.layer.key_dim);
    for (std::size_t at = 0; at < rounded.query_rows.size() && bytes; at += key_dim) {
      round_like_rows(p.fine(), std::span(rounded.query_rows).subspan(at, key_dim));
    }
    // Some rows meet other tokens first, whose values are 0.
    const bool adds = trial % 3 == 0;
    std::vector<Attended> of_teams;
    for (const int threads : {1, 3}) of_teams.push_back(attend_to_rows_of(p, form, threads, adds));
    EXPECT_EQ(of_teams[0].out, of_teams[1].out);
    EXPECT_EQ(of_teams[0].lse, of_teams[1].lse);
    for (std::size_t at = 0; at < std::size_t(n) * heads; ++at) {
      expected.attend(rounded, at / heads, at % heads);
      const double own = expected.sees ? std::exp(expected.lse) : 0.0, other = adds ? std::exp(0.5) : 0.0;
      if (own + other == 0.0) {
        EXPECT_EQ(of_teams[0].lse[at], -std::numeric_limits<float>::infinity());
        continue;
      }
      // Sums of f32 (attention/attend.h): some hundred roundings of logits below 64 and of values.
      // Of two digits each, the last ones do not meet: at most half a unit of the first.
      const double units = double{largest(p.query_rows)} / 127.0 * double{largest(rows.keys)} / 127.0;
      const double dropped = bytes && p.fine() ? 0.25 * units * double(key_dim) * double{p.layer.logit_scale} : 0.0;
      const double tolerance = 256.0 * 64.0 * 0x1p-24 + dropped;
      EXPECT_NEAR(of_teams[0].lse[at], std::log(own + other), tolerance) << trial;
      // Weights times scales are rounded to 1/127 of the largest, evenly: six standard deviations of the sum of
      // n of them with numbers up to 127, and what stretches that hardly count may have.
      const double n_tokens = p.keys.tokens();
      const double light = bytes ? (n_tokens / 128.0 + 1.0) * StretchSoftmax::kLightShare * expected.spread : 0.0;
      const double rounded_off = bytes ? 6.0 * rows.coarsest * expected.heaviest * std::sqrt(n_tokens / 12.0) : 0.0;
      for (std::size_t j = 0; j < d; ++j) {
        const double out = expected.sees ? expected.out[j] * own / (own + other) : 0.0;
        EXPECT_NEAR(of_teams[0].out[at * d + j], out, 2.0 * tolerance * (expected.spread + 1.0) + rounded_off + light) << trial;
      }
    }
  }
}

// Without scores nothing but the tokens that are seen decides over the sum: one token more or less shows.
TEST(AttendRebuilt, SumsOverEveryTokenThatIsSeenOnce) {
  Random random(35);
  for (int trial = 0; trial < 12; ++trial) {
    const auto tiles = std::int32_t(trial % 6 == 0 ? 130 : 1 + random.below(20));
    Problem p = random_problem(tiles, 1, trial % 2 == 0, 64, random);
    if (trial % 3 == 1) p.layer.window = 40;
    if (trial % 3 == 2) p.layer.chunk = 48;
    ask_for_counts(p);
    Expected expected(p);
    const auto heads = std::size_t(p.layer.query_heads);
    for (const RebuiltForm form : kForms) {
      const Attended got = attend_to_rows_of(p, form, 1, false);
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
}

// Few queries are cheaper where the coefficients are, many where rows are.
TEST(AttendRebuilt, ManyQueriesPayForIt) {
  Random random(33);
  for (const std::int32_t digits : {1, 2}) {
    // A row of one head is shorter than the coefficients of three.
    Problem p = random_problem(8, 1, true, 64, random);
    while (p.code->move_digits() != digits || p.layer.kv_heads != 3) p = random_problem(8, 1, true, 64, random);
    BandsTokens tokens({p.code, p.values_code}, nullptr);
    tokens.keys() = p.keys;
    const StorePart part{0, &tokens};
    const auto pays = [&](std::size_t n, RebuiltForm form) {
      const std::vector<std::int32_t> positions(n, 1000);
      const Queries queries{{p.query_rows.data(), {n, 1, 1}}, positions};
      return pays_to_rebuild({p.layer, queries, {}, {}}, std::span(&part, 1), form);
    };
    for (const RebuiltForm form : kForms) {
      EXPECT_FALSE(pays(1, form));
      EXPECT_TRUE(pays(100000, form));
    }
  }
}

}  // namespace attend_rebuilt_test
}  // namespace kvspan

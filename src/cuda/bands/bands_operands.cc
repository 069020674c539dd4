// SPDX-License-Identifier: Apache-2.0
#include "cuda/bands/bands_operands.h"

#include <algorithm>
#include <cmath>

#include "cuda/attend_constants.h"

namespace kvspan::cuda {
namespace {

// The component that a place of digits belongs to, and what the digit's 1 counts in its codes. component < 0: empty.
struct PlaceDigit {
  std::ptrdiff_t component;
  int shift;
};
PlaceDigit digit_at(const BandsCode& code, const BandsTiles& tiles, std::size_t place) {
  if (place / 4 >= tiles.digits().size()) return {-1, 0};
  const BandsTiles::DigitQuad& quad = tiles.digits()[place / 4];
  const std::ptrdiff_t component = std::ptrdiff_t{quad.quad} * 4 + static_cast<std::ptrdiff_t>(place % 4);
  const bool there = quad.quad >= 0 && component < static_cast<std::ptrdiff_t>(code.layout().stored());
  return {there ? component : -1, quad.shift};
}

// What a unit's 64 coefficients are of a key's numbers, [64][dim].
std::vector<double> coefficient_rows(const BandsCode& code, const BandsTiles& tiles, const ScoreUnit& unit,
                                     const std::vector<float>& key_rows) {
  const auto dim = static_cast<std::size_t>(code.key_dim());
  const auto components = static_cast<std::size_t>(code.places());
  const UnitForm& form = unit_form(unit.kind);
  std::vector<double> rows(64 * dim);
  for (std::size_t i = 0; i < 64 * 16; ++i) {
    const std::size_t byte = i / 16, field = i % 16;
    const PlaceDigit digit = digit_at(
        code, tiles, static_cast<std::size_t>(unit.chunk) * kChunkPlaces + byte / 16 * 16 + field);
    if (digit.component < 0) continue;
    const double by =
        std::ldexp(form.inverse[byte % 16][field], form.exponent + digit.shift - unit.shift);
    if (by == 0.0) continue;
    const float* const from = key_rows.data() + digit.component;
    for (std::size_t k = 0; k < dim; ++k) rows[byte * dim + k] += by * from[k * components];
  }
  return rows;
}

// In f16, a head's largest number 1: key_scales makes that good. Numbers that f16 holds badly then
// are far below what a coefficient is rounded by.
void put_key_basis(const BandsCode& code, int panel_units, int key_steps, BandsOperands& to) {
  const auto dim = static_cast<std::size_t>(code.key_dim());
  const auto panel = static_cast<std::size_t>(panel_units);
  std::vector<float> key_rows(dim * static_cast<std::size_t>(code.places()));
  for (std::int32_t h = 0; h < code.heads(); ++h) {
    code.read_key_rows(h, key_rows.data());
    std::vector<std::vector<double>> of_units;
    double most = 0.0;
    for (const ScoreUnit& unit : to.units) {
      of_units.push_back(coefficient_rows(code, to.tiles, unit, key_rows));
      for (const double x : of_units.back()) most = std::max(most, std::abs(x));
    }
    to.key_scales.push_back(static_cast<float>(most));
    for (std::size_t first = 0; first < to.units.size(); first += panel) {
      for (int i = 0; i < 4 * panel_units * key_steps * 32 * 8; ++i) {
        const int e = i % 8, lane = i / 8 % 32, s = i / 256 % key_steps, slice = i / 256 / key_steps;
        const PanelByte at = panel_byte(panel_units, 16 * slice + 8 * (e / 4) + lane / 4);
        const auto k = static_cast<std::size_t>(16 * s + 8 * (e / 2 % 2) + 2 * (lane % 4) + e % 2);
        const std::vector<double>& rows = of_units[first + static_cast<std::size_t>(at.unit)];
        const auto row = static_cast<std::size_t>(16 * at.lane + 4 * at.word + at.byte);
        const double x = k < dim && most > 0.0 ? rows[row * dim + k] / most : 0.0;
        to.key_basis.push_back(to_half(static_cast<float>(x)));
      }
    }
    const float* mean = code.anchored_means().mean(h);
    to.key_means.insert(to.key_means.end(), mean, mean + code.key_dim());
  }
}

void put_value_basis(const BandsCode& code, BandsOperands& to) {
  const std::size_t places = to.tiles.digits().size() * 4;
  for (std::int32_t h = 0; h < code.heads(); ++h) {
    const BandsCode::Rows rows = code.value_rows(h);
    for (std::int32_t i = 0; i < code.value_dim(); ++i) {
      const Half* row = rows.numbers + static_cast<std::ptrdiff_t>(i) * code.row_stride();
      for (std::size_t p = 0; p < places; ++p) {
        const PlaceDigit digit = digit_at(code, to.tiles, p);
        to.value_basis.push_back(digit.component < 0 ? Half{} : row[digit.component]);
      }
      to.value_scales.push_back(rows.scales[i]);
      to.value_scales.push_back(code.value_mean(h)[i]);
    }
  }
  for (std::size_t p = 0; p < places; ++p) {
    const PlaceDigit digit = digit_at(code, to.tiles, p);
    to.steps.push_back(digit.component < 0 ? 0.0f : std::ldexp(code.steps()[digit.component], digit.shift));
  }
}

void put_quantizer(const BandsCode& code, std::size_t components, BandsOperands& to) {
  const auto stored = code.layout().stored();
  for (std::size_t p = 0; p < components; ++p) {
    const bool there = p < stored;
    const float half = there ? static_cast<float>(1 << (code.layout().width(p) - 1)) : 0.0f;
    to.inverse_steps.push_back(there ? 1.0f / code.steps()[p] : 0.0f);
    to.inverse_sigma.push_back(there ? code.gain_rule().inverse_sigma[p] : 0.0f);
    to.reach.push_back(there ? code.gain_rule().reach[p] : 0.0f);
    to.lowest.push_back(-half);
    to.highest.push_back(there ? half - 1.0f : 0.0f);
  }
  to.quad_digits.assign(to.tiles.of_quads().begin(), to.tiles.of_quads().end());
  to.quad_digits.resize(components / 4, {-1, -1, -1, -1});
}

void put_analysis(const BandsCode& code, std::size_t components, BandsOperands& to) {
  const auto width = static_cast<std::size_t>(code.width());
  const auto own = static_cast<std::size_t>(code.places());
  std::vector<float> rows(width * own);
  code.read_analysis(rows.data());
  to.analysis.assign(width * components, 0.0f);
  for (std::size_t j = 0; j < width; ++j) {
    std::copy_n(rows.data() + j * own, own, to.analysis.data() + j * components);
  }
  to.means.assign(code.key_mean(0), code.key_mean(0) + code.key_width());
  to.means.insert(to.means.end(), code.value_mean(0),
                  code.value_mean(0) + (code.width() - code.key_width()));
}

}  // namespace

BandsOperands bands_operands(const BandsCode& code, int chunks, int components, int paired, int key_steps) {
  BandsOperands to;
  to.tiles = BandsTiles(code.layout(), chunks);
  to.units = paired > 0 ? paired_units(to.tiles, paired) : score_units(to.tiles);
  put_key_basis(code, paired > 0 ? 2 : 1, key_steps, to);
  put_value_basis(code, to);
  put_quantizer(code, static_cast<std::size_t>(components), to);
  put_analysis(code, static_cast<std::size_t>(components), to);
  return to;
}

// In f16, over the power of two above a row's largest number.
void SynthesisOperands::add(const BandsCode& code, int chunks) {
  const BandsTiles tiles(code.layout(), chunks);
  const auto own = static_cast<std::size_t>(code.places());
  // number(component): what a level 1 of it adds.
  const auto put_row = [&](const auto& number) {
    std::vector<float> row;
    float most = 0.0f;
    for (std::size_t p = 0; p < tiles.digits().size() * 4; ++p) {
      const PlaceDigit digit = digit_at(code, tiles, p);
      row.push_back(digit.component < 0 ? 0.0f : std::ldexp(number(static_cast<std::size_t>(digit.component)), digit.shift));
      most = std::max(most, std::abs(row.back()));
    }
    int exponent = 0;
    std::frexp(most, &exponent);
    scales.push_back(std::ldexp(1.0f, exponent));
    for (const float x : row) rows.push_back(to_half(std::ldexp(x, -exponent)));
  };
  std::vector<float> keys(static_cast<std::size_t>(code.key_dim()) * own);
  for (std::int32_t h = 0; h < code.heads(); ++h) {
    code.read_key_rows(h, keys.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(code.key_dim()); ++i) {
      put_row([&](std::size_t p) { return keys[i * own + p]; });
    }
  }
  for (std::int32_t h = 0; h < code.heads(); ++h) {
    const BandsCode::Rows values = code.value_rows(h);
    for (std::int32_t i = 0; i < code.value_dim(); ++i) {
      const Half* row = values.numbers + static_cast<std::ptrdiff_t>(i) * code.row_stride();
      put_row([&](std::size_t p) { return to_float(row[p]) * values.scales[i] * code.steps()[p]; });
    }
  }
}

MeanOperands mean_operands(const AnchoredMeans& means) {
  MeanOperands to;
  constexpr int kOrders = 4;
  to.alone = means.alone();
  to.slow = means.rotated() - to.alone;
  const int evens = 8 * alone_eights(to.alone), odds = evens + kOrders - 1;
  const int used = evens + (to.slow > 0 ? 2 * kOrders - 1 : 0);
  to.terms = std::max(kLeastMeanTerms, (used + 15) / 16 * 16);
  for (int s = 0; s < (to.slow + 7) / 8; ++s) {
    for (int lane = 0; lane < 32; ++lane) {
      const int place = lane / 4;
      const bool odd = odd_polynomial(place);
      const int order = odd ? place + 1 : (place + 1) % (2 * kOrders);
      for (const int j : {8 * s + lane % 4, 8 * s + lane % 4 + 4}) {
        const float by = j < to.slow ? means.slow()[8 * j + order] : 0.0f;
        to.polynomials.push_back(odd ? -by : by);
        to.polynomials.push_back(by);
      }
    }
  }
  const int half = means.half();
  // Number k of the row of a position, `offset` after the block's first.
  const auto number = [&](int offset, int k) {
    const bool after = offset >= half;
    const int at = after ? offset - half : half - 1 - offset;
    const auto turn = [&](int term, int odd) {
      return means.turns()[static_cast<std::ptrdiff_t>(2 * term + odd) * half + at];
    };
    const float sign = after ? 1.0f : -1.0f;
    if (k < evens) {
      const int pair = k / 8 * 4 + k % 4, sine = k / 4 % 2;
      return pair < to.alone ? (sine == 1 ? sign : 1.0f) * turn(pair, sine) : 0.0f;
    }
    // The lowest order is one number for the whole block.
    if (k < std::min(odds, used)) return turn(to.alone + 1 + k - evens, 0);
    if (k < used) return sign * turn(to.alone + k - odds, 1);
    return 0.0f;
  };
  for (int tile = 0; tile < kMeanBlock / kTileTokens; ++tile) {
    for (int part = 0; part < 2; ++part) {
      for (int s = 0; s < to.terms / 16; ++s) {
        for (int lane = 0; lane < 32; ++lane) {
          for (int i = 0; i < 8; ++i) {
            // Registers: row g, row g + 8, and both again for the upper eight numbers.
            const int row = i / 2 % 2;
            const int k = 16 * s + 8 * (i / 4) + 2 * (lane % 4) + i % 2;
            const int token = token_at(lane / 4, 2 * part + row);
            to.table.push_back(to_half(number(kTileTokens * tile + token, k)));
          }
        }
      }
    }
  }
  return to;
}

std::vector<float> turn_table(const Rope& rope, std::int64_t first, std::int64_t step,
                              std::int64_t count) {
  std::vector<float> table;
  table.reserve(static_cast<std::size_t>(count) * rope.angles.size() * 2);
  for (std::int64_t i = 0; i < count; ++i) {
    for (const double angle : rope.angles) {
      const double at = angle * static_cast<double>(first + i * step);
      table.push_back(static_cast<float>(std::cos(at)));
      table.push_back(static_cast<float>(std::sin(at)));
    }
  }
  return table;
}

}  // namespace kvspan::cuda

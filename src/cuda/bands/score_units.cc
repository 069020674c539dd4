// SPDX-License-Identifier: Apache-2.0
#include "cuda/bands/score_units.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace kvspan::cuda {
namespace {

// The four words of a lane whose digits have the given values.
std::array<std::uint32_t, 4> words_of(int kind, const std::array<int, 16>& digits) {
  std::uint32_t packed = 0;
  for (int i = 0; i < 16; ++i) {
    const int k = i / 4, f = i % 4, at = kind == 2 ? 8 * k + 2 * f : k / 2 * 8 + 2 * f + k % 2;
    packed |= static_cast<std::uint32_t>(digits[static_cast<std::size_t>(i)]) << at;
  }
  if (kind == 1) packed = spread_bits(packed);
  const auto by = static_cast<unsigned>(kind);
  return {packed, packed << by, packed << (2 * by), packed << (3 * by)};
}

std::array<int, 16> bytes_of(int kind, const std::array<int, 16>& digits) {
  const std::array<std::uint32_t, 4> words = words_of(kind, digits);
  std::array<int, 16> bytes{};
  for (std::size_t i = 0; i < 16; ++i) {
    bytes[i] = static_cast<int>(words[i / 4] >> (8 * (i % 4)) & 0xffu);
  }
  return bytes;
}

using Matrix = std::array<std::array<double, 16>, 16>;

// By Gauss and Jordan, the largest pivot of each column first.
Matrix inverted(Matrix a) {
  Matrix out{};
  for (std::size_t i = 0; i < 16; ++i) out[i][i] = 1.0;
  for (std::size_t i = 0; i < 16; ++i) {
    std::size_t best = i;
    for (std::size_t r = i; r < 16; ++r) {
      if (std::abs(a[r][i]) > std::abs(a[best][i])) best = r;
    }
    std::swap(a[i], a[best]);
    std::swap(out[i], out[best]);
    const double pivot = a[i][i];
    for (std::size_t c = 0; c < 16; ++c) a[i][c] /= pivot, out[i][c] /= pivot;
    for (std::size_t r = 0; r < 16; ++r) {
      const double by = a[r][i];
      if (r == i || by == 0.0) continue;
      for (std::size_t c = 0; c < 16; ++c) a[r][c] -= by * a[i][c], out[r][c] -= by * out[i][c];
    }
  }
  return out;
}

UnitForm make_form(int kind) {
  UnitForm form{};
  std::array<int, 16> all{};
  Matrix digits_by_bytes{};  // q = M' u
  for (std::size_t i = 0; i < 16; ++i) {
    std::array<int, 16> one{};
    one[i] = 1;
    all[i] = (1 << kind) - 1;
    const std::array<int, 16> bytes = bytes_of(kind, one);
    for (std::size_t b = 0; b < 16; ++b) {
      form.bytes[b][i] = bytes[b];
      digits_by_bytes[i][b] = bytes[b];
    }
  }
  form.inverse = inverted(digits_by_bytes);
  const std::array<int, 16> full = bytes_of(kind, all);
  for (std::size_t b = 0; b < 16; ++b) form.full[b] = static_cast<std::uint8_t>(full[b]);
  form.exponent = 8 - kind;  // a digit on top of a byte counts 2^(8 - kind)
  return form;
}

// The unit of a chunk whose highest digits lie at `shift`, and the one that refines it.
void add_unit(const BandsTiles& tiles, int chunk, int shift, std::vector<ScoreUnit>& units) {
  constexpr int kRefinedShift = 6;  // the highest digits of 8 bits
  const bool there = chunk < tiles.chunks();
  const int width = there ? tiles.widths()[static_cast<std::size_t>(chunk)] : 2;
  const int offset = there ? 4 * tiles.offset(chunk) : 4 * chunk * chunk_words(2);
  units.push_back({chunk, offset, width, shift, unit_form(width).exponent - shift});
  if (shift < kRefinedShift) return;
  units.push_back({chunk, offset, width, shift, units.back().exponent + kRefinedBits, true});
}

}  // namespace

const UnitForm& unit_form(int kind) {
  static const UnitForm kForms[] = {make_form(1), make_form(2)};
  return kForms[kind - 1];
}

std::vector<ScoreUnit> score_units(const BandsTiles& tiles) {
  std::vector<ScoreUnit> units;
  for (int k = 0; k < tiles.chunks(); ++k) add_unit(tiles, k, tiles.shift(k), units);
  std::stable_sort(units.begin(), units.end(),
                   [](const ScoreUnit& a, const ScoreUnit& b) { return a.exponent < b.exponent; });
  return units;
}

std::vector<ScoreUnit> paired_units(const BandsTiles& tiles, int chunks) {
  std::vector<ScoreUnit> units, refining;
  for (int k = 0; k < chunks; ++k) {
    // The first of a pair has the higher digits.
    const int first = k - k % 2, shift = first < tiles.chunks() ? tiles.shift(first) : 0;
    std::vector<ScoreUnit> own;
    add_unit(tiles, k, shift, own);
    units.push_back(own[0]);
    if (own.size() > 1) refining.push_back(own[1]);
  }
  units.insert(units.end(), refining.begin(), refining.end());
  return units;
}

}  // namespace kvspan::cuda

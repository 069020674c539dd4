// SPDX-License-Identifier: Apache-2.0
#include "cuda/bands/score_units.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace kvspan::cuda {
namespace {

// The four words of a lane whose fields have the given values.
std::array<std::uint32_t, 4> words_of(int kind, const std::array<int, 16>& fields) {
  std::array<std::uint32_t, 4> words{};
  const auto field = [&](int i) {
    return static_cast<std::uint32_t>(fields[static_cast<std::size_t>(i)]);
  };
  std::uint32_t planes[4] = {};
  for (int i = 0; i < 16; ++i) {
    const int k = i / 4, f = i % 4;
    switch (kind) {
      case 1:
        planes[0] |= field(i) << (k / 2 * 8 + 2 * f + k % 2);
        break;
      case 2:
        planes[0] |= field(i) << (8 * k + 2 * f);
        break;
      case 4:
        planes[f / 2] |= field(i) << (8 * k + 4 * (f % 2));
        break;
      default:
        planes[f] |= field(i) << (8 * k);
        break;
    }
  }
  for (unsigned s = 0; s < 4; ++s) {
    switch (kind) {
      case 1:
        words[s] = spread_bits(planes[0]) << s;
        break;
      case 2:
        words[s] = planes[0] << (2 * s);
        break;
      case 4:
        words[s] = planes[s / 2] << (4 * (s % 2));
        break;
      default:
        words[s] = planes[s];
        break;
    }
  }
  return words;
}

std::array<int, 16> bytes_of(int kind, const std::array<int, 16>& fields) {
  const std::array<std::uint32_t, 4> words = words_of(kind, fields);
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
  Matrix fields_by_bytes{};  // q = M' u
  for (std::size_t i = 0; i < 16; ++i) {
    std::array<int, 16> one{};
    one[i] = 1;
    all[i] = (1 << kind) - 1;
    const std::array<int, 16> bytes = bytes_of(kind, one);
    for (std::size_t b = 0; b < 16; ++b) {
      form.bytes[b][i] = bytes[b];
      fields_by_bytes[i][b] = bytes[b];
    }
  }
  form.inverse = inverted(fields_by_bytes);
  const std::array<int, 16> full = bytes_of(kind, all);
  for (std::size_t b = 0; b < 16; ++b) form.full[b] = static_cast<std::uint8_t>(full[b]);
  form.exponent = 8 - kind;  // a field on top of a byte counts 2^(8 - kind)
  return form;
}

}  // namespace

const UnitForm& unit_form(int kind) {
  static const UnitForm kForms[] = {make_form(1), make_form(2), make_form(4), make_form(8)};
  return kForms[kind == 1 ? 0 : kind == 2 ? 1 : kind == 4 ? 2 : 3];
}

std::vector<ScoreUnit> score_units(const BandsTiles& tiles) {
  constexpr int kPlane = 16 * kTileTokens;  // bytes
  std::vector<ScoreUnit> units;
  for (int k = 0; k < tiles.chunks(); ++k) {
    const int width = tiles.widths()[static_cast<std::size_t>(k)], offset = 4 * tiles.offset(k);
    const auto add = [&](int kind, int planes_before, int weight_bits) {
      units.push_back({k, offset + planes_before * kPlane, kind, 8 - kind - weight_bits,
                       1 << weight_bits});
    };
    switch (width) {
      case 1:
      case 2:
      case 4:
      case 8:
        add(width, 0, 0);
        break;
      case 3:
        add(2, 0, 0), add(1, 1, 2);
        break;
      case 5:
        add(4, 0, 0), add(1, 2, 4);
        break;
      default:
        add(4, 0, 0), add(2, 2, 4);
        break;
    }
  }
  std::stable_sort(units.begin(), units.end(),
                   [](const ScoreUnit& a, const ScoreUnit& b) { return a.exponent < b.exponent; });
  return units;
}

}  // namespace kvspan::cuda

// SPDX-License-Identifier: Apache-2.0
// Random problems for coded segments, and the plain way of reading them: every row rebuilt, then
// attention in double precision (oracle.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attention/rows/integer_rows.h"
#include "cache/code/coded_side.h"
#include "cache/rows/encode_rows.h"
#include "tests/attention/oracle.h"
#include "tests/cache/test_rope.h"

namespace kvspan::testing {

enum class Data { kGaussian, kHeavyTails, kRankTwo, kConstant, kCount };

// R(t) in double, written from the definition.
inline void rotate_exactly(const Rope& rope, double t, const float* from, std::int32_t dim,
                           double* to) {
  std::copy_n(from, dim, to);
  for (std::int32_t i = 0; i < rope.rotated_dims / 2; ++i) {
    const bool halves = rope.pairs == Rope::Pairs::kHalves;
    const std::int32_t a = halves ? i : 2 * i, b = halves ? i + rope.rotated_dims / 2 : 2 * i + 1;
    const double c = std::cos(t * rope.angles[std::size_t(i)]);
    const double s = std::sin(t * rope.angles[std::size_t(i)]);
    to[a] = double{rope.magnitude} * (c * from[a] - s * from[b]);
    to[b] = double{rope.magnitude} * (s * from[a] + c * from[b]);
  }
}

// Rows [n, width] of one kind of data; `offset` gives them a mean.
inline std::vector<float> random_rows(Data data, std::size_t n, std::size_t width, double scale,
                                      double offset, Random& random) {
  std::vector<float> rows(n * width);
  std::vector<double> u(2 * n), v(2 * width);
  for (double& x : u) x = random.normal();
  for (double& x : v) x = random.normal();
  for (std::size_t t = 0; t < n; ++t) {
    for (std::size_t i = 0; i < width; ++i) {
      double x = 0.75;
      if (data == Data::kGaussian) x = random.normal();
      if (data == Data::kHeavyTails) x = random.normal() * std::exp(1.5 * random.normal());
      if (data == Data::kRankTwo) x = u[2 * t] * v[2 * i] + u[2 * t + 1] * v[2 * i + 1];
      rows[t * width + i] = static_cast<float>(scale * (x + offset * v[i]));
    }
  }
  return rows;
}

// A transform [r, D] with its inverse [D, r]: orthonormal rows, or those scaled by a metric.
struct Transform {
  std::vector<float> analysis, synthesis;
};
inline Transform random_transform(std::size_t rank, std::size_t width, bool metric,
                                  Random& random) {
  std::vector<double> q(rank * width), weight(width, 1.0);
  for (double& x : q) x = random.normal();
  if (metric) {
    for (double& w : weight) w = std::exp(0.7 * random.normal());
  }
  for (std::size_t i = 0; i < rank; ++i) {
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t j = 0; j < i; ++j) {
        double dot = 0.0;
        for (std::size_t k = 0; k < width; ++k) dot += q[i * width + k] * q[j * width + k];
        for (std::size_t k = 0; k < width; ++k) q[i * width + k] -= dot * q[j * width + k];
      }
      double norm = 0.0;
      for (std::size_t k = 0; k < width; ++k) norm += q[i * width + k] * q[i * width + k];
      for (std::size_t k = 0; k < width; ++k) q[i * width + k] /= std::sqrt(norm);
    }
  }
  Transform t;
  t.analysis.resize(rank * width);
  t.synthesis.resize(rank * width);
  for (std::size_t i = 0; i < rank; ++i) {
    for (std::size_t k = 0; k < width; ++k) {
      t.analysis[i * width + k] = static_cast<float>(q[i * width + k] * weight[k]);
      t.synthesis[k * rank + i] = static_cast<float>(q[i * width + k] / weight[k]);
    }
  }
  return t;
}

struct CodeChoice {
  Domain domain = Domain::kValue;
  std::int32_t heads = 1;
  std::int32_t rank = 4;
  std::int32_t anchor_block = 16;
  bool metric = false;
  double mean = 0.0;  // size of the mean's numbers; 0: none
  float gamma = 1.0f;
  std::string codec = "f32";
};

inline std::shared_ptr<const Code> code_of(const CodeChoice& choice, const Transform& t,
                                           std::int32_t dim, const Rope& rope,
                                           const std::shared_ptr<Ledger>& ledger, Random& random) {
  const auto width = std::size_t(choice.heads * dim), rank = std::size_t(choice.rank);
  std::vector<float> mean(choice.mean == 0.0 ? 0 : width);
  for (float& x : mean) x = static_cast<float>(choice.mean * random.normal());
  CodeParts parts;
  parts.domain = choice.domain;
  parts.heads = choice.heads;
  parts.dim = dim;
  parts.anchor_block = choice.domain == Domain::kAnchoredKey ? choice.anchor_block : 0;
  parts.rope = rope;
  parts.mean = mean;
  parts.analysis = {t.analysis.data(), {rank, width}};
  if (choice.metric) parts.synthesis = {t.synthesis.data(), {width, rank}};
  parts.codec = parse_codec_spec(choice.codec).value();
  parts.gamma = choice.gamma;
  return Code::create(parts, ledger).value();
}

inline std::shared_ptr<const Code> random_code(const CodeChoice& choice, std::int32_t dim,
                                               const Rope& rope,
                                               const std::shared_ptr<Ledger>& ledger,
                                               Random& random) {
  const Transform t = random_transform(std::size_t(choice.rank), std::size_t(choice.heads * dim),
                                       choice.metric, random);
  return code_of(choice, t, dim, rope, ledger, random);
}

// How the next tokens of a list are stored.
struct Piece {
  std::int32_t tokens = 0;
  std::vector<std::shared_ptr<const Code>> keys, values;  // empty: full rank
};

// Fills p.keys by turning raw keys, as a model would but exactly.
inline void turn_keys(Problem& p, const std::vector<float>& raw) {
  p.keys.resize(raw.size());
  std::vector<double> row(std::size_t(p.layer.key_dim));
  const auto heads = std::size_t(p.layer.kv_heads), d = std::size_t(p.layer.key_dim);
  for (std::size_t i = 0; i < p.positions.size() * heads; ++i) {
    rotate_exactly(p.layer.rope, p.positions[i / heads], raw.data() + i * d, p.layer.key_dim,
                   row.data());
    for (std::size_t j = 0; j < d; ++j) p.keys[i * d + j] = static_cast<float>(row[j]);
  }
}

inline SegmentList coded_list(const Problem& p, const std::vector<Piece>& pieces,
                              const std::shared_ptr<Ledger>& ledger) {
  const GroupShape shape{p.layer.kv_heads, p.layer.key_dim, p.layer.value_dim, p.element};
  SegmentList list(shape, ledger);
  std::size_t first = 0;
  const auto heads = std::size_t(p.layer.kv_heads), d = std::size_t(p.layer.key_dim),
             dv = std::size_t(p.layer.value_dim);
  for (const Piece& piece : pieces) {
    const auto n = std::size_t(piece.tokens);
    KvRows rows;
    rows.keys = {p.keys.data() + first * heads * d, {n, heads, d}};
    rows.values = {p.values.data() + first * heads * dv, {n, heads, dv}};
    rows.positions = std::span(p.positions).subspan(first, n);
    if (piece.keys.empty() && piece.values.empty()) {
      list.extend(rows.positions);
      for (std::int32_t h = 0; h < p.layer.kv_heads; ++h) {
        list.write(std::int32_t(first), rows.keys, rows.values, h, 0, piece.tokens);
      }
    } else {
      list.append(encode_rows(rows, shape, {piece.keys, piece.values, true}, ledger).value());
    }
    first += n;
  }
  return list;
}

// The problem with the rows as the list gives them back, and what f32 may lose on the way there.
struct Reread {
  Problem problem;
  double key_slack = 0.0;    // times |q| logit_scale: error of a score
  double value_slack = 0.0;  // error of a coordinate of the output
};

// What integer products may add (attention/rows/integer_rows.h). A query's numbers are off by
// kQueryRounding of the largest, at most |B|_F |q|: a score by that times the sum of |scale code|.
// Weights times scales are off by kWeightRounding of the largest among kWeightBlock tokens; as
// weights sum to one, so do at most their largest over the blocks.
inline double integer_slack(const CodedSide::Part& part, std::int32_t tokens, double b, bool keys,
                            const LayerShape& layer) {
  const Codec& codec = part.code->codec();
  if (!is_integer(codec.spec().kind)) return 0.0;
  std::vector<std::int8_t> codes(codec.cols());
  std::vector<float> scale(codec.groups()), offset(codec.groups());
  double sum = 0.0, step = 0.0, norm = 0.0;
  for (std::size_t t = 0; t < std::size_t(tokens); ++t) {
    codec.decode_codes({part.payload.data(), part.size.payload_bytes}, t,
                       {codes.data(), {1, codes.size()}});
    codec.read_scales({part.scales.data(), part.size.scale_bytes}, codec.tile_of(t), scale, offset);
    double one = 0.0, squares = 0.0;
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const std::size_t unit = codec.spec().unit_cols == 0 ? codes.size() : codec.spec().unit_cols;
      const double s = std::abs(double{scale[i / unit]});
      one += s * std::abs(codes[i]);
      squares += double(codes[i]) * codes[i];
      step = std::max(step, s);
    }
    sum = std::max(sum, one);
    norm = std::max(norm, std::sqrt(squares));
  }
  const double turn = std::max(1.0, double{std::abs(layer.rope.magnitude)});
  return keys ? detail::kQueryRounding * b * turn * sum
              : kWeightRounding * kWeightBlock * b * step * norm;
}

// The slack. Coefficient space sums r products of coefficients with a projection that is itself a
// sum of d products, so a score is off by (d + r + 16) u |q| |B|_F |c| (Cauchy over the components;
// turns and the mean's term add a few roundings of |q|(|B c| + |mean|)); rebuilding rows in f32
// costs as much again. Likewise a value: sums over r, over the tokens, and the mean's term.
inline Reread reread(const Problem& p, const SegmentList& list) {
  Reread result;
  Problem& out = result.problem;
  out = p;
  out.element = Element::kF32;
  std::size_t first = 0;
  const auto heads = std::size_t(p.layer.kv_heads);
  const auto read = [&](const Segment& segment, const RowSide& side, const CodedSide* coded,
                        std::int32_t dim, std::vector<float>& rows, double& slack, bool keys) {
    for (std::size_t h = 0; h < heads; ++h) {
      std::vector<float> back(std::size_t(segment.tokens() * dim));
      float gamma = 1.0f;
      if (coded == nullptr) {
        const RowsView view = side.head(std::int32_t(h));
        for (std::int32_t t = 0; t < segment.tokens(); ++t) {
          for (std::int32_t i = 0; i < dim; ++i) {
            const std::size_t at = std::size_t(t * view.stride + i);
            back[std::size_t(t * dim + i)] =
                view.element == Element::kF16
                    ? to_float(reinterpret_cast<const Half*>(view.data)[at])
                    : reinterpret_cast<const float*>(view.data)[at];
          }
        }
      } else {
        coded->reconstruct(std::int32_t(h), segment.positions, 0,
                           {back.data(), {std::size_t(segment.tokens()), std::size_t(dim)}});
        const CodedSide::Part& part = coded->part(std::int32_t(h));
        const Code& code = *part.code;
        gamma = code.gamma();
        double b = 0.0, c = 0.0, mean = 0.0;
        const std::int32_t in_part = std::int32_t(h) - part.first_head;
        for (std::int32_t i = 0; i < dim * code.rank(); ++i) {
          b += double{code.synthesis(in_part)[i]} * code.synthesis(in_part)[i];
        }
        for (std::int32_t i = 0; code.mean(in_part) != nullptr && i < dim; ++i) {
          mean += double{code.mean(in_part)[i]} * code.mean(in_part)[i];
        }
        std::vector<float> row(std::size_t(code.rank()));
        for (std::int32_t t = 0; t < segment.tokens(); ++t) {
          part.coefficients(t, {row.data(), {1, row.size()}});
          double norm = 0.0;
          for (const float x : row) norm += double{x} * x;
          c = std::max(c, norm);
        }
        const double size = std::sqrt(b) * std::sqrt(c) + std::sqrt(mean);
        const double steps = dim + code.rank() + 16.0 + (keys ? 0.0 : double(segment.tokens()));
        const double turn = keys ? std::max(1.0, double{std::abs(p.layer.rope.magnitude)}) : 1.0;
        const double integers = integer_slack(part, segment.tokens(), std::sqrt(b), keys, p.layer);
        slack = std::max(slack, (2.0 * steps * kUnit * size * turn + integers) * std::abs(gamma));
      }
      for (std::int32_t t = 0; t < segment.tokens(); ++t) {
        for (std::int32_t i = 0; i < dim; ++i) {
          rows[((first + std::size_t(t)) * heads + h) * std::size_t(dim) + std::size_t(i)] =
              gamma * back[std::size_t(t * dim + i)];
        }
      }
    }
  };
  for (const Segment& segment : list.segments()) {
    read(segment, segment.keys, segment.coded_keys.get(), p.layer.key_dim, out.keys,
         result.key_slack, true);
    read(segment, segment.values, segment.coded_values.get(), p.layer.value_dim, out.values,
         result.value_slack, false);
    first += std::size_t(segment.tokens());
  }
  return result;
}

}  // namespace kvspan::testing

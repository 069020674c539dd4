// SPDX-License-Identifier: Apache-2.0
#include "attention/certificate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "attention/bands_kernels.h"
#include "attention/certificate_bands.h"
#include "attention/certificate_seen.h"
#include "attention/integer_rows.h"
#include "base/fail.h"
#include "base/half.h"
#include "cache/coded_side.h"
#include "cache/visible.h"

namespace kvspan {
namespace {

using detail::kRound;
using detail::norm;
using detail::Seen;

constexpr double kWeightRound = 0x1p-21;  // of a weight: its exponential and the sum's

// One side of one head of a segment, rebuilt.
struct SideFacts {
  const CodedSide::Part* part = nullptr;  // null: full rank
  std::vector<float> rows;                // [tokens, dim]
  std::vector<double> lost;               // [tokens] >= |x - x^|
  std::vector<double> lost_joint;         // the same over all heads of the part
  std::vector<double> coefficients;       // [tokens] |c^|
  std::vector<double> sizes;              // [tokens] |B||c^| + |mean|
  // [tokens]: what f32 may add to a coordinate sum: per unit of |q| for keys. Products of r
  // coefficients with a projection of dim products, sizes |B||c| by Cauchy; as much again for
  // having rebuilt the row in f32.
  std::vector<double> rounding;
  // Integer coefficients, [tokens]; otherwise empty: the largest scale of a token times |B|_2, and
  // the norm of its codes.
  std::vector<double> step, codes;
};

// >= |B|_2 of one head: rows of A are orthonormal but for inverse_error() where B = A^T.
double synthesis_norm(const Code& code, std::int32_t head) {
  if (code.orthonormal()) return std::sqrt(1.0 + code.inverse_error());
  return code.synthesis_norm(head);
}

// What rounding queries (keys) and weights (values) to integers adds.
void add_integer_rounding(const CodedSide::Part& part, std::int32_t head, std::int32_t tokens,
                          double turn, SideFacts& facts) {
  const Code& code = *part.code;
  const Codec& codec = code.codec();
  const detail::IntegerLayout layout = detail::integer_layout(code);
  if (!layout.usable || code.domain() == Domain::kPreRopeKey) return;
  const double b = synthesis_norm(code, head);
  const auto rank = static_cast<std::size_t>(code.rank());
  std::vector<std::int8_t> codes(rank);
  std::vector<float> scale(codec.groups()), offset(codec.groups());
  for (std::int32_t t = 0; t < tokens; ++t) {
    codec.decode_codes({part.payload.data(), part.size.payload_bytes}, static_cast<std::size_t>(t),
                       {codes.data(), {1, rank}});
    codec.read_scales({part.scales.data(), part.size.scale_bytes},
                      codec.tile_of(static_cast<std::size_t>(t)), scale, offset);
    double largest = 0.0, squares = 0.0, sum = 0.0;
    for (std::size_t i = 0; i < rank; ++i) {
      const double s = std::abs(double{scale[i / static_cast<std::size_t>(layout.group)]});
      largest = std::max(largest, s);
      squares += double{static_cast<float>(codes[i])} * codes[i];
      sum += s * std::abs(codes[i]);
    }
    // A query's numbers are off by kQueryRounding of the largest, which is at most |B^T q|.
    if (code.domain() != Domain::kValue) {
      facts.rounding[static_cast<std::size_t>(t)] += turn * b * detail::kQueryRounding * sum;
    } else {
      facts.step.push_back(largest * b);
      facts.codes.push_back(std::sqrt(squares));
    }
  }
}

SideFacts rebuild(const Segment& segment, const RowSide& side, const CodedSide* coded,
                  std::int32_t head, std::int32_t dim, double turn) {
  SideFacts facts;
  const auto n = static_cast<std::size_t>(segment.tokens()), d = static_cast<std::size_t>(dim);
  facts.rows.resize(n * d);
  facts.lost.assign(n, 0.0);
  facts.rounding.assign(n, 0.0);
  if (coded == nullptr) {
    const RowsView view = side.head(head);
    for (std::size_t t = 0; t < n; ++t) {
      for (std::size_t i = 0; i < d; ++i) {
        const std::size_t at = t * static_cast<std::size_t>(view.stride) + i;
        facts.rows[t * d + i] = view.element == Element::kF16
                                    ? to_float(reinterpret_cast<const Half*>(view.data)[at])
                                    : reinterpret_cast<const float*>(view.data)[at];
      }
      facts.rounding[t] = (dim + 16) * kRound * norm(facts.rows.data() + t * d, d);
    }
    return facts;
  }
  facts.part = &coded->part(head);
  const Code& code = *facts.part->code;
  const std::int32_t within = head - facts.part->first_head;
  coded->reconstruct(head, segment.positions, 0, {facts.rows.data(), {n, d}});
  facts.lost_joint.assign(n, 0.0);
  facts.coefficients.assign(n, 0.0);
  facts.sizes.assign(n, 0.0);
  const double b = code.synthesis_norm(within);
  const double mean = code.mean(within) != nullptr ? norm(code.mean(within), d) : 0.0;
  std::vector<float> c(static_cast<std::size_t>(code.rank()));
  for (std::size_t t = 0; t < n; ++t) {
    const auto token = static_cast<std::int32_t>(t);
    facts.lost[t] = coded->residual(head, token);
    for (std::int32_t h = 0; h < code.heads(); ++h) {
      const double lost = coded->residual(facts.part->first_head + h, token);
      facts.lost_joint[t] = std::hypot(facts.lost_joint[t], lost);
    }
    facts.part->coefficients(token, {c.data(), {1, c.size()}});
    facts.coefficients[t] = norm(c.data(), c.size());
    facts.sizes[t] = b * facts.coefficients[t] + mean;
    facts.rounding[t] = 2.0 * (dim + code.rank() + 16) * kRound * turn * facts.sizes[t];
  }
  add_integer_rounding(*facts.part, within, segment.tokens(), turn, facts);
  return facts;
}

struct SegmentFacts {
  const Segment* segment = nullptr;
  SideFacts keys, values;
};

// What a query can say about the errors of a post-RoPE code: with any decomposition
// q = w + A^T y, q.e = w.e + y.(A e), and A e = (c - c^) - (AB - I) c^. Here y = B^T q.
struct QuerySplit {
  double outside = 0.0;  // |w|
  double inside = 0.0;   // |y|
};

QuerySplit split_query(const CodedSide::Part& part, std::int32_t head, const float* q) {
  const Code& code = *part.code;
  std::vector<float> y(static_cast<std::size_t>(code.rank()));
  std::vector<float> w(static_cast<std::size_t>(code.width()));
  const std::int32_t within = head - part.first_head;
  code.project(within, q, y.data());
  code.analyse_transposed(y.data(), w.data());
  for (float& x : w) x = -x;
  for (std::int32_t i = 0; i < code.dim(); ++i)
    w[static_cast<std::size_t>(within * code.dim() + i)] += q[i];
  QuerySplit split;
  split.inside = norm(y.data(), y.size());
  // w in f32: rank products of numbers as large as |A||y|, and the subtraction.
  split.outside = norm(w.data(), w.size()) + (code.rank() + 8) * kRound *
                                                 (code.analysis_norm() * split.inside +
                                                  norm(q, static_cast<std::size_t>(code.dim())));
  return split;
}

// >= |q.(k - k^)| of a token.
double key_error(const SideFacts& keys, std::size_t t, double q, const QuerySplit& split) {
  const double plain = q * keys.lost[t];
  if (keys.part == nullptr || keys.part->code->domain() != Domain::kPostRopeKey) return plain;
  const Code& code = *keys.part->code;
  const auto d = static_cast<std::size_t>(code.width());
  // Analysis in f32, of rows no longer than |B||c^| + |mean| + rho.
  const double row = keys.sizes[t] + keys.lost_joint[t];
  const double analysed = static_cast<double>(d + 8) * kRound * code.analysis_norm() * row;
  return std::min(plain, split.outside * keys.lost_joint[t] +
                             split.inside * (double{keys.part->quantization} + analysed +
                                             code.inverse_error() * keys.coefficients[t]));
}

void look(const LayerShape& layer, const std::vector<SegmentFacts>& all, const float* q,
          std::int32_t position, std::int32_t head, std::vector<Seen>& seen) {
  const auto d = static_cast<std::size_t>(layer.key_dim);
  const double q_norm = norm(q, d), scale = std::abs(double{layer.logit_scale});
  for (const SegmentFacts& facts : all) {
    const IndexRange range =
        facts.segment->positions.between(first_seen(layer, position), position);
    if (range.empty()) continue;
    const CodedSide::Part* part = facts.keys.part;
    const double gamma = part != nullptr ? double{part->code->gamma()} : 1.0;
    QuerySplit split;
    if (part != nullptr && part->code->domain() == Domain::kPostRopeKey) {
      split = split_query(*part, head, q);
    }
    for (auto t = static_cast<std::size_t>(range.begin); t < static_cast<std::size_t>(range.end);
         ++t) {
      double dot = 0.0;
      for (std::size_t i = 0; i < d; ++i) dot += double{q[i]} * double{facts.keys.rows[t * d + i]};
      Seen one;
      one.position = facts.segment->positions.at(static_cast<std::int32_t>(t));
      one.logit = double{layer.logit_scale} * gamma * dot;
      one.coding =
          scale * (key_error(facts.keys, t, q_norm, split) + std::abs(1.0 - gamma) * std::abs(dot));
      one.drift = scale * (1.0 + std::abs(gamma)) * q_norm * facts.keys.rounding[t];
      one.value = facts.values.rows.data() + t * static_cast<std::size_t>(layer.value_dim);
      one.lost = facts.values.lost[t];
      one.rounding = facts.values.rounding[t];
      one.segment = facts.segment;
      if (!facts.values.step.empty()) {
        one.step = facts.values.step[t];
        one.codes = facts.values.codes[t];
      }
      seen.push_back(one);
    }
  }
}

// The cap brings numbers no further apart.
void cap(double most, std::vector<Seen>& seen) {
  for (Seen& s : seen) {
    s.logit = most * std::tanh(s.logit / most);
    s.drift += 8.0 * kRound * most;
  }
}

// ALiBi, known exactly but for the f32 of its product and of the sum.
void add_alibi(double slope, std::int32_t position, std::vector<Seen>& seen) {
  for (Seen& s : seen) {
    const double bias = slope * (s.position - position);
    s.logit += bias;
    s.drift += 8.0 * kRound * std::abs(bias);
  }
}

// A layer's sink is one more token that everybody knows exactly, with a value of zeros.
Seen sink_token(double logit, const std::vector<float>& zeros) {
  Seen one;
  one.logit = logit;
  one.drift = 4.0 * kRound * std::abs(logit);
  one.value = zeros.data();
  return one;
}

// What logits that are off by at most `error` each make of the weights: |a - a^|_1 by line 4, or
// for errors that differ; and adds to off[i] what bounds |a_i - a^_i|. Exponents are added before
// they are raised: a weight that vanishes times an error that overflows would be no number.
double weights_bound(const std::vector<Seen>& seen, double Seen::*error, std::vector<double>& off) {
  double high = 0.0, low = 0.0, worst = 0.0;
  for (const Seen& s : seen) {
    high += std::exp(s.log_weight + s.*error);
    low += std::exp(s.log_weight - s.*error);
    worst = std::max(worst, s.*error);
  }
  double up = 0.0, down = 0.0;  // bounds of sum (a - a^)+ and sum (a^ - a)+, which are equal
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const Seen& s = seen[i];
    const double more = std::exp(s.log_weight + s.*error) / low - s.weight;
    const double less = s.weight - std::exp(s.log_weight - s.*error) / high;
    up += more;
    down += less;
    off[i] += more < 1.0 ? std::max(more, less) : 1.0;  // also where it is not a number
  }
  double bound = 2.0 * std::tanh(worst / 2.0);
  if (up < bound) bound = std::min(bound, 2.0 * up);  // comparisons skip infinities and NaN
  if (down < bound) bound = std::min(bound, 2.0 * down);
  return bound;
}

// What rounding weights times scales may move the output by: a number is off by at most itself and
// a share of the largest among tokens that are rounded together, which are of one segment, or of
// neighbouring tiles of bands.
double weight_rounding(const std::vector<Seen>& seen) {
  constexpr std::int32_t kTogether = kBandsRunTiles - 1;  // tiles on either side
  double sum = 0.0;
  for (std::size_t i = 0; i < seen.size();) {
    std::vector<double> largest(1, 0.0);  // of each tile; of a segment
    const auto tile = [&](std::size_t k) {
      return seen[k].tile < 0 ? 0 : static_cast<std::size_t>(seen[k].tile - seen[i].tile);
    };
    std::size_t j = i;
    for (; j < seen.size() && seen[j].segment == seen[i].segment; ++j) {
      largest.resize(std::max(largest.size(), tile(j) + 1), 0.0);
      largest[tile(j)] = std::max(largest[tile(j)], seen[j].most * seen[j].step);
    }
    for (std::size_t k = i; k < j; ++k) {
      double together = 0.0;
      const std::size_t first = tile(k) > kTogether ? tile(k) - kTogether : 0;
      for (std::size_t t = first; t < std::min(largest.size(), tile(k) + kTogether + 1); ++t) {
        together = std::max(together, largest[t]);
      }
      const double share = seen[k].tile < 0 ? kWeightRounding : detail::kBandsRounding;
      sum += seen[k].codes * std::min(share * together, seen[k].most * seen[k].step);
    }
    i = j;
  }
  return 1.01 * sum;
}

Certificate certificate_of(std::vector<Seen>& seen, std::size_t dim) {
  Certificate result;
  double max = -std::numeric_limits<double>::infinity(), sum = 0.0;
  for (const Seen& s : seen) max = std::max(max, s.logit);
  for (const Seen& s : seen) sum += std::exp(s.logit - max);
  std::vector<double> out(dim, 0.0);
  double rounding = 0.0, least = 0.0;
  for (Seen& s : seen) {
    s.log_weight = s.logit - max - std::log(sum);
    s.weight = std::exp(s.log_weight);
    least += std::exp(s.log_weight - s.drift);
  }
  for (Seen& s : seen) {
    s.most = std::min(1.0, std::exp(s.log_weight + s.drift) / least);
    result.logits = std::max(result.logits, s.error());
    result.values += s.most * s.lost;
    rounding = std::max(rounding, s.rounding);
    for (std::size_t i = 0; i < dim; ++i) out[i] += s.weight * double{s.value[i]};
  }
  // Sums over tokens in f32.
  const double summing = kWeightRound + 2.0 * static_cast<double>(seen.size() + 16) * kRound;
  std::vector<double> off(seen.size(), summing);
  result.weights =
      std::min(2.0 * std::tanh(result.logits / 2.0),
               weights_bound(seen, &Seen::coding, off) + weights_bound(seen, &Seen::drift, off)) +
      summing;
  double from_zero = 0.0, from_out = 0.0, largest = 0.0, each = 0.0;
  for (std::size_t k = 0; k < seen.size(); ++k) {
    const Seen& s = seen[k];
    double zero = 0.0, centred = 0.0;
    for (std::size_t i = 0; i < dim; ++i) {
      const double v = s.value[i];
      zero += v * v;
      centred += (v - out[i]) * (v - out[i]);
    }
    largest = std::max(largest, std::sqrt(zero));
    from_zero = std::max(from_zero, std::sqrt(zero) + s.lost);
    from_out = std::max(from_out, std::sqrt(centred) + s.lost);
    each += off[k] * (std::sqrt(centred) + s.lost);
  }
  result.output = std::min(result.weights * std::min(from_zero, from_out), each) + result.values +
                  summing * largest + rounding * std::sqrt(static_cast<double>(dim)) +
                  weight_rounding(seen);
  return result;
}

}  // namespace

Status certify(const LayerShape& layer, const SegmentList& list, const BandsSides& bands,
               const Queries& queries, std::int32_t kv_head, TensorView<Certificate, 2> out) {
  std::vector<SegmentFacts> all;
  const double turn = std::max(1.0, std::abs(double{layer.rope.magnitude}));
  for (const Segment& segment : list.segments()) {
    for (const CodedSide* side : {segment.coded_keys.get(), segment.coded_values.get()}) {
      if (side != nullptr && !side->has_residuals()) {
        return fail(ErrorCode::kUnsupported,
                    "the segment at position {} keeps no residual norms, so nothing bounds it",
                    segment.positions.at(0));
      }
    }
    all.push_back(
        {&segment,
         rebuild(segment, segment.keys, segment.coded_keys.get(), kv_head, layer.key_dim, turn),
         rebuild(segment, segment.values, segment.coded_values.get(), kv_head, layer.value_dim,
                 1.0)});
  }
  std::optional<detail::BandsFacts> coded;
  if (bands.keys != nullptr && !bands.keys->empty()) {
    if (!bands.keys->has_residuals() || !bands.values->has_residuals()) {
      return fail(ErrorCode::kUnsupported,
                  "tokens of bands keep no residual norms, so nothing bounds them");
    }
    coded.emplace(*bands.keys, *bands.values, kv_head);
  }
  const std::int32_t group = layer.query_heads / layer.kv_heads;
  const std::vector<float> zeros(static_cast<std::size_t>(layer.value_dim));
  for (std::size_t i = 0; i < queries.positions.size(); ++i) {
    for (std::int32_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      std::vector<Seen> seen;
      look(layer, all, queries.rows.row(i, h), queries.positions[i], kv_head, seen);
      if (coded) coded->look(layer, queries.rows.row(i, h), queries.positions[i], seen);
      if (layer.soft_cap > 0.0f) cap(layer.soft_cap, seen);
      const auto head = static_cast<std::size_t>(h);
      if (!layer.alibi.empty()) add_alibi(layer.alibi[head], queries.positions[i], seen);
      if (!layer.sinks.empty()) seen.push_back(sink_token(layer.sinks[head], zeros));
      out.row(i)[h] = seen.empty()
                          ? Certificate{}
                          : certificate_of(seen, static_cast<std::size_t>(layer.value_dim));
    }
  }
  return {};
}

}  // namespace kvspan

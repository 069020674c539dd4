// SPDX-License-Identifier: Apache-2.0
#include "attention/certificate/certificate_segments.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "attention/kernels/kernels.h"
#include "attention/rows/integer_rows.h"
#include "base/fail.h"
#include "base/half.h"
#include "cache/code/coded_side.h"
#include "cache/visible.h"

namespace kvspan {
namespace {

using detail::kRound;
using detail::norm;

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

class ListFacts final : public StoreFacts {
 public:
  ListFacts(std::vector<SegmentFacts> segments, std::int32_t head)
      : segments_(std::move(segments)), head_(head) {}
  void look(const LayerShape& layer, const float* q, std::int32_t position,
            std::vector<Seen>& seen) const override;

 private:
  std::vector<SegmentFacts> segments_;
  std::int32_t head_;
};

void ListFacts::look(const LayerShape& layer, const float* q, std::int32_t position,
                     std::vector<Seen>& seen) const {
  const auto d = static_cast<std::size_t>(layer.key_dim);
  const double q_norm = norm(q, d), scale = std::abs(double{layer.logit_scale});
  for (const SegmentFacts& facts : segments_) {
    const IndexRange range =
        facts.segment->positions.between(first_seen(layer, position), position);
    if (range.empty()) continue;
    const CodedSide::Part* part = facts.keys.part;
    const double gamma = part != nullptr ? double{part->code->gamma()} : 1.0;
    QuerySplit split;
    if (part != nullptr && part->code->domain() == Domain::kPostRopeKey) {
      split = split_query(*part, head_, q);
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
      one.together = facts.segment;
      one.share = kWeightRounding;
      if (!facts.values.step.empty()) {
        one.step = facts.values.step[t];
        one.codes = facts.values.codes[t];
      }
      seen.push_back(one);
    }
  }
}

}  // namespace

Result<std::unique_ptr<StoreFacts>> segment_facts(const LayerShape& layer, const SegmentList& list,
                                                  std::int32_t head) {
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
         rebuild(segment, segment.keys, segment.coded_keys.get(), head, layer.key_dim, turn),
         rebuild(segment, segment.values, segment.coded_values.get(), head, layer.value_dim, 1.0)});
  }
  return std::unique_ptr<StoreFacts>(std::make_unique<ListFacts>(std::move(all), head));
}

}  // namespace kvspan

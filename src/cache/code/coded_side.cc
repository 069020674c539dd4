// SPDX-License-Identifier: Apache-2.0
#include "cache/code/coded_side.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/expect.h"
#include "base/fail.h"
#include "base/half.h"
#include "cache/rope.h"

namespace kvspan {
namespace {

// x [D] of a token without its mean, in the code's domain.
void gather(const SideRows& rows, const CodedSide::Part& part, std::size_t token, float* x) {
  const Code& code = *part.code;
  const std::int32_t position = rows.positions[token];
  const bool raw = code.domain() == Domain::kPreRopeKey || code.domain() == Domain::kAnchoredKey;
  for (std::int32_t h = 0; h < code.heads(); ++h, x += code.dim()) {
    const float* from = rows.rows.row(token, part.first_head + h);
    for (std::int32_t i = 0; i < code.dim(); ++i) x[i] = from[i];
    if (raw) rope_unrotate(code.rope(), position, x);
    if (const float* mean = code.mean(h)) {
      for (std::int32_t i = 0; i < code.dim(); ++i) x[i] -= mean[i];
    }
    if (code.domain() == Domain::kAnchoredKey) {
      rope_offset(code.rope(), position - code.anchor_of(position), x);
    }
  }
}

// From B c to the row as attention sees it.
void finish_row(const Code& code, std::int32_t head, std::int32_t position, float* row) {
  const float* mean = code.mean(head);
  const auto add = [&](const float* what) {
    for (std::int32_t i = 0; what != nullptr && i < code.dim(); ++i) row[i] += what[i];
  };
  switch (code.domain()) {
    case Domain::kPostRopeKey:
    case Domain::kValue:
      add(mean);
      break;
    case Domain::kPreRopeKey:
      add(mean);
      rope_rotate(code.rope(), position, row);
      break;
    case Domain::kAnchoredKey:
      add(code.turned_mean(head, position));  // k = R(t_a) (x + Rot(t - t_a) mu)
      rope_rotate(code.rope(), code.anchor_of(position), row);
      break;
  }
}

}  // namespace

void CodedSide::Part::coefficients(std::int32_t first, TensorView<float, 2> out) const noexcept {
  code->codec().decode({payload.data(), size.payload_bytes}, {scales.data(), size.scale_bytes},
                       static_cast<std::size_t>(first), out);
}

Result<std::shared_ptr<const CodedSide>> CodedSide::encode(
    const SideRows& rows, bool keys, std::span<const std::shared_ptr<const Code>> codes,
    bool residuals, const std::shared_ptr<Ledger>& ledger) {
  KVSPAN_EXPECT(rows.rows.shape[0] == rows.positions.size(), "one position for each row");
  std::shared_ptr<CodedSide> side(new CodedSide);
  side->tokens_ = static_cast<std::int32_t>(rows.positions.size());
  side->parts_.reserve(codes.size());
  for (const auto& code : codes) {
    KVSPAN_CHECK_OK(side->add_code(code, keys, rows.rows.shape[2]));
  }
  if (side->part_of_head_.size() != rows.rows.shape[1]) {
    return fail(ErrorCode::kInvalidArgument, "codes of {} heads for rows of {}",
                side->part_of_head_.size(), rows.rows.shape[1]);
  }
  for (Part& part : side->parts_) KVSPAN_CHECK_OK(side->encode_part(rows, part, ledger));
  if (residuals) side->measure(rows, ledger);
  return std::shared_ptr<const CodedSide>(std::move(side));
}

Status CodedSide::add_code(const std::shared_ptr<const Code>& code, bool keys, std::size_t dim) {
  if ((code->domain() != Domain::kValue) != keys) {
    return fail(ErrorCode::kInvalidArgument, "a code of {} for {}", keys ? "values" : "keys",
                keys ? "keys" : "values");
  }
  if (static_cast<std::size_t>(code->dim()) != dim) {
    return fail(ErrorCode::kInvalidArgument, "a code of {} dimensions for rows of {}", code->dim(),
                dim);
  }
  Part part;
  part.code = code;
  part.first_head = static_cast<std::int32_t>(part_of_head_.size());
  part_of_head_.insert(part_of_head_.end(), static_cast<std::size_t>(code->heads()), parts_.size());
  parts_.push_back(std::move(part));
  highest_rank_ = std::max(highest_rank_, code->rank());
  return {};
}

Status CodedSide::encode_part(const SideRows& rows, Part& part,
                              const std::shared_ptr<Ledger>& ledger) {
  const Code& code = *part.code;
  const auto n = rows.positions.size(), r = static_cast<std::size_t>(code.rank());
  std::vector<float> x(static_cast<std::size_t>(code.width())), c(n * r), lost(n);
  for (std::size_t t = 0; t < n; ++t) {
    gather(rows, part, t, x.data());
    code.analyse(x.data(), c.data() + t * r);
  }
  return store(part, TensorView<const float, 2>(c.data(), {n, r}), ledger);
}

Status CodedSide::store(Part& part, TensorView<const float, 2> coefficients,
                        const std::shared_ptr<Ledger>& ledger) {
  const Codec& codec = part.code->codec();
  std::vector<float> lost(coefficients.shape[0]);
  part.size = codec.encoded_size(lost.size());
  part.payload = Buffer(part.size.payload_bytes, MemoryKind::kCoefficients, ledger);
  part.scales = Buffer(part.size.scale_bytes, MemoryKind::kScales, ledger);
  KVSPAN_CHECK_OK(codec.encode(coefficients, {part.payload.data(), part.size.payload_bytes},
                               {part.scales.data(), part.size.scale_bytes},
                               {.l2 = lost, .linf = {}}));
  for (const float l : lost) part.quantization = std::max(part.quantization, l);
  return {};
}

Result<std::shared_ptr<const CodedSide>> CodedSide::recode(
    std::span<const std::shared_ptr<const Code>> codes,
    std::span<const TensorView<const float, 2>> coefficients, std::span<const float> moved,
    const std::shared_ptr<Ledger>& ledger) const {
  KVSPAN_EXPECT(codes.size() == parts_.size() && coefficients.size() == parts_.size(),
                "one code and its coefficients for each there was");
  std::shared_ptr<CodedSide> side(new CodedSide);
  side->tokens_ = tokens_;
  side->parts_.reserve(codes.size());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    KVSPAN_EXPECT(codes[i]->heads() == parts_[i].code->heads() && codes[i]->orthonormal(),
                  "orthonormal codes of the same heads");
    const bool keys = parts_[i].code->domain() != Domain::kValue;
    KVSPAN_CHECK_OK(
        side->add_code(codes[i], keys, static_cast<std::size_t>(parts_[i].code->dim())));
    KVSPAN_CHECK_OK(store(side->parts_.back(), coefficients[i], ledger));
  }
  if (!has_residuals() || moved.empty()) return std::shared_ptr<const CodedSide>(std::move(side));
  KVSPAN_EXPECT(moved.size() == part_of_head_.size() * static_cast<std::size_t>(tokens_),
                "one number for each row");
  side->residuals_ = Buffer(moved.size() * sizeof(BFloat16), MemoryKind::kPositions, ledger);
  BFloat16* to = side->residuals_.as<BFloat16>();
  for (std::size_t h = 0; h < part_of_head_.size(); ++h) {
    const Part& part = side->parts_[side->part_of_head_[h]];
    for (std::int32_t t = 0; t < tokens_; ++t) {
      const auto head = static_cast<std::int32_t>(h);
      *to++ = bfloat16_above(
          double{residual(head, t)} +
          double{moved[h * static_cast<std::size_t>(tokens_) + static_cast<std::size_t>(t)]} +
          double{part.quantization} * (1.0 + part.code->inverse_error()));
    }
  }
  return std::shared_ptr<const CodedSide>(std::move(side));
}

std::shared_ptr<const CodedSide> CodedSide::reread(
    std::span<const std::shared_ptr<const Code>> codes,
    const std::shared_ptr<Ledger>& ledger) const {
  KVSPAN_EXPECT(codes.size() == parts_.size(), "one code for each there was");
  std::shared_ptr<CodedSide> side(new CodedSide);
  side->tokens_ = tokens_;
  side->part_of_head_ = part_of_head_;
  side->highest_rank_ = highest_rank_;
  side->parts_.reserve(parts_.size());
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& old = parts_[i];
    KVSPAN_EXPECT(codes[i]->heads() == old.code->heads() && codes[i]->rank() == old.code->rank() &&
                      codes[i]->codec().spec() == old.code->codec().spec(),
                  "codes of the same shape");
    Part part;
    part.code = codes[i];
    part.first_head = old.first_head;
    part.size = old.size;
    part.payload = old.payload.clone(ledger);
    part.scales = old.scales.clone(ledger);
    part.quantization = old.quantization;
    side->parts_.push_back(std::move(part));
  }
  return side;
}

std::int32_t CodedSide::unit() const noexcept {
  std::int32_t unit = 1;
  for (const Part& part : parts_) {
    const CodecSpec& spec = part.code->codec().spec();
    if (is_integer(spec.kind)) unit = std::lcm(unit, static_cast<std::int32_t>(spec.unit_rows));
  }
  return unit;
}

std::shared_ptr<const CodedSide> CodedSide::select(std::span<const std::int32_t> tokens,
                                                   const std::shared_ptr<Ledger>& ledger) const {
  const std::int32_t together = unit() > 0 ? unit() : tokens_;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool begins = static_cast<std::int32_t>(i) % together == 0;
    KVSPAN_EXPECT(begins ? tokens[i] % together == 0 : tokens[i] == tokens[i - 1] + 1,
                  "tokens that share a scale stay together");
  }
  std::shared_ptr<CodedSide> side(new CodedSide);
  side->tokens_ = static_cast<std::int32_t>(tokens.size());
  side->part_of_head_ = part_of_head_;
  side->highest_rank_ = highest_rank_;
  side->parts_.reserve(parts_.size());
  // Rows of so many bytes; row_of(token) is where a token's is.
  const auto copy_rows = [&](const Buffer& from, std::size_t bytes, Buffer& to, const auto& row_of) {
    if (bytes == 0) return;  // codecs without scales have no memory for them
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::memcpy(to.data() + row_of(i) * bytes,
                  from.data() + row_of(static_cast<std::size_t>(tokens[i])) * bytes, bytes);
    }
  };
  for (const Part& old : parts_) {
    Part part;
    part.code = old.code;
    part.first_head = old.first_head;
    part.quantization = old.quantization;
    const Codec& codec = old.code->codec();
    part.size = codec.encoded_size(tokens.size());
    part.payload = Buffer(part.size.payload_bytes, MemoryKind::kCoefficients, ledger);
    part.scales = Buffer(part.size.scale_bytes, MemoryKind::kScales, ledger);
    copy_rows(old.payload, codec.row_bytes(), part.payload, [](std::size_t t) { return t; });
    copy_rows(old.scales, codec.encoded_size(1).scale_bytes, part.scales,
              [&](std::size_t t) { return codec.tile_of(t); });
    side->parts_.push_back(std::move(part));
  }
  if (has_residuals()) {
    const std::size_t heads = part_of_head_.size();
    side->residuals_ =
        Buffer(heads * tokens.size() * sizeof(BFloat16), MemoryKind::kPositions, ledger);
    BFloat16* to = side->residuals_.as<BFloat16>();
    for (std::size_t h = 0; h < heads; ++h) {
      const BFloat16* from = residuals_.as<BFloat16>() + h * static_cast<std::size_t>(tokens_);
      for (const std::int32_t t : tokens) *to++ = from[t];
    }
  }
  return side;
}

void CodedSide::measure(const SideRows& rows, const std::shared_ptr<Ledger>& ledger) {
  const auto n = rows.positions.size(), d = rows.rows.shape[2];
  residuals_ = Buffer(part_of_head_.size() * n * sizeof(BFloat16), MemoryKind::kPositions, ledger);
  Positions positions;
  for (const std::int32_t position : rows.positions) positions.push(position, tokens_, nullptr);
  std::vector<float> back(n * d);
  BFloat16* to = residuals_.as<BFloat16>();
  for (std::size_t h = 0; h < part_of_head_.size(); ++h) {
    reconstruct(static_cast<std::int32_t>(h), positions, 0, {back.data(), {n, d}});
    for (std::size_t t = 0; t < n; ++t) {
      const float* x = rows.rows.row(t, h);
      double sum = 0.0;
      for (std::size_t i = 0; i < d; ++i) {
        const double off = double{x[i]} - double{back[t * d + i]};
        sum += off * off;
      }
      *to++ = bfloat16_above(std::sqrt(sum));
    }
  }
}

void CodedSide::reconstruct(std::int32_t head, const Positions& positions, std::int32_t first,
                            TensorView<float, 2> out) const {
  const Part& from = part(head);
  const Code& code = *from.code;
  std::vector<float> c(static_cast<std::size_t>(code.rank()));
  for (std::size_t t = 0; t < out.shape[0]; ++t) {
    const std::int32_t token = first + static_cast<std::int32_t>(t);
    from.coefficients(token, {c.data(), {1, c.size()}});
    code.synthesise(head - from.first_head, c.data(), out.row(t));
    finish_row(code, head - from.first_head, positions.at(token), out.row(t));
  }
}

float CodedSide::residual(std::int32_t head, std::int32_t token) const noexcept {
  return to_float(residuals_.as<BFloat16>()[static_cast<std::ptrdiff_t>(head) * tokens_ + token]);
}

std::size_t CodedSide::coefficient_bytes() const noexcept {
  std::size_t sum = 0;
  for (const Part& part : parts_) sum += part.payload.bytes();
  return sum;
}

std::size_t CodedSide::scale_bytes() const noexcept {
  std::size_t sum = 0;
  for (const Part& part : parts_) sum += part.scales.bytes();
  return sum;
}

}  // namespace kvspan

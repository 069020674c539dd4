// SPDX-License-Identifier: Apache-2.0
#include "cache/code/coded_side_bytes.h"

#include <cmath>
#include <cstring>

#include "base/fail.h"
#include "base/half.h"

namespace kvspan {
namespace {

Result<Buffer> read_buffer(std::string_view field, std::size_t bytes, MemoryKind kind,
                           ByteReader& in, const std::shared_ptr<Ledger>& ledger) {
  KVSPAN_TRY(const auto from, in.get_bytes(field, bytes));
  Buffer buffer(bytes, kind, ledger);
  if (bytes > 0) std::memcpy(buffer.data(), from.data(), bytes);
  return buffer;
}

Status check_coefficients(const CodedSide::Part& part, std::int32_t tokens, std::size_t start,
                          std::string_view what) {
  std::vector<float> c(static_cast<std::size_t>(part.code->rank()));
  for (std::int32_t t = 0; t < tokens; ++t) {
    part.coefficients(t, {c.data(), {1, c.size()}});
    for (std::size_t i = 0; i < c.size(); ++i) {
      if (std::isfinite(c[i])) continue;
      return fail(ErrorCode::kCorruptData,
                  "{}: coefficients at byte {}: number {} of token {} is {}; finite numbers are "
                  "allowed",
                  what, start, i, t, c[i]);
    }
  }
  return {};
}

}  // namespace

void CodedSideBytes::write(const CodedSide& side, CodeWriter& codes, ByteWriter& out) {
  out.put(side.tokens_);
  out.put(static_cast<std::uint16_t>(side.parts_.size()));
  out.put(static_cast<std::uint16_t>(side.has_residuals()));
  for (const CodedSide::Part& part : side.parts_) {
    codes.put(part.code, out);
    out.put(part.quantization);
    out.put_bytes({part.payload.data(), part.size.payload_bytes});
    out.put_bytes({part.scales.data(), part.size.scale_bytes});
  }
  if (side.has_residuals()) {
    out.put_bytes(
        {side.residuals_.data(),
         side.part_of_head_.size() * static_cast<std::size_t>(side.tokens_) * sizeof(BFloat16)});
  }
}

Status CodedSideBytes::read_part(CodedSide::Part& part, std::int32_t tokens, ByteReader& in,
                                 const std::shared_ptr<Ledger>& ledger) {
  KVSPAN_TRY(part.quantization, in.get<float>("quantization error"));
  if (!(part.quantization >= 0.0f && std::isfinite(part.quantization))) {
    return in.wrong("quantization error", sizeof(float), part.quantization, "finite, 0 or more");
  }
  part.size = part.code->codec().encoded_size(static_cast<std::size_t>(tokens));
  const std::size_t start = in.offset();
  KVSPAN_TRY(part.payload, read_buffer("coefficients", part.size.payload_bytes,
                                       MemoryKind::kCoefficients, in, ledger));
  KVSPAN_TRY(part.scales,
             read_buffer("scales", part.size.scale_bytes, MemoryKind::kScales, in, ledger));
  return check_coefficients(part, tokens, start, in.what());
}

Result<std::shared_ptr<const CodedSide>> CodedSideBytes::read(
    bool keys, std::int32_t heads, std::int32_t dim, std::int32_t tokens, CodeReader& codes,
    ByteReader& in, const std::shared_ptr<Ledger>& ledger) {
  std::shared_ptr<CodedSide> side(new CodedSide);
  KVSPAN_TRY(side->tokens_, in.get<std::int32_t>("coded tokens"));
  if (side->tokens_ < tokens) {
    return in.wrong("coded tokens", sizeof(tokens), side->tokens_,
                    fmt::format("{} or more, as the segment has", tokens));
  }
  KVSPAN_TRY(const auto parts, in.get<std::uint16_t>("number of parts"));
  if (parts < 1 || parts > heads) {
    return in.wrong("number of parts", sizeof(parts), parts, fmt::format("1 to {}", heads));
  }
  KVSPAN_TRY(const auto residuals, in.get<std::uint16_t>("residuals"));
  if (residuals > 1) return in.wrong("residuals", sizeof(residuals), residuals, "0 or 1");
  for (std::uint16_t i = 0; i < parts; ++i) {
    const std::size_t start = in.offset();
    const auto held = static_cast<std::int32_t>(side->part_of_head_.size());
    if (held == heads) return in.wrong("number of parts", 0, parts, "as many as the heads need");
    KVSPAN_TRY(const auto code, codes.get(heads - held, dim, in));
    if (auto added = side->add_code(code, keys, static_cast<std::size_t>(dim)); !added) {
      return fail(ErrorCode::kCorruptData, "{}: code at byte {}: {}", in.what(), start,
                  added.error().message);
    }
    KVSPAN_CHECK_OK(read_part(side->parts_.back(), side->tokens_, in, ledger));
  }
  if (side->part_of_head_.size() != static_cast<std::size_t>(heads)) {
    return fail(ErrorCode::kCorruptData, "{}: codes before byte {} are of {} heads; allowed: {}",
                in.what(), in.offset(), side->part_of_head_.size(), heads);
  }
  if (residuals == 0) return std::shared_ptr<const CodedSide>(std::move(side));
  const std::size_t start = in.offset();
  const auto count = static_cast<std::size_t>(heads) * static_cast<std::size_t>(side->tokens_);
  KVSPAN_TRY(side->residuals_, read_buffer("residual norms", count * sizeof(BFloat16),
                                           MemoryKind::kPositions, in, ledger));
  for (std::size_t i = 0; i < count; ++i) {
    const float norm = to_float(side->residuals_.as<BFloat16>()[i]);
    if (norm >= 0.0f) continue;
    return fail(ErrorCode::kCorruptData, "{}: residual norm at byte {} is {}; allowed: 0 or more",
                in.what(), start + i * sizeof(BFloat16), norm);
  }
  return std::shared_ptr<const CodedSide>(std::move(side));
}

}  // namespace kvspan

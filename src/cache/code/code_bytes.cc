// SPDX-License-Identifier: Apache-2.0
#include "cache/code/code_bytes.h"

#include <utility>

#include "base/fail.h"
#include "cache/rope.h"

namespace kvspan {
namespace {

constexpr std::int32_t kMaxAnchorBlock = 65536;

std::size_t matrix_size(const Code& code) {
  return static_cast<std::size_t>(code.width()) * static_cast<std::size_t>(code.rank());
}

}  // namespace

void write_code(const Code& code, ByteWriter& out) {
  const CodecSpec& codec = code.codec().spec();
  // The other domains have no use for a rope, and none need fit them.
  const bool turns = code.domain() == Domain::kPreRopeKey || code.domain() == Domain::kAnchoredKey;
  const Rope rope = turns ? code.rope() : Rope();
  const bool has_mean = code.mean(0) != nullptr;
  out.put(static_cast<std::uint8_t>(code.domain()));
  out.put(static_cast<std::uint8_t>(rope.pairs));
  out.put(static_cast<std::uint8_t>(code.orthonormal()));
  out.put(static_cast<std::uint8_t>(has_mean));
  out.put(static_cast<std::uint8_t>(codec.kind));
  out.put(static_cast<std::uint8_t>(codec.rule));
  out.put(static_cast<std::uint8_t>(codec.scale));
  out.put(static_cast<std::uint8_t>(code.basis().store()));
  for (const std::int32_t n : {code.heads(), code.dim(), code.rank(), code.anchor_block()}) {
    out.put(n);
  }
  out.put(codec.unit_rows);
  out.put(codec.unit_cols);
  // Only of codes that a factory's caches share.
  for (const CodecRun& run : codec.runs) {
    out.put(run.cols);
    out.put(static_cast<std::int32_t>(run.bits));
  }
  out.put(code.gamma());
  out.put(rope.magnitude);
  out.put(rope.rotated_dims);
  out.put(static_cast<std::uint32_t>(rope.angles.size()));
  out.put_all(std::span<const double>(rope.angles));
  if (has_mean) {
    out.put_all(std::span<const float>(code.mean(0), static_cast<std::size_t>(code.width())));
  }
  // Narrow bases as the numbers that they stand for: stored again, they give the same bytes.
  out.put_all(code.basis().scales());
  out.put_all(std::span<const float>(code.basis().decoded()));
  if (!code.orthonormal()) {
    out.put_all(std::span<const float>(code.analysis_transposed(), matrix_size(code)));
  }
}

namespace {

std::uint64_t checksum(const Code& code) {
  ByteWriter bytes;
  write_code(code, bytes);
  return crc64(bytes.bytes());
}

// A byte from 0 to `last`.
template <class T>
Status read_small(std::string_view field, int last, T& to, ByteReader& in) {
  KVSPAN_TRY(const auto value, in.get<std::uint8_t>(field));
  if (value > last) return in.wrong(field, 1, int{value}, fmt::format("0 to {}", last));
  to = static_cast<T>(value);
  return {};
}

Status read_between(std::string_view field, std::int32_t low, std::int32_t high, std::int32_t& to,
                    ByteReader& in) {
  KVSPAN_TRY(to, in.get<std::int32_t>(field));
  if (to < low || to > high) {
    return in.wrong(field, sizeof(to), to, fmt::format("{} to {}", low, high));
  }
  return {};
}

Status read_rope(std::int32_t dim, Rope& rope, ByteReader& in) {
  KVSPAN_TRY(rope.magnitude, in.get<float>("rope magnitude"));
  KVSPAN_CHECK_OK(read_between("rotated dimensions", 0, dim, rope.rotated_dims, in));
  const std::size_t start = in.offset();
  KVSPAN_TRY(const auto angles, in.get<std::uint32_t>("number of angles"));
  KVSPAN_CHECK_OK(in.expect_at_least("angles", std::size_t{angles} * sizeof(double)));
  rope.angles.resize(angles);
  KVSPAN_CHECK_OK(in.get_all("angles", std::span<double>(rope.angles)));
  if (auto checked = check_rope(rope, dim); !checked) {
    return fail(ErrorCode::kCorruptData, "{}: rope at byte {}: {}", in.what(), start,
                checked.error().message);
  }
  return {};
}

// Runs of all `rank` components.
Status read_runs(std::uint32_t rank, std::vector<CodecRun>& runs, ByteReader& in) {
  for (std::uint32_t left = rank; left > 0;) {
    CodecRun run;
    KVSPAN_TRY(run.cols, in.get<std::uint32_t>("components of a run"));
    if (run.cols < 1 || run.cols > left) {
      return in.wrong("components of a run", sizeof(run.cols), run.cols,
                      fmt::format("1 to {}", left));
    }
    std::int32_t bits = 0;
    KVSPAN_CHECK_OK(read_between("bits of a run", 0, 8, bits, in));
    run.bits = bits;
    left -= run.cols;
    runs.push_back(run);
  }
  return {};
}

// [rows, cols] read as its transpose [cols, rows].
Result<std::vector<float>> read_transposed(std::string_view field, std::size_t rows,
                                           std::size_t cols, ByteReader& in) {
  KVSPAN_CHECK_OK(in.expect_at_least(field, rows * cols * sizeof(float)));
  std::vector<float> row(cols), all(rows * cols);
  for (std::size_t i = 0; i < rows; ++i) {
    KVSPAN_CHECK_OK(in.get_all(field, std::span<float>(row)));
    for (std::size_t j = 0; j < cols; ++j) all[j * rows + i] = row[j];
  }
  return all;
}

}  // namespace

Result<std::shared_ptr<const Code>> read_code(std::int32_t max_heads, std::int32_t dim,
                                              const std::shared_ptr<Ledger>& ledger,
                                              MemoryKind kind, ByteReader& in) {
  const std::size_t start = in.offset();
  CodeParts parts;
  bool orthonormal = false, has_mean = false;
  KVSPAN_CHECK_OK(read_small("domain", 3, parts.domain, in));
  KVSPAN_CHECK_OK(read_small("pairs", 1, parts.rope.pairs, in));
  KVSPAN_CHECK_OK(read_small("orthonormal", 1, orthonormal, in));
  KVSPAN_CHECK_OK(read_small("mean", 1, has_mean, in));
  KVSPAN_CHECK_OK(
      read_small("codec kind", kind == MemoryKind::kShared ? 7 : 6, parts.codec.kind, in));
  KVSPAN_CHECK_OK(read_small("codec rule", 3, parts.codec.rule, in));
  KVSPAN_CHECK_OK(read_small("codec scale", 1, parts.codec.scale, in));
  KVSPAN_CHECK_OK(read_small("basis store", 2, parts.store, in));
  std::int32_t rank = 0;
  KVSPAN_CHECK_OK(read_between("heads", 1, max_heads, parts.heads, in));
  KVSPAN_CHECK_OK(read_between("dimension", dim, dim, parts.dim, in));
  KVSPAN_CHECK_OK(read_between("rank", 1, parts.heads * parts.dim, rank, in));
  KVSPAN_CHECK_OK(read_between("anchor block", 0, kMaxAnchorBlock, parts.anchor_block, in));
  KVSPAN_TRY(parts.codec.unit_rows, in.get<std::uint32_t>("rows of a scale"));
  KVSPAN_TRY(parts.codec.unit_cols, in.get<std::uint32_t>("columns of a scale"));
  if (parts.codec.kind == CodecKind::kMixed) {
    KVSPAN_CHECK_OK(read_runs(static_cast<std::uint32_t>(rank), parts.codec.runs, in));
  }
  KVSPAN_TRY(parts.gamma, in.get<float>("gamma"));
  KVSPAN_CHECK_OK(read_rope(parts.dim, parts.rope, in));
  const auto width = static_cast<std::size_t>(parts.heads) * static_cast<std::size_t>(parts.dim);
  const auto r = static_cast<std::size_t>(rank);
  std::vector<float> mean(has_mean ? width : 0), synthesis, analysis;
  KVSPAN_CHECK_OK(in.get_all("mean", std::span<float>(mean)));
  parts.mean = mean;
  std::vector<float> scales(parts.store == BasisStore::kInt8 ? r : 0);
  KVSPAN_CHECK_OK(in.get_all("basis scales", std::span<float>(scales)));
  for (const float scale : scales) {
    if (!(scale > 0.0f && scale <= 1.0f)) {
      return in.wrong("basis scale", sizeof(scale), scale, "above 0, up to 1");
    }
  }
  parts.store_scales = scales;
  if (orthonormal) {
    KVSPAN_TRY(analysis, read_transposed("basis", width, r, in));
  } else {
    KVSPAN_CHECK_OK(in.expect_at_least("synthesis", width * r * sizeof(float)));
    synthesis.resize(width * r);
    KVSPAN_CHECK_OK(in.get_all("synthesis", std::span<float>(synthesis)));
    KVSPAN_TRY(analysis, read_transposed("analysis", width, r, in));
    parts.synthesis = {synthesis.data(), {width, r}};
  }
  parts.analysis = {analysis.data(), {r, width}};
  auto code = Code::create(parts, ledger, kind);
  if (!code) {
    return fail(ErrorCode::kCorruptData, "{}: code at byte {}: {}", in.what(), start,
                code.error().message);
  }
  return code;
}

CodeWriter::CodeWriter(std::span<const std::shared_ptr<const Code>> known, ByteWriter& out) {
  out.put(static_cast<std::uint32_t>(known.size()));
  for (const auto& code : known) {
    out.put(checksum(*code));
    numbers_.emplace(code.get(), static_cast<std::uint32_t>(codes_.size()));
    codes_.push_back(code);
  }
}

void CodeWriter::put(const std::shared_ptr<const Code>& code, ByteWriter& out) {
  const auto [number, is_new] =
      numbers_.emplace(code.get(), static_cast<std::uint32_t>(codes_.size()));
  out.put(number->second);
  if (!is_new) return;
  codes_.push_back(code);
  write_code(*code, out);
}

Result<CodeReader> CodeReader::open(std::span<const std::shared_ptr<const Code>> known,
                                    ByteReader& in, std::shared_ptr<Ledger> ledger) {
  CodeReader reader;
  reader.ledger_ = std::move(ledger);
  KVSPAN_TRY(const auto count, in.get<std::uint32_t>("number of known codes"));
  if (count != known.size()) {
    return in.wrong("number of known codes", sizeof(count), count,
                    fmt::format("{}, as this model and recipe have", known.size()));
  }
  for (std::size_t i = 0; i < known.size(); ++i) {
    KVSPAN_TRY(const auto sum, in.get<std::uint64_t>("checksum of a known code"));
    if (sum != checksum(*known[i])) {
      return fail(
          ErrorCode::kCorruptData,
          "{}: checksum of known code {} at byte {} differs: saved with another calibration "
          "or recipe",
          in.what(), i, in.offset() - sizeof(sum));
    }
  }
  reader.codes_.assign(known.begin(), known.end());
  return reader;
}

Result<std::shared_ptr<const Code>> CodeReader::get(std::int32_t heads, std::int32_t dim,
                                                    ByteReader& in) {
  KVSPAN_TRY(const auto number, in.get<std::uint32_t>("number of a code"));
  if (number > codes_.size()) {
    return in.wrong("number of a code", sizeof(number), number,
                    fmt::format("0 to {}", codes_.size()));
  }
  if (number == codes_.size()) {
    KVSPAN_TRY(auto code, read_code(heads, dim, ledger_, MemoryKind::kBases, in));
    codes_.push_back(std::move(code));
  }
  const auto& code = codes_[number];
  if (code->heads() > heads || code->dim() != dim) {
    return fail(ErrorCode::kCorruptData,
                "{}: code {} at byte {} is of {} heads and {} dimensions; allowed here: up to {} "
                "heads, {} dimensions",
                in.what(), number, in.offset(), code->heads(), code->dim(), heads, dim);
  }
  return code;
}

}  // namespace kvspan

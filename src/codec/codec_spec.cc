// SPDX-License-Identifier: Apache-2.0
#include "codec/codec_spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "base/expect.h"
#include "base/fail.h"
#include "codec/packed_rows.h"

namespace kvspan {
namespace {

struct KindInfo {
  std::string_view name;
  int bits;
  bool integer;
};
constexpr std::array<KindInfo, 8> kKinds{{
    {"f32", 32, false},
    {"f16", 16, false},
    {"bf16", 16, false},
    {"int8", 8, true},
    {"int4", 4, true},
    {"int3", 3, true},
    {"int2", 2, true},
    {"mixed", 0, false},
}};
constexpr std::string_view kOptions =
    "row, group=G, tile=R, tile=RxC, column=R, column, head=C, tensor, sym, asym, normal, "
    "scale=f16, scale=f32";

const KindInfo& info_of(CodecKind kind) {
  return kKinds[static_cast<std::size_t>(kind)];
}

std::optional<std::uint32_t> positive(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value == 0) return std::nullopt;
  return value;
}

// Sets the unit named by key and value; nullopt when the value is not possible, false when the key
// names no unit.
std::optional<bool> set_unit(CodecSpec& spec, std::string_view key, std::string_view value) {
  const auto set = [&](std::uint32_t rows, std::uint32_t cols) {
    spec.unit_rows = rows;
    spec.unit_cols = cols;
    return true;
  };
  if (key == "row" && value.empty()) return set(1, 0);
  if (key == "tensor" && value.empty()) return set(0, 0);
  if (key == "column" && value.empty()) return set(0, 1);
  if (key != "group" && key != "tile" && key != "column" && key != "head") return false;
  if (key == "tile") {
    const std::size_t cross = value.find('x');
    const auto rows = positive(value.substr(0, cross));
    if (!rows) return std::nullopt;
    if (cross == std::string_view::npos) return set(*rows, 0);
    const auto cols = positive(value.substr(cross + 1));
    if (!cols) return std::nullopt;
    return set(*rows, *cols);
  }
  const auto number = positive(value);
  if (!number) return std::nullopt;
  if (key == "group") return set(1, *number);
  if (key == "column") return set(*number, 1);
  return set(0, *number);
}

std::string unit_text(const CodecSpec& spec) {
  const auto [rows, cols] = std::pair{spec.unit_rows, spec.unit_cols};
  if (rows == 1) return cols == 0 ? "row" : fmt::format("group={}", cols);
  if (rows == 0 && cols == 0) return "tensor";
  if (cols == 1) return rows == 0 ? "column" : fmt::format("column={}", rows);
  if (rows == 0) return fmt::format("head={}", cols);
  return cols == 0 ? fmt::format("tile={}", rows) : fmt::format("tile={}x{}", rows, cols);
}

// One option of an integer kind. `seen` holds one bit each for unit, rule and scale type.
Status apply_option(CodecSpec& spec, std::string_view option, std::string_view text,
                    unsigned& seen) {
  const std::size_t equals = option.find('=');
  const std::string_view key = option.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view{} : option.substr(equals + 1);
  const auto unknown = [&] {
    return fail(ErrorCode::kInvalidArgument, "option '{}' of codec '{}': allowed are {}", option,
                text, kOptions);
  };
  unsigned what = 0;
  if (option == "sym" || option == "asym" || option == "normal") {
    spec.rule = option == "sym"    ? ScaleRule::kSymmetric
                : option == "asym" ? ScaleRule::kAsymmetric
                                   : ScaleRule::kNormal;
    what = 1;
  } else if (key == "scale") {
    if (value != "f16" && value != "f32") return unknown();
    spec.scale = value == "f16" ? ScaleType::kF16 : ScaleType::kF32;
    what = 2;
  } else {
    // "row=" and the like: a value was announced and none came.
    const bool announced_nothing = equals != std::string_view::npos && value.empty();
    const std::optional<bool> unit = set_unit(spec, key, value);
    if (!unit.value_or(false) || announced_nothing) return unknown();
    what = 4;
  }
  if (seen & what) {
    return fail(ErrorCode::kInvalidArgument, "codec '{}': '{}' says again what was said before",
                text, option);
  }
  seen |= what;
  return {};
}

// "8x16,0x4,2x64"
Result<CodecSpec> parse_mixed(std::string_view runs, std::string_view text) {
  CodecSpec spec;
  spec.kind = CodecKind::kMixed;
  for (std::string_view rest = runs;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view run = rest.substr(0, comma);
    const auto cols = positive(run.substr(std::min(run.size(), std::size_t{2})));
    const std::string_view bits = run.substr(0, 2);
    if (!cols || (bits != "8x" && bits != "4x" && bits != "2x" && bits != "0x")) {
      return fail(ErrorCode::kInvalidArgument,
                  "run '{}' of codec '{}': allowed is BITSxCOMPONENTS with 8, 4, 2 or 0 bits", run,
                  text);
    }
    spec.runs.push_back({*cols, bits[0] - '0'});
    if (comma == std::string_view::npos) return spec;
    rest.remove_prefix(comma + 1);
  }
}

std::string mixed_text(const CodecSpec& spec) {
  std::string out(name_of(spec.kind));
  for (const CodecRun& run : spec.runs) {
    out += fmt::format("{}{}x{}", &run == &spec.runs.front() ? ':' : ',', run.bits, run.cols);
  }
  return out;
}

}  // namespace

std::string_view name_of(CodecKind kind) noexcept {
  return info_of(kind).name;
}
int bits_of(CodecKind kind) noexcept {
  return info_of(kind).bits;
}
bool is_integer(CodecKind kind) noexcept {
  return info_of(kind).integer;
}

CodecSpec q8_0_spec() noexcept {
  return {CodecKind::kInt8, 1, 32, ScaleRule::kLlama, ScaleType::kF16};
}
CodecSpec q4_0_spec() noexcept {
  return {CodecKind::kInt4, 1, 32, ScaleRule::kLlama, ScaleType::kF16};
}

std::size_t mixed_run_bytes(const CodecRun& run) noexcept {
  return run.bits == 0 ? 0 : 4 + packed_bytes(run.bits, run.cols);
}

std::string to_string(const CodecSpec& spec) {
  if (spec.kind == CodecKind::kMixed) return mixed_text(spec);
  if (!is_integer(spec.kind)) return std::string(name_of(spec.kind));
  if (spec.rule == ScaleRule::kLlama) return spec.kind == CodecKind::kInt8 ? "q8_0" : "q4_0";
  return fmt::format("{}:{},{}{}", name_of(spec.kind), unit_text(spec),
                     spec.rule == ScaleRule::kSymmetric    ? "sym"
                     : spec.rule == ScaleRule::kAsymmetric ? "asym"
                                                           : "normal",
                     spec.scale == ScaleType::kF32 ? ",scale=f32" : "");
}

Result<CodecSpec> parse_codec_spec(std::string_view text) {
  if (text == "q8_0") return q8_0_spec();
  if (text == "q4_0") return q4_0_spec();
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  CodecSpec spec;
  std::size_t at = 0;
  while (at < kKinds.size() && kKinds[at].name != name) ++at;
  if (at == kKinds.size()) {
    return fail(ErrorCode::kInvalidArgument,
                "codec '{}': unknown kind '{}'; allowed are f32, f16, bf16, int8, int4, int3, "
                "int2, mixed, q8_0, q4_0",
                text, name);
  }
  spec.kind = static_cast<CodecKind>(at);
  if (spec.kind == CodecKind::kMixed) {
    return parse_mixed(colon == std::string_view::npos ? "" : text.substr(colon + 1), text);
  }
  if (colon == std::string_view::npos) return spec;
  if (!is_integer(spec.kind)) {
    return fail(ErrorCode::kInvalidArgument, "codec '{}': {} takes no options", text, name);
  }
  unsigned seen = 0;
  for (std::string_view rest = text.substr(colon + 1);;) {
    const std::size_t comma = rest.find(',');
    KVSPAN_CHECK_OK(apply_option(spec, rest.substr(0, comma), text, seen));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  KVSPAN_CHECK_OK(check_codec_spec(spec));
  return spec;
}

Status check_codec_spec(const CodecSpec& spec) {
  if (!is_integer(spec.kind) && spec != CodecSpec{.kind = spec.kind, .runs = spec.runs}) {
    return fail(ErrorCode::kInvalidArgument, "{} has no scales to choose", name_of(spec.kind));
  }
  if ((spec.kind == CodecKind::kMixed) == spec.runs.empty()) {
    return fail(ErrorCode::kInvalidArgument, "runs of components are what mixed has, and only it");
  }
  for (const CodecRun& run : spec.runs) {
    const bool known = run.bits == 8 || run.bits == 4 || run.bits == 2 || run.bits == 0;
    if (run.cols > 0 && known) continue;
    return fail(ErrorCode::kInvalidArgument,
                "a run of {} components with {} bits; allowed: at least one, with 8, 4, 2 or 0",
                run.cols, run.bits);
  }
  if (spec.rule == ScaleRule::kLlama && spec != q8_0_spec() && spec != q4_0_spec()) {
    return fail(ErrorCode::kInvalidArgument,
                "the rule of llama.cpp exists for int8 and int4 in groups of 32 with f16 scales");
  }
  const bool rows = spec.unit_rows == 1 && spec.unit_cols == 0;
  if (spec.rule == ScaleRule::kNormal && (!rows || spec.kind == CodecKind::kInt8)) {
    return fail(ErrorCode::kInvalidArgument,
                "levels for normal numbers exist for int4, int3 and int2 with one scale per row");
  }
  return {};
}

EncodedSize encoded_size(const CodecSpec& spec, std::size_t rows, std::size_t cols) noexcept {
  if (spec.kind == CodecKind::kMixed) {
    std::size_t row = 0;
    for (const CodecRun& run : spec.runs) row += mixed_run_bytes(run);
    return {rows * row, 0};
  }
  if (!is_integer(spec.kind)) {
    return {rows * cols * static_cast<std::size_t>(bits_of(spec.kind)) / 8, 0};
  }
  if (rows == 0 || cols == 0) return {};
  const std::size_t tiles = spec.unit_rows == 0 ? 1 : (rows + spec.unit_rows - 1) / spec.unit_rows;
  const std::size_t groups = spec.unit_cols == 0 ? 1 : (cols + spec.unit_cols - 1) / spec.unit_cols;
  const std::size_t numbers = spec.rule == ScaleRule::kAsymmetric ? 2 : 1;
  return {rows * packed_bytes(bits_of(spec.kind), cols),
          tiles * groups * numbers * (spec.scale == ScaleType::kF16 ? 2u : 4u)};
}

}  // namespace kvspan

// SPDX-License-Identifier: Apache-2.0
// What a codec is, as a value: the kind of number stored, which numbers share a scale, how the
// scale is chosen and stored. Text and value convert into each other without loss:
//
//     f32  f16  bf16                    floating point, no scales
//     int8 int4 int3 int2 [:options]    integer codes with scales; options, separated by commas:
//         row            one scale per row (token); the default
//         group=G        one per G consecutive components of a row
//         tile=R         one per R rows
//         tile=RxC       one per R rows by C components
//         column=R       one per component over R rows
//         column         one per component over all rows encoded together
//         head=C         one per C components over all rows encoded together
//         tensor         one for all that is encoded together
//         sym | asym     symmetric (default), or with an offset of its own
//         normal         levels for normal numbers; of whole rows
//         scale=f16|f32  how scales and offsets are stored (default f16)
//     q8_0 q4_0                         llama.cpp's arithmetic: groups of 32, f16 scales
//     mixed:8x16,0x4,2x64               runs of neighbouring components, BITSxCOMPONENTS each, of
//     8,
//                                       4, 2 or no bits; per row and run a scale and an offset in
//                                       f16
//
// to_string gives the canonical text ("int4:group=32,sym"), which parses back to an equal value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvspan/result.h"

namespace kvspan {

enum class CodecKind : std::uint8_t { kF32, kF16, kBf16, kInt8, kInt4, kInt3, kInt2, kMixed };

std::string_view name_of(CodecKind kind) noexcept;
int bits_of(CodecKind kind) noexcept;  // 0 for mixed
bool is_integer(CodecKind kind) noexcept;

enum class ScaleRule : std::uint8_t {
  kSymmetric,   // int8, int4: x^ = scale v, |v| <= 127, 7; int3, int2: x^ = scale (v + 1/2)
  kAsymmetric,  // x^ = offset + scale v
  kLlama,       // q8_0: x^ = scale v, |v| <= 127; q4_0: x^ = scale v, -8 <= v <= 7
  kNormal,      // x^ = scale times the level that v counts (codec/normal_levels.h), int4 to int2;
                // scale: the row's root mean square, so that |x| stays
};

enum class ScaleType : std::uint8_t { kF16, kF32 };

// Neighbouring components of a mixed codec; 0 bits: nothing is stored, they decode to 0.
struct CodecRun {
  std::uint32_t cols = 0;
  int bits = 0;  // 8, 4, 2 or 0
  bool operator==(const CodecRun&) const = default;
};

// The numbers that share one scale: a block of `unit_rows` by `unit_cols`, the last of each row or
// column of blocks being smaller where the matrix does not divide. 0 means all.
struct CodecSpec {
  CodecKind kind = CodecKind::kF16;
  std::uint32_t unit_rows = 1;
  std::uint32_t unit_cols = 0;
  ScaleRule rule = ScaleRule::kSymmetric;
  ScaleType scale = ScaleType::kF16;
  std::vector<CodecRun> runs = {};  // of kMixed: all components, in order

  bool operator==(const CodecSpec&) const = default;
};

// Bytes of a run in a row of a mixed codec: scale and offset, then its codes (packed_rows.h); none
// where nothing is stored.
std::size_t mixed_run_bytes(const CodecRun& run) noexcept;

CodecSpec q8_0_spec() noexcept;
CodecSpec q4_0_spec() noexcept;

std::string to_string(const CodecSpec& spec);
// Fails naming the word found and what is allowed.
Result<CodecSpec> parse_codec_spec(std::string_view text);
// Combinations of fields that name no codec (a rule of llama.cpp on other groups than 32, scales of
// a floating-point kind other than the default). parse_codec_spec never returns one.
Status check_codec_spec(const CodecSpec& spec);

// Bytes written for `rows` x `cols` numbers, to the byte.
struct EncodedSize {
  std::size_t payload_bytes = 0;
  std::size_t scale_bytes = 0;

  std::size_t total() const noexcept { return payload_bytes + scale_bytes; }
  bool operator==(const EncodedSize&) const = default;
};
EncodedSize encoded_size(const CodecSpec& spec, std::size_t rows, std::size_t cols) noexcept;

}  // namespace kvspan

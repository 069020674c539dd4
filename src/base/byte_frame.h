// SPDX-License-Identifier: Apache-2.0
// The frame around saved bytes: what they are, how long, and a checksum, so that a reader of the
// payload sees only what a writer wrote (docs/reference/formats/).
//     byte 0  magic, 8 bytes; 8  version, u32; 12  kind, u32; 16  payload size, u64; 24  payload;
//     then CRC-64/XZ of all before it, u64
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "base/byte_stream.h"
#include "kvspan/result.h"

namespace kvspan {

inline constexpr std::size_t kFrameHeaderBytes = 24;

struct FrameFormat {
  std::string_view what;   // in messages
  std::string_view magic;  // up to 8 characters, then zeros
  std::uint32_t version = 1;  // that is written
  std::uint32_t oldest = version;  // that is read
};

// `out` is empty; the payload is written to it between the two calls.
void begin_frame(const FrameFormat& format, std::uint32_t kind, ByteWriter& out);
void end_frame(ByteWriter& out);

// The same to a sink. `write` puts the payload, twice alike: first to count its bytes.
Status write_frame(const FrameFormat& format, std::uint32_t kind,
                   const std::function<Status(ByteWriter&)>& write, const ByteWriter::Sink& sink);

struct OpenFrame {
  std::uint32_t version = 0;
  std::uint32_t kind = 0;
  ByteReader payload;
};
// Fails on bytes that are too few or too many, of another magic or version, or whose checksum
// differs: always kCorruptData, with the place. The bytes must outlive the reader.
Result<OpenFrame> open_frame(const FrameFormat& format, std::span<const std::byte> bytes);

}  // namespace kvspan

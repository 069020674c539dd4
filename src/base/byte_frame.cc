// SPDX-License-Identifier: Apache-2.0
#include "base/byte_frame.h"

#include <algorithm>
#include <cstring>

#include "base/expect.h"

namespace kvspan {
namespace {

constexpr std::size_t kSizeAt = 16;
constexpr std::size_t kChecksumBytes = 8;

std::uint64_t magic_of(const FrameFormat& format) {
  std::uint64_t magic = 0;
  std::memcpy(&magic, format.magic.data(), std::min(format.magic.size(), sizeof(magic)));
  return magic;
}

void put_header(const FrameFormat& format, std::uint32_t kind, std::uint64_t size,
                ByteWriter& out) {
  out.put(magic_of(format));
  out.put(format.version);
  out.put(kind);
  out.put(size);
}

}  // namespace

void begin_frame(const FrameFormat& format, std::uint32_t kind, ByteWriter& out) {
  KVSPAN_EXPECT(out.written() == 0, "a frame begins at its first byte");
  put_header(format, kind, 0, out);
}

void end_frame(ByteWriter& out) {
  const std::uint64_t size = out.bytes().size() - kFrameHeaderBytes;
  std::memcpy(out.bytes().data() + kSizeAt, &size, sizeof(size));
  out.put(crc64(out.bytes()));
}

Status write_frame(const FrameFormat& format, std::uint32_t kind,
                   const std::function<Status(ByteWriter&)>& write, const ByteWriter::Sink& sink) {
  ByteWriter counter = ByteWriter::counter();
  KVSPAN_CHECK_OK(write(counter));
  ByteWriter out(sink);
  put_header(format, kind, counter.written(), out);
  KVSPAN_CHECK_OK(write(out));
  KVSPAN_EXPECT(out.written() == kFrameHeaderBytes + counter.written(), "both passes are alike");
  KVSPAN_TRY(const std::uint64_t sum, out.flush());
  return sink(std::as_bytes(std::span(&sum, 1)));
}

Result<OpenFrame> open_frame(const FrameFormat& format, std::span<const std::byte> bytes) {
  ByteReader reader(bytes, format.what);
  KVSPAN_TRY(const auto magic, reader.get<std::uint64_t>("magic"));
  if (magic != magic_of(format)) return reader.wrong("magic", 8, magic, format.magic);
  KVSPAN_TRY(const auto version, reader.get<std::uint32_t>("version"));
  if (version < format.oldest || version > format.version) {
    return reader.wrong("version", 4, version,
                        format.oldest == format.version
                            ? fmt::format("{}", format.version)
                            : fmt::format("{} to {}", format.oldest, format.version));
  }
  KVSPAN_TRY(const auto kind, reader.get<std::uint32_t>("kind"));
  KVSPAN_TRY(const auto size, reader.get<std::uint64_t>("payload size"));
  if (reader.left() < kChecksumBytes || size != reader.left() - kChecksumBytes) {
    return fail(ErrorCode::kCorruptData,
                "{}: payload size at byte {} is {}; {} bytes follow, {} of them the checksum",
                format.what, kSizeAt, size, reader.left(), kChecksumBytes);
  }
  std::uint64_t stored = 0;
  const auto framed = bytes.first(kFrameHeaderBytes + size);
  std::memcpy(&stored, bytes.data() + framed.size(), kChecksumBytes);
  if (const std::uint64_t found = crc64(framed); found != stored) {
    return fail(ErrorCode::kCorruptData,
                "{}: checksum at byte {} is {:016x}, the bytes before it give {:016x}", format.what,
                framed.size(), stored, found);
  }
  return OpenFrame{version, kind,
                   ByteReader(framed.subspan(kFrameHeaderBytes), format.what, kFrameHeaderBytes)};
}

}  // namespace kvspan

// SPDX-License-Identifier: Apache-2.0
// Little-endian bytes in and out, with every read checked: a reader never touches a byte beyond its
// end and says at which offset something is wrong.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/fail.h"
#include "kvspan/result.h"

namespace kvspan {

static_assert(std::endian::native == std::endian::little, "the byte formats are little-endian");

// CRC-64 (ECMA-182, reflected, as in xz): finds every change of up to 64 neighbouring bits. Bytes
// may come in pieces: `before` is what the call for those before gave.
std::uint64_t crc64(std::span<const std::byte> bytes, std::uint64_t before = 0) noexcept;

// Into memory; or to a sink, piece by piece; or nowhere, to learn how many bytes there are.
class ByteWriter {
 public:
  ByteWriter() = default;
  using Sink = std::function<Status(std::span<const std::byte>)>;
  // The sink outlives it; flush() ends the writing.
  explicit ByteWriter(const Sink& sink) : sink_(&sink) {}
  static ByteWriter counter() {
    ByteWriter out;
    out.counts_only_ = true;
    return out;
  }

  template <class T>
  void put(T value) {
    static_assert(std::is_arithmetic_v<T>);
    put_all(std::span<const T>(&value, 1));
  }
  template <class T>
  void put_all(std::span<const T> values) {
    static_assert(std::is_arithmetic_v<T>);
    put_bytes(std::as_bytes(values));
  }
  // As get_text reads it: length (u32), then the characters.
  void put_text(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    put_all(std::span<const char>(text));
  }
  void put_bytes(std::span<const std::byte> bytes) {
    written_ += bytes.size();
    if (counts_only_) return;
    if (sink_ != nullptr && bytes_.size() + bytes.size() > kPiece) {
      give();
      if (bytes.size() > kPiece) return give(bytes);
    }
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  std::size_t written() const noexcept { return written_; }
  // The bytes written so far; only for a writer without a sink.
  std::vector<std::byte>& bytes() noexcept { return bytes_; }

  // Gives the sink what is left: CRC-64 of all bytes so far, or what the sink failed with.
  Result<std::uint64_t> flush() {
    give();
    if (!outcome_) return outcome_.error();
    return sum_;
  }

 private:
  static constexpr std::size_t kPiece = std::size_t{1} << 16;
  void give() {
    give(bytes_);
    bytes_.clear();
  }
  void give(std::span<const std::byte> bytes) {
    if (bytes.empty() || !outcome_) return;
    sum_ = crc64(bytes, sum_);
    outcome_ = (*sink_)(bytes);
  }

  std::vector<std::byte> bytes_;
  std::size_t written_ = 0;
  const Sink* sink_ = nullptr;
  bool counts_only_ = false;
  std::uint64_t sum_ = 0;
  Status outcome_;
};

class ByteReader {
 public:
  // `what` names the format in messages; `base` is the offset of bytes[0] in the whole.
  ByteReader(std::span<const std::byte> bytes, std::string_view what, std::size_t base = 0)
      : bytes_(bytes), what_(what), base_(base) {}

  std::size_t offset() const noexcept { return base_ + at_; }
  std::size_t left() const noexcept { return bytes_.size() - at_; }
  std::string_view what() const noexcept { return what_; }

  template <class T>
  Result<T> get(std::string_view field) {
    T value{};
    KVSPAN_CHECK_OK(get_all(field, std::span<T>(&value, 1)));
    return value;
  }
  template <class T>
  Status get_all(std::string_view field, std::span<T> values) {
    static_assert(std::is_arithmetic_v<T>);
    KVSPAN_CHECK_OK(expect_at_least(field, values.size_bytes()));
    if (!values.empty()) std::memcpy(values.data(), bytes_.data() + at_, values.size_bytes());
    at_ += values.size_bytes();
    return {};
  }
  // Values that must all be finite and at most `limit` in magnitude.
  template <class T>
  Status get_finite(std::string_view field, std::span<T> values, T limit) {
    const std::size_t start = offset();
    KVSPAN_CHECK_OK(get_all(field, values));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] <= limit && values[i] >= -limit) continue;
      return fail(ErrorCode::kCorruptData,
                  "{}: {} at byte {} is {}; finite numbers up to {} are allowed", what_, field,
                  start + i * sizeof(T), values[i], limit);
    }
    return {};
  }
  // The next bytes themselves; they live as long as what the reader reads.
  Result<std::span<const std::byte>> get_bytes(std::string_view field, std::size_t bytes) {
    KVSPAN_CHECK_OK(expect_at_least(field, bytes));
    at_ += bytes;
    return bytes_.subspan(at_ - bytes, bytes);
  }
  // Text of at most `longest` characters.
  Result<std::string> get_text(std::string_view field, std::size_t longest) {
    KVSPAN_TRY(const auto size, get<std::uint32_t>(field));
    if (size > longest) {
      return wrong(field, sizeof(size), size, fmt::format("up to {} characters", longest));
    }
    KVSPAN_CHECK_OK(expect_at_least(field, size));
    std::string text(size, ' ');
    KVSPAN_CHECK_OK(get_all(field, std::span<char>(text)));
    return text;
  }
  // An error unless `bytes` bytes are left: checked before anything is allocated for them.
  Status expect_at_least(std::string_view field, std::size_t bytes) const {
    if (bytes <= left()) return {};
    return fail(ErrorCode::kCorruptData, "{}: {} at byte {} needs {} bytes, {} are left", what_,
                field, offset(), bytes, left());
  }
  // An error unless exactly `bytes` are left: checked before anything is allocated for them.
  Status expect_left(std::string_view field, std::size_t bytes) const {
    if (left() == bytes) return {};
    return fail(ErrorCode::kCorruptData, "{}: {} at byte {} should take {} bytes, {} are left",
                what_, field, offset(), bytes, left());
  }
  // An error about the field that was just read.
  Error wrong(std::string_view field, std::size_t field_bytes, const auto& value,
              std::string_view allowed) const {
    return fail(ErrorCode::kCorruptData, "{}: {} at byte {} is {}; allowed: {}", what_, field,
                offset() - field_bytes, value, allowed);
  }

 private:
  std::span<const std::byte> bytes_;
  std::string_view what_;
  std::size_t base_;
  std::size_t at_ = 0;
};

}  // namespace kvspan

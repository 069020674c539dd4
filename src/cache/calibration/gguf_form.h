// SPDX-License-Identifier: Apache-2.0
// The part of GGUF (version 3, little-endian, alignment 32) that calibration files use: texts,
// numbers and arrays of numbers by key, and tensors of one dimension in f32 or f16. What is read
// comes from anywhere: every length is held against what is left before memory is taken for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_stream.h"
#include "kvspan/calibration.h"
#include "kvspan/result.h"

namespace kvspan::detail {

enum class GgufType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kText,
  kArray,
  kU64,
  kI64,
  kF64,
};
template <class T>
inline constexpr GgufType kGgufTypeOf = GgufType::kArray;
template <>
inline constexpr GgufType kGgufTypeOf<std::uint32_t> = GgufType::kU32;
template <>
inline constexpr GgufType kGgufTypeOf<std::int32_t> = GgufType::kI32;
template <>
inline constexpr GgufType kGgufTypeOf<std::int64_t> = GgufType::kI64;
template <>
inline constexpr GgufType kGgufTypeOf<float> = GgufType::kF32;
template <>
inline constexpr GgufType kGgufTypeOf<double> = GgufType::kF64;

enum class GgufNumber : std::uint32_t { kF32 = 0, kF16 = 1 };
constexpr std::size_t bytes_of(GgufNumber number) noexcept {
  return number == GgufNumber::kF32 ? 4 : 2;
}

struct GgufTensor {
  std::string name;
  std::size_t numbers = 0;
  GgufNumber number = GgufNumber::kF32;
  std::size_t offset = 0;  // from the start of the file
};

// What stands before the numbers of the tensors.
class GgufHeader {
 public:
  // Reads from the start of `source`, of which `content` bytes count. Fails with kCorruptData, the
  // byte named, where it does not parse, and where a tensor ends beyond the content.
  static Result<GgufHeader> read(const ByteSource& source, std::size_t content);

  // Null: no such key, or one of another type.
  const std::string* text(const std::string& key) const;
  template <class T>
  const T* number(const std::string& key) const {
    const Value* value = find(key, kGgufTypeOf<T>, false);
    return value != nullptr ? reinterpret_cast<const T*>(value->bytes.data()) : nullptr;
  }
  // Whether there was such an array.
  template <class T>
  bool numbers(const std::string& key, std::vector<T>& to) const {
    const Value* value = find(key, kGgufTypeOf<T>, true);
    if (value == nullptr) return false;
    to.resize(value->bytes.size() / sizeof(T));
    if (!to.empty()) std::memcpy(to.data(), value->bytes.data(), value->bytes.size());
    return true;
  }
  bool has(const std::string& key) const { return values_.contains(key); }
  // Null: no such tensor.
  const GgufTensor* tensor(const std::string& name) const;

 private:
  struct Value {
    GgufType type;
    bool array = false;
    std::vector<std::byte> bytes;  // of numbers; aligned as memory from the heap is
    std::string text;
  };
  const Value* find(const std::string& key, GgufType type, bool array) const;

  std::map<std::string, Value> values_;
  std::map<std::string, GgufTensor> tensors_;
};

// Writes such a header: keys first, then tensors, then finish, after which the numbers of the
// tensors follow at their offsets.
class GgufWriter {
 public:
  void put_text(std::string_view key, std::string_view text);
  template <class T>
  void put_number(std::string_view key, T number) {
    put_key(key, kGgufTypeOf<T>);
    values_.put(number);
  }
  template <class T>
  void put_numbers(std::string_view key, std::span<const T> numbers) {
    put_key(key, GgufType::kArray);
    values_.put(static_cast<std::uint32_t>(kGgufTypeOf<T>));
    values_.put(static_cast<std::uint64_t>(numbers.size()));
    values_.put_all(numbers);
  }
  void put_tensor(std::string_view name, std::size_t numbers, GgufNumber number);
  // The bytes of the whole file, zeros where the numbers of the tensors go, in their order at
  // `offsets`.
  std::vector<std::byte> finish(std::vector<std::size_t>& offsets);

 private:
  void put_string(ByteWriter& to, std::string_view text);
  void put_key(std::string_view key, GgufType type);

  ByteWriter values_, tensors_;
  std::uint64_t keys_ = 0;
  std::vector<std::size_t> starts_;  // of the tensors' numbers, from the first one's
  std::size_t end_ = 0;
};

}  // namespace kvspan::detail

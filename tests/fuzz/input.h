// SPDX-License-Identifier: Apache-2.0
// An input as a row of choices: a byte that libFuzzer changes is another choice, and what stands before
// it stays. Beyond its end every choice is 0.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

namespace kvspan::fuzz {

class Input {
 public:
  explicit Input(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  bool ended() const noexcept { return bytes_.empty(); }
  std::span<const std::uint8_t> rest() const noexcept { return bytes_; }

  std::int32_t byte() noexcept {
    if (bytes_.empty()) return 0;
    const std::int32_t first = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return first;
  }
  // 0 .. count - 1
  std::int32_t below(std::int32_t count) noexcept {
    std::int32_t value = byte();
    if (count > 256) value = value << 8 | byte();
    return count <= 1 ? 0 : value % count;
  }
  std::int32_t between(std::int32_t least, std::int32_t most) noexcept {
    return least >= most ? least : least + below(most - least + 1);
  }
  bool one_in(std::int32_t count) noexcept { return below(count) == count - 1; }
  template <class T>
  T of(std::initializer_list<T> values) noexcept {
    return values.begin()[below(static_cast<std::int32_t>(values.size()))];
  }
  template <class T>
  const T& of(const std::vector<T>& values) noexcept {
    return values[static_cast<std::size_t>(below(static_cast<std::int32_t>(values.size())))];
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace kvspan::fuzz

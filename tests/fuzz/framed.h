// SPDX-License-Identifier: Apache-2.0
// Inputs as the payload of a frame (base/byte_frame.h) whose size and checksum are right, so that they
// reach the parser behind it.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "base/byte_frame.h"
#include "tests/fuzz/target.h"

namespace kvspan::fuzz {

inline constexpr std::size_t kFrameEndBytes = sizeof(std::uint64_t);

// A frame with the magic, version and kind of `like`, which is a whole one.
inline std::vector<std::byte> framed(std::span<const std::byte> like, std::span<const std::uint8_t> payload) {
  std::vector<std::byte> bytes(like.begin(), like.begin() + kFrameHeaderBytes);
  const std::uint64_t size = payload.size();
  std::memcpy(bytes.data() + kFrameHeaderBytes - sizeof size, &size, sizeof size);
  const auto begin = reinterpret_cast<const std::byte*>(payload.data());
  bytes.insert(bytes.end(), begin, begin + payload.size());
  const std::uint64_t sum = crc64(bytes);
  bytes.resize(bytes.size() + sizeof sum);
  std::memcpy(bytes.data() + bytes.size() - sizeof sum, &sum, sizeof sum);
  return bytes;
}

// Payload of a whole frame, after the bytes that choose.
inline Bytes unframed(std::span<const std::byte> frame, Bytes choice = {}) {
  const auto payload = frame.subspan(kFrameHeaderBytes, frame.size() - kFrameHeaderBytes - kFrameEndBytes);
  const auto begin = reinterpret_cast<const std::uint8_t*>(payload.data());
  choice.insert(choice.end(), begin, begin + payload.size());
  return choice;
}


}  // namespace kvspan::fuzz

// SPDX-License-Identifier: Apache-2.0
// What a series asks the memory for before it needs it. A batch is short beside the time that memory
// takes to answer, its keys and values lie apart, and each segment has memory of its own.
#include <algorithm>

#include "attention/coded/coded_series.h"

namespace kvspan {
namespace {

constexpr std::size_t kLine = 64;

void ask(const std::byte* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kLine) {
    __builtin_prefetch(from + i, 0, 2);  // the first-level cache has few places to wait
    // A function that only asks has no effect that the compiler knows, and would be left out.
    asm volatile("" : : "r"(from));
  }
}

const std::byte* row_at(const CodedSide::Part& side, std::int32_t token) {
  return side.payload.data() + static_cast<std::size_t>(token) * side.code->codec().row_bytes();
}

void ask_scales(const CodedSide::Part& side, IndexRange part) {
  const Codec& codec = side.code->codec();
  if (part.empty() || codec.tile_scale_bytes() == 0) return;
  const std::size_t tile = codec.tile_of(static_cast<std::size_t>(part.begin));
  const std::size_t end = codec.tile_of(static_cast<std::size_t>(part.end - 1)) + 1;
  ask(side.scales.data() + tile * codec.tile_scale_bytes(),
      (end - tile) * codec.tile_scale_bytes());
}

}  // namespace

void CodedSeries::foresee(const Segment& current, std::span<const Segment> next) noexcept {
  following_ = next.empty() ? nullptr : &next.front();
  const auto each_side = [&](std::size_t ahead, auto use) {
    if (ahead > next.size()) return;
    const Segment& segment = next[ahead - 1];
    for (const CodedSide* side : {segment.coded_keys.get(), segment.coded_values.get()}) {
      if (side != nullptr) use(*side);
    }
  };
  const auto ask_side = [](const CodedSide& side) {
    ask(reinterpret_cast<const std::byte*>(&side), sizeof side);
  };
  const auto ask_part = [&](const CodedSide& side) {
    ask(reinterpret_cast<const std::byte*>(&side.part(item_.list_head)), sizeof(CodedSide::Part));
  };
  // Steps, each reading what the one before asked for: the side, its part, its rows. The kernels
  // ask for the rows of long segments.
  if (current.tokens() >= kBatchTokens) {
    each_side(2, ask_side);
    each_side(1, ask_part);
    return;
  }
  each_side(12, ask_side);
  each_side(8, ask_part);
  each_side(4, [&](const CodedSide& side) {
    const CodedSide::Part& part = side.part(item_.list_head);
    ask(part.payload.data(), std::min(part.size.payload_bytes, 64 * kLine));
    ask(part.scales.data(), std::min(part.size.scale_bytes, 8 * kLine));
  });
}

const std::byte* CodedSeries::values_next(const detail::CodedPiece& piece) const {
  if (piece.values == nullptr) return nullptr;
  ask_scales(*piece.values, piece.part);
  return row_at(*piece.values, piece.part.begin);
}

const std::byte* CodedSeries::keys_next(const detail::CodedPiece& piece) const {
  if (piece.keys == nullptr || &piece != &pieces_[static_cast<std::size_t>(piece_count_ - 1)]) {
    return nullptr;
  }
  const std::int32_t rest = piece.segment->tokens() - piece.part.end;
  if (rest > 0) {
    ask_scales(*piece.keys, {piece.part.end, piece.part.end + std::min(rest, kBatchTokens)});
    return row_at(*piece.keys, piece.part.end);
  }
  if (following_ == nullptr || following_->coded_keys == nullptr) return nullptr;
  const CodedSide::Part& next = following_->coded_keys->part(item_.list_head);
  ask_scales(next, {0, std::min(following_->tokens(), kBatchTokens)});
  return next.payload.data();
}

}  // namespace kvspan

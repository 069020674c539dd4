// SPDX-License-Identifier: Apache-2.0
#include "store/saved_pieces.h"

#include <algorithm>

#include "base/byte_frame.h"
#include "base/expect.h"
#include "base/fail.h"
#include "store/blobs.h"
#include "store/store_key.h"

namespace kvspan {
namespace {

constexpr FrameFormat kManifest{"manifest", "KVSPMANI", 1};
constexpr FrameFormat kIndex{"index entry", "KVSPINDX", 1};
constexpr std::int32_t kMostTokens = 1 << 30;

Result<std::string> get_key(std::string_view field, ByteReader& in) {
  KVSPAN_TRY(std::string key, in.get_text(field, kKeyLength));
  const bool right = key.size() == kKeyLength &&
                     key.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!right) return in.wrong(field, key.size(), "something else", "64 hexadecimal digits");
  return key;
}

Result<std::int32_t> get_tokens(ByteReader& in) {
  KVSPAN_TRY(const auto tokens, in.get<std::int32_t>("tokens"));
  if (tokens < 1 || tokens > kMostTokens) {
    return in.wrong("tokens", sizeof(tokens), tokens, fmt::format("1 to {}", kMostTokens));
  }
  return tokens;
}

// A number of things that take at least so many bytes each.
Result<std::uint32_t> get_count(std::string_view field, std::size_t bytes_each, ByteReader& in) {
  KVSPAN_TRY(const auto count, in.get<std::uint32_t>(field));
  KVSPAN_CHECK_OK(in.expect_at_least(field, std::size_t{count} * bytes_each));
  return count;
}

Result<ByteReader> open_only(const FrameFormat& format, std::span<const std::byte> bytes) {
  KVSPAN_TRY(OpenFrame frame, open_frame(format, bytes));
  if (frame.kind != 0) {
    return fail(ErrorCode::kCorruptData, "{}: kind at byte 12 is {}; allowed: 0", format.what,
                frame.kind);
  }
  return frame.payload;
}

}  // namespace

std::vector<std::byte> Manifest::save() const {
  ByteWriter out;
  begin_frame(kManifest, 0, out);
  out.put(tokens);
  out.put(static_cast<std::uint32_t>(chain.size()));
  for (const std::string& key : chain) out.put_text(key);
  out.put(static_cast<std::uint32_t>(pieces.size()));
  for (const Piece& piece : pieces) {
    out.put_text(piece.key);
    out.put(piece.bytes);
  }
  out.put(static_cast<std::uint32_t>(runs.size()));
  for (const Run& run : runs) {
    out.put(run.piece);
    out.put(run.bytes);
  }
  end_frame(out);
  return std::move(out.bytes());
}

Result<Manifest> Manifest::load(std::span<const std::byte> bytes) {
  KVSPAN_TRY(ByteReader in, open_only(kManifest, bytes));
  Manifest manifest;
  KVSPAN_TRY(manifest.tokens, get_tokens(in));
  KVSPAN_TRY(const auto blocks, get_count("number of blocks", kKeyLength, in));
  if (static_cast<std::int32_t>(blocks) != manifest.tokens / kBlockTokens) {
    return in.wrong("number of blocks", sizeof(blocks), blocks,
                    fmt::format("{}", manifest.tokens / kBlockTokens));
  }
  for (std::uint32_t i = 0; i < blocks; ++i) {
    KVSPAN_TRY(manifest.chain.emplace_back(), get_key("key of a block", in));
  }
  KVSPAN_TRY(const auto pieces, get_count("number of pieces", kKeyLength, in));
  for (std::uint32_t i = 0; i < pieces; ++i) {
    Piece& piece = manifest.pieces.emplace_back();
    KVSPAN_TRY(piece.key, get_key("key of a piece", in));
    KVSPAN_TRY(piece.bytes, in.get<std::uint64_t>("bytes of a piece"));
    if (piece.bytes >= kMostBlobBytes) {
      return in.wrong("bytes of a piece", sizeof(piece.bytes), piece.bytes,
                      fmt::format("below {}", kMostBlobBytes));
    }
  }
  KVSPAN_TRY(const auto runs, get_count("number of runs", 12, in));
  std::vector<std::uint64_t> used(pieces, 0);
  for (std::uint32_t i = 0; i < runs; ++i) {
    Run& run = manifest.runs.emplace_back();
    KVSPAN_TRY(run.piece, in.get<std::uint32_t>("piece of a run"));
    KVSPAN_TRY(run.bytes, in.get<std::uint64_t>("bytes of a run"));
    if (run.piece >= pieces ||
        run.bytes > manifest.pieces[run.piece].bytes - used[run.piece]) {
      return in.wrong("run", 12, fmt::format("{} bytes of piece {}", run.bytes, run.piece),
                      "what is left of a piece");
    }
    used[run.piece] += run.bytes;
  }
  KVSPAN_CHECK_OK(in.expect_left("end", 0));
  for (std::uint32_t i = 0; i < pieces; ++i) {
    if (used[i] == manifest.pieces[i].bytes) continue;
    return fail(ErrorCode::kCorruptData, "manifest: runs take {} of {} bytes of piece {}", used[i],
                manifest.pieces[i].bytes, i);
  }
  return manifest;
}

CutCache cut(const SavedCache& saved, std::int32_t tokens, const std::string& identity) {
  const auto blocks = static_cast<std::size_t>((tokens + kBlockTokens - 1) / kBlockTokens);
  CutCache out;
  out.manifest.tokens = tokens;
  constexpr std::uint32_t kNone = 0xffffffff;
  std::vector<std::uint32_t> piece_of(blocks + 1, kNone);  // by block; the last one is the rest
  std::vector<Manifest::Run>& runs = out.manifest.runs;
  const auto add = [&](std::size_t block, std::size_t from, std::size_t end) {
    if (from == end) return;
    std::uint32_t& index = piece_of[block];
    if (index == kNone) {
      index = static_cast<std::uint32_t>(out.pieces.size());
      out.pieces.emplace_back();
    }
    const auto bytes = std::span(saved.bytes).subspan(from, end - from);
    out.pieces[index].insert(out.pieces[index].end(), bytes.begin(), bytes.end());
    if (!runs.empty() && runs.back().piece == index) {
      runs.back().bytes += bytes.size();
    } else {
      runs.push_back({index, bytes.size()});
    }
  };
  std::size_t at = 0;
  for (const SavedRun& run : saved.runs) {
    KVSPAN_EXPECT(run.offset >= at && run.offset + run.bytes <= saved.bytes.size() && run.end > 0,
                  "runs follow each other within the bytes");
    add(blocks, at, run.offset);
    const auto block = static_cast<std::size_t>((run.end - 1) / kBlockTokens);
    add(std::min(block, blocks), run.offset, run.offset + run.bytes);
    at = run.offset + run.bytes;
  }
  add(blocks, at, saved.bytes.size());
  for (const std::vector<std::byte>& piece : out.pieces) {
    out.manifest.pieces.push_back({content_key(identity, piece), piece.size()});
  }
  return out;
}

Result<std::vector<std::byte>> join(const Manifest& manifest, const std::string& identity,
                                    std::span<const std::vector<std::byte>> pieces) {
  std::size_t sum = 0;
  for (std::size_t i = 0; i < manifest.pieces.size(); ++i) {
    if (i >= pieces.size() || pieces[i].size() != manifest.pieces[i].bytes ||
        content_key(identity, pieces[i]) != manifest.pieces[i].key) {
      return fail(ErrorCode::kCorruptData, "piece {} is not the one of {} bytes that was stored", i,
                  manifest.pieces[i].bytes);
    }
    sum += pieces[i].size();
  }
  std::vector<std::byte> bytes;
  bytes.reserve(sum);
  std::vector<std::size_t> used(pieces.size(), 0);
  for (const Manifest::Run& run : manifest.runs) {
    const auto from = pieces[run.piece].begin() + static_cast<std::ptrdiff_t>(used[run.piece]);
    bytes.insert(bytes.end(), from, from + static_cast<std::ptrdiff_t>(run.bytes));
    used[run.piece] += run.bytes;
  }
  return bytes;
}

std::vector<std::byte> IndexEntry::save() const {
  ByteWriter out;
  begin_frame(kIndex, 0, out);
  out.put_text(manifest);
  out.put(tokens);
  end_frame(out);
  return std::move(out.bytes());
}

Result<IndexEntry> IndexEntry::load(std::span<const std::byte> bytes) {
  KVSPAN_TRY(ByteReader in, open_only(kIndex, bytes));
  IndexEntry entry;
  KVSPAN_TRY(entry.manifest, get_key("key of a manifest", in));
  KVSPAN_TRY(entry.tokens, get_tokens(in));
  KVSPAN_CHECK_OK(in.expect_left("end", 0));
  return entry;
}

}  // namespace kvspan

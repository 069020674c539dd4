// SPDX-License-Identifier: Apache-2.0
#include "cache/segments/segment_list_bytes.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "cache/code/coded_side_bytes.h"

namespace kvspan {
namespace {

// Far beyond any context, and far enough from overflow for whoever adds to a position.
constexpr std::int32_t kMaxPosition = 1 << 30;

enum PositionForm : std::uint8_t { kConsecutive = 0, kListed = 1 };
enum SideForm : std::uint8_t { kRows = 0, kCoded = 1 };

bool is_nan(const std::byte* from, Element element) {
  if (element == Element::kF16) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from, sizeof(bits));
    return (bits & 0x7fffu) > 0x7c00u;
  }
  float value = 0.0f;
  std::memcpy(&value, from, sizeof(value));
  return std::isnan(value);
}

void write_positions(const Positions& positions, ByteWriter& out) {
  const std::int32_t n = positions.size();
  const bool consecutive = positions.at(n - 1) - positions.at(0) == n - 1;
  out.put(static_cast<std::uint8_t>(consecutive ? kConsecutive : kListed));
  for (std::int32_t i = 0; i < (consecutive ? 1 : n); ++i) out.put(positions.at(i));
}

Result<std::vector<std::int32_t>> read_positions(std::int32_t tokens, std::int32_t next, ByteReader& in) {
  KVSPAN_TRY(const auto form, in.get<std::uint8_t>("form of positions"));
  if (form > kListed) return in.wrong("form of positions", 1, int{form}, "0 or 1");
  KVSPAN_CHECK_OK(
      in.expect_at_least("positions", form == kListed ? std::size_t(tokens) * sizeof(next) : 4));
  std::vector<std::int32_t> all;
  std::int32_t position = 0;
  for (std::int32_t i = 0; i < tokens; ++i) {
    if (i == 0 || form == kListed) {
      KVSPAN_TRY(position, in.get<std::int32_t>("position"));
    } else {
      ++position;
    }
    if (position < next || position > kMaxPosition) {
      return in.wrong("position", sizeof(position), position,
                      fmt::format("{} to {}", next, kMaxPosition));
    }
    all.push_back(position);
    next = position + 1;
  }
  return all;
}

void write_rows(const RowSide& side, std::int32_t heads, std::int32_t dim, std::int32_t tokens,
                ByteWriter& out) {
  for (std::int32_t h = 0; h < heads; ++h) {
    const RowsView rows = side.head(h);
    for (std::int32_t t = 0; t < tokens; ++t) {
      out.put_bytes({rows.from(t).data, static_cast<std::size_t>(dim) * bytes_of(rows.element)});
    }
  }
}

// The bytes of rows [heads, tokens, dim].
Result<std::span<const std::byte>> read_rows(const GroupShape& shape, std::int32_t dim, std::int32_t tokens,
                                             ByteReader& in) {
  const std::size_t number = bytes_of(shape.element);
  const std::size_t start = in.offset();
  KVSPAN_TRY(const auto bytes,
             in.get_bytes("rows", static_cast<std::size_t>(shape.heads) * static_cast<std::size_t>(tokens) *
                                      static_cast<std::size_t>(dim) * number));
  for (std::size_t at = 0; at < bytes.size(); at += number) {
    if (!is_nan(bytes.data() + at, shape.element)) continue;
    return fail(ErrorCode::kCorruptData, "{}: row number at byte {} is NaN; allowed: any other",
                in.what(), start + at);
  }
  return bytes;
}

RowSide rows_from(std::span<const std::byte> bytes, const GroupShape& shape, std::int32_t dim,
                  const Segment& segment, const std::shared_ptr<Ledger>& ledger) {
  const std::size_t row = static_cast<std::size_t>(dim) * bytes_of(shape.element);
  RowSide side(shape.heads, dim, segment.capacity, shape.element, ledger);
  const std::byte* from = bytes.data();
  for (std::int32_t h = 0; h < shape.heads; ++h) {
    for (std::int32_t t = 0; t < segment.tokens(); ++t, from += row) {
      std::memcpy(side.row(h, t), from, row);
    }
  }
  return side;
}

void write_segment(const Segment& segment, const GroupShape& shape, CodeWriter& codes,
                   ByteWriter& out) {
  out.put(segment.capacity);
  out.put(segment.tokens());
  out.put(static_cast<std::uint8_t>(segment.coded_keys ? kCoded : kRows));
  out.put(static_cast<std::uint8_t>(segment.coded_values ? kCoded : kRows));
  write_positions(segment.positions, out);
  const auto side = [&](const CodedSide* coded, const RowSide& rows, std::int32_t dim) {
    if (coded != nullptr) {
      CodedSideBytes::write(*coded, codes, out);
    } else {
      write_rows(rows, shape.heads, dim, segment.tokens(), out);
    }
  };
  side(segment.coded_keys.get(), segment.keys, shape.key_dim);
  side(segment.coded_values.get(), segment.values, shape.value_dim);
}

Result<Segment> read_segment(const SegmentList& list, CodeReader& codes, ByteReader& in,
                             const std::shared_ptr<Ledger>& ledger) {
  const GroupShape& shape = list.shape();
  Segment segment;
  KVSPAN_TRY(segment.capacity, in.get<std::int32_t>("capacity"));
  KVSPAN_TRY(const auto tokens, in.get<std::int32_t>("tokens"));
  if (tokens < 1 || tokens > segment.capacity) {
    return in.wrong("tokens", sizeof(tokens), tokens,
                    fmt::format("1 to the capacity {}", segment.capacity));
  }
  std::uint8_t forms[2];
  for (std::uint8_t& form : forms) {
    KVSPAN_TRY(form, in.get<std::uint8_t>("form of a side"));
    if (form > kCoded) return in.wrong("form of a side", 1, int{form}, "0 or 1");
  }
  if (static_cast<std::size_t>(tokens) > in.left()) {
    return fail(ErrorCode::kCorruptData, "{}: {} tokens before byte {}; allowed: up to the {} bytes that are left",
                in.what(), tokens, in.offset(), in.left());
  }
  KVSPAN_TRY(const auto positions, read_positions(tokens, list.next_position(), in));
  std::span<const std::byte> key_rows, value_rows;
  // What is allocated is bounded by what the caller's list allocates anyway, or by the bytes that
  // are there.
  const SegmentGrowth& growth = list.growth();
  std::int32_t most = std::max({growth.sink, growth.least, growth.most, tokens});
  const auto read_side = [&](bool keys, std::span<const std::byte>& rows,
                             std::shared_ptr<const CodedSide>& coded) -> Status {
    const std::int32_t dim = keys ? shape.key_dim : shape.value_dim;
    if (forms[keys ? 0 : 1] == kRows) {
      KVSPAN_TRY(rows, read_rows(shape, dim, tokens, in));
    } else {
      KVSPAN_TRY(coded, CodedSideBytes::read(keys, shape.heads, dim, tokens, codes, in, ledger));
      most = std::max(most, coded->tokens());
    }
    return {};
  };
  KVSPAN_CHECK_OK(read_side(true, key_rows, segment.coded_keys));
  KVSPAN_CHECK_OK(read_side(false, value_rows, segment.coded_values));
  if (segment.capacity > most) {
    return fail(ErrorCode::kCorruptData, "{}: capacity {} of the segment before byte {}; allowed: up to {}", in.what(),
                segment.capacity, in.offset(), most);
  }
  for (const std::int32_t position : positions) segment.positions.push(position, segment.capacity, ledger);
  if (forms[0] == kRows) segment.keys = rows_from(key_rows, shape, shape.key_dim, segment, ledger);
  if (forms[1] == kRows) segment.values = rows_from(value_rows, shape, shape.value_dim, segment, ledger);
  return segment;
}

}  // namespace

void save(const SegmentList& list, CodeWriter& codes, ByteWriter& out,
          std::vector<SavedRun>* runs) {
  const GroupShape& shape = list.shape();
  for (const std::int32_t n : {shape.heads, shape.key_dim, shape.value_dim}) out.put(n);
  out.put(static_cast<std::uint32_t>(shape.element));
  out.put(static_cast<std::uint32_t>(list.segments().size()));
  for (const Segment& segment : list.segments()) {
    const std::size_t start = out.written();
    write_segment(segment, shape, codes, out);
    // Rows are still added to a segment that has room.
    const bool done = segment.coded() || segment.tokens() == segment.capacity;
    if (runs == nullptr || !done) continue;
    const std::int32_t end = segment.positions.at(segment.tokens() - 1) + 1;
    runs->push_back({start, out.written() - start, end});
  }
}

Result<SegmentList> load_segment_list(const GroupShape& shape, const SegmentGrowth& growth,
                                      CodeReader& codes, ByteReader& in,
                                      const std::shared_ptr<Ledger>& ledger) {
  const std::size_t start = in.offset();
  GroupShape saved;
  KVSPAN_TRY(saved.heads, in.get<std::int32_t>("heads"));
  KVSPAN_TRY(saved.key_dim, in.get<std::int32_t>("key dimension"));
  KVSPAN_TRY(saved.value_dim, in.get<std::int32_t>("value dimension"));
  KVSPAN_TRY(const auto element, in.get<std::uint32_t>("element"));
  if (element > 1) return in.wrong("element", sizeof(element), element, "0 (f16) or 1 (f32)");
  saved.element = static_cast<Element>(element);
  if (!(saved == shape)) {
    return fail(
        ErrorCode::kCorruptData,
        "{}: shape at byte {} is of {} heads, {} key and {} value dimensions in {}; allowed "
        "here: {}, {}, {}, {}",
        in.what(), start, saved.heads, saved.key_dim, saved.value_dim, element == 0 ? "f16" : "f32",
        shape.heads, shape.key_dim, shape.value_dim,
        shape.element == Element::kF16 ? "f16" : "f32");
  }
  KVSPAN_TRY(const auto count, in.get<std::uint32_t>("number of segments"));
  SegmentList list(shape, ledger, growth);
  for (std::uint32_t i = 0; i < count; ++i) {
    KVSPAN_TRY(Segment segment, read_segment(list, codes, in, ledger));
    list.append(std::move(segment));
  }
  return list;
}

}  // namespace kvspan

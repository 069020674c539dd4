// SPDX-License-Identifier: Apache-2.0
#include "attention/bands/attend_rebuilt.h"

#include <algorithm>

#include "attention/attend.h"
#include "attention/bands/rebuilt_runner.h"
#include "attention/bands/rebuilt_segment.h"
#include "base/fail.h"
#include "base/help_wanted.h"
#include "cache/visible.h"

namespace kvspan {
namespace {

constexpr std::int32_t kTile = BandsStore::kTileTokens;
constexpr std::int32_t kRebuiltTiles = 128;  // whose rows are held at a time, of each head

const BandsTokens& tokens_of(const StorePart& part) {
  return static_cast<const BandsTokens&>(*part.store);
}

// Tiles that are read and begin at position `last` or before.
std::int32_t tiles_up_to(const BandsTokens& tokens, std::int32_t last) {
  std::int32_t n = tokens.tiles_read();
  while (n > 0 && tokens.keys().first_position() + tokens.tile_read(n - 1) * kTile > last) --n;
  return n;
}

// Rows of all parts have the digits that the finest code asks for, where they are bytes.
bool fine(std::span<const StorePart> parts) {
  return std::ranges::any_of(parts, [](const StorePart& part) {
    return tokens_of(part).keys().code().fine() || tokens_of(part).value_store().code().fine();
  });
}

// Tiles that are rebuilt by one thread at once, of one part.
struct TileRange {
  std::size_t part;
  std::int32_t tile, tiles, row;
};

// What rows there is room for.
struct RowsShape {
  RebuiltForm form = RebuiltForm::kBytes;
  bool fine = false;
  std::int32_t key_dim = 0, value_dim = 0;
  std::vector<std::int32_t> heads;  // [parts]

  bool operator==(const RowsShape&) const = default;
};

// The call's memory: tables of the parts' codes, and the rows that are rebuilt at the moment.
class RebuildScratch final : public ScratchPart {
 public:
  void prepare(const LayerShape& layer, std::span<const StorePart> parts, RebuiltForm form, int threads);
  // Which tiles of the parts come next, from the `from`-th read one on; none beyond position `last`.
  void start(std::span<const StorePart> parts, std::int32_t from, std::int32_t last);

  std::int32_t table_parts() const noexcept { return first_made_.back(); }
  void make(std::int32_t index, int place) noexcept;
  std::span<const TileRange> ranges() const noexcept { return ranges_; }
  void rebuild(std::span<const StorePart> parts, const TileRange& range, int place) noexcept;
  std::span<const RebuiltPart> parts() const noexcept { return parts_; }  // of bytes
  std::span<const HeadGroup> groups() const noexcept { return groups_; }  // of halves
  float* work(int place) noexcept { return work_.as<float>() + static_cast<std::size_t>(place) * work_stride_; }

  std::size_t bytes() const noexcept override {
    std::size_t sum = work_.bytes();
    for (const RebuildTable& table : tables_) sum += table.bytes();
    for (const RoundedRows& rows : rows_) sum += rows.bytes();
    for (const RebuiltSegment& rows : segments_) sum += rows.bytes();
    for (const Positions& positions : positions_) sum += positions.bytes();
    return sum;
  }

 private:
  void make_rows(const RowsShape& shape);
  RebuiltSink& rows_of(std::size_t part) noexcept {
    if (shape_.form == RebuiltForm::kHalves) return segments_[part];
    return rows_[part];
  }

  std::vector<RebuildTable> tables_;       // [2 parts]: of keys, or of both sides; of values
  std::vector<std::int32_t> first_made_;   // [2 parts + 1], sums of their parts()
  RowsShape shape_;                        // of what follows
  std::vector<RoundedRows> rows_;          // [parts], or none
  std::vector<RebuiltSegment> segments_;   // [parts], or none
  std::vector<Positions> positions_;       // [parts], of the rows at the moment
  std::vector<RebuiltPart> parts_;
  std::vector<HeadGroup> groups_;
  std::vector<TileRange> ranges_;
  Buffer work_;
  std::size_t work_stride_ = 0;
};

void RebuildScratch::prepare(const LayerShape& layer, std::span<const StorePart> parts, RebuiltForm form, int threads) {
  tables_.resize(std::max(tables_.size(), 2 * parts.size()));
  first_made_.assign(1, 0);
  work_stride_ = 0;
  RowsShape shape{form, form == RebuiltForm::kBytes && fine(parts), layer.key_dim, layer.value_dim, {}};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const BandsTokens& tokens = tokens_of(parts[i]);
    const bool joint = &tokens.keys() == &tokens.value_store();
    for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
      RebuildTable& table = tables_[2 * i + side];
      if (side == 0 || !joint) table.prepare((side == 0 ? tokens.keys() : tokens.value_store()).code());
      first_made_.push_back(first_made_.back() + (side == 0 || !joint ? table.parts() : 0));
      if (side == 0 || !joint) work_stride_ = std::max(work_stride_, floats_in_lines(table.work_floats()));
    }
    shape.heads.push_back(tokens.keys().code().heads());
  }
  make_rows(shape);
  if (form == RebuiltForm::kBytes) {
    work_stride_ = std::max(work_stride_, floats_in_lines(RebuiltRunner::work_floats(layer, rows_.front())));
  }
  const std::size_t work = work_stride_ * static_cast<std::size_t>(threads) * sizeof(float);
  if (work_.bytes() < work) work_ = Buffer(work, MemoryKind::kFullRank, nullptr);
}

// Kept for the next call: fresh memory is slow to touch.
void RebuildScratch::make_rows(const RowsShape& shape) {
  if (shape == shape_) return;
  shape_ = {};
  rows_.clear();
  segments_.clear();
  constexpr std::int32_t kRows = kRebuiltTiles * kTile;
  for (const std::int32_t heads : shape.heads) {
    if (shape.form == RebuiltForm::kHalves) {
      segments_.emplace_back(heads, shape.key_dim, shape.value_dim, kRows);
    } else {
      rows_.emplace_back(heads, shape.key_dim, shape.value_dim, kRows, shape.fine);
    }
  }
  shape_ = shape;
}

void RebuildScratch::start(std::span<const StorePart> parts, std::int32_t from, std::int32_t last) {
  positions_.assign(parts.size(), {});
  parts_.clear();
  groups_.clear();
  ranges_.clear();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const BandsTokens& tokens = tokens_of(parts[i]);
    const BandsStore& keys = tokens.keys();
    Positions& positions = positions_[i];
    const std::int32_t end = std::min(tiles_up_to(tokens, last), from + kRebuiltTiles);
    for (std::int32_t k = from; k < end;) {
      const std::int32_t tile = tokens.tile_read(k);
      std::int32_t n = 1;
      while (k + n < end && tokens.tile_read(k + n) == tile + n) ++n;
      n = tables_[2 * i].together(keys, tile, n);
      ranges_.push_back({i, tile, n, positions.size()});
      for (std::int32_t t = tile * kTile; t < (tile + n) * kTile; ++t) {
        if (!tokens.escaped(t)) positions.push(keys.first_position() + t, kRebuiltTiles * kTile, nullptr);
      }
      k += n;
    }
    const BandsCode& values = tokens.value_store().code();
    if (shape_.form == RebuiltForm::kHalves) {
      segments_[i].start(positions, values);
      groups_.push_back({parts[i].first_head, &segments_[i].list()});
    } else {
      parts_.push_back({parts[i].first_head, &rows_[i], &positions, &values});
    }
  }
}

void RebuildScratch::make(std::int32_t index, int place) noexcept {
  const auto after = std::upper_bound(first_made_.begin(), first_made_.end(), index);
  const auto table = static_cast<std::size_t>(after - first_made_.begin()) - 1;
  tables_[table].make(index - first_made_[table], work(place));
}

void RebuildScratch::rebuild(std::span<const StorePart> parts, const TileRange& range, int place) noexcept {
  const BandsTokens& tokens = tokens_of(parts[range.part]);
  RebuiltSink& rows = rows_of(range.part);
  tables_[2 * range.part].rebuild(tokens.keys(), range.tile, range.tiles, range.row, rows, work(place));
  if (&tokens.keys() == &tokens.value_store()) return;
  // Tiles of values have no anchors, so that they may lie together whenever those of keys do.
  tables_[2 * range.part + 1].rebuild(tokens.value_store(), range.tile, range.tiles, range.row, rows, work(place));
}

// Products of bytes that a row and query take. One of floats takes the time of two of bytes where those are not added
// at once.
std::int64_t products_of_a_row(const LayerShape& layer, RebuiltForm form, bool fine) noexcept {
  if (form == RebuiltForm::kHalves) return std::int64_t{2} * (layer.key_dim + layer.value_dim);
  return std::int64_t{RoundedRows::key_products(fine)} * layer.key_dim +
         std::int64_t{RoundedRows::value_digits(fine)} * layer.value_dim;
}

// Items are heads times blocks of query positions.
void attend_to_rows(const AttendCall& call, RebuildScratch& rebuilt, Team& team) {
  const auto positions = static_cast<std::int32_t>(call.queries.positions.size());
  const std::int32_t block = RebuiltRunner::block_positions(call.layer), blocks = (positions + block - 1) / block;
  with_help(team, [&](int place) {
    RebuiltRunner runner(call, *rebuilt.parts().front().rows, rebuilt.work(place));
    for (int i; (i = team.take()) < blocks * call.layer.kv_heads;) {
      const std::int32_t head = i / blocks, first = i % blocks * block;
      const RebuiltPart* part = &rebuilt.parts().back();
      while (part->first_head > head) --part;
      runner.run(*part, head - part->first_head, first, std::min(positions, first + block));
    }
  });
  team.barrier();
}

}  // namespace

RebuiltForm rebuilt_form() noexcept {
  return bands_attention_kernels(cpu_level()).adds_bytes ? RebuiltForm::kBytes : RebuiltForm::kHalves;
}

bool pays_to_rebuild(const AttendCall& call, std::span<const StorePart> parts, RebuiltForm form) noexcept {
  const LayerShape& layer = call.layer;
  const auto positions = static_cast<std::int64_t>(call.queries.positions.size());
  if (std::max(layer.key_dim, layer.value_dim) > RoundedRows::kMostDim) return false;
  const std::int64_t row = products_of_a_row(layer, form, fine(parts));
  std::int32_t heads = 0;
  std::int64_t saved = 0;  // products of bytes for each token
  for (const StorePart& part : parts) {
    const BandsTokens& tokens = tokens_of(part);
    const BandsCode &keys = tokens.keys().code(), &values = tokens.value_store().code();
    // Certificates bound what is read in coefficient space.
    if (part.first_head != heads || tokens.keys().has_residuals()) return false;
    heads += keys.heads();
    const std::int64_t rows = positions * keys.heads() * (layer.query_heads / layer.kv_heads);
    const std::int64_t moving = keys.move_digits() * keys.move_digits() * keys.key_dim() * keys.places();
    const std::int64_t moved = keys.anchor_block() > 0 ? moving / keys.anchor_block() : 0;
    const std::int64_t there = keys.places() + values.places() + moved;
    const std::int64_t rebuilt = std::int64_t{keys.places()} * keys.width() * keys.move_digits() +
                                 (&keys == &values ? 0 : std::int64_t{values.places()} * values.width() * values.move_digits());
    saved += rows * (there - row) - rebuilt - rebuilt / 4;
  }
  return heads == layer.kv_heads && saved > 0;
}

Status attend_rebuilt(const AttendCall& call, std::span<const StorePart> parts, RebuiltForm form,
                      AttentionScratch& scratch, Team& team) {
  const std::int32_t last = call.queries.positions.back();
  std::int32_t from = 0, end = 0;
  for (const StorePart& part : parts) end = std::max(end, tiles_up_to(tokens_of(part), last));
  // What the first query no longer sees, none does; parts with the same tiles begin together.
  const BandsTokens& first = tokens_of(parts.front());
  const std::int32_t seen = first_seen(call.layer, call.queries.positions.front());
  while (from < first.tiles_read() &&
         first.keys().first_position() + (first.tile_read(from) + 1) * kTile <= seen) {
    ++from;
  }
  const auto lacks_memory = [&] {
    team.barrier();  // keeps ready() in place until everybody has read it
    return fail(ErrorCode::kOutOfBudget, "no memory to rebuild rows for {} queries",
                call.queries.positions.size());
  };
  if (team.leader()) {
    scratch.prepare_part<RebuildScratch>(
        [&](RebuildScratch& part) { part.prepare(call.layer, parts, form, team.places()); });
  }
  team.barrier();
  if (!scratch.ready()) return lacks_memory();
  RebuildScratch& rebuilt = scratch.part<RebuildScratch>();
  with_help(team, [&](int place) {
    for (int i; (i = team.take()) < rebuilt.table_parts();) rebuilt.make(i, place);
  });
  team.barrier();
  AttendCall some = call;  // to the rows at hand
  for (; from < end || !some.adds; from += kRebuiltTiles, some.adds = true) {
    if (team.leader()) {
      scratch.prepare_part<RebuildScratch>([&](RebuildScratch& part) { part.start(parts, from, last); });
    }
    team.barrier();
    if (!scratch.ready()) return lacks_memory();
    with_help(team, [&](int place) {
      const std::span<const TileRange> ranges = rebuilt.ranges();
      for (int i; (i = team.take()) < static_cast<int>(ranges.size());) {
        rebuilt.rebuild(parts, ranges[static_cast<std::size_t>(i)], place);
      }
    });
    team.barrier();
    if (form == RebuiltForm::kHalves) {
      KVSPAN_CHECK_OK(attend_segments(some.layer, rebuilt.groups(), some.queries, some.out, some.lse, scratch, team,
                                      some.adds));
    } else {
      attend_to_rows(some, rebuilt, team);
    }
  }
  return {};
}

}  // namespace kvspan

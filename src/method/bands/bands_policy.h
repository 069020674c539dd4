// SPDX-License-Identifier: Apache-2.0
// bands: waiting rows are coded in tiles of 16 tokens with codes that were designed before the
// sequence began, or that are learnt from it. Escapes also stay exact in the list: tokens whose coding error is more
// than the bits of an exact row would take off elsewhere; and odd ones, which other tokens look at more than the metric
// knows: tokens of massive activations, whose values look like the first token's, and those whose coding error stands far
// out. Escapes are at most `escape` of all tokens so far, so that text unlike all that codes were made for stays small; with
// odd ones at most kOddShare.
//
// Where the ends are held at 8 bits, rows are full rank for a tile or two only; then they wait, and
// the sink stays, as int8 segments of the list:
//     [sink][escaped][waiting as int8][full rank]
//
// Where neighbouring layers are coded together, the policy of the last one deals with the rows of all of them, alike: a
// token is coded, or stays exact, in all.
//
// Where codes are learnt, rows that leave the full-rank end wait there too, until there are `learn`
// of them: they give the code that they, and later ones, are then coded with. With `refresh`, so
// many later rows wait in the same way and give the next code; tokens keep the code they have.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <vector>

#include "attention/bands/bands_tokens.h"
#include "method/bands/bands_design.h"
#include "method/bands/coded_tile.h"
#include "method/coding_plan.h"
#include "method/policies/policy.h"

namespace kvspan {

// The stores that bands has added to a group, as BandsTokens&: one with given codes, perhaps
// still without tokens; of learnt ones one for each time something was learnt, positions
// increasing. Tokens are added to the last.
inline auto bands_of(const Group& group) noexcept {
  return group.added() |
         std::views::transform([](const auto& store) -> BandsTokens& { return static_cast<BandsTokens&>(*store); });
}

// Numbers of a value, of all heads of a group.
inline std::size_t value_width(const Group& group) noexcept {
  const GroupShape& shape = group.list().shape();
  return static_cast<std::size_t>(shape.heads) * static_cast<std::size_t>(shape.value_dim);
}

struct BandsPolicyOptions {
  std::int32_t recent = 128;
  double escape = 0.05;
  BitWorth worth;  // of given codes
  bool narrow_ends = false;  // sink and recent rows are held at 8 bits
  // How rows are held at 8 bits; null: none are. The plan's codes are shared.
  std::shared_ptr<const CodingPlan> narrow;
  // Rows that codes are learnt from, first and later, multiples of 16; 0: given codes, one code.
  std::int32_t learn = 0, refresh = 0;
  std::shared_ptr<const BandsOptions> design;  // of learnt codes
  std::string source;                          // of given codes, for people
};

class BandsPolicy final : public Policy {
 public:
  explicit BandsPolicy(const BandsPolicyOptions& options) : options_(options) { counts_.worth = options.worth; }
  void share_store(const Group& group) const noexcept override;
  std::int32_t tasks(const Group& group) const noexcept override;
  void open_tasks(const Group& group) override;
  void run_task(const Group& group, std::int32_t task) override;
  void close_tasks() noexcept override;
  Status settle(Group& group) override;
  void truncate(const Group& group, std::int32_t position) noexcept override;
  std::int32_t forgettable(const Group& group) const override;
  std::unique_ptr<Policy> clone() const override { return std::make_unique<BandsPolicy>(*this); }
  std::size_t sketch_bytes() const noexcept override;
  Status save(const StateWriter& to) const override;
  Status load(Group& group, const StateReader& from) override;
  Status give_codes(const Group& group, GroupTokens& to, PositionRange& positions) const override;
  Status take_codes(const LayerTokens& from, std::size_t index, Group& group) override;
  std::string code_source(const Group& group) const override;

 private:
  Status settle_wide(Group& group);
  Status settle_narrow(Group& group);
  // All rows that wait at 8 bits give a code, and the oldest n are coded with it.
  Status learn_narrow(Group& group, std::int32_t n);
  // Index of the oldest row that is neither sink nor coded or escaped; rows from there on are held at 8 bits or wait.
  static std::int32_t oldest(const Group& group) noexcept {
    return group.list().index_of(group.extent().encoded_end);
  }
  // Values of the sequence's first token, by layer; none if it is not of the sink.
  std::vector<std::vector<float>> first_values(const Group& group) const;
  // Keeps them where windows or chunks make the group forget the token.
  void keep_first_values(const Group& group);
  // The last rows that stay at full rank, and those before them that stay at 8 bits.
  std::int32_t kept_full() const noexcept;
  std::int32_t kept_narrow() const noexcept;
  // How many rows have to wait at 8 bits for a new code; 0: the one there is will do.
  std::int32_t wanted(const Group& group) const noexcept;
  // Tiles that the next settle codes with the code there is, and where the first of them begins in the list.
  struct Due {
    std::int32_t first = 0, tiles = 0;
  };
  Due due(const Group& group) const noexcept;
  struct Counts {
    std::int64_t escaped = 0;
    double usual = 0.0;  // running mean of the tokens' coding errors, escapes left out
    BitWorth worth;      // of the codes in use
  };
  // Whether a token's error costs more than its exact row would.
  bool pays(const CodedTile& tile, std::size_t token, const Group& group, const BitWorth& worth) const noexcept;
  // A tile of rows, at index `at` of the list, leaves it, and is counted; or, where memory ends, nothing has happened.
  Status append(Group& group, const CodedTile& tile, std::int32_t at, Counts& tally) const;
  // The same of rows that may have been coded ahead.
  Status code_tile(Group& group, std::int32_t at);
  // change(group) -> Status, of the groups that `group` leads and of itself: all change or none, also where it throws.
  template <class Change>
  Status change_layers(Group& group, const Change& change) const;
  // The oldest n full-rank rows are held at 8 bits from now on.
  Status narrow(Group& group, std::int32_t n) const;
  // Rows `first` and on of a block become what 8 bits leave of them.
  Status round_rows(const Group& group, std::int32_t first, RowBlock& rows) const;
  // Rows `first` and on of the list, of all layers, as a piece of a tile. Where ends are held at 8 bits, rows that are not
  // yet are rounded.
  Result<std::vector<CodedTile::LayerRows>> piece_at(const Group& group, std::int32_t first,
                                                     std::span<const std::vector<float>> first_values) const;

  BandsPolicyOptions options_;
  Counts counts_;
  std::vector<std::shared_ptr<const Buffer>> kept_first_;  // floats, by layer

  // Tiles whose pieces are coded as tasks, until the next settle: those that are due.
  struct AheadTile {
    explicit AheadTile(const BandsTokens& bands) : tile(bands) {}
    CodedTile tile;
    std::array<bool, CodedTile::kPieces> done{};
  };
  std::vector<AheadTile> ahead_;
  Due due_;
  std::int32_t ahead_position_ = 0;  // of the first token of the first of them
  std::vector<std::vector<float>> first_values_;
};

}  // namespace kvspan

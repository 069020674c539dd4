// SPDX-License-Identifier: Apache-2.0
// Tokens coded by bands, keys and values in one packed store or in two, as a store of tokens. Those
// that escaped keep their place and are left out of everything. Where neighbouring layers are coded together, the last
// of them holds the tokens, and the stores of the others follow it: they read the same tiles, and leave
// all that changes, counts or saves tiles to the last.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attention/token_store.h"
#include "cache/bands/bands_code.h"
#include "cache/bands/bands_store.h"

namespace kvspan {

// The codes of both sides; one code where they are coded together.
struct BandsCodes {
  std::shared_ptr<const BandsCode> keys, values;
};

// What of codes that a sequence learns is known before: no means, directions or bits.
struct BandsShape {
  BandsParts keys;
  std::optional<BandsParts> values;  // none: `keys` is of both
};

class BandsTokens final : public TokenStore {
 public:
  BandsTokens(const BandsCodes& codes, const std::shared_ptr<Ledger>& ledger,
              bool residuals = false);
  // Reads the tiles of `last` from now on. Both have keys and values in one store.
  void follow(const BandsTokens& last) noexcept;
  // What a store with codes of the sequence's own has saved.
  static Result<std::unique_ptr<TokenStore>> load_learnt(const BandsShape& shape,
                                                         const StateReader& from);

  // Of keys, or of both sides.
  BandsStore& keys() noexcept { return keys_; }
  const BandsStore& keys() const noexcept { return keys_; }
  // Null where keys() holds both sides.
  BandsStore* values() noexcept { return values_ ? &*values_ : nullptr; }
  const BandsStore& value_store() const noexcept { return values_ ? *values_ : keys_; }
  bool joint() const noexcept { return !values_; }
  // Tiles that are read, and which the i-th of them is.
  std::int32_t tiles_read() const noexcept {
    return some_ ? static_cast<std::int32_t>(some_->size()) : keys_.tiles();
  }
  std::int32_t tile_read(std::int32_t i) const noexcept {
    return some_ ? (*some_)[static_cast<std::size_t>(i)] : i;
  }
  bool escaped(std::int32_t token) const noexcept {
    return (keys_.escaped(token / BandsStore::kTileTokens) >> token % BandsStore::kTileTokens &
            1) != 0;
  }

  std::unique_ptr<TokenStore> clone() const override {
    return std::make_unique<BandsTokens>(*this);
  }
  bool empty() const noexcept override { return some_ ? some_->empty() : keys_.empty(); }
  std::int32_t first_position() const noexcept override {
    return empty() ? 0 : keys_.first_position();
  }
  std::int32_t next_position() const noexcept override {
    return empty() ? 0 : keys_.next_position();
  }
  void read(std::int32_t first, std::int32_t end, RowBlock& to) const override {
    read_either(first, end, false, to);
  }
  void read_escaped(std::int32_t first, std::int32_t end, RowBlock& to) const override {
    read_either(first, end, true, to);
  }
  Status attend(const AttendCall& call, std::span<const StorePart> parts, AttentionScratch& scratch,
                Team& team) const override;
  Result<std::unique_ptr<StoreFacts>> facts(const LayerShape& layer,
                                            std::int32_t head) const override;
  std::int32_t forget_before(std::int32_t position) override;
  // Whole tiles.
  std::unique_ptr<TokenStore> chosen(std::span<const std::uint8_t> keep) const override;
  // Tiles go whole.
  std::int32_t cut_at(std::int32_t position) const noexcept override;
  void truncate(std::int32_t position) noexcept override;
  void add_bytes(CacheBytes& bytes, std::vector<const Code*>& codes) const override;
  void save(const StateWriter& to) const override;
  Status load(const StateReader& from) override;

 private:
  BandsTokens() = default;
  // One store, or two.
  template <class Use>
  void each_side(const Use& use) const {
    use(keys_);
    if (values_) use(*values_);
  }
  // The same of tokens that are its own.
  template <class Use>
  void each_own(const Use& use) const {
    if (!follows_) each_side(use);
  }
  void read_either(std::int32_t first, std::int32_t end, bool of_escaped, RowBlock& to) const;
  // Rows of a token, keys [heads, key_dim] after RoPE and values [heads, value_dim].
  void restore(std::int32_t token, float* keys, float* values) const;
  Status check_same_tokens(const ByteReader& in) const;
  bool reads(std::int32_t tile) const noexcept;

  BandsStore keys_;
  std::optional<BandsStore> values_;
  bool follows_ = false;
  std::optional<std::vector<std::int32_t>> some_;  // tiles that are read, increasing; none: all
};

}  // namespace kvspan

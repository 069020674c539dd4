// SPDX-License-Identifier: Apache-2.0
// Tokens in a list of segments, full rank or coded.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "attention/token_store.h"
#include "cache/segments/segment_list.h"

namespace kvspan {

class SegmentStore final : public TokenStore {
 public:
  explicit SegmentStore(SegmentList list) : list_(std::move(list)) {}

  SegmentList& list() noexcept { return list_; }
  const SegmentList& list() const noexcept { return list_; }

  std::unique_ptr<TokenStore> clone() const override {
    return std::make_unique<SegmentStore>(list_);
  }
  bool empty() const noexcept override { return list_.tokens() == 0; }
  std::int32_t first_position() const noexcept override;
  std::int32_t next_position() const noexcept override { return list_.next_position(); }
  void read(std::int32_t first, std::int32_t end, RowBlock& to) const override;
  // `parts` are all KV heads of the layer.
  Status attend(const AttendCall& call, std::span<const StorePart> parts, AttentionScratch& scratch,
                Team& team) const override;
  Result<std::unique_ptr<StoreFacts>> facts(const LayerShape& layer,
                                            std::int32_t head) const override;
  // Whole segments go.
  std::int32_t forget_before(std::int32_t position) override;
  std::unique_ptr<TokenStore> chosen(std::span<const std::uint8_t> keep) const override {
    return chosen_rows(keep);
  }
  // The same, as what it is.
  std::unique_ptr<SegmentStore> chosen_rows(std::span<const std::uint8_t> keep) const;
  // Any row may be the last.
  std::int32_t cut_at(std::int32_t position) const noexcept override { return position; }
  void truncate(std::int32_t position) noexcept override { list_.truncate(position); }
  void add_bytes(CacheBytes& bytes, std::vector<const Code*>& codes) const override {
    list_.add_bytes(bytes, codes);
  }
  void save(const StateWriter& to) const override;
  Status load(const StateReader& from) override;

 private:
  SegmentList list_;
};

}  // namespace kvspan

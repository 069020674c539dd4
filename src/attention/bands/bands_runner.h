// SPDX-License-Identifier: Apache-2.0
// One item of attend_bands: a block of query rows over a chunk of tiles, by one thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/bands/anchor_turns.h"
#include "attention/bands/bands_cut.h"
#include "attention/bands/kernels/bands_kernels.h"
#include "attention/bands/stretch_softmax.h"
#include "attention/bands/work_places.h"
#include "attention/kernels/kernels.h"

namespace kvspan {

class BandsRunner {
 public:
  // Works in `work`, of work_floats(), with turns of the key code's rope.
  // others: natural log-sum-exps of the tokens in other stores, [positions, query heads]; null if
  // there are none.
  BandsRunner(const LayerShape& layer, const BandsStore& keys, const BandsStore& values,
              const Queries& queries, const BandsCut& cut, const TensorView<float, 2>* others,
              float* work, AnchorTurns& turns);
  static std::size_t work_floats(const BandsStore& keys, const BandsStore& values,
                                 const BandsCut& cut);

  // Room for one partial result.
  float* state() const { return state_; }
  // The item's tiles into `state`, laid out by BandsStateLayout.
  void run(std::int32_t block, std::int32_t chunk, float* state);

 private:
  static constexpr std::int32_t kTile = BandsStore::kTileTokens;
  static constexpr std::int32_t kStretchTokens = StretchSoftmax::kTokens;
  static constexpr std::int32_t kBatchRows = 72;  // rows times anchors that queries move to at once
  static constexpr std::int32_t kMovedRows = 16;  // rows that meet the key rows of B together
  static constexpr std::int32_t kStride = StretchSoftmax::kStride;  // of rows of scores

  void place(WorkPlaces& places);

  // Rows that meet one head of keys; they lie together.
  std::int32_t head_rows() const { return rows_ / key_code_.heads(); }
  // Of rebuilt keys.
  std::int32_t row_stride() const {
    return (key_code_.key_dim() + kScoreMultiple - 1) / kScoreMultiple * kScoreMultiple;
  }
  std::int32_t position_of(std::int32_t row) const {
    return queries_.positions[static_cast<std::size_t>(cut_.row(block_, row).position)];
  }
  std::int32_t position_of_tile(std::int32_t tile) const {
    return keys_.first_position() + tile * kTile;
  }
  // Of a tile of the stretch.
  std::int8_t* key_codes(std::int32_t index) const {
    return key_codes_ + static_cast<std::ptrdiff_t>(index) * key_code_.places() * kTile;
  }
  std::int32_t together(std::int32_t i, std::int32_t n) const;
  void start_from_others();
  void load_queries();
  void turn_queries(std::int32_t anchor);
  void move_to_anchors(std::int32_t first, std::int32_t count);
  void project_rows(std::int32_t head, std::ptrdiff_t at, std::ptrdiff_t all, std::int32_t count);
  void move_queries(std::int32_t count);
  void use_anchor(std::int32_t anchor);
  void run_tiles(std::int32_t tile, std::int32_t n);
  template <class Between>
  void read_tile(std::int32_t first, std::int32_t index, const Between& between);
  void score_tiles(std::int32_t tile, std::int32_t from, std::int32_t end);
  void rebuild_keys(std::int32_t first_tile, std::int32_t index);
  void score_rebuilt(std::int32_t tokens);
  void copy_means();
  BandsWeights soften(std::int32_t tile, std::int32_t n);

  const LayerShape& layer_;
  const BandsStore& keys_;
  const BandsStore& values_;
  const Queries& queries_;
  const BandsCut& cut_;
  const TensorView<float, 2>* others_;
  const BandsCode& key_code_;
  const BandsCode& value_code_;
  const AttentionKernels& kernels_;
  const BandsAttentionKernels& bands_;
  std::int32_t dim_, key_stride_, query_stride_, value_places_, mean_stride_;
  std::int32_t run_tiles_;  // of a softmax step
  float light_;  // StretchSoftmax::kLightShare; with certificates 0, so that every token is summed
  std::int32_t batch_;                                 // anchors moved to at once
  std::int32_t block_ = 0, rows_ = 0, anchor_ = -1;    // anchor_: that turned_ is turned to
  BandsQueries asked_;                                 // at asked_anchor_, the anchor in use
  std::int32_t asked_anchor_ = -1, last_anchor_ = -1;  // last_: of the item
  std::int32_t batch_anchor_ = 0, batch_anchors_ = 0;  // those that queries were moved to
  float* turned_;                                      // [rows][dim]
  // Of a batch, [anchors][rows]; turned queries, rounded, lie [heads][anchors][head_rows].
  float *mean_sums_, *turned_scales_, *moved_, *offsets_, *scales_;
  float* part_ = nullptr;  // of what moved_ holds, by other digits
  float* means_;  // [rows][mean_stride_]: what rows make of the mean at the positions of a block
  StretchSoftmax softmax_;
  float *key_gains_, *value_gains_;  // of a stretch of tiles
  // Of keys before RoPE: B_k in f32, widened once for all tiles, [heads * dim][padded places].
  float *rebuilt_ = nullptr, *coefficients_ = nullptr, *key_rows_ = nullptr;
  bool widened_ = false;
  AnchorTurns& turns_;
  float *cosines_ = nullptr, *sines_ = nullptr;  // of rebuilt keys
  float *state_, *out_ = nullptr;
  std::int8_t *turned_codes_, *rounded_, *key_codes_, *value_codes_;
};

}  // namespace kvspan

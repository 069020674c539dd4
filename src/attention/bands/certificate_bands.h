// SPDX-License-Identifier: Apache-2.0
// Tokens of bands as certificates see them. What integer products add to a logit, with u the turned
// query and x~ = g B~_k (code + 1/2) the key as it is read, B~_k in 8 bits:
//     u rounded to 8 bits      at most max|u| / 254 a number, so max|u| / 254 |x~|_1
//     u B~_k rounded to 8 bits at most max|u B~_k| / 254 of a range of places, so that times
//                              g sum |code| over the range
// Keys coded before RoPE are rebuilt and meet queries in f32: nothing of this.
// What B~_k itself loses is in the residual norms (cache/bands/bands_residuals.h), which for keys
// are weighed as the code weighs errors: |q.(k - k^)| <= |W^-1/2 q| |W^1/2 (k - k^)|, the closest
// where bits have made errors small where queries are large.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "attention/store_facts.h"
#include "cache/bands/bands_residuals.h"
#include "cache/bands/bands_store.h"
#include "kvspan/cache.h"

namespace kvspan::detail {

// Of queries and weights to 8 bits: half of 1/127 of the largest number, and the roundings of f32
// on the way to it.
inline constexpr double kBandsRounding = 0.5001 / 127.0;
// Of a second digit beside that: it is of what f32 leaves of the first.
inline constexpr double kRestRounding = 1.01 / double{kDigitBase};

// The tokens of one head, rebuilt; escaped ones are left out.
class BandsFacts final : public StoreFacts {
 public:
  // The stores keep residual norms and outlive this.
  // Of the tiles that reads(tile) tells.
  BandsFacts(const BandsStore& keys, const BandsStore& values, std::int32_t head,
             const std::function<bool(std::int32_t)>& reads);
  void look(const LayerShape& layer, const float* q, std::int32_t position,
            std::vector<Seen>& seen) const override;

 private:
  struct Token {
    std::int32_t position = 0, tile = 0, anchor = 0;
    double key_lost = 0.0, value_lost = 0.0, value_rounding = 0.0;
    double sum = 0.0;  // |x~|_1
    double key_gain = 1.0;
    double key_codes = 0.0;          // |code|_2 + sqrt(places)
    double mean = 0.0;               // |Rot(t - t_a) mu|
    double step = 0.0, codes = 0.0;  // of the value: its gain, |B_v (steps code)|
  };
  // A query turned to an anchor.
  struct Turned {
    double rounding = 0.0;             // of a number
    double size = 0.0;                 // |u|
    double moved = 0.0;                // >= |u^ B~_k|
    std::vector<double> range_rounding;  // of a number of each range
  };
  Turned turn(const float* q, std::int32_t anchor) const;

  const BandsCode& code_;
  std::int32_t head_, value_dim_;
  BandsResiduals reader_;
  std::vector<Token> tokens_;
  std::vector<float> keys_, values_;  // [tokens, dim]
  std::vector<double> range_codes_;     // [tokens, ranges], sum |code|
  double key_size_ = 0.0;             // >= |B~_k|
  std::vector<double> column_sums_;   // [places], sum over j of |B~_jp|
};

}  // namespace kvspan::detail

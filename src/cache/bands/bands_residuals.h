// SPDX-License-Identifier: Apache-2.0
// How far the rows of a token that bands codes are from those it was given: what certificates are
// made of (attention/certificate/certificate.h).
#pragma once

#include <cstdint>
#include <vector>

#include "base/half.h"
#include "cache/bands/bands_code.h"

namespace kvspan {

// Holds B_k of every head as attention reads it. Not safe for several threads.
class BandsResiduals {
 public:
  explicit BandsResiduals(const BandsCode& code);

  // norms [BandsStore::residual_norms] of a token whose codes stand for `codes` (BandsLayout): |k -
  // k^| weighed by BandsCode::key_weights and |v - v^| of each head, rounded up. Of keys the larger
  // of two: as restore() gives them, and with B_k in 8 bits as integer products read it (if they
  // do). keys, values: as given to BandsCode::gather.
  void measure(const float* keys, const float* values, std::int32_t position,
               const std::int8_t* codes, std::int8_t gain, BFloat16* norms);
  // Head's x_k of a token as attention reads it, in the domain and without the mean, [key_dim].
  void read_key(std::int32_t head, const std::int8_t* codes, std::int8_t gain, double* x) const;
  // [key_dim, places], BandsCode::read_key_rows.
  const float* key_rows(std::int32_t head) const noexcept {
    return key_rows_.data() + static_cast<std::ptrdiff_t>(head) * code_.key_dim() * code_.places();
  }

 private:
  const BandsCode& code_;
  std::vector<float> key_rows_;
  std::vector<float> c_, keys_, values_, read_;
  std::vector<double> x_;
};

}  // namespace kvspan

// SPDX-License-Identifier: Apache-2.0
// Trellis reading for AVX-512 with VBMI: one VPERMB is a look-up in the whole table, and looks at the
// lowest six bits of each index alone.
#include "codec/bands/bands_read_avx512.h"

namespace kvspan::detail {
namespace {

class PermutedTable {
 public:
  explicit PermutedTable(const std::int8_t* table) noexcept : all_(_mm512_loadu_si512(table)) {}
  __m512i at(__m512i index) const noexcept { return _mm512_permutexvar_epi8(index, all_); }

 private:
  __m512i all_;
};

}  // namespace

const BandsKernels::Reads kBandsReadVbmi = kReads<PermutedTable>;

}  // namespace kvspan::detail

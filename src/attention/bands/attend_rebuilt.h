// SPDX-License-Identifier: Apache-2.0
// Attention of many queries to tokens of bands: their rows are rebuilt once for all queries of the call, some thousand
// tokens at a time: a row of a head is shorter than the coefficients that all heads share.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/bands/bands_tokens.h"
#include "attention/bands/rebuilt_rows.h"

namespace kvspan {

// How rows are held and read: in 8 bits by the same integer products as codes are, or in f16 as full rank's.
enum class RebuiltForm : std::uint8_t { kBytes, kHalves };
// The faster one at cpu_level().
RebuiltForm rebuilt_form() noexcept;

// Whether a call costs less so than in coefficient space. Depends on shapes alone.
bool pays_to_rebuild(const AttendCall& call, std::span<const StorePart> parts, RebuiltForm form) noexcept;

// TokenStore::attend of BandsTokens, which are all KV heads of the layer.
Status attend_rebuilt(const AttendCall& call, std::span<const StorePart> parts, RebuiltForm form,
                      AttentionScratch& scratch, Team& team);

}  // namespace kvspan

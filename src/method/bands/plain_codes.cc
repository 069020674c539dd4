// SPDX-License-Identifier: Apache-2.0
// Coded tokens as plain numbers (method/layer_tokens.h): of one uniform code of keys and values
// together, that nothing has escaped from.
#include <array>

#include "base/expect.h"
#include "base/fail.h"
#include "method/bands/bands_policy.h"
#include "method/layer_tokens.h"

namespace kvspan {
namespace {

static_assert(kCodedTogether == BandsStore::kTileTokens);

Result<BandsStore*> plain_store(const Group& group) {
  const auto stores = bands_of(group);
  if (stores.size() != 1 || !stores.front().joint() || stores.front().keys().has_residuals() ||
      stores.front().keys().code().layout().quantizer() != BandsQuantizer::kUniform) {
    return fail(ErrorCode::kUnsupported,
                "these codes are the host's alone; allowed: one code of keys and values together "
                "with quantizer=uniform, certify=off");
  }
  return &stores.front().keys();
}

}  // namespace

Status BandsPolicy::give_codes(const Group& group, GroupTokens& to,
                               PositionRange& positions) const {
  KVSPAN_TRY(const BandsStore* store, plain_store(group));
  to.code = store->code().checksum();
  if (store->empty()) return {};
  positions = {store->first_position(), store->next_position()};
  const auto places = static_cast<std::size_t>(store->code().places());
  std::vector<std::int8_t> quads(store->code().layout().unpacked_bytes());
  to.codes.reserve(static_cast<std::size_t>(store->tokens()) * places);
  for (std::int32_t tile = 0; tile < store->tiles(); ++tile) {
    if (store->escaped(tile) != 0) {
      return fail(ErrorCode::kUnsupported,
                  "tokens of the sixteen from position {} on are kept exact; allowed: codes alone",
                  store->first_position() + tile * BandsStore::kTileTokens);
    }
    store->unpack(tile, quads.data());
    for (std::size_t t = 0; t < kBandTokens; ++t) {
      for (std::size_t p = 0; p < places; ++p) {
        to.codes.push_back(quads[p / kBandQuad * kBandCodes + t * kBandQuad + p % kBandQuad]);
      }
    }
    to.gains.insert(to.gains.end(), store->gains(tile), store->gains(tile) + kBandTokens);
  }
  return {};
}

Status BandsPolicy::take_codes(const LayerTokens& from, std::size_t index, Group& group) {
  KVSPAN_TRY(BandsStore* const store, plain_store(group));
  const GroupTokens& tokens = from.groups[index];
  const std::uint64_t own = store->code().checksum();
  if (tokens.code != own) {
    return fail(ErrorCode::kInvalidArgument, "codes of {:016x}; allowed: of {:016x}", tokens.code,
                own);
  }
  const auto places = static_cast<std::size_t>(store->code().places());
  const auto coded = static_cast<std::size_t>(from.codes().size());
  KVSPAN_EXPECT(tokens.codes.size() == coded * places && tokens.gains.size() == coded,
                "as many codes as there are tokens");
  const std::vector<std::int8_t> no_codes(kBandTokens * places);
  const std::array<std::int8_t, kBandTokens> no_gains{};
  store->expect((from.coded - from.sink) / BandsStore::kTileTokens);
  for (std::int32_t at = from.sink; at < from.coded; at += BandsStore::kTileTokens) {
    if (at < from.codes().first) {
      store->append(at, no_codes.data(), no_gains.data(), 0);
      continue;
    }
    const auto token = static_cast<std::size_t>(at - from.codes().first);
    store->append(at, tokens.codes.data() + token * places, tokens.gains.data() + token, 0);
  }
  return {};
}

}  // namespace kvspan

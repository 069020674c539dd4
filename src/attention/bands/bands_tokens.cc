// SPDX-License-Identifier: Apache-2.0
#include "attention/bands/bands_tokens.h"

#include <algorithm>

#include "attention/bands/attend_bands.h"
#include "attention/bands/attend_rebuilt.h"
#include "attention/bands/certificate_bands.h"
#include "base/fail.h"

namespace kvspan {
namespace {

bool own(const BandsCode& code) noexcept {
  return code.memory_kind() == MemoryKind::kBases;
}

}  // namespace

BandsTokens::BandsTokens(const BandsCodes& codes, const std::shared_ptr<Ledger>& ledger,
                         bool residuals)
    : keys_(codes.keys, ledger, residuals) {
  if (codes.values != codes.keys) values_.emplace(codes.values, ledger, residuals);
}

void BandsTokens::follow(const BandsTokens& last) noexcept {
  follows_ = true;
  keys_.share(last.keys_);
}

void BandsTokens::restore(std::int32_t token, float* keys, float* values) const {
  each_side([&](const BandsStore& store) {
    std::vector<float> c(static_cast<std::size_t>(store.code().places()));
    store.coefficients(token, c.data());
    store.code().restore(c.data(), store.first_position() + token, keys, values);
  });
}

void BandsTokens::read_either(std::int32_t first, std::int32_t end, bool of_escaped, RowBlock& to) const {
  for (std::int32_t at = std::max(first, first_position()); at < std::min(end, next_position());
       ++at) {
    const std::int32_t token = at - keys_.first_position();
    if (escaped(token) != of_escaped || !reads(token / BandsStore::kTileTokens)) continue;
    to.grow(1);
    to.positions.back() = at;
    restore(token, to.keys.data() + to.keys.size() - to.key_width(),
            to.values.data() + to.values.size() - to.value_width());
  }
}

Status BandsTokens::attend(const AttendCall& call, std::span<const StorePart> parts,
                           AttentionScratch& scratch, Team& team) const {
  const RebuiltForm form = rebuilt_form();
  if (pays_to_rebuild(call, parts, form)) return attend_rebuilt(call, parts, form, scratch, team);
  for (const StorePart& part : parts) {
    const auto& tokens = static_cast<const BandsTokens&>(*part.store);
    KVSPAN_CHECK_OK(attend_bands(call.layer, part.first_head, tokens.keys_, tokens.value_store(),
                                 tokens.some_ ? std::span<const std::int32_t>(*tokens.some_)
                                              : std::span<const std::int32_t>(),
                                 call.queries, call.out, call.lse, call.adds, scratch, team));
  }
  return {};
}

Result<std::unique_ptr<StoreFacts>> BandsTokens::facts(const LayerShape&, std::int32_t head) const {
  if (!keys_.has_residuals() || !value_store().has_residuals()) {
    return fail(ErrorCode::kUnsupported,
                "tokens of bands keep no residual norms, so nothing bounds them");
  }
  return std::unique_ptr<StoreFacts>(std::make_unique<detail::BandsFacts>(
      keys_, value_store(), head, [this](std::int32_t tile) { return reads(tile); }));
}

bool BandsTokens::reads(std::int32_t tile) const noexcept {
  return !some_ || std::binary_search(some_->begin(), some_->end(), tile);
}

std::int32_t BandsTokens::forget_before(std::int32_t position) {
  if (follows_) return 0;
  const std::int32_t end = keys_.forget_before(position);
  if (values_) values_->forget_before(position);
  return end;
}

std::unique_ptr<TokenStore> BandsTokens::chosen(std::span<const std::uint8_t> keep) const {
  std::vector<std::int32_t> tiles;
  for (std::int32_t i = 0; i < keys_.tiles(); ++i) {
    const auto at = static_cast<std::size_t>(keys_.first_position() + i * BandsStore::kTileTokens);
    const auto tile = keep.subspan(at, BandsStore::kTileTokens);
    if (std::any_of(tile.begin(), tile.end(), [](std::uint8_t k) { return k != 0; })) {
      tiles.push_back(i);
    }
  }
  if (static_cast<std::int32_t>(tiles.size()) == keys_.tiles()) return nullptr;
  auto some = std::make_unique<BandsTokens>(*this);
  some->some_ = std::move(tiles);
  return some;
}

std::int32_t BandsTokens::cut_at(std::int32_t position) const noexcept {
  if (position <= first_position() || position >= next_position()) return position;
  return position / BandsStore::kTileTokens * BandsStore::kTileTokens;
}

void BandsTokens::truncate(std::int32_t position) noexcept {
  if (follows_) return;
  const std::int32_t tiles = std::max(0, position - first_position()) / BandsStore::kTileTokens;
  keys_.truncate(tiles);
  if (values_) values_->truncate(tiles);
}

void BandsTokens::add_bytes(CacheBytes& bytes, std::vector<const Code*>&) const {
  each_own([&](const BandsStore& store) {
    bytes.coefficients += store.payload_bytes();
    bytes.scales += store.gain_bytes();
    bytes.positions += store.residual_bytes();
    // A code of a sequence's own belongs to one store.
    if (own(store.code())) bytes.bases += store.code().bytes();
  });
}

void BandsTokens::save(const StateWriter& to) const {
  each_own([&](const BandsStore& store) {
    if (own(store.code())) store.code().save(to.out);
    store.save(to.out, to.runs);
  });
}

Status BandsTokens::check_same_tokens(const ByteReader& in) const {
  const BandsStore& values = value_store();
  if (values.tiles() == keys_.tiles() && values.first_position() == keys_.first_position()) {
    return {};
  }
  return fail(ErrorCode::kCorruptData,
              "{}: keys and values of bands before byte {} hold different tokens", in.what(),
              in.offset());
}

// Under codes that are there already.
Status BandsTokens::load(const StateReader& from) {
  if (follows_) return {};
  KVSPAN_CHECK_OK(keys_.load(from.in, from.version));
  if (values_) KVSPAN_CHECK_OK(values_->load(from.in, from.version));
  return check_same_tokens(from.in);
}

Result<std::unique_ptr<TokenStore>> BandsTokens::load_learnt(const BandsShape& shape,
                                                             const StateReader& from) {
  const auto side = [&](const BandsParts& like) -> Result<BandsStore> {
    KVSPAN_TRY(auto code, BandsCode::load(like, from.in, from.ledger));
    BandsStore store(std::move(code), from.ledger);
    KVSPAN_CHECK_OK(store.load(from.in, from.version));
    return store;
  };
  std::unique_ptr<BandsTokens> tokens(new BandsTokens);
  KVSPAN_TRY(tokens->keys_, side(shape.keys));
  if (shape.values) {
    KVSPAN_TRY(tokens->values_, side(*shape.values));
  }
  KVSPAN_CHECK_OK(tokens->check_same_tokens(from.in));
  return std::unique_ptr<TokenStore>(std::move(tokens));
}

}  // namespace kvspan

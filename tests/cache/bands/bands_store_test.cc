// SPDX-License-Identifier: Apache-2.0
// A store of tiles against a plain list of them: whatever is appended, cut off, forgotten, copied and
// loaded, it holds the same tiles, and as many bytes as it says.
#include "cache/bands/bands_store.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/byte_stream.h"
#include "base/random.h"

namespace kvspan {
namespace {

constexpr std::size_t kStoreWidth = 12;  // a head of 8 key and 4 value numbers

std::shared_ptr<const BandsCode> plain_code() {
  std::vector<float> unit(kStoreWidth * kStoreWidth), ones(kStoreWidth, 1.0f), key_mean(8), value_mean(4);
  for (std::size_t i = 0; i < kStoreWidth; ++i) unit[i * kStoreWidth + i] = 1.0f;
  const std::vector<std::uint8_t> bits{2, 8, 0, 4, 3, 0, 4, 1, 4, 5, 0, 2};
  const TensorView<const float, 2> identity{unit.data(), {kStoreWidth, kStoreWidth}};
  const BandsParts parts{.key_dim = 8, .value_dim = 4, .rope = {}, .key_mean = key_mean, .value_mean = value_mean,
                         .analysis = identity, .synthesis = identity, .bits = bits, .steps = ones, .sigma = ones};
  return BandsCode::create(parts, nullptr).value();
}

struct Tile {
  std::vector<std::int8_t> codes, gains;  // [16, places], [16]
  std::uint16_t escaped = 0;
  std::vector<BFloat16> norms;
};

// A store and what it has to hold.
struct StorePair {
  BandsStore store;
  std::vector<Tile> tiles;
  std::int32_t first = 0;
};

void expect_same(const StorePair& pair, std::size_t ledger_bytes) {
  const BandsStore& store = pair.store;
  ASSERT_EQ(store.tiles(), static_cast<std::int32_t>(pair.tiles.size()));
  EXPECT_EQ(store.payload_bytes() + store.gain_bytes() + store.residual_bytes(), ledger_bytes);
  if (store.empty()) return;
  EXPECT_EQ(store.first_position(), pair.first);
  const BandsCode& code = store.code();
  const BandsLayout& layout = code.layout();
  std::vector<std::int8_t> found(layout.unpacked_bytes()), wanted = found;
  std::vector<std::uint8_t> packed(layout.tile_bytes());
  for (std::int32_t i = 0; i < store.tiles(); ++i) {
    const Tile& tile = pair.tiles[static_cast<std::size_t>(i)];
    ASSERT_EQ(store.escaped(i), tile.escaped) << i;
    layout.pack(tile.codes.data(), kBandTokens, static_cast<std::size_t>(code.places()), packed.data());
    layout.unpack(packed.data(), wanted.data());
    store.unpack(i, found.data());
    ASSERT_EQ(found, wanted) << i;
    for (std::int32_t t = 0; t < BandsStore::kTileTokens; ++t) {
      const auto at = static_cast<std::size_t>(t);
      ASSERT_EQ(store.gains(i)[t], tile.gains[at]) << i;
      if (!store.has_residuals()) continue;
      ASSERT_EQ(store.key_residual(0, i * BandsStore::kTileTokens + t), to_float(tile.norms[2 * at])) << i;
      ASSERT_EQ(store.value_residual(0, i * BandsStore::kTileTokens + t), to_float(tile.norms[2 * at + 1])) << i;
    }
  }
}

Tile random_tile(const BandsCode& code, Random& random) {
  Tile tile;
  for (std::size_t t = 0; t < kBandTokens; ++t) {
    std::vector<float> z(kStoreWidth), work(static_cast<std::size_t>(code.places()));
    tile.codes.resize((t + 1) * work.size());
    for (float& x : z) x = static_cast<float>(random.normal());
    tile.gains.push_back(0);
    code.encode(z.data(), tile.codes.data() + t * work.size(), &tile.gains.back(), work.data());
    for (int side = 0; side < 2; ++side) tile.norms.push_back(to_bfloat16(static_cast<float>(random.uniform())));
  }
  tile.escaped = static_cast<std::uint16_t>(random.below(1 << 16));
  return tile;
}

class BandsStoreTiles : public ::testing::TestWithParam<bool> {};

TEST_P(BandsStoreTiles, AreThoseOfAPlainList) {
  const bool residuals = GetParam();
  const auto code = plain_code();
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    auto ledger = std::make_shared<Ledger>();
    StorePair pair{BandsStore(code, ledger, residuals), {}, 0};
    const bool forgets = seed % 2 == 0;  // one that forgets goes on without long blocks
    bool forgot = false;
    for (int step = 0; step < 60; ++step) {
      switch (random.below(8)) {
        case 0: {  // any number of tiles stays
          const auto keep = static_cast<std::int32_t>(random.below(std::uint32_t(pair.tiles.size() + 1)));
          pair.store.truncate(keep);
          pair.tiles.resize(static_cast<std::size_t>(keep));
          break;
        }
        case 1: {
          if (!forgets || pair.tiles.empty()) break;
          const auto position = pair.first + static_cast<std::int32_t>(random.below(std::uint32_t(16 * pair.tiles.size())));
          const std::int32_t end = pair.store.forget_before(position);
          const std::int32_t wanted =
              std::min((position - pair.first) / 64, static_cast<std::int32_t>(pair.tiles.size() - 1) / 4);
          pair.tiles.erase(pair.tiles.begin(), pair.tiles.begin() + 4 * wanted);
          pair.first += 64 * wanted;
          forgot = forgot || wanted > 0;
          EXPECT_EQ(end, forgot ? pair.first : 0);
          EXPECT_EQ(pair.store.forget_before(position), end);  // told again to who asks again
          break;
        }
        case 2: {  // a copy that is written to leaves the original alone
          BandsStore copy = pair.store;
          copy.truncate(static_cast<std::int32_t>(random.below(std::uint32_t(pair.tiles.size() + 1))));
          for (int i = 0; i < 5; ++i) {
            const Tile tile = random_tile(*code, random);
            copy.append(copy.empty() ? 0 : copy.next_position(), tile.codes.data(), tile.gains.data(), tile.escaped,
                        residuals ? tile.norms.data() : nullptr);
          }
          break;
        }
        case 3: {
          ByteWriter out;
          pair.store.save(out);
          const std::size_t held = ledger->total();
          pair.store = BandsStore(code, ledger, residuals);
          ByteReader in(out.bytes(), "a store");
          ASSERT_TRUE(pair.store.load(in).has_value());
          EXPECT_EQ(ledger->total(), held) << "the same blocks";
          break;
        }
        default: {
          const std::size_t coming = 1 + random.below(40);
          if (random.below(2) == 0) pair.store.expect(static_cast<std::int32_t>(coming));
          for (std::size_t n = coming; n > 0; --n) {
            if (pair.tiles.empty()) pair.first = static_cast<std::int32_t>(16 * random.below(4));
            pair.tiles.push_back(random_tile(*code, random));
            const Tile& tile = pair.tiles.back();
            pair.store.append(pair.first + 16 * static_cast<std::int32_t>(pair.tiles.size() - 1), tile.codes.data(),
                              tile.gains.data(), tile.escaped, residuals ? tile.norms.data() : nullptr);
          }
        }
      }
      expect_same(pair, ledger->total());
      if (::testing::Test::HasFailure()) FAIL() << "seed " << seed << ", step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Norms, BandsStoreTiles, ::testing::Bool());

TEST(BandsStore, ForgedTilesBeyondThePositionsThatThereAreAreRefused) {
  const auto code = plain_code();
  for (const auto& [first, tiles] : {std::pair(1 << 30, 1), std::pair((1 << 30) - 16, 2), std::pair(0, (1 << 26) + 1)}) {
    ByteWriter out;
    out.put(code->checksum());
    out.put(std::int32_t{first});
    out.put(std::int32_t{tiles});
    BandsStore store(code, nullptr);
    ByteReader in(out.bytes(), "a store");
    const Status loaded = store.load(in);
    ASSERT_FALSE(loaded);
    EXPECT_NE(loaded.error().message.find("tiles of bands"), std::string::npos) << loaded.error().message;
  }
}

TEST(BandsStore, LongBlocksHoldWhatShortOnesDo) {
  const auto code = plain_code();
  Random random(3);
  auto ledger = std::make_shared<Ledger>();
  BandsStore store(code, ledger);
  const Tile tile = random_tile(*code, random);
  for (std::int32_t i = 0; i < 64; ++i) {
    store.append(16 * i, tile.codes.data(), tile.gains.data(), tile.escaped);
  }
  // No room is left over, and 16 tiles take one rounding to whole cache lines.
  const std::size_t each = 16 * (code->layout().tile_bytes() + 16 + 2);
  EXPECT_EQ(ledger->total(), 4 * Buffer::allocated_for(each));
}

}  // namespace
}  // namespace kvspan

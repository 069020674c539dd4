// SPDX-License-Identifier: Apache-2.0
// Cutting a saved cache and putting it together again, and manifests that nobody wrote.
#include "store/saved_pieces.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "base/random.h"
#include "store/store_key.h"
#include "tests/store/fake_cache.h"

namespace kvspan::testing {
namespace {

std::vector<std::int32_t> some_tokens(std::size_t n, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::int32_t> tokens(n);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random.below(32000));
  return tokens;
}

TEST(SavedPieces, JoinGivesBackEveryByteWhateverTheRunsAre) {
  for (const std::size_t n : {1u, 63u, 256u, 257u, 1000u, 1024u}) {
    SavedCache saved = read_anew(some_tokens(n, n)).save();
    for (const bool with_runs : {true, false}) {
      if (!with_runs) saved.runs.clear();
      const CutCache parts = cut(saved, static_cast<std::int32_t>(n), "identity");
      const auto joined = join(parts.manifest, "identity", parts.pieces);
      ASSERT_TRUE(joined) << joined.error().message;
      EXPECT_EQ(*joined, saved.bytes);
      EXPECT_FALSE(join(parts.manifest, "another identity", parts.pieces));
    }
  }
}

// 1,024 and 1,280 tokens that begin alike: the runs of the first three blocks, and of the fourth as far
// as they are before the last 64 tokens of the shorter one, are equal.
TEST(SavedPieces, CachesThatBeginAlikeShareTheirPieces) {
  const std::vector<std::int32_t> tokens = some_tokens(1280, 3);
  const auto keys = [&](std::size_t n) {
    const CutCache parts = cut(read_anew(std::span(tokens).first(n)).save(),
                               static_cast<std::int32_t>(n), "identity");
    std::vector<std::string> all;
    for (const Manifest::Piece& piece : parts.manifest.pieces) all.push_back(piece.key);
    return all;
  };
  // The rest comes first: it has the first byte.
  const std::vector<std::string> shorter = keys(1024), longer = keys(1280);
  ASSERT_EQ(shorter.size(), 5u);
  ASSERT_EQ(longer.size(), 6u);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(shorter[i] == longer[i], 0 < i && i < 4) << i;
}

TEST(SavedPieces, KeysOfTokensDependOnAllBeforeAndOnEveryPartOfTheIdentity) {
  std::vector<std::int32_t> tokens = some_tokens(1000, 5);
  const StoreIdentity identity{"model", "full", "calibration", "tenant"};
  const auto chain = chain_keys(identity.key(), tokens);
  ASSERT_EQ(chain.size(), 3u);
  tokens[300] ^= 1;
  const auto other = chain_keys(identity.key(), tokens);
  EXPECT_EQ(chain[0], other[0]);
  EXPECT_NE(chain[1], other[1]);
  EXPECT_NE(chain[2], other[2]);
  std::set<std::string> all = {identity.key()};
  // Words moved from one part to the next are another identity.
  for (const StoreIdentity& one :
       {StoreIdentity{"modelfull", "", "calibration", "tenant"}, StoreIdentity{"model", "full", "", "calibrationtenant"},
        StoreIdentity{"model", "full", "calibration", ""}, StoreIdentity{"model2", "full", "calibration", "tenant"},
        StoreIdentity{"model", "full:store=f32", "calibration", "tenant"}}) {
    all.insert(one.key());
  }
  EXPECT_EQ(all.size(), 6u);
  for (const std::string& key : all) {
    EXPECT_EQ(key.size(), kKeyLength);
    EXPECT_EQ(key.find_first_not_of("0123456789abcdef"), std::string::npos);
  }
}

// Every manifest that loads has runs that add up to its pieces, however it came about: also where
// the checksum was made right by hand.
TEST(SavedPieces, ManifestsThatNobodyWroteAreRefusedOrAddUp) {
  Manifest right = cut(read_anew(some_tokens(700, 9)).save(), 700, "identity").manifest;
  right.chain = chain_keys("identity", some_tokens(700, 9));
  const std::vector<std::byte> bytes = right.save();
  ASSERT_TRUE(Manifest::load(bytes));
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_FALSE(Manifest::load(std::span(bytes).first(n))) << n;
  }
  Random random(11);
  int loaded = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> wrong = bytes;
    const int changes = 1 + static_cast<int>(random.below(3));
    for (int c = 0; c < changes; ++c) {
      wrong[24 + random.below(wrong.size() - 32)] = static_cast<std::byte>(random.below(256));
    }
    if (wrong == bytes) continue;
    EXPECT_FALSE(Manifest::load(wrong));
    const std::uint64_t checksum = crc64(std::span(wrong).first(wrong.size() - 8));
    std::memcpy(wrong.data() + wrong.size() - 8, &checksum, 8);
    const auto forged = Manifest::load(wrong);
    if (!forged) continue;
    ++loaded;
    std::vector<std::uint64_t> used(forged->pieces.size(), 0);
    for (const Manifest::Run& run : forged->runs) used.at(run.piece) += run.bytes;
    for (std::size_t p = 0; p < used.size(); ++p) EXPECT_EQ(used[p], forged->pieces[p].bytes);
  }
  EXPECT_GT(loaded, 0) << "changed keys load: what they lead to is checked";
}

TEST(SavedPieces, IndexEntriesReadWhatTheyWroteAndNothingElse) {
  const IndexEntry entry{chain_keys("x", some_tokens(256, 1)).front(), 512};
  const std::vector<std::byte> bytes = entry.save();
  const auto read = IndexEntry::load(bytes);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->manifest, entry.manifest);
  EXPECT_EQ(read->tokens, entry.tokens);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::vector<std::byte> wrong = bytes;
    wrong[i] ^= std::byte{4};
    EXPECT_FALSE(IndexEntry::load(wrong)) << i;
    EXPECT_FALSE(IndexEntry::load(std::span(bytes).first(i))) << i;
  }
  EXPECT_FALSE(IndexEntry::load(IndexEntry{"../../etc/passwd", 512}.save()));
}

}  // namespace
}  // namespace kvspan::testing

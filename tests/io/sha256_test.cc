// SPDX-License-Identifier: Apache-2.0
// The digests of FIPS 180-4's own examples, and pieces against the whole.
#include "io/sha256.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace kvspan::testing {
namespace {

std::string digest(std::string_view text, std::size_t piece = 1 << 20) {
  Sha256 hash;
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    hash.add(bytes.subspan(at, std::min(piece, bytes.size() - at)));
  }
  return hash.finish();
}

TEST(Sha256, GivesThePublishedDigests) {
  EXPECT_EQ(digest(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(digest(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnThePieces) {
  for (const std::size_t length : {55, 56, 63, 64, 65, 119, 120, 200}) {
    const std::string text(length, 'q');
    for (const std::size_t piece : {1, 7, 63, 64, 65}) {
      EXPECT_EQ(digest(text, piece), digest(text)) << length << " in pieces of " << piece;
    }
  }
}

}  // namespace
}  // namespace kvspan::testing

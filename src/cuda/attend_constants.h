// SPDX-License-Identifier: Apache-2.0
// Sizes that host and kernels agree on.
#pragma once

namespace kvspan::cuda {

inline constexpr int kMaxItems = 64;  // of one launch; longer calls are cut
// Positions that share one product of a query with the mean of keys.
inline constexpr int kMeanBlock = 128;
inline constexpr int kLeastMeanTerms = 48;  // of such a product, zeros added
inline constexpr int kPageTokens = 256;    // of codes
inline constexpr int kRowPageTokens = 64;  // of full-rank rows
// Tables of pages say where these begin: so many bytes times the entry.
inline constexpr int kPageUnit = 256;
// Anchors and the middles of mean blocks are multiples of this.
inline constexpr int kTurnStep = 64;
inline constexpr int kMaxParts = 1024;  // of an item and group
inline constexpr int kTileQueries = 4;  // query heads that are prepared together, of one KV head
// Anchors that queries are moved to by one block: at least and at most.
inline constexpr int kMoveAnchors = 4, kMostMoveAnchors = 32;
inline constexpr int kPrepareWarps = 8;  // of a block that prepares queries or attends to full-rank rows
// Weights times gains are whole numbers of 2^-kWeightBits of a power of two above the largest, with
// kFractionBits bits behind the point before they are rounded: what is added then still leaves a
// byte. With as few bits of its own as a sum with 4,096 keeps.
inline constexpr float kWeightBits = 7.98828125f, kFractionBits = 8.0f;
// Blocks of the mean for which a warp folds queries at once, and a block of threads; the latter goes on to others, at
// most so many times as many.
inline constexpr int kFoldedAtOnce = 2, kFoldTile = kPrepareWarps * kFoldedAtOnce, kMostFoldTiles = 32;
// Terms of the mean, by eights: cosines and sines of four pairs that are met alone, then of slow pairs eight polynomials:
// even ones from the second on, odd ones, and in the last place the first, which is 1.
constexpr int alone_eights(int alone) {
  return (alone + 3) / 4;
}
constexpr bool odd_polynomial(int place) {
  return place >= 3 && place < 7;
}

}  // namespace kvspan::cuda

// SPDX-License-Identifier: Apache-2.0
// Tokens to pages and back. Codes are held against the plain put and get of single ones.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "base/random.h"
#include "codec/bands/bands_pack.h"
#include "cuda/attend_constants.h"
#include "cuda/bands/code_pages.h"
#include "cuda/bands/device_recipe.h"
#include "cuda/row_pages.h"
#include "method/method_cache.h"
#include "tests/method/synthetic.h"

namespace kvspan::cuda {
namespace saved_pages_test {

LayerShape shape_of(std::int32_t kv_heads, std::int32_t key_dim, std::int32_t value_dim) {
  LayerShape layer;
  layer.kv_heads = kv_heads;
  layer.query_heads = 2 * kv_heads;
  layer.key_dim = key_dim;
  layer.value_dim = value_dim;
  return layer;
}

BandsLayout layout_of(std::initializer_list<std::pair<int, int>> widths) {
  std::vector<std::uint8_t> bits;
  for (const auto& [width, count] : widths) {
    bits.insert(bits.end(), static_cast<std::size_t>(count), static_cast<std::uint8_t>(width));
  }
  return BandsLayout::create(bits).value();
}

// Of all widths, some of them in the middle of a chunk, and of few, with places that stay empty.
std::vector<BandsLayout> layouts() {
  std::vector<BandsLayout> made;
  made.push_back(
      layout_of({{8, 70}, {6, 30}, {5, 64}, {4, 33}, {3, 64}, {2, 60}, {1, 59}, {0, 20}}));
  made.push_back(layout_of({{2, 5}, {0, 0}}));
  for (const int width : {1, 2, 3, 4, 5, 6, 8}) made.push_back(layout_of({{width, 67}}));
  return made;
}

struct Extent {
  std::int32_t first, sink, coded, next;
};
// Nothing coded; ends in the middle of tiles and pages; several pages; windows that have passed
// tokens.
const Extent kExtents[] = {
    {0, 0, 0, 1},      {0, 16, 0, 7},     {0, 16, 32, 40},    {0, 0, 16, 100},    {0, 32, 144, 200},
    {0, 16, 272, 272}, {0, 48, 560, 700}, {80, 16, 272, 301}, {576, 0, 640, 801}, {70, 0, 0, 200}};

LayerTokens room_for(const Extent& extent, std::size_t groups, std::size_t heads,
                     const LayerShape& layer, std::size_t places) {
  LayerTokens tokens;
  tokens.first = extent.first;
  tokens.sink = extent.sink;
  tokens.coded = extent.coded;
  tokens.next = extent.next;
  tokens.groups.resize(groups);
  const auto coded = static_cast<std::size_t>(extent.coded > 0 ? tokens.codes().size() : 0);
  for (GroupTokens& group : tokens.groups) {
    group.codes.resize(coded * places);
    group.gains.resize(coded);
    group.keys.resize(tokens.rows() * heads * static_cast<std::size_t>(layer.key_dim));
    group.values.resize(tokens.rows() * heads * static_cast<std::size_t>(layer.value_dim));
  }
  return tokens;
}

TEST(SavedPages, RowsComeBack) {
  Random random(3);
  for (const auto& [groups, heads] : {std::pair(1, 3), std::pair(2, 2), std::pair(3, 1)}) {
    const LayerShape layer = shape_of(groups * heads, 24, 8);
    for (const Extent& extent : kExtents) {
      LayerTokens tokens = room_for(extent, std::size_t(groups), std::size_t(heads), layer, 0);
      for (GroupTokens& group : tokens.groups) {
        for (auto* side : {&group.keys, &group.values}) {
          for (Half& x : *side) x.bits = static_cast<std::uint16_t>(random.below(1u << 16));
        }
      }
      LayerTokens back = room_for(extent, std::size_t(groups), std::size_t(heads), layer, 0);
      // Where a row lies, as kernels find it (cuda/kernels/rows.cuh).
      const PositionRange pages = pages_of({0, extent.next}, kRowPageTokens);
      std::vector<std::vector<Half>> made;
      for (std::int32_t page = 0; page < pages.last; ++page) {
        made.push_back(row_page(layer, tokens, page));
        ASSERT_EQ(made.back().size(), std::size_t(64 * groups * heads * 32));
        read_row_page(layer, made.back(), page, back);
      }
      std::size_t row = 0;
      for (const PositionRange& range : {tokens.before(), tokens.after()}) {
        for (std::int32_t p = range.first; p < range.last; ++p, ++row) {
          for (std::int32_t h = 0; h < layer.kv_heads; ++h) {
            const GroupTokens& group = tokens.groups[std::size_t(h / heads)];
            const std::size_t in_group = row * std::size_t(heads) + std::size_t(h % heads);
            const Half* const page = made[std::size_t(p / 64)].data() + h * 64 * 32;
            for (std::int32_t i = 0; i < 24; ++i) {
              ASSERT_EQ(page[p % 64 * 24 + i].bits,
                        group.keys[in_group * 24 + std::size_t(i)].bits);
            }
            for (std::int32_t i = 0; i < 8; ++i) {
              ASSERT_EQ(page[64 * 24 + p % 64 * 8 + i].bits,
                        group.values[in_group * 8 + std::size_t(i)].bits);
            }
          }
        }
      }
      ASSERT_EQ(row, tokens.rows());
      for (std::size_t g = 0; g < tokens.groups.size(); ++g) {
        const auto same = [](const std::vector<Half>& a, const std::vector<Half>& b) {
          return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                            [](Half x, Half y) { return x.bits == y.bits; });
        };
        EXPECT_TRUE(same(back.groups[g].keys, tokens.groups[g].keys));
        EXPECT_TRUE(same(back.groups[g].values, tokens.groups[g].values));
      }
    }
  }
}

TEST(SavedPages, CodesAreWherePutPutsThem) {
  Random random(4);
  const LayerShape layer = shape_of(1, 8, 8);
  for (const BandsLayout& layout : layouts()) {
    for (const int chunks : {0, 24}) {  // as many as the layout needs, and more
      const BandsTiles tiles(layout, chunks);
      const CodePages pages(layout, chunks);
      const std::size_t places = layout.quads() * kBandQuad;
      for (const Extent& extent : kExtents) {
        LayerTokens tokens = room_for(extent, 2, 1, layer, places);
        for (GroupTokens& group : tokens.groups) {
          for (std::size_t i = 0; i < group.codes.size(); ++i) {
            const std::size_t place = i % places;
            if (place >= layout.stored()) continue;
            const int width = layout.width(place);
            group.codes[i] = static_cast<std::int8_t>(static_cast<int>(random.below(1u << width)) -
                                                      (1 << (width - 1)));
          }
          for (std::int8_t& gain : group.gains) {
            gain = static_cast<std::int8_t>(static_cast<int>(random.below(256)) - 128);
          }
        }
        LayerTokens back = room_for(extent, 2, 1, layer, places);
        for (std::size_t g = 0; g < 2; ++g) {
          const GroupTokens& group = tokens.groups[g];
          for (std::int32_t page = 0; page * kPageTokens < extent.coded; ++page) {
            const std::vector<std::byte> made = pages.page_of(tokens, g, page);
            std::vector<std::byte> plain(made.size());
            for (std::int32_t p = tokens.codes().first; p < extent.coded; ++p) {
              if (p / kPageTokens != page) continue;
              std::byte* const tile =
                  plain.data() +
                  static_cast<std::size_t>(p % kPageTokens / kTileTokens) * tiles.tile_bytes();
              const auto token = static_cast<std::size_t>(p - tokens.codes().first);
              for (std::size_t i = 0; i < layout.stored(); ++i) {
                tiles.put(tile, p % kTileTokens, static_cast<int>(i),
                          group.codes[token * places + i]);
              }
              tiles.put_gain(tile, p % kTileTokens, group.gains[token]);
            }
            ASSERT_EQ(made, plain);
            pages.read_page(made, page, g, back);
          }
          ASSERT_EQ(back.groups[g].codes, group.codes);
          ASSERT_EQ(back.groups[g].gains, group.gains);
        }
      }
    }
  }
}

// All the way of a cache of the host: to pages, as a device would have them, and back.
TEST(SavedPages, AHostsCacheComesBack) {
  const CacheShape shape = testing::synthetic_shape(2, 4, 16);
  const testing::SyntheticText text(shape, 600, 5);
  const Calibration calibration = text.calibration();
  for (const char* recipe :
       {"full", "bands:quantizer=uniform,escape=0,bits=2.5,sink=16,recent=20",
        "bands:quantizer=uniform,escape=0,bits=3,share=kvgroup,heads=1,grain=64,sink=0"}) {
    const auto prepared = prepare(shape, Recipe::parse(recipe).value(), &calibration).value();
    const auto codes = device_recipe(prepared).value().codes;
    for (const std::int32_t tokens : {5, 130, 300, 571}) {
      MethodCache host(prepared), back(prepared);
      testing::run(host, text, 0, tokens, 40);
      for (std::size_t l = 0; l < 2; ++l) {
        const LayerTokens given = host.give(static_cast<int>(l)).value();
        LayerTokens got = given;
        int chunks = 0;
        for (const auto& code : codes[l]) chunks = std::max(chunks, BandsTiles(code->layout()).chunks());
        for (std::size_t g = 0; g < got.groups.size(); ++g) {
          for (auto* side : {&got.groups[g].keys, &got.groups[g].values}) {
            std::fill(side->begin(), side->end(), Half{});
          }
          if (codes[l].empty()) continue;
          std::fill(got.groups[g].codes.begin(), got.groups[g].codes.end(), std::int8_t{0});
          std::fill(got.groups[g].gains.begin(), got.groups[g].gains.end(), std::int8_t{0});
          const CodePages pages(codes[l][g]->layout(), chunks);
          for (std::int32_t page = 0; page * kPageTokens < tokens; ++page) {
            pages.read_page(pages.page_of(given, g, page), page, g, got);
          }
        }
        for (std::int32_t page = 0; page * kRowPageTokens < tokens; ++page) {
          read_row_page(shape.layers[l], row_page(shape.layers[l], given, page), page, got);
        }
        const Status taken = back.take(static_cast<int>(l), got);
        ASSERT_TRUE(taken) << taken.error().message;
      }
      EXPECT_TRUE(back.save().value() == host.save().value()) << recipe << ", " << tokens;
    }
  }
}

}  // namespace saved_pages_test
}  // namespace kvspan::cuda

// SPDX-License-Identifier: Apache-2.0
// Encoding and decoding rows, beside memcpy of the same floats in the same run. All rates are of
// the f32 side: bytes of floats taken or given a second of processor time, GB/s.
//   memcpy   floats to floats: what decode can hope for when the floats must be written
//   encode   with and without the error bounds of each row
//   decode   to floats;  codes: unpacked to int8 only (still counted as four bytes a number)
//   bands    tiles of mixed widths, 2 bits on average, unpacked to int8
// 4096 rows of 128, 2 MiB of floats: what lies in a second-level cache and beyond.
#include <benchmark/benchmark.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "codec/bands/bands_pack.h"
#include "codec/codec.h"
#include "codec/hadamard.h"

namespace kvspan {
namespace {

constexpr std::size_t kRows = 4096, kCols = 128;

const std::vector<float>& rows() {
  static const std::vector<float> values = [] {
    Random random(1);
    std::vector<float> x(kRows * kCols);
    for (float& v : x) v = static_cast<float>(random.normal());
    return x;
  }();
  return values;
}

void count_floats(benchmark::State& state, std::size_t floats = kRows * kCols) {
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) *
                          static_cast<std::int64_t>(floats * sizeof(float)));
}

void copy(benchmark::State& state) {
  std::vector<float> out(rows().size());
  for (auto _ : state) {
    std::memcpy(out.data(), rows().data(), out.size() * sizeof(float));
    benchmark::ClobberMemory();
  }
  count_floats(state);
}

struct Stored {
  explicit Stored(const std::string& text)
      : codec(Codec::create(parse_codec_spec(text).value(), kCols).value()),
        payload(codec.encoded_size(kRows).payload_bytes),
        scales(codec.encoded_size(kRows).scale_bytes),
        l2(kRows),
        linf(kRows) {}
  bool encode(bool errors) {
    const RowErrors wanted = errors ? RowErrors{l2, linf} : RowErrors{};
    return codec.encode({rows().data(), {kRows, kCols}}, payload, scales, wanted).has_value();
  }
  Codec codec;
  std::vector<std::byte> payload, scales;
  std::vector<float> l2, linf;
};

void encode(benchmark::State& state, const std::string& text, bool errors) {
  Stored stored(text);
  for (auto _ : state) {
    if (!stored.encode(errors)) state.SkipWithError("encode failed");
    benchmark::ClobberMemory();
  }
  count_floats(state);
}

void decode(benchmark::State& state, const std::string& text) {
  Stored stored(text);
  if (!stored.encode(false)) state.SkipWithError("encode failed");
  std::vector<float> out(rows().size());
  for (auto _ : state) {
    stored.codec.decode(stored.payload, stored.scales, 0, {out.data(), {kRows, kCols}});
    benchmark::ClobberMemory();
  }
  count_floats(state);
}

void codes(benchmark::State& state, const std::string& text) {
  Stored stored(text);
  if (!stored.encode(false)) state.SkipWithError("encode failed");
  std::vector<std::int8_t> out(rows().size());
  for (auto _ : state) {
    stored.codec.decode_codes(stored.payload, 0, {out.data(), {kRows, kCols}});
    benchmark::ClobberMemory();
  }
  count_floats(state);
}

void rotate(benchmark::State& state) {
  std::vector<float> x = rows();
  for (auto _ : state) {
    hadamard_rotate(TensorView<float, 2>(x.data(), {kRows, kCols}));
    benchmark::ClobberMemory();
  }
  count_floats(state);
}

void bands(benchmark::State& state) {
  // Levels of a falling spectrum: 384 components, 288 of them coded, 2 bits on average.
  std::vector<std::uint8_t> bits(384, 0);
  const int counts[][2] = {{8, 4}, {6, 16}, {5, 24}, {4, 36}, {3, 72}, {2, 64}, {1, 72}};
  std::size_t at = 0;
  for (const auto& [level, count] : counts) {
    for (int i = 0; i < count; ++i) bits[at++] = static_cast<std::uint8_t>(level);
  }
  const BandsLayout layout = BandsLayout::create(bits).value();
  constexpr std::size_t kTiles = 64;
  std::vector<std::uint8_t> tiles(kTiles * layout.tile_bytes());
  Random random(2);
  for (auto& byte : tiles) byte = static_cast<std::uint8_t>(random.below(256));
  std::vector<std::int8_t> out(layout.unpacked_bytes());  // reused: as attention does
  for (auto _ : state) {
    for (std::size_t t = 0; t < kTiles; ++t) {
      layout.unpack(tiles.data() + t * layout.tile_bytes(), out.data());
      benchmark::ClobberMemory();
    }
  }
  count_floats(state, kTiles * layout.unpacked_bytes());
}

void register_all() {
  benchmark::RegisterBenchmark("memcpy", copy);
  for (const char* text : {"f16", "bf16", "int8:row,sym", "int8:tile=64,sym", "int8:column=64,asym",
                           "int4:group=32,sym", "int4:group=32,asym", "int3:group=32,sym",
                           "int2:group=32,sym", "int2:column=32,asym", "q8_0", "q4_0"}) {
    const std::string name = text;
    benchmark::RegisterBenchmark(("encode/" + name).c_str(), encode, name, false);
    benchmark::RegisterBenchmark(("encode_bounds/" + name).c_str(), encode, name, true);
    benchmark::RegisterBenchmark(("decode/" + name).c_str(), decode, name);
    if (name[0] == 'i') benchmark::RegisterBenchmark(("codes/" + name).c_str(), codes, name);
  }
  benchmark::RegisterBenchmark("bands/unpack", bands);
  benchmark::RegisterBenchmark("hadamard", rotate);
}

}  // namespace
}  // namespace kvspan

int main(int argc, char** argv) {
  kvspan::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

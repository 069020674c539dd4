// SPDX-License-Identifier: Apache-2.0
// Calibration files, read at once and layer by layer. What is read is written back, and codes are designed from
// some.
#include <cstring>

#include "base/byte_stream.h"
#include "kvspan/calibration.h"
#include "tests/fuzz/steps.h"
#include "tests/fuzz/target.h"

namespace kvspan::fuzz {
namespace {

constexpr std::int32_t kDim = 4;

const Model& model() {
  static const Model made(small_shape(kDim), 5);
  return made;
}

// The input and its checksum.
std::vector<std::byte> summed(std::span<const std::uint8_t> input) {
  const auto begin = reinterpret_cast<const std::byte*>(input.data());
  std::vector<std::byte> bytes(begin, begin + input.size());
  const std::uint64_t sum = crc64(bytes);
  bytes.resize(bytes.size() + sizeof sum);
  std::memcpy(bytes.data() + input.size(), &sum, sizeof sum);
  return bytes;
}

void design(const Calibration& calibration) {
  for (const char* const recipe :
       {"bands:bits=2,sink=0,recent=0", "bands:bits=2,layers=2,sink=0,recent=0", "static:rk=2,rv=3,sink=0,recent=0",
        "kvtc:bits=2,sink=0,recent=0", "oscar:bits=2,group=4,sink=0,recent=0", "auto:quality=1%",
        "fd:rk=2,rv=2,chunk=64,tau=calibrated,sink=0,recent=0"}) {
    const auto factory = CacheFactory::create(model().shape(), recipe, &calibration);
    if (!factory) continue;
    const auto cache = factory->make();
    step(*cache, model(), 0, 70);
    step(*cache, model(), cache->tokens(), 3);
  }
}

bool run(std::span<const std::uint8_t> input) {
  const std::vector<std::byte> bytes = summed(input);
  const auto whole = decode_calibration(bytes, "fuzz");
  ByteSource source{"fuzz", bytes.size(), [&](std::size_t offset, std::span<std::byte> to) -> Status {
                      must(offset <= bytes.size() && to.size() <= bytes.size() - offset, "read beyond the end");
                      if (!to.empty()) std::memcpy(to.data(), bytes.data() + offset, to.size());
                      return {};
                    }};
  const auto opened = open_calibration(source);
  // Arrays of layers are looked at when they are read.
  bool fine = opened.has_value();
  for (std::size_t i = 0; fine && i < opened->layers.size(); ++i) fine = opened->read_layer(i).has_value();
  must(whole.has_value() == fine, "read at once: {}; layer by layer: {}", whole ? "accepted" : whole.error().message,
       fine ? "accepted" : "refused");
  if (!whole) return false;
  const auto again = encode_calibration(*whole);
  must(again.has_value(), "what was read is not written: {}", again ? "" : again.error().message);
  const auto back = decode_calibration(*again, "fuzz");
  must(back.has_value(), "what was written is not read: {}", back ? "" : back.error().message);
  const auto read = read_whole(model().shape(), *opened);
  const Status fits = check_calibration(model().shape(), *whole);
  must(read.has_value() == fits.has_value(), "whole: {}; layer by layer: {}", fits ? "fits" : fits.error().message,
       read ? "fits" : read.error().message);
  // Designs take a thousand times as long.
  if (fits && crc64(bytes) % 64 == 0) design(*whole);
  return true;
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  Calibration calibration = model().calibration();
  for (int kind = 0; kind < 3; ++kind) {
    if (kind == 1) calibration.rates = {{1.0f, 0.04f, 0.05f}, {2.0f, 0.006f, 0.007f}};
    if (kind == 2) {
      for (LayerCalibration& layer : calibration.layers) layer.key_weight = layer.value_weight = 0.5f;
    }
    const auto bytes = encode_calibration(calibration);
    must(bytes.has_value(), "the calibration is not written: {}", bytes ? "" : bytes.error().message);
    const auto begin = reinterpret_cast<const std::uint8_t*>(bytes->data());
    all.emplace_back(begin, begin + bytes->size() - sizeof(std::uint64_t));
  }
  return all;
}

}  // namespace

extern const Target calibration_target{"calibration", "calibration files; codes are designed from one in 64", 1 << 16, run, seeds};

}  // namespace kvspan::fuzz

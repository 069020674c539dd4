// SPDX-License-Identifier: Apache-2.0
// A matrix and what a codec made of it, in memory of exactly the size promised, so that the address
// sanitizer sees any byte too many.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "codec/codec.h"

namespace kvspan {

struct StoredRows {
  StoredRows(const Codec& codec, std::size_t n)
      : rows(n),
        payload(codec.encoded_size(n).payload_bytes, std::byte{0xaa}),
        scales(codec.encoded_size(n).scale_bytes, std::byte{0xaa}),
        l2(n, -1.0f),
        linf(n, -1.0f) {}

  Status encode(const Codec& codec, const std::vector<float>& x) {
    return codec.encode({x.data(), {rows, codec.cols()}}, payload, scales, {l2, linf});
  }
  std::vector<float> decode(const Codec& codec) const {
    std::vector<float> out(rows * codec.cols());
    codec.decode(payload, scales, 0, {out.data(), {rows, codec.cols()}});
    return out;
  }

  std::size_t rows;
  std::vector<std::byte> payload, scales;
  std::vector<float> l2, linf;
};

inline Codec codec_of(const std::string& text, std::size_t cols) {
  return Codec::create(parse_codec_spec(text).value(), cols).value();
}

}  // namespace kvspan

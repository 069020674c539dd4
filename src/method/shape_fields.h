// SPDX-License-Identifier: Apache-2.0
// A shape within saved bytes: what was saved for one shape is not read for another
// (docs/reference/formats/cache.md).
#pragma once

#include "base/byte_stream.h"
#include "kvspan/cache.h"
#include "kvspan/result.h"

namespace kvspan {

void put_shape(const CacheShape& shape, ByteWriter& out);
// Fails with kCorruptData, naming the field and both numbers, where another shape was put.
Status expect_shape(const CacheShape& shape, ByteReader& in);

}  // namespace kvspan

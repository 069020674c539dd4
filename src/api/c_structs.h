// SPDX-License-Identifier: Apache-2.0
// Structures of the C interface, from callers compiled with other versions of it. Each begins with
// struct_size, its sizeof there. Fields that a caller lacks are 0. Bytes behind the fields known here
// must be 0: a field of a later version would change what the call means.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/fail.h"
#include "kvspan/kvspan.h"
#include "kvspan/kvspan_cuda.h"
#include "kvspan/kvspan_moments.h"
#include "kvspan/result.h"

namespace kvspan::c_api {

// The smallest struct_size: up to the last field that a call needs. Never changes. A field added
// later goes to the end, and not into what was padding: older callers leave that undefined.
template <class T>
inline constexpr std::size_t kFirstSize = 0;
template <>
inline constexpr std::size_t kFirstSize<kvspan_layer> = offsetof(kvspan_layer, soft_cap);
template <>
inline constexpr std::size_t kFirstSize<kvspan_factory_options> =
    offsetof(kvspan_factory_options, calibration);
template <>
inline constexpr std::size_t kFirstSize<kvspan_part> = offsetof(kvspan_part, out) + sizeof(float*);
template <>
inline constexpr std::size_t kFirstSize<kvspan_bytes> =
    offsetof(kvspan_bytes, total) + sizeof(std::size_t);
template <>
inline constexpr std::size_t kFirstSize<kvspan_moments_options> =
    offsetof(kvspan_moments_options, samples);
template <>
inline constexpr std::size_t kFirstSize<kvspan_cuda_options> =
    offsetof(kvspan_cuda_options, budget_bytes);
template <>
inline constexpr std::size_t kFirstSize<kvspan_cuda_rows> = offsetof(kvspan_cuda_rows, token_stride);
template <>
inline constexpr std::size_t kFirstSize<kvspan_cuda_out> = offsetof(kvspan_cuda_out, token_stride);
template <>
inline constexpr std::size_t kFirstSize<kvspan_cuda_step> =
    offsetof(kvspan_cuda_step, tokens) + sizeof(std::int32_t);

// The largest struct_size; what exceeds it was never set.
inline constexpr std::size_t kMostStructBytes = 4096;

// struct_size of `from`, which may lie at any address. Fails below `first` and above
// kMostStructBytes.
Result<std::size_t> struct_size_of(const void* from, std::size_t first, const char* name);
// Fails if a byte of [known, size) is not 0.
Status check_unknown_fields(const void* from, std::size_t known, std::size_t size, const char* name);

template <class T>
Result<T> read_struct(const void* from, const char* name) {
  static_assert(kFirstSize<T> > 0, "every structure has a first size");
  KVSPAN_TRY(const std::size_t size, struct_size_of(from, kFirstSize<T>, name));
  KVSPAN_CHECK_OK(check_unknown_fields(from, sizeof(T), size, name));
  T fields{};
  std::memcpy(&fields, from, std::min(size, sizeof(T)));
  return fields;
}

// An array, whose elements have the struct_size of the first.
template <class T>
Result<std::vector<T>> read_structs(const void* from, std::int32_t count, const char* name) {
  std::vector<T> all;
  const auto* at = static_cast<const std::byte*>(from);
  for (std::int32_t i = 0; i < count; ++i, at += all.front().struct_size) {
    KVSPAN_TRY(T next, read_struct<T>(at, name));
    if (i > 0 && next.struct_size != all.front().struct_size) {
      return fail(ErrorCode::kInvalidArgument,
                  "{}: struct_size={} of element {}: elements differ; supported: that of the first, {}",
                  name, next.struct_size, i, all.front().struct_size);
    }
    all.push_back(next);
  }
  return all;
}

// Into a structure whose struct_size is set: as many fields as it has, and 0 behind those known here.
template <class T>
Status write_struct(T fields, T* to, const char* name) {
  KVSPAN_TRY(const std::size_t size, struct_size_of(to, kFirstSize<T>, name));
  fields.struct_size = size;
  std::memset(static_cast<void*>(to), 0, size);
  std::memcpy(static_cast<void*>(to), &fields, std::min(size, sizeof(T)));
  return {};
}

}  // namespace kvspan::c_api

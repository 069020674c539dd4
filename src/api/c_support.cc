// SPDX-License-Identifier: Apache-2.0
#include "api/c_support.h"

#include <algorithm>

#include "base/cpu_level.h"
#include "base/half.h"
#include "codec/kernels.h"

namespace kvspan::c_api {
namespace {

constexpr std::int32_t kMaxThreads = 256;
constexpr std::size_t kWidenedAtOnce = 4096;

Result<LayerShape> layer_shape(const kvspan_layer& from) {
  LayerShape shape;
  shape.query_heads = from.query_heads;
  shape.kv_heads = from.kv_heads;
  shape.key_dim = from.key_dim;
  shape.value_dim = from.value_dim;
  shape.window = from.window;
  shape.logit_scale = from.logit_scale;
  shape.soft_cap = from.soft_cap;
  shape.chunk = from.chunk;
  const std::int32_t heads = std::max(from.query_heads, 0);
  if (from.alibi != nullptr) shape.alibi.assign(from.alibi, from.alibi + heads);
  if (from.sinks != nullptr) shape.sinks.assign(from.sinks, from.sinks + heads);
  if (from.rope_dims == 0) return shape;
  if (from.rope_dims < 0 || from.rope_dims % 2 != 0 || from.rope_dims > from.key_dim) {
    return fail(ErrorCode::kInvalidArgument, "rope_dims {}; allowed: even, 0 to key_dim {}",
                from.rope_dims, from.key_dim);
  }
  KVSPAN_CHECK_OK(not_null(from.rope_angles, "rope_angles"));
  shape.rope.pairs =
      from.rope_pairs == KVSPAN_ROPE_HALVES ? Rope::Pairs::kHalves : Rope::Pairs::kNeighbours;
  shape.rope.rotated_dims = from.rope_dims;
  shape.rope.angles.assign(from.rope_angles, from.rope_angles + from.rope_dims / 2);
  shape.rope.magnitude = from.rope_magnitude == 0.0f ? 1.0f : from.rope_magnitude;
  return shape;
}

}  // namespace

std::string& last_error() {
  thread_local std::string text;
  return text;
}

kvspan_code code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return KVSPAN_INVALID_ARGUMENT;
    case ErrorCode::kNotFound:
      return KVSPAN_NOT_FOUND;
    case ErrorCode::kCorruptData:
      return KVSPAN_CORRUPT_DATA;
    case ErrorCode::kUnsupported:
      return KVSPAN_UNSUPPORTED;
    case ErrorCode::kOutOfBudget:
      return KVSPAN_OUT_OF_BUDGET;
    case ErrorCode::kIo:
      return KVSPAN_IO;
    case ErrorCode::kCancelled:
      return KVSPAN_CANCELLED;
  }
  return KVSPAN_INVALID_ARGUMENT;
}

Status not_null(const void* pointer, const char* name) {
  if (pointer != nullptr) return {};
  return fail(ErrorCode::kInvalidArgument, "{} is NULL", name);
}

Result<std::size_t> struct_size_of(const void* from, std::size_t first, const char* name) {
  KVSPAN_CHECK_OK(not_null(from, name));
  std::size_t size = 0;
  std::memcpy(&size, from, sizeof size);
  if (size >= first && size <= kMostStructBytes) return size;
  return fail(ErrorCode::kInvalidArgument,
              "{}: struct_size={}: no version of it has this size; supported: its sizeof, {} to {}",
              name, size, first, kMostStructBytes);
}

Status check_unknown_fields(const void* from, std::size_t known, std::size_t size, const char* name) {
  const auto* bytes = static_cast<const std::byte*>(from);
  for (std::size_t i = known; i < size; ++i) {
    if (bytes[i] == std::byte{0}) continue;
    return fail(ErrorCode::kUnsupported,
                "{}: struct_size={}: a field at byte {} is set, which this version does not know; "
                "supported: {} bytes, the rest 0",
                name, size, i, known);
  }
  return {};
}

Status check_threads(std::int32_t threads) {
  if (threads >= 1 && threads <= kMaxThreads) return {};
  return fail(ErrorCode::kInvalidArgument, "{} threads; allowed: 1 to {}", threads, kMaxThreads);
}

Status check_number(kvspan_number number) {
  if (number == KVSPAN_F32 || number == KVSPAN_F16 || number == KVSPAN_BF16) return {};
  return fail(ErrorCode::kInvalidArgument,
              "number {}; allowed: KVSPAN_F32, KVSPAN_F16 and KVSPAN_BF16",
              static_cast<int>(number));
}

Result<CacheShape> shape_of(const kvspan_layer* layers, std::int32_t count) {
  KVSPAN_CHECK_OK(not_null(layers, "layers"));
  KVSPAN_TRY(const std::vector<kvspan_layer> given, read_structs<kvspan_layer>(layers, count, "layers"));
  CacheShape shape;
  for (const kvspan_layer& from : given) {
    Result<LayerShape> layer = layer_shape(from);
    if (!layer) {
      return fail(layer.error().code, "layer {}: {}", shape.layers.size(), layer.error().message);
    }
    shape.layers.push_back(std::move(*layer));
  }
  return shape;
}

Status put_bytes(const CacheBytes& held, kvspan_bytes* to) {
  const kvspan_bytes bytes = {0,          held.full_rank, held.coefficients, held.scales, held.bases,
                              held.sketches, held.positions, held.shared,       held.total};
  return write_struct(bytes, to, "bytes");
}

Result<ByteSink> sink_of(kvspan_sink sink, void* context) {
  if (sink == nullptr) return fail(ErrorCode::kInvalidArgument, "sink is NULL");
  return ByteSink([sink, context](std::span<const std::byte> bytes) -> Status {
    const int code = sink(context, bytes.data(), bytes.size());
    if (code == 0) return {};
    return fail(ErrorCode::kIo, "the sink returned {} for {} bytes", code, bytes.size());
  });
}

TensorView<const float, 3> WideRows::of(const void* rows, kvspan_number number, std::int32_t n,
                                        std::int32_t heads, std::int32_t dim, ThreadPool& pool) {
  if (number == KVSPAN_F32) return rows_of(static_cast<const float*>(rows), n, heads, dim);
  const std::size_t count =
      static_cast<std::size_t>(n) * static_cast<std::size_t>(heads) * static_cast<std::size_t>(dim);
  wide_.resize(std::max(wide_.size(), count));
  float* const to = wide_.data();
  const auto widen = codec_kernels(cpu_level()).f16_to_f32;
  pool.run([&](Team& team) {
    for (std::size_t begin;
         (begin = static_cast<std::size_t>(team.take()) * kWidenedAtOnce) < count;) {
      const std::size_t some = std::min(kWidenedAtOnce, count - begin);
      if (number == KVSPAN_F16) {
        widen(static_cast<const Half*>(rows) + begin, some, to + begin);
        continue;
      }
      const auto* from = static_cast<const BFloat16*>(rows) + begin;
      for (std::size_t i = 0; i < some; ++i) to[begin + i] = to_float(from[i]);
    }
  });
  return rows_of(static_cast<const float*>(to), n, heads, dim);
}

}  // namespace kvspan::c_api

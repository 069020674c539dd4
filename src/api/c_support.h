// SPDX-License-Identifier: Apache-2.0
// What the files of the C interface share: statuses, shapes, rows in narrow numbers. They check what C callers can get wrong, then call the C++ interface. No
// exception leaves; no wrong argument reaches an expectation that ends the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "api/c_structs.h"
#include "base/fail.h"
#include "base/thread_pool.h"
#include "kvspan/batch.h"
#include "kvspan/cache.h"
#include "kvspan/kvspan.h"

struct kvspan_factory {
  kvspan::CacheFactory caches;
};

namespace kvspan::c_api {

std::string& last_error();
kvspan_code code_of(ErrorCode code);

// Runs `body` and turns what comes of it into a status.
template <class Body>
kvspan_code guarded(const Body& body) noexcept {
  try {
    const Status status = body();
    if (status.has_value()) return KVSPAN_OK;
    last_error() = status.error().message;
    return code_of(status.error().code);
  } catch (const std::exception& error) {
    try {
      const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
      last_error() = memory ? "out of memory" : error.what();
    } catch (...) {
    }
    return KVSPAN_OUT_OF_BUDGET;  // threads that cannot be started, for one
  }
}

Status not_null(const void* pointer, const char* name);
Status check_threads(std::int32_t threads);
Status check_number(kvspan_number number);

Result<CacheShape> shape_of(const kvspan_layer* layers, std::int32_t count);

inline std::span<const std::byte> bytes_of(const void* bytes, std::size_t size) {
  return {static_cast<const std::byte*>(bytes), size};
}
// Into a structure whose struct_size is set.
Status put_bytes(const CacheBytes& held, kvspan_bytes* to);

// A sink of C as one of C++.
Result<ByteSink> sink_of(kvspan_sink sink, void* context);

// A call made by the whole pool; the members' outcomes are equal, the leader's is returned.
template <class Call>
Status by_all(ThreadPool& pool, const Call& call) {
  Status outcome;
  pool.run([&](Team& team) {
    Status status = call(team);
    if (team.leader()) outcome = std::move(status);
  });
  return outcome;
}

template <class T>
TensorView<T, 3> rows_of(T* data, std::int32_t n, std::int32_t heads, std::int32_t dim) {
  return {data,
          {static_cast<std::size_t>(n), static_cast<std::size_t>(heads),
           static_cast<std::size_t>(dim)}};
}

// Rows of any numbers as f32: those that are, as they are, others widened by the pool into memory
// that stays for the next call.
class WideRows {
 public:
  TensorView<const float, 3> of(const void* rows, kvspan_number number, std::int32_t n,
                                std::int32_t heads, std::int32_t dim, ThreadPool& pool);

 private:
  std::vector<float> wide_;
};

}  // namespace kvspan::c_api

// SPDX-License-Identifier: Apache-2.0
// One sequence of some implementation of caches. It grows by tokens of a text, whose rows and queries
// the implementation supplies, and can be forked, truncated and saved. A KvCache is one (caches.h),
// and so is a sequence of a program on libllama.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvspan/cache.h"
#include "kvspan/result.h"

namespace kvspan::conformance {

// What of the contract an implementation or its method leaves open.
struct Traits {
  bool splits = true;      // a text leaves the same however it is cut into calls
  bool keeps_all = true;   // no token is ever gone
  bool drops = false;      // tokens that later queries could see
  bool reads_some = false; // of the tokens that a query could see
  bool observes = false;   // attention changes what is held
  // Tokens that are encoded together have consecutive positions, the first a multiple of this.
  std::int32_t tile = 1;
  float row_limit = 0.0f;  // of numbers in rows; infinity: none
  int most_threads = 16;   // that a test of any number of them takes
  bool exact = true;       // raw rows and queries are multiplied in f32
  bool any_query = true;   // queries may be at any position, else at the last ones
  bool takes_views = true; // callers say how rows lie in memory
};

class Sequence {
 public:
  virtual ~Sequence() = default;
  virtual std::int32_t tokens() const = 0;  // the next position
  virtual std::int32_t least_tokens() const = 0;
  virtual CacheBytes bytes() const = 0;
  // The next n tokens of the text in one call; what it answers is added to `out`.
  virtual Status step(std::int32_t n, std::vector<float>& out) = 0;
  virtual Status truncate(std::int32_t n) = 0;
  virtual void clear() = 0;
  virtual Result<std::unique_ptr<Sequence>> fork() const = 0;
  virtual Result<std::vector<std::byte>> save() const = 0;
};

// Makes sequences over one text.
class Source {
 public:
  virtual ~Source() = default;
  virtual std::unique_ptr<Sequence> make() const = 0;
  virtual Result<std::unique_ptr<Sequence>> load(std::span<const std::byte> bytes) const = 0;
  // The same with steps by so many threads.
  virtual std::unique_ptr<Source> with_threads(int threads) const = 0;
  virtual const Traits& traits() const = 0;
  // Of the text's tokens, increasing.
  virtual std::span<const std::int32_t> positions() const = 0;
};

}  // namespace kvspan::conformance

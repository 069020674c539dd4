// SPDX-License-Identifier: Apache-2.0
// The sequences of a device cache: which pages each has, and the tables of them that kernels read.
// What is to change on the device is gathered as writes and copies, and done by flush() in the
// order of a stream. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/attend_plan.h"
#include "cuda/device_memory.h"
#include "cuda/page_pool.h"
#include "kvspan/result.h"

namespace kvspan::cuda {

struct Sequence {
  std::int32_t number = 0;
  bool used = false;
  std::vector<std::int32_t> code_pages, row_pages;  // -1: none
  // By layer. coded: one beyond the last. Positions from `first` on are held, others were never there:
  // no query from `least` on sees them.
  std::vector<std::int32_t> tokens, coded, first, least;
};

class Sequences {
 public:
  Sequences() = default;
  Status create(std::int32_t count, std::int32_t max_tokens, std::int32_t layers, PagePool pool,
                std::byte* memory, std::size_t memory_bytes);

  Result<std::int32_t> add();
  Result<std::int32_t> fork(std::int32_t from);
  void remove(Sequence& sequence);
  // Fails, naming the number, where there is no such sequence.
  Result<Sequence*> find(std::int32_t number);
  Result<const Sequence*> find(std::int32_t number) const;

  // Pages for positions [first, last) that nobody else has, whatever they held before copied. On
  // failure pages taken before stay with the sequence, unused.
  Status own(PageKind kind, Sequence& sequence, std::int32_t first, std::int32_t last);
  // Pages of positions from `first` on are given back.
  void drop_from(PageKind kind, Sequence& sequence, std::int32_t first);
  // Row pages that lie in [first, last) are given back.
  void drop_rows(Sequence& sequence, std::int32_t first, std::int32_t last);
  Status flush(cudaStream_t stream);

  const std::int32_t* code_table(const Sequence& sequence) const noexcept;
  const std::int32_t* row_table(const Sequence& sequence) const noexcept;
  const PagePool& pool() const noexcept { return pool_; }
  std::int32_t max_tokens() const noexcept { return max_tokens_; }
  std::byte* page(PageKind kind, std::int32_t page) const noexcept;
  std::size_t table_bytes() const noexcept { return tables_.bytes(); }

 private:
  struct Write {
    std::int32_t at, page;
  };
  struct Copy {
    std::byte *to, *from;
    std::size_t bytes;
  };
  void note(PageKind kind, const Sequence& sequence, std::size_t index, std::int32_t page);

  std::int32_t max_tokens_ = 0;
  PagePool pool_;
  std::byte* memory_ = nullptr;
  std::size_t memory_bytes_ = 0;
  std::vector<Sequence> sequences_;
  DeviceMemory tables_;  // of each sequence: code pages, then row pages
  std::vector<Write> writes_;
  std::vector<Copy> copies_;
};

}  // namespace kvspan::cuda

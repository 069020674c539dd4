// SPDX-License-Identifier: Apache-2.0
// The sequences of a device cache: which pages each has, and the tables of them that kernels read.
// What is to change on the device is gathered as writes and copies, and done by flush() in the
// order of a stream; nothing else here needs a device. Not thread-safe.
//
// Layers share pages by classes (page_classes.h). Pages go back to the pool when all layers of a
// class have coded their rows, and when the window of the class has passed them: what a query at
// the first token that is not coded sees stays, so that a sequence can be cut at any such token.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/page_classes.h"
#include "kvspan/result.h"

namespace kvspan::cuda {

// What a sequence has of a class of layers.
struct ClassPages {
  std::vector<std::int32_t> codes, rows;  // by position / tokens of a page; -1: none
  std::int32_t coded = 0;   // rows from the sink to here have been given back, but for begun pages
  std::int32_t passed = 0;  // positions before are seen no more
};

struct Sequence {
  std::int32_t number = 0;
  bool used = false;
  std::vector<ClassPages> classes;
  // By layer. coded: one beyond the last; settled: tokens when it did last.
  std::vector<std::int32_t> tokens, coded, settled;
};

struct SequenceLimits {
  std::int32_t sequences = 0, tokens = 0;  // tokens: of one sequence
  Ends ends;
};

class Sequences {
 public:
  Sequences() = default;
  // memory: of the pool's pages. tables: table_entries() numbers of the device, zeros.
  Sequences(const SequenceLimits& limits, std::vector<PageClass> classes, PagePool pool,
            std::byte* memory, std::int32_t* tables);
  static std::size_t table_entries(const SequenceLimits& limits, std::size_t classes);

  Result<std::int32_t> add();
  Result<std::int32_t> fork(std::int32_t from);
  void remove(Sequence& sequence);
  // Fails, naming the number, where there is no such sequence.
  Result<Sequence*> find(std::int32_t number);
  Result<const Sequence*> find(std::int32_t number) const;

  // Pages of the layer's class for positions [first, last) that nobody else has, whatever they held
  // before copied. On failure pages taken before stay with the sequence, unused.
  Status own(PageKind kind, Sequence& sequence, std::size_t layer, std::int32_t first,
             std::int32_t last);
  // The layer has settled, its numbers are new: pages of its class that nobody reads any more are
  // given back.
  void settled(Sequence& sequence, std::size_t layer);
  // The layer was loaded, its numbers are new: positions before `passed` are not there.
  void loaded(Sequence& sequence, std::size_t layer, std::int32_t passed);
  // Forgets tokens from n on, 0 or least_tokens() and more.
  void cut(Sequence& sequence, std::int32_t n);
  std::int32_t least_tokens(const Sequence& sequence) const;
  Status flush(cudaStream_t stream);

  // Positions before have been given back.
  std::int32_t passed(const Sequence& sequence, std::size_t layer) const noexcept {
    return sequence.classes[class_of_[layer]].passed;
  }
  // -1: there is none.
  std::int32_t page_of(PageKind kind, const Sequence& sequence, std::size_t layer,
                       std::int32_t position) const noexcept;
  const std::int32_t* table(PageKind kind, const Sequence& sequence,
                            std::size_t layer) const noexcept;
  std::size_t bytes(PageKind kind, const Sequence& sequence) const noexcept;
  const PagePool& pool() const noexcept { return pool_; }
  std::int32_t max_tokens() const noexcept { return limits_.tokens; }
  std::byte* memory_of(std::int32_t page) const noexcept;

 private:
  struct Write {
    std::int32_t at, page;
  };
  struct Copy {
    std::int32_t to, from;
    std::size_t bytes;
  };
  static std::size_t kind_of(PageKind kind, std::size_t of) noexcept;
  std::size_t table_at(PageKind kind, const Sequence& sequence, std::size_t of) const noexcept;
  void note(PageKind kind, const Sequence& sequence, std::size_t of, std::size_t index,
            std::int32_t page);
  void drop(std::vector<std::int32_t>& pages, std::size_t first, std::size_t last);

  SequenceLimits limits_;
  std::vector<PageClass> classes_;
  std::vector<std::size_t> class_of_;  // by layer
  PagePool pool_;
  std::byte* memory_ = nullptr;
  std::int32_t* tables_ = nullptr;  // of each sequence and class: code pages, then row pages
  std::vector<Sequence> sequences_;
  std::vector<Write> writes_;
  std::vector<Copy> copies_;
};

}  // namespace kvspan::cuda

// SPDX-License-Identifier: Apache-2.0
#include "cuda/sequences.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "cuda/device_memory.h"
#include "cuda/kernels/write_pages.h"

namespace kvspan::cuda {
namespace {

std::size_t pages_for(PageKind kind, std::int32_t tokens) {
  return static_cast<std::size_t>((tokens + page_tokens(kind) - 1) / page_tokens(kind));
}

// Pages that lie wholly below a position.
std::size_t whole_pages(PageKind kind, std::int32_t position) {
  return static_cast<std::size_t>(position / page_tokens(kind));
}

std::vector<std::int32_t>& pages_of(PageKind kind, ClassPages& held) {
  return kind == PageKind::kCodes ? held.codes : held.rows;
}
const std::vector<std::int32_t>& pages_of(PageKind kind, const ClassPages& held) {
  return kind == PageKind::kCodes ? held.codes : held.rows;
}

}  // namespace

std::size_t Sequences::table_entries(const SequenceLimits& limits, std::size_t classes) {
  std::size_t entries = 0;
  for (const PageKind kind : kPageKinds) entries += pages_for(kind, limits.tokens);
  return entries * classes * static_cast<std::size_t>(limits.sequences);
}

Sequences::Sequences(const SequenceLimits& limits, std::vector<PageClass> classes, PagePool pool,
                     std::byte* memory, std::int32_t* tables)
    : limits_(limits),
      classes_(std::move(classes)),
      pool_(std::move(pool)),
      memory_(memory),
      tables_(tables) {
  std::size_t layers = 0;
  for (const PageClass& of : classes_) layers += of.layers.size();
  class_of_.resize(layers);
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    for (const std::size_t layer : classes_[c].layers) class_of_[layer] = c;
  }
  ClassPages none;
  none.codes.assign(pages_for(PageKind::kCodes, limits.tokens), -1);
  none.rows.assign(pages_for(PageKind::kRows, limits.tokens), -1);
  sequences_.resize(static_cast<std::size_t>(limits.sequences));
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    Sequence& s = sequences_[i];
    s.number = static_cast<std::int32_t>(i);
    s.classes.assign(classes_.size(), none);
    for (auto* numbers : {&s.tokens, &s.coded, &s.settled}) numbers->assign(layers, 0);
  }
}

Result<std::int32_t> Sequences::add() {
  for (Sequence& s : sequences_) {
    if (s.used) continue;
    s.used = true;
    return s.number;
  }
  return fail(ErrorCode::kOutOfBudget, "all {} sequences of the device cache are in use",
              sequences_.size());
}

Result<std::int32_t> Sequences::fork(std::int32_t from) {
  KVSPAN_TRY(const Sequence* source, find(from));
  KVSPAN_TRY(const std::int32_t number, add());
  Sequence& to = sequences_[static_cast<std::size_t>(number)];
  to.tokens = source->tokens;
  to.coded = source->coded;
  to.settled = source->settled;
  to.classes = source->classes;
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    for (const PageKind kind : kPageKinds) {
      const std::vector<std::int32_t>& pages = pages_of(kind, to.classes[c]);
      for (std::size_t i = 0; i < pages.size(); ++i) {
        if (pages[i] < 0) continue;
        pool_.share(pages[i]);
        note(kind, to, c, i, pages[i]);
      }
    }
  }
  return number;
}

void Sequences::remove(Sequence& sequence) {
  cut(sequence, 0);
  sequence.used = false;
}

Result<Sequence*> Sequences::find(std::int32_t number) {
  if (number < 0 || std::cmp_greater_equal(number, sequences_.size()) ||
      !sequences_[static_cast<std::size_t>(number)].used) {
    return fail(ErrorCode::kNotFound, "the device cache has no sequence {}", number);
  }
  return &sequences_[static_cast<std::size_t>(number)];
}

Result<const Sequence*> Sequences::find(std::int32_t number) const {
  KVSPAN_TRY(const Sequence* found, const_cast<Sequences*>(this)->find(number));
  return found;
}

std::size_t Sequences::kind_of(PageKind kind, std::size_t of) noexcept {
  return 2 * of + (kind == PageKind::kRows ? 1 : 0);  // as page_needs counts them
}

void Sequences::note(PageKind kind, const Sequence& sequence, std::size_t of, std::size_t index,
                     std::int32_t page) {
  writes_.push_back({static_cast<std::int32_t>(table_at(kind, sequence, of) + index), page});
}

Status Sequences::own(PageKind kind, Sequence& sequence, std::size_t layer, std::int32_t first,
                      std::int32_t last) {
  const std::size_t c = class_of_[layer], size = pool_.page_bytes(kind_of(kind, c));
  std::vector<std::int32_t>& pages = pages_of(kind, sequence.classes[c]);
  for (std::size_t i = whole_pages(kind, first); i < pages_for(kind, last); ++i) {
    std::int32_t& page = pages[i];
    if (page >= 0 && !pool_.shared(page)) continue;
    KVSPAN_TRY(const std::int32_t taken, pool_.take(kind_of(kind, c)));
    if (page >= 0) {
      copies_.push_back({taken, page, size});
      pool_.give_back(page);
    }
    page = taken;
    note(kind, sequence, c, i, taken);
  }
  return {};
}

void Sequences::drop(std::vector<std::int32_t>& pages, std::size_t first, std::size_t last) {
  for (std::size_t i = first; i < last; ++i) {
    if (pages[i] >= 0) pool_.give_back(pages[i]);
    pages[i] = -1;
  }
}

void Sequences::settled(Sequence& sequence, std::size_t layer) {
  const PageClass& of = classes_[class_of_[layer]];
  ClassPages& held = sequence.classes[class_of_[layer]];
  sequence.settled[layer] = sequence.tokens[layer];
  std::int32_t coded = sequence.coded[layer], earliest = limits_.tokens;
  for (const std::size_t l : of.layers) {
    coded = std::min(coded, sequence.coded[l]);
    earliest = std::min(earliest, of.coded ? sequence.coded[l] : sequence.settled[l] - kCutTokens);
  }
  if (coded > held.coded) {
    drop(held.rows,
         std::max(pages_for(PageKind::kRows, limits_.ends.sink),
                  whole_pages(PageKind::kRows, held.coded)),
         whole_pages(PageKind::kRows, coded));
    held.coded = coded;
  }
  // The next query is nowhere before, wherever the sequence is cut.
  const std::int32_t passed = of.window > 0 ? earliest - of.window + 1 : 0;
  if (passed <= held.passed) return;
  for (const PageKind kind : kPageKinds) {
    drop(pages_of(kind, held), whole_pages(kind, held.passed), whole_pages(kind, passed));
  }
  held.passed = passed;
}

void Sequences::loaded(Sequence& sequence, std::size_t layer, std::int32_t passed) {
  ClassPages& held = sequence.classes[class_of_[layer]];
  sequence.settled[layer] = sequence.tokens[layer];
  held.passed = std::max(held.passed, passed);
}

void Sequences::cut(Sequence& sequence, std::int32_t n) {
  for (std::size_t l = 0; l < sequence.tokens.size(); ++l) {
    sequence.tokens[l] = std::min(sequence.tokens[l], n);
    sequence.settled[l] = std::min(sequence.settled[l], n);
    if (n == 0) sequence.coded[l] = 0;
  }
  for (ClassPages& held : sequence.classes) {
    for (const PageKind kind : kPageKinds) {
      std::vector<std::int32_t>& pages = pages_of(kind, held);
      drop(pages, std::min(pages_for(kind, n), pages.size()), pages.size());
    }
    if (n == 0) held.coded = held.passed = 0;
  }
}

std::int32_t Sequences::least_tokens(const Sequence& sequence) const {
  std::int32_t least = 1;
  for (const std::int32_t coded : sequence.coded) least = std::max(least, coded);
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    const std::int32_t passed = sequence.classes[c].passed;
    if (passed > 0) least = std::max(least, passed + classes_[c].window - 1);
  }
  return least;
}

Status Sequences::flush(cudaStream_t stream) {
  for (const Copy& copy : copies_) {
    KVSPAN_CHECK_OK(check(cudaMemcpyAsync(memory_of(copy.to), memory_of(copy.from), copy.bytes,
                                          cudaMemcpyDeviceToDevice, stream),
                          "copying a shared page"));
  }
  copies_.clear();
  for (std::size_t from = 0; from < writes_.size(); from += kMaxPageWrites) {
    PageWrites call{};
    call.table = tables_;
    call.count =
        static_cast<std::int32_t>(std::min<std::size_t>(kMaxPageWrites, writes_.size() - from));
    for (std::int32_t i = 0; i < call.count; ++i) {
      const Write& write = writes_[from + static_cast<std::size_t>(i)];
      call.at[i] = write.at;
      call.page[i] = write.page;
    }
    KVSPAN_CHECK_OK(check(launch_write_pages(call, stream), "writing the tables of pages"));
  }
  writes_.clear();
  return {};
}

std::int32_t Sequences::page_of(PageKind kind, const Sequence& sequence, std::size_t layer,
                                std::int32_t position) const noexcept {
  return pages_of(kind, sequence.classes[class_of_[layer]])[whole_pages(kind, position)];
}

std::size_t Sequences::table_at(PageKind kind, const Sequence& sequence,
                                std::size_t of) const noexcept {
  const std::size_t codes = pages_for(PageKind::kCodes, limits_.tokens),
                    rows = pages_for(PageKind::kRows, limits_.tokens);
  const std::size_t index = static_cast<std::size_t>(sequence.number) * classes_.size() + of;
  return index * (codes + rows) + (kind == PageKind::kRows ? codes : 0);
}

const std::int32_t* Sequences::table(PageKind kind, const Sequence& sequence,
                                     std::size_t layer) const noexcept {
  return tables_ + table_at(kind, sequence, class_of_[layer]);
}

std::size_t Sequences::bytes(PageKind kind, const Sequence& sequence) const noexcept {
  std::size_t sum = 0;
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    const std::vector<std::int32_t>& pages = pages_of(kind, sequence.classes[c]);
    const auto held =
        std::count_if(pages.begin(), pages.end(), [](std::int32_t page) { return page >= 0; });
    sum += static_cast<std::size_t>(held) * pool_.page_bytes(kind_of(kind, c));
  }
  return sum;
}

std::byte* Sequences::memory_of(std::int32_t page) const noexcept {
  return memory_ + static_cast<std::size_t>(page) * kPageUnit;
}

}  // namespace kvspan::cuda

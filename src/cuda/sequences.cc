// SPDX-License-Identifier: Apache-2.0
#include "cuda/sequences.h"

#include <algorithm>

#include "base/fail.h"
#include "cuda/kernels/write_pages.h"

namespace kvspan::cuda {
namespace {

std::int32_t tokens_of(PageKind kind) {
  return kind == PageKind::kCodes ? kPageTokens : kRowPageTokens;
}

std::int32_t pages_for(PageKind kind, std::int32_t tokens) {
  return (tokens + tokens_of(kind) - 1) / tokens_of(kind);
}

std::vector<std::int32_t>& pages_of(PageKind kind, Sequence& sequence) {
  return kind == PageKind::kCodes ? sequence.code_pages : sequence.row_pages;
}

}  // namespace

Status Sequences::create(std::int32_t count, std::int32_t max_tokens, std::int32_t layers,
                         PagePool pool, std::byte* memory, std::size_t memory_bytes) {
  max_tokens_ = max_tokens;
  pool_ = std::move(pool);
  memory_ = memory;
  memory_bytes_ = memory_bytes;
  sequences_.resize(static_cast<std::size_t>(count));
  for (std::int32_t i = 0; i < count; ++i) {
    Sequence& s = sequences_[static_cast<std::size_t>(i)];
    s.number = i;
    s.code_pages.assign(static_cast<std::size_t>(pages_for(PageKind::kCodes, max_tokens)), -1);
    s.row_pages.assign(static_cast<std::size_t>(pages_for(PageKind::kRows, max_tokens)), -1);
    for (auto* by_layer : {&s.tokens, &s.coded, &s.first, &s.least}) {
      by_layer->assign(static_cast<std::size_t>(layers), 0);
    }
  }
  const std::size_t entries =
      sequences_.empty() ? 0 : sequences_[0].code_pages.size() + sequences_[0].row_pages.size();
  KVSPAN_TRY(tables_, DeviceMemory::create(sequences_.size() * entries * sizeof(std::int32_t)));
  return {};
}

Result<std::int32_t> Sequences::add() {
  for (Sequence& s : sequences_) {
    if (s.used) continue;
    s.used = true;
    for (auto* by_layer : {&s.tokens, &s.coded, &s.first, &s.least}) {
      std::fill(by_layer->begin(), by_layer->end(), 0);
    }
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
  to.first = source->first;
  to.least = source->least;
  for (const PageKind kind : {PageKind::kCodes, PageKind::kRows}) {
    auto& pages = pages_of(kind, to);
    pages = pages_of(kind, sequences_[static_cast<std::size_t>(from)]);
    for (std::size_t i = 0; i < pages.size(); ++i) {
      if (pages[i] < 0) continue;
      pool_.share(kind, pages[i]);
      note(kind, to, i, pages[i]);
    }
  }
  return number;
}

void Sequences::remove(Sequence& sequence) {
  drop_from(PageKind::kCodes, sequence, 0);
  drop_from(PageKind::kRows, sequence, 0);
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

void Sequences::note(PageKind kind, const Sequence& sequence, std::size_t index,
                     std::int32_t page) {
  const std::int32_t* const table =
      kind == PageKind::kCodes ? code_table(sequence) : row_table(sequence);
  writes_.push_back({static_cast<std::int32_t>(table - tables_.as<std::int32_t>()) +
                         static_cast<std::int32_t>(index),
                     page});
}

Status Sequences::own(PageKind kind, Sequence& sequence, std::int32_t first, std::int32_t last) {
  auto& pages = pages_of(kind, sequence);
  const std::int32_t size = tokens_of(kind);
  for (std::int32_t i = first / size; i < pages_for(kind, last); ++i) {
    std::int32_t& page = pages[static_cast<std::size_t>(i)];
    if (page >= 0 && !pool_.shared(kind, page)) continue;
    KVSPAN_TRY(const std::int32_t taken, pool_.take(kind));
    if (page >= 0) {
      copies_.push_back({this->page(kind, taken), this->page(kind, page), pool_.page_bytes(kind)});
      pool_.give_back(kind, page);
    }
    page = taken;
    note(kind, sequence, static_cast<std::size_t>(i), taken);
  }
  return {};
}

void Sequences::drop_from(PageKind kind, Sequence& sequence, std::int32_t first) {
  auto& pages = pages_of(kind, sequence);
  for (auto i = static_cast<std::size_t>(pages_for(kind, first)); i < pages.size(); ++i) {
    if (pages[i] >= 0) pool_.give_back(kind, pages[i]);
    pages[i] = -1;
  }
}

void Sequences::drop_rows(Sequence& sequence, std::int32_t first, std::int32_t last) {
  for (std::int32_t i = pages_for(PageKind::kRows, first); (i + 1) * kRowPageTokens <= last; ++i) {
    std::int32_t& page = sequence.row_pages[static_cast<std::size_t>(i)];
    if (page >= 0) pool_.give_back(PageKind::kRows, page);
    page = -1;
  }
}

Status Sequences::flush(cudaStream_t stream) {
  for (const Copy& copy : copies_) {
    KVSPAN_CHECK_OK(
        check(cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyDeviceToDevice, stream),
              "copying a shared page"));
  }
  copies_.clear();
  for (std::size_t from = 0; from < writes_.size(); from += kMaxPageWrites) {
    PageWrites call{};
    call.table = tables_.as<std::int32_t>();
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

const std::int32_t* Sequences::code_table(const Sequence& sequence) const noexcept {
  const std::size_t entries = sequence.code_pages.size() + sequence.row_pages.size();
  return tables_.as<std::int32_t>() + static_cast<std::size_t>(sequence.number) * entries;
}

const std::int32_t* Sequences::row_table(const Sequence& sequence) const noexcept {
  return code_table(sequence) + sequence.code_pages.size();
}

std::byte* Sequences::page(PageKind kind, std::int32_t page) const noexcept {
  const std::size_t bytes = pool_.page_bytes(kind);
  const auto index = static_cast<std::size_t>(page);
  return kind == PageKind::kCodes ? memory_ + index * bytes
                                  : memory_ + memory_bytes_ - (index + 1) * bytes;
}

}  // namespace kvspan::cuda

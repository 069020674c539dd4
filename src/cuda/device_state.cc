// SPDX-License-Identifier: Apache-2.0
// Sequences between the device and the host. Between the two stands a cache of the host with the
// same codes: what is saved is what that saves, and what is loaded is what that has loaded. Tokens
// are copied as they are (method/layer_tokens.h): both code the same positions, from the sink on
// all but the recent ones in sixteens, and hold the others as f16.
#include <algorithm>

#include "base/fail.h"
#include "cache/visible.h"
#include "cuda/attend_constants.h"
#include "cuda/bands/code_pages.h"
#include "cuda/device_cache.h"
#include "cuda/row_pages.h"
#include "method/method_cache.h"

namespace kvspan {

using cuda::PageKind;
using cuda::Sequence;

namespace {

Status copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
            cudaStream_t stream) {
  return cuda::check(cudaMemcpyAsync(to, from, bytes, kind, stream),
                     kind == cudaMemcpyDeviceToHost ? "reading a sequence" : "writing a sequence");
}

// Calls use(page) for each page of rows that holds some of what is held; each once.
template <class Use>
Status each_row_page(const LayerTokens& tokens, const Use& use) {
  const PositionRange first = cuda::pages_of(tokens.before(), cuda::kRowPageTokens);
  for (std::int32_t page = first.first; page < first.last; ++page) KVSPAN_CHECK_OK(use(page));
  const PositionRange last = cuda::pages_of(tokens.after(), cuda::kRowPageTokens);
  for (std::int32_t page = std::max(last.first, first.last); page < last.last; ++page) {
    KVSPAN_CHECK_OK(use(page));
  }
  return {};
}

}  // namespace

std::byte* DeviceCache::Impl::code_page_at(const Sequence& s, std::size_t layer, std::size_t group,
                                           std::int32_t page) const noexcept {
  const std::int32_t at = sequences_.page_of(PageKind::kCodes, s, layer, page * cuda::kPageTokens);
  return sequences_.memory_of(at) + layers_[layer].group_offset(static_cast<int>(group));
}

std::byte* DeviceCache::Impl::row_page_at(const Sequence& s, std::size_t layer,
                                          std::int32_t page) const noexcept {
  const std::int32_t at =
      sequences_.page_of(PageKind::kRows, s, layer, page * cuda::kRowPageTokens);
  return sequences_.memory_of(at) +
         layers_[layer].append.row_layer_halves * static_cast<std::ptrdiff_t>(sizeof(__half));
}

// What a sequence holds of a layer, its numbers still zeros.
LayerTokens DeviceCache::Impl::room_for(const Sequence& s, std::size_t layer) const {
  const LayerShape& shape = shape_.layers[layer];
  LayerTokens tokens;
  tokens.next = s.tokens[layer];
  tokens.sink = layers_[layer].coded() ? recipe_.sink : 0;
  tokens.coded = s.coded[layer];
  if (const std::int32_t passed = sequences_.passed(s, layer); passed > 0) {
    // Of the sixteen that a window has begun to pass all are there: pages go whole.
    const bool among_codes = tokens.coded > 0 && passed > tokens.sink;
    tokens.first = among_codes ? passed / kCodedTogether * kCodedTogether : passed;
    tokens.least = first_query_past(shape, passed);
  }
  const auto coded = static_cast<std::size_t>(tokens.codes().size());
  const auto& groups = recipe_.prepared->layers[layer].groups;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    GroupTokens group;
    if (layers_[layer].coded()) {
      const auto& code = *recipe_.codes[layer][g];
      group.code = code.checksum();
      group.codes.resize(coded * static_cast<std::size_t>(code.places()));
      group.gains.resize(coded);
    }
    const std::size_t rows = tokens.rows() * static_cast<std::size_t>(groups[g].options.heads);
    group.keys.resize(rows * static_cast<std::size_t>(shape.key_dim));
    group.values.resize(rows * static_cast<std::size_t>(shape.value_dim));
    tokens.groups.push_back(std::move(group));
  }
  return tokens;
}

Result<LayerTokens> DeviceCache::Impl::read_layer(const Sequence& s, std::size_t layer,
                                                  cudaStream_t stream) const {
  LayerTokens tokens = room_for(s, layer);
  const cuda::LayerTables& tables = layers_[layer];
  std::vector<Half> rows(tables.row_page_halves());
  const auto read_rows = [&](std::int32_t page) -> Status {
    KVSPAN_CHECK_OK(copy(rows.data(), row_page_at(s, layer, page), rows.size() * sizeof(Half),
                         cudaMemcpyDeviceToHost, stream));
    KVSPAN_CHECK_OK(cuda::check(cudaStreamSynchronize(stream), "reading rows"));
    cuda::read_row_page(shape_.layers[layer], rows, page, tokens);
    return {};
  };
  KVSPAN_CHECK_OK(each_row_page(tokens, read_rows));
  const PositionRange pages = cuda::pages_of(tokens.codes(), cuda::kPageTokens);
  for (std::size_t g = 0; g < recipe_.codes[layer].size(); ++g) {
    const cuda::CodePages codes(recipe_.codes[layer][g]->layout(), tables.attend.chunks);
    std::vector<std::byte> tiles(codes.page_bytes());
    for (std::int32_t page = pages.first; page < pages.last; ++page) {
      KVSPAN_CHECK_OK(copy(tiles.data(), code_page_at(s, layer, g, page), tiles.size(),
                           cudaMemcpyDeviceToHost, stream));
      KVSPAN_CHECK_OK(cuda::check(cudaStreamSynchronize(stream), "reading codes"));
      codes.read_page(tiles, page, g, tokens);
    }
  }
  return tokens;
}

Result<std::unique_ptr<MethodCache>> DeviceCache::Impl::to_host(std::int32_t sequence,
                                                                cudaStream_t stream) const {
  KVSPAN_TRY(const Sequence* s, sequences_.find(sequence));
  try {
    auto host = std::make_unique<MethodCache>(recipe_.prepared);
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      KVSPAN_TRY(const LayerTokens tokens, read_layer(*s, l, stream));
      KVSPAN_CHECK_OK(host->take(static_cast<int>(l), tokens));
    }
    return host;
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfBudget, "no memory for a copy of sequence {}", sequence);
  }
}

// Of this cache's codes, and no more than it can hold.
Status DeviceCache::Impl::check_tokens(const LayerTokens& tokens, std::size_t layer) const {
  if (tokens.next > sequences_.max_tokens()) {
    return fail(ErrorCode::kOutOfBudget, "{} tokens for a sequence; allowed: {}", tokens.next,
                sequences_.max_tokens());
  }
  const auto& codes = recipe_.codes[layer];
  for (std::size_t g = 0; g < tokens.groups.size(); ++g) {
    const std::uint64_t own = codes.empty() ? 0 : g < codes.size() ? codes[g]->checksum() : ~0ull;
    if (tokens.groups[g].code == own) continue;
    return fail(ErrorCode::kInvalidArgument,
                "layer {}, group {}: codes of {:016x}; allowed: of {:016x}, the device cache's",
                layer, g, tokens.groups[g].code, own);
  }
  return {};
}

Status DeviceCache::Impl::write_layer(const LayerTokens& tokens, std::size_t layer, Sequence& s,
                                      cudaStream_t stream) {
  const PositionRange codes = tokens.codes();
  for (const PositionRange& rows : {tokens.before(), tokens.after()}) {
    if (rows.size() == 0) continue;
    KVSPAN_CHECK_OK(sequences_.own(PageKind::kRows, s, layer, rows.first, rows.last));
  }
  if (codes.size() > 0) {
    KVSPAN_CHECK_OK(sequences_.own(PageKind::kCodes, s, layer, codes.first, codes.last));
  }
  const auto write_rows = [&](std::int32_t page) -> Status {
    const std::vector<Half> rows = cuda::row_page(shape_.layers[layer], tokens, page);
    return copy(row_page_at(s, layer, page), rows.data(), rows.size() * sizeof(Half),
                cudaMemcpyHostToDevice, stream);
  };
  KVSPAN_CHECK_OK(each_row_page(tokens, write_rows));
  const PositionRange pages = cuda::pages_of(codes, cuda::kPageTokens);
  for (std::size_t g = 0; g < recipe_.codes[layer].size(); ++g) {
    const cuda::CodePages of(recipe_.codes[layer][g]->layout(), layers_[layer].attend.chunks);
    for (std::int32_t page = pages.first; page < pages.last; ++page) {
      const std::vector<std::byte> tiles = of.page_of(tokens, g, page);
      KVSPAN_CHECK_OK(copy(code_page_at(s, layer, g, page), tiles.data(), tiles.size(),
                           cudaMemcpyHostToDevice, stream));
    }
  }
  s.tokens[layer] = tokens.next;
  s.coded[layer] = tokens.coded;
  // Tokens that are there, and seen by none that may come, count as passed too.
  const std::int32_t window = shape_.layers[layer].window;
  const bool passed = tokens.first > 0 || tokens.least > 0;
  sequences_.loaded(s, layer, passed ? std::max(tokens.first, tokens.least - window + 1) : 0);
  return {};
}

Result<std::int32_t> DeviceCache::Impl::from_host(const MethodCache& host, cudaStream_t stream) {
  if (host.recipe() != recipe_.text || !(host.shape() == shape_)) {
    return fail(ErrorCode::kInvalidArgument, "a cache of {} for a device cache of {}",
                host.recipe(), recipe_.text);
  }
  KVSPAN_TRY(const std::int32_t number, sequences_.add());
  KVSPAN_TRY(Sequence * s, sequences_.find(number));
  const auto write = [&]() -> Status {
    try {
      for (std::size_t l = 0; l < layers_.size(); ++l) {
        KVSPAN_TRY(const LayerTokens tokens, host.give(static_cast<int>(l)));
        KVSPAN_CHECK_OK(check_tokens(tokens, l));
        KVSPAN_CHECK_OK(write_layer(tokens, l, *s, stream));
      }
      return {};
    } catch (const std::bad_alloc&) {
      return fail(ErrorCode::kOutOfBudget, "no memory for a copy of {} tokens", host.tokens());
    }
  };
  Status written = write();
  // The tables of pages too, whatever came of it: pages that were taken are noted in them.
  if (Status flushed = sequences_.flush(stream); written) written = std::move(flushed);
  if (written) written = cuda::check(cudaStreamSynchronize(stream), "writing a sequence");
  if (written) return number;
  sequences_.remove(*s);
  return std::move(written).error();
}

}  // namespace kvspan

// SPDX-License-Identifier: Apache-2.0
// The three calls of a step: which pages they need, and the launches.
#include <algorithm>
#include <type_traits>

#include "base/fail.h"
#include "cuda/bands/prepare.h"
#include "cuda/caller_rows.h"
#include "cuda/device_cache.h"
#include "cuda/kernels/finish.h"
#include "cuda/kernels/step.h"

namespace kvspan {
namespace {

using cuda::AttendCall;
using cuda::AttendItem;
using cuda::laid_out;
using cuda::LayerTables;
using cuda::PageKind;
using cuda::pointer_to;
using cuda::RowsPointer;
using cuda::Sequence;
using cuda::size_of;

// The same rows from number `first` on.
RowsPointer from_row(const RowsPointer& rows, std::int64_t first, std::size_t number_bytes) {
  RowsPointer later = rows;
  later.data = static_cast<const std::byte*>(rows.data) +
               first * rows.token_stride * static_cast<std::int64_t>(number_bytes);
  return later;
}

// Half tiles of 16 tokens that a sequence has ready in a layer, and where they begin.
struct Ready {
  std::int32_t first, halves;
};
Ready ready_of(const Sequence& s, std::size_t layer, std::int32_t sink, std::int32_t recent) {
  const std::int32_t first = std::max(s.coded[layer], sink);
  return {first, std::max(0, (s.tokens[layer] - first - recent) / 16)};
}

}  // namespace

Status DeviceCache::Impl::check_layer(int layer) const {
  if (layer >= 0 && std::cmp_less(layer, layers_.size())) return {};
  return fail(ErrorCode::kInvalidArgument, "layer {}; the cache has {}", layer, layers_.size());
}

Result<std::vector<Sequence*>> DeviceCache::Impl::find(std::span<const DeviceStep> steps,
                                                       bool need_tokens) {
  std::vector<Sequence*> found;
  for (const DeviceStep& step : steps) {
    KVSPAN_TRY(Sequence * s, sequences_.find(step.sequence));
    if (std::find(found.begin(), found.end(), s) != found.end()) {
      return fail(ErrorCode::kInvalidArgument, "sequence {} twice in one call", step.sequence);
    }
    if (need_tokens && step.tokens < 1) {
      return fail(ErrorCode::kInvalidArgument, "sequence {}: {} tokens; allowed: 1 or more",
                  step.sequence, step.tokens);
    }
    found.push_back(s);
  }
  return found;
}

Status DeviceCache::Impl::append(int layer, std::span<const DeviceStep> steps,
                                 const DeviceRows& keys, const DeviceRows& values,
                                 cudaStream_t stream) {
  KVSPAN_CHECK_OK(check_layer(layer));
  KVSPAN_TRY(const std::vector<Sequence*> found, find(steps, true));
  const auto l = static_cast<std::size_t>(layer);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i]->tokens[l] > sequences_.max_tokens() - steps[i].tokens) {
      return fail(ErrorCode::kOutOfBudget, "sequence {} would have {} tokens; allowed: {}",
                  steps[i].sequence, found[i]->tokens[l] + steps[i].tokens,
                  sequences_.max_tokens());
    }
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::int32_t first = found[i]->tokens[l];
    if (Status owned = sequences_.own(PageKind::kRows, *found[i], l, first, first + steps[i].tokens);
        !owned) {
      KVSPAN_CHECK_OK(sequences_.flush(stream));  // pages that were taken stay
      return owned;
    }
  }
  KVSPAN_CHECK_OK(sequences_.flush(stream));
  LayerTables& tables = layers_[l];
  cuda::AppendCall& call = tables.append;
  const RowsPointer key_rows = pointer_to(keys, call.kv_heads, call.key_dim);
  const RowsPointer value_rows = pointer_to(values, call.kv_heads, call.value_dim);
  std::int64_t row = 0;
  for (std::size_t from = 0; from < found.size(); from += cuda::kMaxItems) {
    call.item_count =
        static_cast<std::int32_t>(std::min<std::size_t>(cuda::kMaxItems, found.size() - from));
    call.total_tokens = 0;
    for (std::int32_t i = 0; i < call.item_count; ++i) {
      Sequence& s = *found[from + static_cast<std::size_t>(i)];
      const std::int32_t n = steps[from + static_cast<std::size_t>(i)].tokens;
      call.items[i] = {sequences_.table(PageKind::kRows, s, l), s.tokens[l], n, call.total_tokens};
      call.total_tokens += n;
      s.tokens[l] += n;
    }
    call.keys = from_row(key_rows, row, size_of(keys.number));
    call.values = from_row(value_rows, row, size_of(values.number));
    KVSPAN_CHECK_OK(cuda::check(cuda::launch_append(call, stream), "appending rows"));
    row += call.total_tokens;
  }
  return {};
}

Status DeviceCache::Impl::attend(int layer, std::span<const DeviceStep> steps,
                                 const DeviceRows& queries, const DeviceOut& out,
                                 cudaStream_t stream) {
  KVSPAN_CHECK_OK(check_layer(layer));
  KVSPAN_TRY(const std::vector<Sequence*> found, find(steps, true));
  const auto l = static_cast<std::size_t>(layer);
  std::vector<AttendItem> items;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const Sequence& s = *found[i];
    if (s.tokens[l] < steps[i].tokens) {
      return fail(ErrorCode::kInvalidArgument,
                  "sequence {}: {} queries at the end of {} tokens; append comes first",
                  steps[i].sequence, steps[i].tokens, s.tokens[l]);
    }
    const std::int32_t window = shape_.layers[l].window, first = s.tokens[l] - steps[i].tokens;
    if (const std::int32_t passed = sequences_.passed(s, l);
        passed > 0 && first - window + 1 < passed) {
      return fail(ErrorCode::kInvalidArgument,
                  "sequence {}: a query at {} sees tokens that a window of {} has passed; allowed: "
                  "queries from {} on",
                  steps[i].sequence, first, window, passed + window - 1);
    }
    for (std::int32_t q = first; q < s.tokens[l]; ++q) {
      AttendItem item{};
      item.code_pages = sequences_.table(PageKind::kCodes, s, l);
      item.row_pages = sequences_.table(PageKind::kRows, s, l);
      cuda::set_ranges({recipe_.sink, s.coded[l], s.tokens[l]}, q, window, item);
      items.push_back(item);
    }
  }
  LayerTables& tables = layers_[l];
  AttendCall& call = tables.attend;
  const RowsPointer rows = pointer_to(queries, call.query_heads, call.key_dim);
  const auto answers = laid_out<cuda::RowsOut>(out, call.query_heads, call.value_dim);
  call.out_token_stride = answers.token_stride;
  call.out_head_stride = answers.head_stride;
  call.out_type = answers.type;
  std::size_t done = 0;
  while (done < items.size()) {
    const int planned = cuda::plan_call(limits_[l], std::span(items).subspan(done), call, call.own);
    const auto capacity = cuda::PlanCapacity::of(call.own);
    if (planned == 0) {
      return fail(ErrorCode::kOutOfBudget, "a query over {} coded tokens; working memory is for {}",
                  items[done].coded.size(), launch_tokens_);
    }
    const auto first = static_cast<std::int64_t>(done);
    call.queries = from_row(rows, first, size_of(queries.number));
    call.out = static_cast<std::byte*>(out.data) +
               first * call.out_token_stride * static_cast<std::int64_t>(size_of(out.number));
    KVSPAN_CHECK_OK(
        cuda::check(cuda::launch_prepare(call, capacity, {}, true, stream), "preparing queries"));
    if (capacity.parts > 0) {
      KVSPAN_CHECK_OK(
          cuda::check(cuda::launch_attend_bands(*tables.variant, call, capacity, true, stream),
                      "attending to codes"));
    }
    KVSPAN_CHECK_OK(
        cuda::check(cuda::launch_finish(call, capacity, true, stream), "merging attention"));
    done += static_cast<std::size_t>(planned);
  }
  return {};
}

Status DeviceCache::Impl::rebuild(int layer, std::int32_t sequence, std::int32_t first,
                                  const DeviceOut& keys, const DeviceOut& values,
                                  cudaStream_t stream) {
  KVSPAN_CHECK_OK(check_layer(layer));
  KVSPAN_TRY(const Sequence* s, sequences_.find(sequence));
  const auto l = static_cast<std::size_t>(layer);
  if (first < sequences_.passed(*s, l) || first > s->tokens[l]) {
    return fail(ErrorCode::kInvalidArgument, "sequence {}: rows from {} on; held: {} to {}",
                sequence, first, sequences_.passed(*s, l), s->tokens[l]);
  }
  const LayerShape& shape = shape_.layers[l];
  const cuda::RebuildRows rows{
      first, laid_out<cuda::RowsOut>(keys, shape.kv_heads, shape.key_dim),
      laid_out<cuda::RowsOut>(values, shape.kv_heads, shape.value_dim)};
  return rebuilder_.rebuild(layers_[l],
                            {sequences_.table(PageKind::kCodes, *s, l),
                             sequences_.table(PageKind::kRows, *s, l), recipe_.sink, s->coded[l],
                             s->tokens[l]},
                            rows, stream);
}

Status DeviceCache::Impl::settle(int layer, std::span<const DeviceStep> steps,
                                 cudaStream_t stream) {
  KVSPAN_CHECK_OK(check_layer(layer));
  KVSPAN_TRY(const std::vector<Sequence*> found, find(steps, false));
  const auto l = static_cast<std::size_t>(layer);
  if (layers_[l].coded()) KVSPAN_CHECK_OK(encode(l, found, stream));
  for (Sequence* s : found) sequences_.settled(*s, l);
  return {};
}

Status DeviceCache::Impl::encode(std::size_t layer, std::span<Sequence* const> found,
                                 cudaStream_t stream) {
  for (Sequence* s : found) {
    const Ready ready = ready_of(*s, layer, recipe_.sink, recipe_.recent);
    if (ready.halves == 0) continue;
    if (Status owned = sequences_.own(PageKind::kCodes, *s, layer, ready.first,
                                      ready.first + 16 * ready.halves);
        !owned) {
      KVSPAN_CHECK_OK(sequences_.flush(stream));
      return owned;
    }
  }
  KVSPAN_CHECK_OK(sequences_.flush(stream));
  cuda::EncodeCall& call = layers_[layer].encode;
  for (std::size_t from = 0; from < found.size(); from += cuda::kMaxItems) {
    call.item_count = call.total_halves = 0;
    const std::size_t end = std::min(found.size(), from + cuda::kMaxItems);
    for (std::size_t i = from; i < end; ++i) {
      Sequence& s = *found[i];
      const Ready ready = ready_of(s, layer, recipe_.sink, recipe_.recent);
      if (ready.halves == 0) continue;
      call.items[call.item_count++] = {sequences_.table(PageKind::kRows, s, layer),
                                       sequences_.table(PageKind::kCodes, s, layer), ready.first,
                                       ready.halves, call.total_halves};
      call.total_halves += ready.halves;
      s.coded[layer] = ready.first + 16 * ready.halves;
    }
    KVSPAN_CHECK_OK(cuda::check(cuda::launch_encode(call, encode_scratch_, stream), "coding rows"));
  }
  return {};
}

Status DeviceCache::Impl::truncate(std::int32_t sequence, std::int32_t n) {
  KVSPAN_TRY(Sequence * s, sequences_.find(sequence));
  const std::int32_t least = sequences_.least_tokens(*s);
  if (n < 0 || (n > 0 && n < least)) {
    return fail(ErrorCode::kInvalidArgument,
                "sequence {} cannot be cut at {}: positions below {} are coded, or a window has "
                "passed what queries there would see; allowed: 0, or {} and more",
                sequence, n, least, least);
  }
  sequences_.cut(*s, std::min(n, sequences_.max_tokens()));
  return {};
}

Result<std::int32_t> DeviceCache::Impl::least_tokens(std::int32_t sequence) const {
  KVSPAN_TRY(const Sequence* s, sequences_.find(sequence));
  return sequences_.least_tokens(*s);
}

}  // namespace kvspan

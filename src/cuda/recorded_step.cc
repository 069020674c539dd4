// SPDX-License-Identifier: Apache-2.0
#include "cuda/recorded_step.h"

#include <algorithm>
#include <tuple>

#include "base/fail.h"
#include "cuda/bands/prepare.h"
#include "cuda/caller_rows.h"
#include "cuda/device_cache.h"
#include "cuda/kernels/finish.h"
#include "cuda/kernels/long_rows.h"
#include "cuda/kernels/step.h"

namespace kvspan {

using cuda::AttendCall;
using cuda::AttendItem;
using cuda::AttendPlan;
using cuda::LayerTables;
using cuda::PageKind;
using cuda::PlanCapacity;
using cuda::Sequence;

namespace {

// Processors that reading codes leaves to what makes keys and values meanwhile.
constexpr int kProcessorsBeside = 12;

// All that plans follow from, but for the sequences.
auto plan_key(const LayerShape& layer, const AttendCall& call, const cuda::PlanLimits& limits) {
  return std::tuple(layer.window, call.groups, call.anchor, call.query_heads, call.kv_heads,
                    call.key_dim, call.value_dim, call.padded_queries, limits.blocks_at_once,
                    limits.step_tokens, limits.teams, limits.anchors, limits.means, limits.parts,
                    limits.row_parts);
}

}  // namespace

void RecordedStep::group_layers() {
  const auto key = [&](std::size_t l) {
    return plan_key(cache_.shape_.layers[l], cache_.layers_[l].attend, cache_.limits_[l]);
  };
  for (std::size_t l = 0; l < cache_.layers_.size(); ++l) {
    const auto same = std::find_if(planned_.begin(), planned_.end(),
                                   [&](const Planned& of) { return key(of.first) == key(l); });
    planned_of_.push_back(static_cast<std::size_t>(same - planned_.begin()));
    if (same == planned_.end()) planned_.push_back({l, {}});
  }
  plans_.resize(planned_.size());
}

const AttendPlan* RecordedStep::plan_of(std::size_t layer) const {
  return memory_.as<const AttendPlan>() + planned_of_[layer];
}

// Plans of sequences with a token more each. False: they differ from layer to layer, or take more
// than one call.
Result<bool> RecordedStep::plan(std::span<Sequence* const> found) {
  if (found.size() > cuda::kMaxItems) return false;
  for (std::size_t l = 0; l < planned_of_.size(); ++l) {
    const std::size_t first = planned_[planned_of_[l]].first;
    for (const Sequence* s : found) {
      if (s->tokens[l] != s->tokens[first] || s->coded[l] != s->coded[first]) return false;
    }
  }
  const cuda::Sequences& sequences = cache_.sequences_;
  std::vector<AttendItem> items(found.size());
  for (std::size_t p = 0; p < planned_.size(); ++p) {
    const std::size_t l = planned_[p].first;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const Sequence& s = *found[i];
      items[i] = {};
      items[i].code_pages = sequences.table(PageKind::kCodes, s, l);
      items[i].row_pages = sequences.table(PageKind::kRows, s, l);
      cuda::set_ranges({cache_.recipe_.sink, s.coded[l], s.tokens[l] + 1}, s.tokens[l],
                       cache_.shape_.layers[l].window, items[i]);
    }
    const int planned =
        cuda::plan_call(cache_.limits_[l], items, cache_.layers_[l].attend, plans_[p]);
    if (std::cmp_less(planned, items.size())) return false;
  }
  return true;
}

Result<RecordedStep::Fit> RecordedStep::begin(std::span<const DeviceStep> steps,
                                              cudaStream_t stream) {
  if (planned_.empty()) group_layers();
  KVSPAN_TRY(const std::vector<Sequence*> found, cache_.find(steps, true));
  const bool single =
      std::all_of(steps.begin(), steps.end(), [](const DeviceStep& s) { return s.tokens == 1; });
  const bool fits = std::all_of(found.begin(), found.end(), [&](const Sequence* s) {
    return *std::max_element(s->tokens.begin(), s->tokens.end()) < cache_.sequences_.max_tokens();
  });
  if (!single || !fits) return Fit::kNone;
  KVSPAN_TRY(const bool planned, plan(found));
  if (!planned) return Fit::kNone;
  if (!memory_.bytes()) {
    KVSPAN_TRY(memory_, cuda::DeviceMemory::create(plans_.size() * sizeof(AttendPlan)));
    KVSPAN_CHECK_OK(cuda::check(cudaDeviceSynchronize(),
                                "waiting for the device"));  // it is cleared on another stream
  }
  cuda::Sequences& sequences = cache_.sequences_;
  for (Sequence* s : found) {
    for (std::size_t l = 0; l < planned_of_.size(); ++l) {
      if (Status owned = sequences.own(PageKind::kRows, *s, l, s->tokens[l], s->tokens[l] + 1);
          !owned) {
        KVSPAN_CHECK_OK(sequences.flush(stream));  // pages that were taken stay
        return std::move(owned).error();
      }
    }
  }
  KVSPAN_CHECK_OK(sequences.flush(stream));
  for (Sequence* s : found) {
    for (std::int32_t& tokens : s->tokens) ++tokens;
  }
  // From memory that is not pinned: the host may write to it when the call returns.
  KVSPAN_CHECK_OK(cuda::check(
      cudaMemcpyAsync(memory_.as<std::byte>(), plans_.data(), plans_.size() * sizeof(AttendPlan),
                      cudaMemcpyHostToDevice, stream),
      "sending plans of attention"));
  const auto held = [&](std::size_t p) {
    return planned_[p].capacity.holds(PlanCapacity::of(plans_[p]));
  };
  bool holds = recorded_;
  for (std::size_t p = 0; p < planned_.size(); ++p) holds = holds && held(p);
  if (holds) return Fit::kRecorded;
  for (std::size_t p = 0; p < planned_.size(); ++p) {
    const std::size_t l = planned_[p].first;
    const int groups = std::max(1, cache_.layers_[l].attend.groups);
    planned_[p].capacity = PlanCapacity::of(plans_[p]).with_spare(
        cache_.processors_ * cache_.limits_[l].blocks_at_once / groups);
  }
  recorded_ = true;
  return Fit::kNew;
}

Status RecordedStep::queries(int layer, const DeviceRows& queries, cudaStream_t stream) {
  const auto l = static_cast<std::size_t>(layer);
  LayerTables& tables = cache_.layers_[l];
  const PlanCapacity& capacity = capacity_of(l);
  if (capacity.parts == 0) return {};
  AttendCall& call = tables.attend;
  call.queries = cuda::pointer_to(queries, call.query_heads, call.key_dim);
  call.recorded = plan_of(l);
  cudaError_t error =
      cuda::launch_prepare(call, capacity, {.queries = true, .rows = false}, false, stream);
  // A block that reads codes has a whole processor to itself. Where they would take nearly all of
  // them, they begin when queries are prepared.
  const bool fits_beside = capacity.parts * call.groups <= cache_.processors_ - kProcessorsBeside;
  if (error == cudaSuccess)
    error = cuda::launch_attend_bands(*tables.variant, call, capacity, fits_beside, stream);
  call.recorded = nullptr;
  return cuda::check(error, "recording attention to codes");
}

Status RecordedStep::rows(int layer, const DeviceRows* keys, const DeviceRows* values,
                          const DeviceRows& queries, cudaStream_t stream) {
  const auto l = static_cast<std::size_t>(layer);
  LayerTables& tables = cache_.layers_[l];
  const PlanCapacity& capacity = capacity_of(l);
  AttendCall& call = tables.attend;
  call.queries = cuda::pointer_to(queries, call.query_heads, call.key_dim);
  call.recorded = plan_of(l);
  cuda::NewRows fresh;
  if (keys != nullptr) {
    fresh = {cuda::pointer_to(*keys, call.kv_heads, call.key_dim),
             cuda::pointer_to(*values, call.kv_heads, call.value_dim), true};
  }
  cudaError_t error = cudaSuccess;
  if (capacity.row_warps > 1) {
    error = cuda::launch_long_rows(call, capacity, fresh, true, stream);
  } else {
    if (fresh.there) {
      cuda::AppendCall& append = tables.append;
      append.keys = fresh.keys;
      append.values = fresh.values;
      error = cuda::launch_planned_append(append, plan_of(l), capacity.items, stream);
    }
    if (error == cudaSuccess) {
      error = cuda::launch_prepare(call, capacity, {.queries = false, .rows = true}, fresh.there,
                                   stream);
    }
  }
  call.recorded = nullptr;
  return cuda::check(error, "recording attention to rows");
}

Status RecordedStep::finish(int layer, const DeviceOut& out, cudaStream_t stream) {
  const auto l = static_cast<std::size_t>(layer);
  AttendCall& call = cache_.layers_[l].attend;
  const auto answers = cuda::laid_out<cuda::RowsOut>(out, call.query_heads, call.value_dim);
  call.out = answers.data;
  call.out_token_stride = answers.token_stride;
  call.out_head_stride = answers.head_stride;
  call.out_type = answers.type;
  call.recorded = plan_of(l);
  const cudaError_t error =
      cuda::launch_finish(call, capacity_of(l), capacity_of(l).parts == 0, stream);
  call.recorded = nullptr;
  return cuda::check(error, "recording the merge of attention");
}

Status RecordedStep::end(std::span<const DeviceStep> steps, cudaStream_t stream) {
  for (std::size_t l = 0; l < planned_of_.size(); ++l) {
    KVSPAN_CHECK_OK(cache_.settle(static_cast<int>(l), steps, stream));
  }
  return {};
}

}  // namespace kvspan

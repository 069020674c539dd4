// SPDX-License-Identifier: Apache-2.0
#include "model/attention_node.h"

#include <array>
#include <chrono>

#include "base/expect.h"

namespace kvspan {
namespace {

TensorView<const float, 3> rows_of(const ggml_tensor* t, std::int32_t begin, std::int32_t end) {
  KVSPAN_DEBUG_EXPECT(t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float), "f32 rows");
  const auto* data = reinterpret_cast<const float*>(static_cast<const char*>(t->data) +
                                                    static_cast<std::size_t>(begin) * t->nb[2]);
  return {data,
          {static_cast<std::size_t>(end - begin), static_cast<std::size_t>(t->ne[1]),
           static_cast<std::size_t>(t->ne[0])},
          {t->nb[2] / sizeof(float), t->nb[1] / sizeof(float), 1}};
}

Status step(const SequenceRows& rows, int layer, const AttentionRun& run, ggml_tensor* dst,
            AttentionScratch& scratch, Team& team) {
  const auto count = static_cast<std::size_t>(rows.end - rows.begin);
  const auto positions =
      std::span(run.positions).subspan(static_cast<std::size_t>(rows.begin), count);
  const ggml_tensor* queries = dst->src[0];
  const KvRows kv{rows_of(dst->src[1], rows.begin, rows.end),
                  rows_of(dst->src[2], rows.begin, rows.end), positions};
  if (Status status = rows.cache->append(layer, kv, team); !status) return status;

  const auto query_heads = static_cast<std::size_t>(queries->ne[1]);
  const auto width = static_cast<std::size_t>(dst->ne[0]);
  const TensorView<float, 3> out(
      static_cast<float*>(dst->data) + static_cast<std::size_t>(rows.begin) * width,
      {count, query_heads, width / query_heads});
  const Queries wanted{rows_of(queries, rows.begin, rows.end), positions};
  if (Status status = rows.cache->attend(layer, wanted, out, scratch, team); !status) {
    return status;
  }
  return rows.cache->settle(layer, team);
}

// The sequences that thread `ith` takes whole. Its first failure stays with it: other threads know
// nothing of it yet.
void step_alone(const AttentionLayer& node, ggml_tensor* dst, int ith, int nth) {
  const AttentionRun& run = *node.run;
  LoneThread& self = *run.alone[static_cast<std::size_t>(ith)];
  Team team(self.team, 0, 1, &self.help);
  for (std::size_t i = 0; i < run.whole; ++i) {
    if (taker(i, nth) != ith) continue;
    Status status = step(run.sequences[i], node.layer, run, dst, *self.scratch, team);
    if (status) continue;
    self.error = std::move(status).error();
    return;
  }
}

void compute(ggml_tensor* dst, int ith, int nth, void* userdata) {
  const auto& node = *static_cast<AttentionLayer*>(userdata);
  AttentionRun& run = *node.run;
  // Every thread sees the same state here: it changes only before the barrier below.
  if (run.error) return;
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  Team team(run.team, ith, nth);
  if (run.whole > 0) {
    step_alone(node, dst, ith, nth);
    team.barrier([&] {
      bool helped = false;
      for (const auto& thread : run.alone) helped |= thread->help.help();
      return helped;
    });
  }
  std::optional<Error> error;
  for (std::size_t i = run.whole; i < run.sequences.size(); ++i) {
    // A step returns the same status on every thread, so all leave together.
    Status status = step(run.sequences[i], node.layer, run, dst, *run.scratch, team);
    if (status) continue;
    error = std::move(status).error();
    break;
  }
  if (run.whole < run.sequences.size()) team.barrier();
  if (!team.leader()) return;
  if (error) run.error = std::move(error);
  for (const auto& thread : run.alone) {
    if (thread->error && !run.error) run.error = std::move(thread->error);
    thread->error.reset();
  }
  run.seconds += std::chrono::duration<double>(Clock::now() - start).count();
}

template <Observed What>
void show(ggml_tensor*, const ggml_tensor* x, int ith, int, void* userdata) {
  const auto& node = *static_cast<AttentionLayer*>(userdata);
  const AttentionRun& run = *node.run;
  if (ith != 0 || run.error || run.observer == nullptr) return;
  const TensorView<const float, 2> rows(
      static_cast<const float*>(x->data),
      {static_cast<std::size_t>(x->ne[1]), static_cast<std::size_t>(x->ne[0])},
      {x->nb[1] / sizeof(float), 1});
  if constexpr (What == Observed::kLayerInput) {
    run.observer->on_layer_input(node.layer, rows, run.positions);
  } else {
    run.observer->on_post_norm_input(node.layer, rows, run.positions);
  }
}

}  // namespace

ggml_tensor* attention_node(ggml_context* ctx, ggml_tensor* queries, ggml_tensor* keys,
                            ggml_tensor* values, AttentionLayer* layer) {
  std::array<ggml_tensor*, 3> args{queries, keys, values};
  const std::int64_t width = values->ne[0] * queries->ne[1];
  return ggml_custom_4d(ctx, GGML_TYPE_F32, width, queries->ne[2], 1, 1, args.data(),
                        static_cast<int>(args.size()), compute, GGML_N_TASKS_MAX, layer);
}

ggml_tensor* observed_node(ggml_context* ctx, ggml_tensor* x, Observed what,
                           AttentionLayer* layer) {
  if (layer->run == nullptr || layer->run->observer == nullptr) return x;
  const auto function =
      what == Observed::kLayerInput ? show<Observed::kLayerInput> : show<Observed::kPostNormInput>;
  return ggml_map_custom1_inplace(ctx, x, function, 1, layer);
}

}  // namespace kvspan

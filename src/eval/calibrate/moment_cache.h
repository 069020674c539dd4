// SPDX-License-Identifier: Apache-2.0
// A cache that lets another one do the work and meanwhile sums up what passes: means and second
// moments of keys, values and queries, the residual stream's energy, and sample rows. What it
// gathers becomes a Calibration.
// Cost: per layer and token about (D^2 + (H dk)^2) / 2 + query_heads dk^2 multiply-adds in f64
// (names as in kvspan/calibration.h), shared by the team; 8 bytes for each number of a moment.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "api/wrapped_cache.h"
#include "kvspan/cache.h"
#include "kvspan/calibration.h"
#include "linalg/moment_sum.h"
#include "llama/activation_observer.h"

namespace kvspan {

struct MomentOptions {
  std::int32_t window = 0;   // tokens of a whole window
  std::int32_t skip = 0;     // tokens not counted at the start of each
  std::int64_t tokens = 0;   // that will be counted in all
  std::int64_t samples = 0;  // rows to keep at most, evenly spread over the counted tokens
  std::int32_t block = 512;  // most rows of one append
};

// Sequences come one after the other: clear() ends one and begins the next.
class MomentCache final : public WrappedCache, public ActivationObserver {
 public:
  // `inner` is empty; its results are this cache's results. What has been summed stays when it is
  // truncated: after a step that failed, the moments are of no use.
  MomentCache(std::unique_ptr<KvCache> inner, const MomentOptions& options);

  // What has been gathered, all but model, fingerprint, output metrics and residuals.
  Calibration moments() const;
  // E[1 / (mean(y^2) + epsilon)] of each layer; 0 where no norm follows the attention output.
  // Epsilon, 0 unless set, is that norm's.
  std::vector<double> inverse_post_norm() const;
  void set_epsilon(std::size_t layer, float epsilon) { layers_[layer].epsilon = epsilon; }

  Status append(int layer, const KvRows& rows, Team& team) override;
  Status attend(int layer, const Queries& queries, TensorView<float, 3> out,
                AttentionScratch& scratch, Team& team) override;
  // Refused.
  Result<std::unique_ptr<KvCache>> fork() const override;

  void on_layer_input(int layer, TensorView<const float, 2> rows,
                      std::span<const std::int32_t> positions) override;
  void on_post_norm_input(int layer, TensorView<const float, 2> rows,
                          std::span<const std::int32_t> positions) override;

 private:
  struct Layer {
    explicit Layer(const LayerShape& shape);
    MomentSum joint, rotated_keys;
    std::vector<MomentSum> queries, raw_queries;  // one for each KV head; raw: none without RoPE
    std::vector<float> sample_rows;
    std::int64_t counted = 0;  // tokens
    double energy = 0.0;       // sum of |x|^2
    double inverse = 0.0;      // sum of 1 / (mean(y^2) + epsilon)
    std::int64_t inverse_rows = 0;
    float epsilon = 0.0f;
  };

  void place_row(const Rope& rope, const KvRows& rows, std::size_t i, std::size_t to);
  void keep_sample(Layer& layer, std::int64_t counted, std::size_t row) const;
  void place_queries(const LayerShape& shape, const Queries& queries, std::size_t i,
                     std::size_t to);
  std::size_t first_counted(std::span<const std::int32_t> positions) const;

  MomentOptions options_;
  std::int64_t stride_;  // every stride-th counted token is a sample
  std::vector<Layer> layers_;
  std::vector<std::int32_t> sample_positions_;
  detail::Panel joint_rows_, key_rows_, query_rows_, raw_query_rows_;  // of the block at hand
};

}  // namespace kvspan

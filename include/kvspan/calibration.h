// SPDX-License-Identifier: Apache-2.0
// Calibration of a model: means, second moments, error metrics and sample rows of every layer, in
// memory or in a file from which layers are read one at a time. `kvspan calibrate` or any engine
// (kvspan/moments.h) makes it. File format: docs/reference/formats/calibration.md.
//
// All averages are over the counted tokens. The text is split into windows, each a sequence of its
// own; the first `skip` tokens of a window, whose norms are huge, are not counted.
//
//     H, G     KV heads of the layer, query heads per KV head
//     dk, dv   key_dim and value_dim of one head
//     k0, k    a token's key before and after RoPE; q0, q the same for a query, not scaled
//     z        [k0 of head 0, .., k0 of head H-1, v of head 0, .., v of head H-1], D = H dk + H dv
//     x        the residual stream at the input of the layer
// Matrices are row-major and stored whole; all but cross_moments are symmetric. Moments are not
// centered: the covariance of z is joint_moment - mean mean', with mean = [key_mean ; value_mean].
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvspan/cache.h"
#include "kvspan/result.h"

namespace kvspan {

// Residuals are tabulated at ranks i * dim / 8, i = 1..7, and at these percentiles of the samples.
inline constexpr int kResidualRanks = 7;
inline constexpr std::array<int, 4> kResidualPercentiles = {50, 90, 95, 99};
// Maximum number of following layers with cross moments.
inline constexpr std::int32_t kMostNeighbours = 5;

struct LayerCalibration {
  // In the activations' own units.
  std::vector<float> key_mean;            // [H * dk], E[k0]
  std::vector<float> value_mean;          // [H * dv], E[v]
  std::vector<float> joint_moment;        // [D * D], E[z z']
  std::vector<float> rotated_key_mean;    // [H * dk], E[k]
  std::vector<float> rotated_key_moment;  // [(H * dk)^2], E[k k'], joint over heads
  // E[z y'], y being z of the next layer, then of the one after it, and so on: [D * D of that layer]
  // each, rows are this layer's. One per following layer, up to Calibration::neighbours.
  std::vector<std::vector<float>> cross_moments;

  // Second moments of queries, averaged over the G query heads of a KV head.
  std::vector<float> query_moment;      // [H][dk * dk], E[q q']
  std::vector<float> raw_query_moment;  // [H][dk * dk], E[q0 q0']; equals query_moment without RoPE

  // Metric of value errors: with e the error of the head's attention output, e' M e is its expected
  // squared norm in the residual stream, relative to E|x|^2 and averaged over the G heads.
  // M = sum_g Wo_g' Wo_g / (G E|x|^2). If a norm of gain g and input y follows the output matrix,
  // diag(g^2) E[1 / mean(y^2)] is inserted between the two; if the next norm on the stream is known,
  // diag(r^2) as well, r its gain, scaled to keep M's trace over all heads.
  std::vector<float> output_metric;  // [H][dv * dv]
  double residual_energy = 0.0;      // E|x|^2
  // The same for old tokens, given the attention of the calibration text: e' M e, summed over the tokens that a query
  // attends to, their squared weights and the G heads, e being the error of a key after RoPE or of a value
  // (src/api/attention_metrics.h). Both in the unit of output_metric, so that keys and values are comparable.
  std::vector<float> key_metric;    // [H][dk * dk]
  std::vector<float> value_metric;  // [H][dv * dv]

  // Rows z at Calibration::sample_positions, rounded to f16.
  std::vector<float> sample_rows;  // [samples * D]

  // Relative residuals |(I - P)k| / |k| of the samples, P onto the leading eigenvectors of the
  // head's own block of rotated_key_moment; of values likewise, with their block of joint_moment.
  std::vector<float> key_residuals;    // [H][kResidualRanks][kResidualPercentiles.size()]
  std::vector<float> value_residuals;  // the same

  // Effect of this layer's keys or values on the output: KL divergence with only that side encoded, divided by
  // the distortion that key_metric or value_metric predicts. Bits are allocated to layers and sides by it.
  // 0 in all layers until measured.
  float key_weight = 0.0f, value_weight = 0.0f;
};

// Measured loss at `bits` per number, against the full cache.
struct RatePoint {
  float bits = 0.0f;
  float kl = 0.0f;    // mean KL divergence, nats
  float loss = 0.0f;  // of perplexity, as a fraction: 0.01 is 1 %; the divergence if that is larger
};

struct Calibration {
  std::string model;        // its name, for messages
  std::string fingerprint;  // of the model file; "" when not from a file
  std::int64_t tokens = 0;  // counted tokens
  std::int32_t window = 0;  // tokens of a window
  std::int32_t skip = 0;    // uncounted tokens at the start of each
  std::int32_t neighbours = 0;  // following layers with cross moments
  // [samples]: positions of the sampled tokens in their window, spread over the text by an odd stride,
  // so that they cover every offset of an anchor span.
  std::vector<std::int32_t> sample_positions;
  std::vector<LayerCalibration> layers;  // one per layer of the model's CacheShape
  // [layers], RoPE of its keys and queries; empty if the file does not say. Arrays in the other order of
  // pairs are converted on use; other angles are rejected.
  std::vector<Rope> ropes;
  std::vector<RatePoint> rates;          // by increasing bits; empty until measured

  std::string source;          // origin, for messages; "" if not from bytes
  std::uint64_t checksum = 0;  // of those bytes; 0 if not from bytes
  // If set, `layers` has no arrays and this returns a layer with them: about 3 D^2 numbers, D^2 per
  // following layer, and the samples, instead of those of all layers. Thread-safe.
  std::function<Result<LayerCalibration>(std::size_t layer)> read_layer;
};

// One layer with its arrays: those in memory, as long as `calibration` lives, or read from the source
// and checked against `shape`.
Result<std::shared_ptr<const LayerCalibration>> layer_of(const CacheShape& shape,
                                                         const Calibration& calibration,
                                                         std::size_t layer);
// The same calibration with the arrays of all layers in memory, checked, in the shape's order of RoPE
// pairs.
Result<Calibration> read_whole(const CacheShape& shape, const Calibration& calibration);

// Whether layer weights were measured.
bool has_layer_weights(const Calibration& calibration) noexcept;

// Ok if every array has the size for `shape`, every number is finite, no diagonal entry of a moment or
// metric is negative, weights are above 0 in all layers or in none, the bits of rates increase, and
// RoPE has the angles and magnitudes of `shape`. Arrays that are not in memory are checked when read.
// The error names layer, array, and both sizes or the index of the number. Cost: one pass over the
// numbers.
Status check_calibration(const CacheShape& shape, const Calibration& calibration);

// A calibration file as bytes. Fails if out of memory, or if the layers are not in memory.
Result<std::vector<std::byte>> encode_calibration(const Calibration& calibration);
// `name`: origin of the bytes, for errors. Fails with kCorruptData on damaged bytes and kUnsupported on
// another version. The result is consistent, but not checked against a model's shape
// (check_calibration).
Result<Calibration> decode_calibration(std::span<const std::byte> bytes, const std::string& name);

// Random-access bytes. `read` fills `to` from `offset` on, never beyond `size`. Thread-safe.
struct ByteSource {
  std::string name;  // in errors
  std::size_t size = 0;
  std::function<Status(std::size_t offset, std::span<std::byte> to)> read;
};
// The same without loading the layers' arrays (Calibration::read_layer). Reads all bytes once, for the
// checksum.
Result<Calibration> open_calibration(ByteSource source);
// The checksum at the end of the bytes, not verified: identifies a calibration by reading 8 bytes.
Result<std::uint64_t> calibration_checksum(const ByteSource& source);

}  // namespace kvspan

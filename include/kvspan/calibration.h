// SPDX-License-Identifier: Apache-2.0
// What methods learn about a model from calibration text: means, second moments, error metrics and
// sample rows of every layer, as plain numbers in memory, or in a file from which layers are read
// one at a time. `kvspan calibrate` gathers them, as can any engine (kvspan/moments.h);
// docs/reference/formats/calibration.md is the file.
//
// All averages are over the counted tokens: the text is cut into windows, each read as a sequence
// of its own, and the first `skip` tokens of a window, whose norms are huge, are in none of them.
//
//     H, G     KV heads of the layer, query heads that read one KV head
//     dk, dv   key_dim and value_dim of one head
//     k0, k    a token's key before and after RoPE; q0, q the same for a query, not scaled
//     z        [k0 of head 0, .., k0 of head H-1, v of head 0, .., v of head H-1], D = H dk + H dv
//     x        the residual stream that enters the layer
// Matrices are row-major and stored whole; all but cross_moments are symmetric. Moments are not
// centred: the covariance of z is joint_moment - mean mean', with mean = [key_mean ; value_mean].
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
// Following layers that moments are gathered with at most.
inline constexpr std::int32_t kMostNeighbours = 5;

struct LayerCalibration {
  // In the activations' own units.
  std::vector<float> key_mean;            // [H * dk], E[k0]
  std::vector<float> value_mean;          // [H * dv], E[v]
  std::vector<float> joint_moment;        // [D * D], E[z z']
  std::vector<float> rotated_key_mean;    // [H * dk], E[k]
  std::vector<float> rotated_key_moment;  // [(H * dk)^2], E[k k'], joint over heads
  // E[z y'], y being z of the layer that follows, then of the one after it, and so on: [D * D of
  // that layer] each, rows are this layer's. As many as there are following layers, up to
  // Calibration::neighbours.
  std::vector<std::vector<float>> cross_moments;

  // Second moments of queries, averaged over the G query heads of a KV head.
  std::vector<float> query_moment;      // [H][dk * dk], E[q q']
  std::vector<float> raw_query_moment;  // [H][dk * dk], E[q0 q0']; equals query_moment without RoPE

  // What an error of a value costs: with e the error of the head's attention output, e' M e is its
  // expected squared size in the residual stream, relative to E|x|^2 and averaged over the G heads.
  // M = sum_g Wo_g' Wo_g / (G E|x|^2). Where a norm of gain g and input y follows the output
  // matrix, diag(g^2) E[1 / mean(y^2)] stands between the two; there, where the norm that reads the stream
  // next is known, diag(r^2) as well, r its gain in a unit that leaves M's trace over all heads as it was.
  std::vector<float> output_metric;  // [H][dv * dv]
  double residual_energy = 0.0;      // E|x|^2
  // The same for errors of old tokens, by the attention that the text pays them: e' M e, summed over the tokens that a
  // query reads, their squared weights and the G heads, e being the error of a key after RoPE or of a value
  // (src/api/attention_metrics.h). Both in the unit of output_metric, so that keys and values compare.
  std::vector<float> key_metric;    // [H][dk * dk]
  std::vector<float> value_metric;  // [H][dv * dv]

  // Rows z at Calibration::sample_positions, rounded to f16.
  std::vector<float> sample_rows;  // [samples * D]

  // Relative residuals |(I - P)k| / |k| of the samples, P onto the leading eigenvectors of the
  // head's own block of rotated_key_moment; of values likewise, with their block of joint_moment.
  std::vector<float> key_residuals;    // [H][kResidualRanks][kResidualPercentiles.size()]
  std::vector<float> value_residuals;  // the same

  // What a unit of modelled distortion of this layer's keys or values (by key_metric, value_metric) costs at
  // the model's end: the KL divergence measured with that side alone coded, over what the metrics
  // predict. Layers and sides compete for bits by it. 0 in all layers until measured.
  float key_weight = 0.0f, value_weight = 0.0f;
};

// What coding at `bits` per number costs, measured against the exact cache.
struct RatePoint {
  float bits = 0.0f;
  float kl = 0.0f;    // mean KL divergence, nats
  float loss = 0.0f;  // of perplexity, as a share: 0.01 is 1 %; the divergence where that is more
};

struct Calibration {
  std::string model;        // its name, for messages
  std::string fingerprint;  // of the model file; "" when not from a file
  std::int64_t tokens = 0;  // counted, in every average
  std::int32_t window = 0;  // tokens of a window
  std::int32_t skip = 0;    // tokens left out at the start of each
  std::int32_t neighbours = 0;  // following layers that each layer has moments with
  // [samples]: the sampled tokens' positions in their window, evenly spread over the text by an odd
  // stride, so that they meet every offset of a block.
  std::vector<std::int32_t> sample_positions;
  std::vector<LayerCalibration> layers;  // one per layer of the model's CacheShape
  std::vector<RatePoint> rates;          // by rising bits; empty until measured

  std::string source;          // where it was read from, for messages; "" when it is not from bytes
  std::uint64_t checksum = 0;  // of those bytes; 0 when it is not from bytes
  // Where it is set, `layers` has no arrays and this gives a layer with them: some 3 D^2 numbers,
  // D^2 for each neighbour and the samples at a time instead of all layers'. May be called from
  // several threads at once.
  std::function<Result<LayerCalibration>(std::size_t layer)> read_layer;
};

// One layer with its arrays: as held, for as long as `calibration` lives, or read and checked
// against `shape`.
Result<std::shared_ptr<const LayerCalibration>> layer_of(const CacheShape& shape,
                                                         const Calibration& calibration,
                                                         std::size_t layer);
// The same calibration with the arrays of all layers in memory, checked.
Result<Calibration> read_whole(const CacheShape& shape, const Calibration& calibration);

// Whether layers have measured weights.
bool has_layer_weights(const Calibration& calibration) noexcept;

// Ok when every array has the size that `shape` asks for, every number is finite, no diagonal entry
// of a moment or metric is negative, weights are above 0 in all layers or in none, and the bits of rates rise. Arrays that are not held are checked when they are read. The error names layer and
// array, both sizes or the place of the number. Cost: one pass over the numbers.
Status check_calibration(const CacheShape& shape, const Calibration& calibration);

// A calibration file as bytes. Fails for lack of memory, and where layers are in a file themselves.
Result<std::vector<std::byte>> encode_calibration(const Calibration& calibration);
// `name` stands in errors for where the bytes came from. Damaged bytes are kCorruptData, those of
// another version kUnsupported. What is read fits together, but has not been held against a model's
// shape (check_calibration).
Result<Calibration> decode_calibration(std::span<const std::byte> bytes, const std::string& name);

// Bytes that are read piece by piece. `read` fills `to` from `offset` on, is asked for nothing
// beyond `size`, and may be called from several threads at once.
struct ByteSource {
  std::string name;  // in errors
  std::size_t size = 0;
  std::function<Status(std::size_t offset, std::span<std::byte> to)> read;
};
// The same with the arrays of layers left where they are (Calibration::read_layer). All bytes are
// read once, for their checksum.
Result<Calibration> open_calibration(ByteSource source);
// The checksum that the bytes end with, not held against them: which calibration this is, at the
// cost of reading 8 bytes.
Result<std::uint64_t> calibration_checksum(const ByteSource& source);

}  // namespace kvspan

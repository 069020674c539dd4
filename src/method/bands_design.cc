// SPDX-License-Identifier: Apache-2.0
#include "method/bands_design.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>
#include <utility>

#include "base/fail.h"
#include "base/thread_pool.h"
#include "cache/rope.h"
#include "method/band_steps.h"
#include "method/bands_parts.h"
#include "method/bit_allocation.h"
#include "method/learned_code.h"
#include "method/rotated_moment.h"

namespace kvspan {
namespace {

constexpr double kGainBits = 8.0;
// Of the bits, where keys and values share them; flat within a factor of 2 of alpha.
constexpr double kKeyShare = 0.41, kValueShare = 0.59;
// Of a sequence's own codes, which are saved with it: what a side without any variance, or a
// direction without any, would leave without bound.
constexpr double kMostBalance = 1e8;
constexpr float kLeastSpread = 1e-12f;

// What one code is designed from: some heads of one layer, keys, values or both.
struct Unit {
  std::size_t layer = 0;
  HeadRange heads;
  bool keys = false, values = false;
  Moment moment;
  MatrixD metric;
  Transform transform;
  std::vector<std::uint8_t> bits;
  std::shared_ptr<const BandsCode> code;
  Status outcome;
};

class Designer {
 public:
  Designer(const CacheShape& shape, const Calibration& calibration, const BandsOptions& options)
      : shape_(shape), calibration_(calibration), options_(options) {}

  std::size_t key_width(const Unit& u) const {
    return u.keys ? static_cast<std::size_t>(u.heads.count * layer(u).key_dim) : 0;
  }
  std::size_t value_width(const Unit& u) const {
    return u.values ? static_cast<std::size_t>(u.heads.count * layer(u).value_dim) : 0;
  }
  const LayerShape& layer(const Unit& u) const { return shape_.layers[u.layer]; }
  const LayerCalibration& learnt(const Unit& u) const { return calibration_.layers[u.layer]; }

  // Covariance of z about its mean, in the domain.
  void take_moment(Unit& u) const {
    const LayerShape& l = layer(u);
    if (domain() == Domain::kPostRopeKey && u.keys) {
      // After RoPE there is no joint moment with the values; codes are apart.
      u.moment = moment_of(l, learnt(u), Domain::kPostRopeKey, u.heads, 0);
      const float* mean = learnt(u).rotated_key_mean.data() +
                          static_cast<std::ptrdiff_t>(u.heads.first) * l.key_dim;
      centre(u, mean, key_width(u));
      return;
    }
    const auto all = static_cast<std::size_t>(l.kv_heads);
    const auto dk = static_cast<std::size_t>(l.key_dim), dv = static_cast<std::size_t>(l.value_dim);
    const std::size_t side = all * (dk + dv);
    std::vector<std::size_t> places;
    std::vector<float> mean;
    const auto first = static_cast<std::size_t>(u.heads.first);
    for (std::size_t i = 0; i < key_width(u); ++i) {
      places.push_back(first * dk + i);
      mean.push_back(learnt(u).key_mean[first * dk + i]);
    }
    for (std::size_t i = 0; i < value_width(u); ++i) {
      places.push_back(all * dk + first * dv + i);
      mean.push_back(learnt(u).value_mean[first * dv + i]);
    }
    u.moment.second = MatrixD(places.size(), places.size());
    for (std::size_t i = 0; i < places.size(); ++i) {
      for (std::size_t j = 0; j < places.size(); ++j) {
        u.moment.second(i, j) = learnt(u).joint_moment[places[i] * side + places[j]];
      }
    }
    centre(u, mean.data(), mean.size());
    if (u.keys && domain() == Domain::kAnchoredKey) {
      average_rotations(l.rope, u.heads.count, l.key_dim, anchored_offsets(options_.anchor),
                        u.moment.second);
    }
  }

  // blockdiag(alpha M_k, M_v) of the unit's sides; measured weights take alpha's place.
  MatrixD metric_of(const Unit& u, double alpha) const {
    const std::size_t nk = key_width(u), nv = value_width(u);
    MatrixD metric(nk + nv, nk + nv);
    const bool measured = has_layer_weights(calibration_);
    const double key_factor = measured ? double{learnt(u).key_weight} : alpha;
    const double value_factor = measured ? double{learnt(u).value_weight} : 1.0;
    if (!options_.query_metric) {
      for (std::size_t i = 0; i < nk + nv; ++i)
        metric(i, i) = options_.balanced && i < nk ? alpha : 1.0;
      return metric;
    }
    if (u.keys) {
      place(ridged(query_metric(layer(u), learnt(u), domain(), u.heads)), key_factor, 0, metric);
    }
    if (u.values) {
      const auto d = static_cast<std::size_t>(layer(u).value_dim);
      MatrixD values(nv, nv);
      for (std::int32_t h = 0; h < u.heads.count; ++h) {
        const float* from =
            learnt(u).output_metric.data() + static_cast<std::size_t>(u.heads.first + h) * d * d;
        const std::size_t at = static_cast<std::size_t>(h) * d;
        for (std::size_t i = 0; i < d; ++i) {
          for (std::size_t j = 0; j < d; ++j) values(at + i, at + j) = from[i * d + j];
        }
      }
      place(ridged(values), value_factor, nk, metric);
    }
    return metric;
  }

  Status transform(Unit& u, double alpha) const {
    u.metric = metric_of(u, alpha);
    KVSPAN_TRY(u.transform, leading_transform(u.moment.second, u.metric));
    return {};
  }

  // Steps from the calibration's samples, then the code.
  Status finish(Unit& u, const std::shared_ptr<Ledger>& ledger) const {
    const std::size_t d = u.moment.second.rows();
    BandsParts parts = bands_parts(layer(u), u.heads.count, u.keys, u.values, options_);
    const std::vector<float> key_mean(
        u.moment.mean.begin(), u.moment.mean.begin() + static_cast<std::ptrdiff_t>(key_width(u)));
    const std::vector<float> value_mean(
        u.moment.mean.begin() + static_cast<std::ptrdiff_t>(key_width(u)), u.moment.mean.end());
    parts.key_mean = key_mean;
    parts.value_mean = value_mean;
    std::vector<float> weights(options_.own ? d : 0);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] = static_cast<float>(u.metric(i, i));
    }
    parts.weights = weights;
    if (!options_.own) parts.analysis = u.transform.analysis.view();
    parts.synthesis = u.transform.synthesis.view();
    parts.bits = u.bits;
    std::vector<float> sigma(d), steps(d, 1.0f);
    for (std::size_t i = 0; i < d; ++i) {
      sigma[i] = static_cast<float>(std::sqrt(u.transform.power[i]));
      if (options_.own && sigma[i] > 0.0f) sigma[i] = std::max(sigma[i], kLeastSpread);
    }
    parts.sigma = sigma;
    KVSPAN_TRY(const BandsLayout layout, BandsLayout::create(u.bits, options_.quantizer));
    const Matrix c = sample_coefficients(u, layout, sigma);
    const std::vector<float> fitted = fit_band_steps(c, layout);
    for (std::size_t p = 0; p < fitted.size(); ++p) steps[layout.order()[p]] = fitted[p];
    parts.steps = steps;
    const MemoryKind kind = options_.own ? MemoryKind::kBases : MemoryKind::kShared;
    KVSPAN_TRY(u.code, BandsCode::create(parts, ledger, kind));
    return {};
  }

 private:
  // Of keys.
  Domain domain() const {
    if (options_.before_rope) return Domain::kPreRopeKey;
    return options_.anchor > 0 ? Domain::kAnchoredKey : Domain::kPostRopeKey;
  }

  static void centre(Unit& u, const float* mean, std::size_t n) {
    u.moment.mean.assign(mean, mean + n);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        u.moment.second(i, j) -= double{mean[i]} * double{mean[j]};
      }
    }
  }

  static void place(const MatrixD& block, double factor, std::size_t at, MatrixD& to) {
    for (std::size_t i = 0; i < block.rows(); ++i) {
      for (std::size_t j = 0; j < block.cols(); ++j) to(at + i, at + j) = factor * block(i, j);
    }
  }

  // c / g of the sample rows, [samples, stored], in stored order.
  Matrix sample_coefficients(const Unit& u, const BandsLayout& layout,
                             const std::vector<float>& sigma) const {
    const LayerShape& l = layer(u);
    const auto all = static_cast<std::size_t>(l.kv_heads);
    const auto dk = static_cast<std::size_t>(l.key_dim), dv = static_cast<std::size_t>(l.value_dim);
    const std::size_t side = all * (dk + dv), samples = calibration_.sample_positions.size();
    const auto first = static_cast<std::size_t>(u.heads.first);
    const std::size_t nk = key_width(u), nv = value_width(u);
    Matrix out(samples, layout.stored());
    Matrix analysis(nk + nv, layout.stored());  // A' in stored order
    for (std::size_t p = 0; p < layout.stored(); ++p) {
      for (std::size_t j = 0; j < nk + nv; ++j) {
        analysis(j, p) = u.transform.analysis(layout.order()[p], j);
      }
    }
    std::vector<float> z(nk + nv);
    for (std::size_t s = 0; s < samples; ++s) {
      const float* row = learnt(u).sample_rows.data() + s * side;
      const std::int32_t position = calibration_.sample_positions[s];
      std::copy_n(row + first * dk, nk, z.data());
      std::copy_n(row + all * dk + first * dv, nv, z.data() + nk);
      const std::int32_t n = options_.anchor;
      if (domain() == Domain::kPostRopeKey) {
        for (std::size_t h = 0; h * dk < nk; ++h) rope_rotate(l.rope, position, z.data() + h * dk);
      }
      for (std::size_t i = 0; i < z.size(); ++i) z[i] -= u.moment.mean[i];
      if (n > 0) {
        const std::int32_t offset = position % n - n / 2;
        for (std::size_t h = 0; h * dk < nk; ++h) rope_offset(l.rope, offset, z.data() + h * dk);
      }
      float* const c = out.row(s);
      for (std::size_t j = 0; j < z.size(); ++j) {
        const float* a = analysis.row(j);
        for (std::size_t p = 0; p < layout.stored(); ++p) c[p] += z[j] * a[p];
      }
      double square = 0.0;
      for (std::size_t p = 0; p < layout.stored(); ++p) {
        const double sigma_p = sigma[layout.order()[p]];
        if (sigma_p > 0.0) square += double{c[p]} * double{c[p]} / (sigma_p * sigma_p);
      }
      if (!options_.gain) continue;
      const float gain = log_gain(log_gain_code(
          static_cast<float>(std::sqrt(square / static_cast<double>(layout.stored())))));
      for (std::size_t p = 0; p < layout.stored(); ++p) out(s, p) /= gain;
    }
    return out;
  }

  const CacheShape& shape_;
  const Calibration& calibration_;
  const BandsOptions& options_;
};

std::vector<std::span<const double>> powers_of(const std::vector<Unit*>& units) {
  std::vector<std::span<const double>> all;
  for (const Unit* unit : units) all.emplace_back(unit->transform.power);
  return all;
}

// alpha: what makes a bit spent on a key as useful as one spent on a value, the ratio of the slopes
// when keys and values are coded apart with their usual shares of the bits. Where the levels leave
// no choice at those shares, the one that makes both equally loud.
double key_weight(const std::vector<Unit*>& keys, const std::vector<Unit*>& values,
                  const BandsOptions& options) {
  const double key_budget = 2.0 * kKeyShare * options.bits;
  const double value_budget = 2.0 * kValueShare * options.bits;
  if (key_budget > options.levels.lowest() && value_budget < options.levels.highest()) {
    return slope_for(powers_of(values), value_budget, options.levels, options.quantizer) /
           slope_for(powers_of(keys), key_budget, options.levels, options.quantizer);
  }
  double key_sum = 0.0, value_sum = 0.0;
  for (const auto& part : powers_of(keys)) {
    for (const double p : part) key_sum += p;
  }
  for (const auto& part : powers_of(values)) {
    for (const double p : part) value_sum += p;
  }
  return key_sum > 0.0 && value_sum > 0.0 ? value_sum / key_sum : 1.0;
}

// Bits of the units at `budget` bits an element, gains and the padding of quads counted: the slope
// is found for what is stored, not for what is asked.
Status allocate(const std::vector<Unit*>& units, double budget, const BandsOptions& options) {
  double elements = 0.0, gains = 0.0;
  for (const Unit* unit : units) {
    elements += static_cast<double>(unit->transform.power.size());
    if (options.gain) gains += kGainBits;
  }
  double asked = budget - gains / elements;
  for (int round = 0; round < 6; ++round) {
    const double slope = slope_for(powers_of(units), asked, options.levels, options.quantizer);
    double stored = gains;
    for (Unit* unit : units) {
      unit->bits = choose_bits(unit->transform.power, slope, options.levels, options.quantizer);
      KVSPAN_TRY(const BandsLayout layout, BandsLayout::create(unit->bits));
      stored += static_cast<double>(layout.tile_bytes()) * 8.0 / kBandTokens;
    }
    const double over = stored / elements - budget;
    if (over <= 1e-3 && over > -5e-3) break;
    asked = std::max(asked - over, 0.01);
  }
  for (Unit* unit : units) {
    // A layer that earns nothing still has to be read back: its strongest four components.
    if (std::all_of(unit->bits.begin(), unit->bits.end(), [](int b) { return b == 0; })) {
      std::fill_n(unit->bits.begin(), std::min<std::size_t>(4, unit->bits.size()), 1);
    }
  }
  return {};
}

double distortion(const Unit& unit, BandsQuantizer quantizer) {
  double sum = 0.0;
  for (std::size_t i = 0; i < unit.bits.size(); ++i) {
    sum += unit.transform.power[i] * level_distortion(unit.bits[i], quantizer);
  }
  return sum;
}

}  // namespace

Result<std::vector<std::vector<GroupBands>>> design_bands(
    const CacheShape& shape, const Calibration& calibration,
    const std::vector<std::vector<HeadRange>>& groups, const BandsOptions& options,
    const std::shared_ptr<Ledger>& ledger) {
  const Designer designer(shape, calibration, options);
  const unsigned cores = options.own ? 1 : std::thread::hardware_concurrency();
  ThreadPool pool(static_cast<int>(std::clamp(cores, 1u, 16u)));
  const auto for_each = [&](std::vector<Unit*> units, auto&& work) -> Status {
    pool.run([&](Team& team) {
      for (int i; (i = team.take()) < static_cast<int>(units.size());) {
        units[static_cast<std::size_t>(i)]->outcome = work(*units[static_cast<std::size_t>(i)]);
      }
    });
    for (const Unit* unit : units) {
      if (!unit->outcome) {
        return fail(unit->outcome.error().code, "layer {}: {}", unit->layer,
                    unit->outcome.error().message);
      }
    }
    return {};
  };
  const auto make_units = [&](bool keys, bool values) {
    std::vector<Unit> units;
    for (std::size_t l = 0; l < groups.size(); ++l) {
      for (const HeadRange& heads : groups[l]) {
        Unit unit;
        unit.layer = l;
        unit.heads = heads;
        unit.keys = keys;
        unit.values = values;
        units.push_back(std::move(unit));
      }
    }
    return units;
  };
  const auto pointers = [](std::vector<Unit>& units) {
    std::vector<Unit*> all;
    for (Unit& unit : units) all.push_back(&unit);
    return all;
  };
  const auto analyse = [&](std::vector<Unit>& units, double alpha) {
    return for_each(pointers(units), [&](Unit& unit) -> Status {
      designer.take_moment(unit);
      return designer.transform(unit, alpha);
    });
  };

  std::vector<Unit> keys = make_units(true, false), values = make_units(false, true), both;
  KVSPAN_CHECK_OK(analyse(keys, 1.0));
  KVSPAN_CHECK_OK(analyse(values, 1.0));
  if (options.joint) {
    both = make_units(true, true);
    double alpha = key_weight(pointers(keys), pointers(values), options);
    if (options.own) alpha = std::clamp(alpha, 1.0 / kMostBalance, kMostBalance);
    KVSPAN_CHECK_OK(analyse(both, alpha));
    KVSPAN_CHECK_OK(allocate(pointers(both), options.bits, options));
  }
  std::vector<Unit*> coded = options.joint ? pointers(both) : pointers(keys);
  if (!options.joint) {
    for (Unit& unit : values) coded.push_back(&unit);
    if (options.key_bits == 0.0) {
      KVSPAN_CHECK_OK(allocate(coded, options.bits, options));
    } else {
      KVSPAN_CHECK_OK(allocate(pointers(keys), options.key_bits, options));
      KVSPAN_CHECK_OK(allocate(pointers(values), options.value_bits, options));
    }
  }
  KVSPAN_CHECK_OK(for_each(coded, [&](Unit& unit) { return designer.finish(unit, ledger); }));

  std::vector<std::vector<GroupBands>> designed(groups.size());
  std::size_t at = 0;
  for (std::size_t l = 0; l < groups.size(); ++l) {
    for (const HeadRange& heads : groups[l]) {
      if (options.joint) {
        designed[l].push_back(
            {heads, both[at].code, both[at].code, distortion(both[at], options.quantizer), 0.0});
      } else {
        designed[l].push_back({heads, keys[at].code, values[at].code,
                               distortion(keys[at], options.quantizer),
                               distortion(values[at], options.quantizer)});
      }
      ++at;
    }
  }
  return designed;
}

}  // namespace kvspan

// SPDX-License-Identifier: Apache-2.0
#include "method/bands/bands_design.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <thread>
#include <span>
#include <utility>

#include "base/fail.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#include "method/bands/bands_unit.h"
#include "method/bands/bit_allocation.h"

namespace kvspan {
namespace {

constexpr double kGainBits = 8.0;
// Of the bits, where keys and values share them; flat within a factor of 2 of alpha.
constexpr double kKeyShare = 0.41, kValueShare = 0.59;
// Of a sequence's own codes, which are saved with it: what a side without any variance would leave
// without bound.
constexpr double kMostBalance = 1e8;

using Unit = detail::BandsUnit;

std::vector<std::span<const double>> powers_of(const std::vector<Unit*>& units) {
  std::vector<std::span<const double>> all;
  for (const Unit* unit : units) all.emplace_back(unit->power);
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

// Bits of the units at `budget` bits an element, gains and the padding of quads counted: the slope, which is given back,
// is found for what is stored, not for what is asked.
Result<double> allocate(const std::vector<Unit*>& units, double budget, const BandsOptions& options) {
  double elements = 0.0, gains = 0.0;
  for (const Unit* unit : units) {
    elements += static_cast<double>(unit->power.size());
    if (options.gain) gains += kGainBits;
  }
  double asked = budget - gains / elements, slope = 0.0;
  for (int round = 0; round < 6; ++round) {
    slope =
        slope_for(powers_of(units), asked, options.levels, options.quantizer, options.grain);
    double stored = gains;
    for (Unit* unit : units) {
      unit->bits =
          choose_bits(unit->power, slope, options.levels, options.quantizer, options.grain);
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
  return slope;
}

double distortion(const Unit& unit, BandsQuantizer quantizer) {
  double sum = 0.0;
  for (std::size_t i = 0; i < unit.bits.size(); ++i) {
    sum += unit.power[i] * level_distortion(unit.bits[i], quantizer);
  }
  return sum;
}

// Layers that are through, of all that the work goes over.
class Steps {
 public:
  Steps(std::size_t total, const DesignProgress& progress) : total_(total), progress_(progress) {}

  bool go_on() const noexcept { return go_on_.load(std::memory_order_relaxed); }
  void done() {
    if (!progress_) return;
    const std::lock_guard lock(one_);
    if (!progress_(++done_, total_)) go_on_.store(false, std::memory_order_relaxed);
  }

 private:
  std::size_t total_, done_ = 0;
  const DesignProgress& progress_;
  std::mutex one_;
  std::atomic<bool> go_on_{true};
};

// Units of all groups, and the work on them: one range of layers after the other, so that only the layers at hand are
// read. A range's units stand next to each other.
class Units {
 public:
  Units(const CacheShape& shape, const Calibration& calibration, std::span<const LayerRange> ranges,
        const std::vector<std::vector<HeadRange>>& groups, bool keys, bool values)
      : shape_(shape), calibration_(calibration), starts_(1, 0) {
    for (const LayerRange& layers : ranges) {
      for (const HeadRange& heads : groups[layers.first]) {
        Unit unit;
        unit.layers = layers;
        unit.heads = heads;
        unit.keys = keys;
        unit.values = values;
        units_.push_back(std::move(unit));
      }
      starts_.push_back(units_.size());
    }
  }
  const Unit& operator[](std::size_t i) const { return units_[i]; }
  std::vector<Unit*> all() {
    std::vector<Unit*> out;
    for (Unit& unit : units_) out.push_back(&unit);
    return out;
  }
  // work(unit, its layers' numbers) -> Status, for every unit, by the threads of the pool.
  template <class Work>
  Status for_each(ThreadPool& pool, Steps& steps, Work&& work) {
    std::vector<Status> outcomes(starts_.size() - 1);
    pool.run([&](Team& team) {
      for (int i; (i = team.take()) < static_cast<int>(outcomes.size());) {
        const auto range = static_cast<std::size_t>(i);
        outcomes[range] = steps.go_on() ? each_of(range, work) : Status();
        steps.done();
      }
    });
    if (!steps.go_on()) return fail(ErrorCode::kCancelled, "stopped while codes were designed");
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      if (outcomes[i]) continue;
      const Error& error = outcomes[i].error();
      return fail(error.code, "layer {}: {}", units_[starts_[i]].layers.first, error.message);
    }
    return {};
  }

 private:
  template <class Work>
  Status each_of(std::size_t range, Work&& work) {
    // An exception must not leave a thread of the pool.
    try {
      const LayerRange& layers = units_[starts_[range]].layers;
      detail::UnitCalibration learnt;
      for (std::size_t l = layers.first; l <= layers.last(); ++l) {
        KVSPAN_TRY(auto numbers, layer_of(shape_, calibration_, l));
        learnt.push_back(std::move(numbers));
      }
      for (std::size_t i = starts_[range]; i < starts_[range + 1]; ++i) {
        KVSPAN_CHECK_OK(work(units_[i], learnt));
      }
      return {};
    } catch (const std::bad_alloc&) {
      return fail(ErrorCode::kOutOfBudget, "no memory to design a code");
    }
  }

  const CacheShape& shape_;
  const Calibration& calibration_;
  std::vector<Unit> units_;
  std::vector<std::size_t> starts_;  // of each range of layers, and the end
};

// All units of a design and how they are worked on.
struct Design {
  const CacheShape& shape;
  const Calibration& calibration;
  std::span<const LayerRange> ranges;
  const std::vector<std::vector<HeadRange>>& groups;
  const BandsOptions& options;
  const std::shared_ptr<Ledger>& ledger;
  detail::BandsDesigner designer{shape, calibration, options};
  ThreadPool& pool;
  Steps& steps;

  Units units(bool keys, bool values) const { return {shape, calibration, ranges, groups, keys, values}; }
  Status analyse(Units& units, double alpha, bool directions) const {
    return units.for_each(pool, steps, [&](Unit& unit, const detail::UnitCalibration& learnt) {
      return designer.analyse(unit, learnt, alpha, directions);
    });
  }
  Status finish(Units& units, double alpha) const {
    return units.for_each(pool, steps, [&](Unit& unit, const detail::UnitCalibration& learnt) {
      return designer.finish(unit, learnt, alpha, ledger);
    });
  }
};

using Designed = std::vector<std::vector<GroupBands>>;

// Keys and values in one code.
Result<Designed> design_joint(const Design& d) {
  double alpha = 1.0;
  if (d.designer.balances()) {
    Units keys = d.units(true, false), values = d.units(false, true);
    KVSPAN_CHECK_OK(d.analyse(keys, 1.0, false));
    KVSPAN_CHECK_OK(d.analyse(values, 1.0, false));
    alpha = key_weight(keys.all(), values.all(), d.options);
    if (d.options.own) alpha = std::clamp(alpha, 1.0 / kMostBalance, kMostBalance);
  }
  Units both = d.units(true, true);
  KVSPAN_CHECK_OK(d.analyse(both, alpha, true));
  KVSPAN_TRY(const double slope, allocate(both.all(), d.options.bits, d.options));
  KVSPAN_CHECK_OK(d.finish(both, alpha));
  Designed designed(d.groups.size());
  for (const Unit* unit : both.all()) {
    for (std::size_t i = 0; i < unit->layers.count; ++i) {
      const bool last = i + 1 == unit->layers.count;
      designed[unit->layers.first + i].push_back({{unit->codes[i], unit->codes[i]},
                                                  unit->heads,
                                                  last ? distortion(*unit, d.options.quantizer) : 0.0,
                                                  0.0,
                                                  {slope, 0.0}});
    }
  }
  return designed;
}

Result<Designed> design_apart(const Design& d) {
  Units keys = d.units(true, false), values = d.units(false, true);
  KVSPAN_CHECK_OK(d.analyse(keys, 1.0, true));
  KVSPAN_CHECK_OK(d.analyse(values, 1.0, true));
  BitWorth worth;
  if (d.options.key_bits == 0.0) {
    std::vector<Unit*> all = keys.all();
    for (Unit* unit : values.all()) all.push_back(unit);
    KVSPAN_TRY(worth.keys, allocate(all, d.options.bits, d.options));
    worth.values = worth.keys;
  } else {
    KVSPAN_TRY(worth.keys, allocate(keys.all(), d.options.key_bits, d.options));
    KVSPAN_TRY(worth.values, allocate(values.all(), d.options.value_bits, d.options));
  }
  KVSPAN_CHECK_OK(d.finish(keys, 1.0));
  KVSPAN_CHECK_OK(d.finish(values, 1.0));
  Designed designed(d.groups.size());
  std::size_t at = 0;
  for (std::size_t l = 0; l < d.groups.size(); ++l) {
    for (const HeadRange& heads : d.groups[l]) {
      designed[l].push_back({{keys[at].codes[0], values[at].codes[0]},
                             heads,
                             distortion(keys[at], d.options.quantizer),
                             distortion(values[at], d.options.quantizer),
                             worth});
      ++at;
    }
  }
  return designed;
}

// What makes layers alike enough to share a code: shapes, and which tokens they hold.
bool are_alike(const LayerShape& a, const LayerShape& b) {
  return a.kv_heads == b.kv_heads && a.key_dim == b.key_dim && a.value_dim == b.value_dim && a.rope == b.rope &&
         a.window == b.window && a.chunk == b.chunk;
}

// What a code of several layers is designed from.
Status check_cross_moments(const Calibration& calibration, std::span<const LayerRange> ranges) {
  std::size_t most = 1;
  for (const LayerRange& range : ranges) most = std::max(most, range.count);
  if (std::cmp_less_equal(most - 1, calibration.neighbours)) return {};
  return fail(ErrorCode::kInvalidArgument,
              "bands: layers={} needs a calibration with moments of each layer and the {} after it, and this one has those "
              "of {}; kvspan calibrate --neighbours {} makes one",
              most, most - 1, calibration.neighbours, most - 1);
}

}  // namespace

std::vector<LayerRange> layers_coded_together(const CacheShape& shape, std::int32_t most) {
  std::vector<LayerRange> ranges;
  for (std::size_t l = 0; l < shape.layers.size(); ++l) {
    if (!ranges.empty() && std::cmp_less(ranges.back().count, most) &&
        are_alike(shape.layers[ranges.back().first], shape.layers[l])) {
      ++ranges.back().count;
    } else {
      ranges.push_back({l, 1});
    }
  }
  return ranges;
}

Result<std::vector<std::vector<GroupBands>>> design_bands(
    const CacheShape& shape, const Calibration& calibration,
    const std::vector<std::vector<HeadRange>>& groups, const BandsOptions& options,
    const std::shared_ptr<Ledger>& ledger, const DesignProgress& progress) {
  const std::vector<LayerRange> ranges = layers_coded_together(shape, options.layers);
  KVSPAN_CHECK_OK(check_cross_moments(calibration, ranges));
  // A layer at work takes some 10 D^2 doubles, the directions of all layers take D^2 floats each:
  // with so many threads the first is not much more than the second.
  const auto most = std::max<unsigned>(1, static_cast<unsigned>(ranges.size()) / 8);
  const unsigned cores = options.own ? 1 : std::min(std::thread::hardware_concurrency(), most);
  Result<Designed> designed = [&] {
    ThreadPool pool(static_cast<int>(std::max(cores, 1u)));
    const bool balances = detail::BandsDesigner(shape, calibration, options).balances();
    // Each range of layers is analysed and finished, keys and values once more where that comes first or
    // where they are apart.
    Steps steps(ranges.size() * (balances || !options.joint ? 4 : 2), progress);
    const Design design{.shape = shape,
                        .calibration = calibration,
                        .ranges = ranges,
                        .groups = groups,
                        .options = options,
                        .ledger = ledger,
                        .pool = pool,
                        .steps = steps};
    return options.joint ? design_joint(design) : design_apart(design);
  }();
  // Many megabytes for each thread, and few of them are needed again.
  if (!options.own) return_free_memory();
  return designed;
}

}  // namespace kvspan

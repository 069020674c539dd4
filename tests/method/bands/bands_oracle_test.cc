// SPDX-License-Identifier: Apache-2.0
// The codes of bands against a slow oracle of the same formulas, written in Python by others: same
// calibration in, same directions, bits and rebuilt rows out (fixtures/make_bands_fixture.py, which
// says where the two differ on purpose and how both are made to do the same).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "cache/rope.h"
#include "codec/bands/midrise.h"
#include "linalg/subspaces.h"
#include "method/bands/bands_design.h"
#include "tests/method/turns_by_rounding.h"

namespace kvspan {
namespace {

class Fixture {
 public:
  Fixture() {
    std::ifstream in(KVSPAN_SOURCE_DIR "/tests/method/fixtures/bands.txt");
    std::string name;
    for (std::size_t count; in >> name >> count;) {
      std::vector<double>& values = fields_[name];
      values.resize(count);
      for (double& value : values) in >> value;
    }
  }
  const std::vector<double>& at(const std::string& name) const { return fields_.at(name); }
  std::vector<float> floats(const std::string& name) const {
    return {at(name).begin(), at(name).end()};
  }
  std::int32_t block() const { return std::int32_t(at("shape")[4]); }

  CacheShape shape() const {
    const std::vector<double>& s = at("shape");
    LayerShape layer;
    layer.kv_heads = std::int32_t(s[1]);
    layer.query_heads = std::int32_t(s[1] * s[2]);
    layer.key_dim = layer.value_dim = layer.rope.rotated_dims = std::int32_t(s[3]);
    layer.rope.pairs = Rope::Pairs::kNeighbours;
    layer.rope.angles = at("angles");
    layer.logit_scale = 1.0f;  // the oracle holds errors of keys in q.k, not in logits
    CacheShape shape;
    shape.layers.assign(std::size_t(s[0]), layer);
    return shape;
  }

  // Rows [k0 ; v]; a vector stands at every position of a block.
  const double* row(std::size_t layer, std::int32_t position) const {
    const std::size_t width = at("0/mean").size();
    return at(std::to_string(layer) + "/vectors").data() + std::size_t(position / block()) * width;
  }

  Calibration calibration() const {
    Calibration c;
    const std::size_t width = at("0/mean").size();
    const auto tokens = std::int32_t(at("0/vectors").size() / width) * block();
    c.tokens = c.window = tokens;
    for (std::int32_t t = 0; t < tokens; ++t) c.sample_positions.push_back(t);
    for (std::size_t l = 0; l < shape().layers.size(); ++l) {
      const std::string name = std::to_string(l) + "/";
      LayerCalibration& to = c.layers.emplace_back();
      const std::vector<float> mean = floats(name + "mean");
      to.key_mean.assign(mean.begin(), mean.begin() + std::ptrdiff_t(width / 2));
      to.value_mean.assign(mean.begin() + std::ptrdiff_t(width / 2), mean.end());
      to.joint_moment = floats(name + "joint_moment");
      to.rotated_key_mean = floats(name + "rotated_key_mean");
      to.rotated_key_moment = floats(name + "rotated_key_moment");
      to.query_moment = to.raw_query_moment = floats(name + "query_moment");
      to.output_metric = to.value_metric = floats(name + "output_metric");
      // In the oracle's design only the ratio of keys counts, which it balances against values.
      to.key_metric = to.query_moment;
      for (const std::int32_t t : c.sample_positions) {
        to.sample_rows.insert(to.sample_rows.end(), row(l, t), row(l, t) + width);
      }
    }
    return c;
  }

 private:
  std::map<std::string, std::vector<double>> fields_;
};

const Fixture& fixture() {
  static const Fixture fixture;
  return fixture;
}

// A code's transform as its own functions show it, components in their own order: rows of A and
// columns of B, zeros where a component is not stored.
struct Shown {
  Matrix analysis, synthesis;

  explicit Shown(const BandsCode& code)
      : analysis(std::size_t(code.width()), std::size_t(code.width())),
        synthesis(std::size_t(code.width()), std::size_t(code.width())) {
    const auto d = std::size_t(code.width()), places = std::size_t(code.places());
    const std::span<const std::uint32_t> order = code.layout().order();
    std::vector<float> z(d), c(places), keys(d), values(d);
    std::vector<std::int8_t> codes(places);
    std::int8_t gain = 0;
    for (std::size_t j = 0; j < d; ++j) {
      std::fill(z.begin(), z.end(), 0.0f);
      z[j] = 1.0f;
      code.encode(z.data(), codes.data(), &gain, c.data());
      for (std::size_t p = 0; p < order.size(); ++p) analysis(order[p], j) = c[p];
    }
    for (std::size_t p = 0; p < order.size(); ++p) {
      std::fill(c.begin(), c.end(), 0.0f);
      c[p] = 1.0f;
      code.restore(c.data(), 0, keys.data(), values.data());
      code.gather(keys.data(), values.data(), 0, z.data());
      for (std::size_t j = 0; j < d; ++j) synthesis(j, order[p]) = z[j];
    }
  }
};

struct Agreement {
  double angle = 0.0, synthesis = 0.0;  // the largest of all components
};

// Spaces of equal powers are the same. G = A_here B_there holds the cosines between the directions
// of both: of rows that belong to a run of nearly equal powers, all length lies within the run.
void expect_same_directions(const BandsCode& code, const std::string& name, Agreement& most) {
  const Shown shown(code);
  const auto d = std::size_t(code.width());
  const std::vector<double>& b = fixture().at(name + "/synthesis");
  const std::vector<double>& sigma = fixture().at(name + "/sigma");
  const std::vector<double> turns = testing::turns_by_rounding(b, d);
  std::vector<std::uint8_t> stored(d);
  for (const std::uint32_t i : code.layout().order()) stored[i] = 1;
  double trace = 0.0;
  for (const double s : sigma) trace += s * s;
  const auto power = [&](std::size_t i) { return sigma[i] * sigma[i]; };
  for (std::size_t first = 0, end = 0; first < d && stored[first] != 0; first = end) {
    end = first + 1;
    while (end < d && power(end) > 0.99 * power(end - 1)) ++end;
    if (std::find(stored.begin() + std::ptrdiff_t(first), stored.begin() + std::ptrdiff_t(end),
                  0) != stored.begin() + std::ptrdiff_t(end)) {
      break;  // a run that is stored in part spans no space of its own
    }
    Matrix here(end - first, d), there(end - first, d);
    for (std::size_t i = first; i < end; ++i) {
      there(i - first, i) = 1.0f;
      for (std::size_t j = 0; j < d; ++j) {
        double sum = 0.0;
        for (std::size_t k = 0; k < d; ++k) sum += shown.analysis(i, k) * b[k * d + j];
        here(i - first, j) = float(sum);
      }
    }
    // The calibration holds the moments in f32, which moves them by at most 2^-24 of what their
    // trace is in the metric, and directions by that over the gap to the next power (Davis and
    // Kahan). B is f16: no direction turns by twice what it does on average.
    double gap = first > 0 ? power(first - 1) - power(first) : power(0);
    if (end < d) gap = std::min(gap, power(end - 1) - power(end));
    double turn = 0.0;
    for (std::size_t i = first; i < end; ++i) turn += turns[i] * turns[i];
    const double allowed = 0x1p-24 * trace / gap + 2.0 * std::sqrt(turn);
    const double angle = principal_angles(here.view(), there.view()).back();
    EXPECT_LE(angle, allowed) << name << ", components " << first << " to " << end - 1;
    most.angle = std::max(most.angle, angle);
    // B_here = B_there G', in the lengths of the columns.
    for (std::size_t i = first; i < end; ++i) {
      double off = 0.0, size = 0.0;
      for (std::size_t k = 0; k < d; ++k) {
        double sum = 0.0;
        for (std::size_t j = first; j < end; ++j) sum += b[k * d + j] * here(i - first, j);
        off += std::pow(sum - shown.synthesis(k, i), 2.0);
        size += sum * sum;
      }
      most.synthesis = std::max(most.synthesis, std::sqrt(off / size));
    }
  }
}

// The code's own transform and means, with the oracle's steps.
std::shared_ptr<const BandsCode> with_steps_of_oracle(const BandsCode& code,
                                                      const std::string& name) {
  const Shown shown(code);
  std::vector<float> key_mean, value_mean;
  for (std::int32_t h = 0; h < code.heads(); ++h) {
    const float* mean_of_keys = code.key_mean(h);
    key_mean.insert(key_mean.end(), mean_of_keys, mean_of_keys + code.key_dim());
    const float* mean = code.value_mean(h);
    value_mean.insert(value_mean.end(), mean, mean + code.value_dim());
  }
  const std::vector<double>& asked = fixture().at(name + "/bits");
  const std::vector<std::uint8_t> bits(asked.begin(), asked.end());
  const std::vector<float> steps = fixture().floats(name + "/steps");
  const std::vector<float> sigma = fixture().floats(name + "/sigma");
  BandsParts parts;
  parts.heads = code.heads();
  parts.key_dim = code.key_dim();
  parts.value_dim = code.value_dim();
  parts.anchor_block = code.anchor_block();
  parts.before_rope = code.before_rope();
  parts.rope = code.rope();
  parts.key_mean = key_mean;
  parts.value_mean = value_mean;
  parts.analysis = shown.analysis.view();
  parts.synthesis = shown.synthesis.view();
  parts.bits = bits;
  parts.steps = steps;
  parts.sigma = sigma;
  return BandsCode::create(parts, nullptr).value();
}

void expect_same_bits(const BandsCode& code, const std::string& name) {
  const std::vector<double>& asked = fixture().at(name + "/bits");
  const BandsLayout layout =
      BandsLayout::create(std::vector<std::uint8_t>(asked.begin(), asked.end())).value();
  ASSERT_EQ(code.layout().stored(), layout.stored()) << name;
  for (std::size_t p = 0; p < layout.stored(); ++p) {
    EXPECT_EQ(code.layout().width(p), layout.width(p)) << name << ", place " << p;
    EXPECT_EQ(code.layout().order()[p], layout.order()[p]) << name << ", place " << p;
  }
}

// Mean squared errors of c / g over all tokens with the steps that the library fits, and with the
// oracle's.
std::pair<double, double> distortions(const BandsCode& code, const std::string& name,
                                      const std::vector<std::vector<float>>& rows) {
  const std::vector<double>& steps = fixture().at(name + "/steps");
  const auto places = std::size_t(code.places());
  std::vector<float> c(places);
  std::vector<std::int8_t> codes(places);
  std::vector<std::vector<float>> columns(code.layout().stored());
  for (const std::vector<float>& z : rows) {
    std::int8_t gain = 0;
    code.encode(z.data(), codes.data(), &gain, c.data());
    for (std::size_t p = 0; p < columns.size(); ++p) columns[p].push_back(c[p] / log_gain(gain));
  }
  std::pair<double, double> sums{0.0, 0.0};
  for (std::size_t p = 0; p < columns.size(); ++p) {
    const int width = code.layout().width(p);
    sums.first += midrise_distortion(columns[p], width, code.steps()[p]);
    sums.second += midrise_distortion(columns[p], width, steps[code.layout().order()[p]]);
  }
  return sums;
}

struct Case {
  const char* name;
  bool joint;
  double bits, key_bits, value_bits;
  std::int32_t anchor;  // 0: after RoPE, -1: before
};

class BandsOracle : public ::testing::TestWithParam<Case> {
 protected:
  // Codes of one layer, and the names of their fields.
  struct Named {
    std::shared_ptr<const BandsCode> code;
    std::string name;
  };
  std::vector<Named> codes(std::size_t layer) const {
    const std::string name = std::to_string(layer) + "/" + GetParam().name;
    const GroupBands& found = designed_[layer][0];
    if (found.keys == found.values) return {{found.keys, name}};
    return {{found.keys, name + "/keys"}, {found.values, name + "/values"}};
  }
  // Keys after RoPE and values, as a cache gets them.
  void rows(std::size_t layer, std::int32_t position, std::vector<float>& keys,
            std::vector<float>& values) const {
    const LayerShape& l = shape_.layers[layer];
    const double* z = fixture().row(layer, position);
    const std::ptrdiff_t width = l.kv_heads * l.key_dim;
    keys.assign(z, z + width);
    values.assign(z + width, z + 2 * width);
    for (std::int32_t h = 0; h < l.kv_heads; ++h) {
      rope_rotate(l.rope, position, keys.data() + std::ptrdiff_t(h) * l.key_dim);
    }
  }

  void SetUp() override {
    const Case& c = GetParam();
    BandsOptions options;
    options.joint = c.joint;
    options.quantizer = BandsQuantizer::kUniform;  // as the oracle's
    options.bits = c.bits;
    options.key_bits = c.key_bits;
    options.value_bits = c.value_bits;
    options.levels = std::get<LevelSet>(*read_value(ValueKind::kLevels, "0-6/8"));
    options.anchor = std::max(c.anchor, 0);
    options.before_rope = c.anchor < 0;
    options.balanced = true;
    const std::vector<std::vector<HeadRange>> groups(shape_.layers.size(),
                                                     {{0, shape_.layers[0].kv_heads}});
    auto designed = design_bands(shape_, fixture().calibration(), groups, options, nullptr);
    ASSERT_TRUE(designed) << designed.error().message;
    designed_ = std::move(designed).value();
  }

  const CacheShape shape_ = fixture().shape();
  std::vector<std::vector<GroupBands>> designed_;
};

TEST_P(BandsOracle, SpendsTheSameBits) {
  for (std::size_t layer = 0; layer < shape_.layers.size(); ++layer) {
    for (const Named& c : codes(layer)) expect_same_bits(*c.code, c.name);
  }
}

TEST_P(BandsOracle, FindsTheSameDirections) {
  Agreement most;
  for (std::size_t layer = 0; layer < shape_.layers.size(); ++layer) {
    for (const Named& c : codes(layer)) expect_same_directions(*c.code, c.name, most);
  }
  // Columns of B turn as directions do, and their lengths hold to f16.
  EXPECT_LE(most.synthesis, 4.0 * most.angle + 0x1p-11);
  EXPECT_LE(most.angle, 1e-3);
  std::printf("%s: largest angle %.1e, columns of B off by %.1e\n", GetParam().name, most.angle,
              most.synthesis);
}

// The oracle's gains: root mean squares, whatever is cut off.
std::int8_t oracle_gain(const BandsCode& code, const std::vector<float>& c) {
  double sum = 0.0;
  for (std::size_t i = 0; i < c.size(); ++i) sum += std::pow(double{c[i]} * double{code.gain_rule().inverse_sigma[i]}, 2.0);
  return log_gain_code(float(std::sqrt(sum / double(code.layout().stored()))));
}

TEST_P(BandsOracle, RebuildsTheSameRows) {
  double most = 0.0;
  std::size_t compared = 0, raised = 0;
  for (std::size_t layer = 0; layer < shape_.layers.size(); ++layer) {
    const std::string name = std::to_string(layer) + "/" + GetParam().name;
    std::vector<std::shared_ptr<const BandsCode>> parts;
    for (const Named& c : codes(layer)) parts.push_back(with_steps_of_oracle(*c.code, c.name));
    const std::vector<double>& positions = fixture().at(name + "/positions");
    ASSERT_GT(positions.size(), 20u);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const auto position = std::int32_t(positions[i]);
      std::vector<float> keys, values;
      rows(layer, position, keys, values);
      std::vector<float> k(keys.size()), v(values.size());
      bool same_gains = true;
      for (const auto& code : parts) {
        const auto places = std::size_t(code->places());
        std::vector<float> z(std::size_t(code->width())), c(places);
        std::vector<std::int8_t> integers(places);
        std::int8_t gain = 0;
        code->gather(keys.data(), values.data(), position, z.data());
        code->encode(z.data(), integers.data(), &gain, c.data());
        same_gains = same_gains && gain == oracle_gain(*code, c);
        code->decode(integers.data(), gain, c.data());
        code->restore(c.data(), position, k.data(), v.data());
      }
      const auto expect_near = [&](const std::vector<float>& found, const std::string& field) {
        const double* wanted = fixture().at(name + field).data() + i * found.size();
        double off = 0.0, size = 0.0;
        for (std::size_t j = 0; j < found.size(); ++j) {
          off += std::pow(found[j] - wanted[j], 2.0);
          size += wanted[j] * wanted[j];
        }
        // Equal codes leave only the turns of directions; another code would be off by a step.
        EXPECT_LE(std::sqrt(off / size), 1e-3) << name << field << " at " << position;
        most = std::max(most, std::sqrt(off / size));
      };
      ++(same_gains ? compared : raised);
      if (!same_gains) continue;
      expect_near(k, "/k");
      expect_near(v, "/v");
    }
  }
  EXPECT_GT(compared, 4 * raised);
  std::printf("%s: largest relative difference of a rebuilt row %.1e, %zu gains raised\n", GetParam().name, most, raised);
}

TEST_P(BandsOracle, FitsStepsNoWorse) {
  for (std::size_t layer = 0; layer < shape_.layers.size(); ++layer) {
    for (const Named& c : codes(layer)) {
      std::vector<std::vector<float>> all;
      for (const std::int32_t t : fixture().calibration().sample_positions) {
        std::vector<float> keys, values;
        rows(layer, t, keys, values);
        all.emplace_back(std::size_t(c.code->width()));
        c.code->gather(keys.data(), values.data(), t, all.back().data());
      }
      const auto [here, there] = distortions(*c.code, c.name, all);
      EXPECT_LE(here, there) << c.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, BandsOracle,
                         ::testing::Values(Case{"kv_anchor_2.0", true, 2.0, 0.0, 0.0, 16},
                                           Case{"kv_anchor_3.5", true, 3.5, 0.0, 0.0, 16},
                                           Case{"kv_pre_2.5", true, 2.5, 0.0, 0.0, -1},
                                           Case{"layer_pre_2.5_3", false, 0.0, 2.5, 3.0, -1},
                                           Case{"layer_anchor_2.5_3", false, 0.0, 2.5, 3.0, 16},
                                           Case{"layer_post_2.5_3", false, 0.0, 2.5, 3.0, 0}),
                         [](const auto& one) {
                           std::string name = one.param.name;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

}  // namespace
}  // namespace kvspan

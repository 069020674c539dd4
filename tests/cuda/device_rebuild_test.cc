// SPDX-License-Identifier: Apache-2.0
// Rows made of what a device cache holds, against the same sums in double on the host.
#include "cache/rope.h"
#include "tests/cuda/device_run.h"

namespace kvspan::testing {
namespace {

// What a row's number should be, and how far f16 factors and results may take it from there.
struct Number {
  double value = 0.0, error = 0.0;
};

// A coded token of one head.
class CodedToken {
 public:
  CodedToken(const BandsCode& code, const cuda::BandsTiles& layout,
             const std::vector<std::byte>& tiles, std::int32_t position)
      : code_(code), position_(position), levels_(std::size_t(code.places())) {
    const std::byte* tile =
        tiles.data() + std::size_t(position / cuda::kTileTokens) * layout.tile_bytes();
    const int token = position % cuda::kTileTokens;
    gain_ = code.gain() ? log_gain(layout.gain(tile, token)) : 1.0;
    for (std::size_t p = 0; p < code.layout().stored(); ++p) {
      levels_[p] = layout.get(tile, token, int(p)) + 0.5;
    }
  }

  // k = R(t_a) B c + R(t) mu, where R turns and scales.
  std::vector<Number> key(std::int32_t head) const {
    const auto dim = std::size_t(code_.key_dim()), n = std::size_t(code_.places());
    std::vector<float> rows(dim * n), mean(code_.key_mean(head), code_.key_mean(head) + dim),
        x(dim);
    code_.read_key_rows(head, rows.data());
    double square = 0.0;
    for (std::size_t i = 0; i < dim; ++i) {
      const Number sum = times_levels([&](std::size_t p) { return double{rows[i * n + p]}; });
      x[i] = float(sum.value);
      square = std::max(square, sum.error);
    }
    rope_rotate(code_.rope(), code_.anchor_of(position_), x.data());
    rope_rotate(code_.rope(), position_, mean.data());
    std::vector<Number> key(dim);
    for (std::size_t i = 0; i < dim; ++i) {
      key[i] = rounded(double{x[i]} + double{mean[i]}, 2.0 * square * code_.rope().magnitude);
    }
    return key;
  }

  std::vector<Number> value(std::int32_t head) const {
    const BandsCode::Rows rows = code_.value_rows(head);
    std::vector<Number> value(std::size_t(code_.value_dim()));
    for (std::size_t i = 0; i < value.size(); ++i) {
      const Half* row = rows.numbers + std::ptrdiff_t(i) * code_.row_stride();
      const Number sum = times_levels([&](std::size_t p) {
        return double{to_float(row[p])} * code_.steps()[p] * rows.scales[i];
      });
      value[i] = rounded(sum.value + code_.value_mean(head)[i], sum.error);
    }
    return value;
  }

 private:
  // error: of factors that are rounded to f16, each by up to 2^-11 of itself or of a row's largest
  // number 2^-14 below which f16 has fewer digits: six standard deviations.
  template <class Factor>
  Number times_levels(Factor factor) const {
    Number sum;
    double square = 0.0, most = 0.0;
    for (std::size_t p = 0; p < levels_.size(); ++p) most = std::max(most, std::abs(factor(p)));
    for (std::size_t p = 0; p < levels_.size(); ++p) {
      const double term = factor(p) * levels_[p] * gain_;
      const double off = std::ldexp(std::abs(factor(p)) + std::ldexp(most, -13), -11) *
                         std::abs(levels_[p]) * gain_;
      sum.value += term;
      square += off * off / 3.0;
    }
    sum.error = 6.0 * std::sqrt(square);
    return sum;
  }
  // The number itself is f16, and made of f32 ones.
  static Number rounded(double value, double error) {
    return {value, error + std::ldexp(std::abs(value), -10) + 1e-6};
  }

  const BandsCode& code_;
  std::int32_t position_;
  double gain_;
  std::vector<double> levels_;
};

void check_row(const std::vector<Number>& wanted, const __half* found, const char* what,
               std::int32_t position, std::int32_t head) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_NEAR(__half2float(found[i]), wanted[i].value, wanted[i].error)
        << what << " " << i << " at " << position << ", head " << head;
  }
}

std::vector<Number> kept(const float* row, std::int32_t dim) {
  std::vector<Number> numbers;
  for (std::int32_t i = 0; i < dim; ++i) numbers.push_back({as_f16(row[i]), 0.0});
  return numbers;
}

// Rows from `first` on, of a cache that takes so many tokens apart at once.
void check(const std::string& recipe_text, const CacheShape& shape, std::int32_t first,
           std::int32_t at_once) {
  SCOPED_TRACE(recipe_text);
  const SyntheticText text(shape, 700, 22);
  const Calibration calibration = text.calibration();
  const FilledCache filled = filled_cache(recipe_text, text, calibration, shape, 651, at_once);
  ASSERT_NE(filled.cache, nullptr);
  const std::int32_t held = filled.held, coded = filled.coded, sink = filled.recipe.sink;
  const LayerShape& l = shape.layers[0];
  const auto key_row = std::size_t(l.kv_heads * l.key_dim),
             value_row = std::size_t(l.kv_heads * l.value_dim);
  const DeviceArray<__half> keys(std::size_t(held - first) * key_row),
      values(std::size_t(held - first) * value_row);
  const Status rebuilt = filled.cache->rebuild(0, 0, first, {keys.data()}, {values.data()}, nullptr);
  ASSERT_TRUE(rebuilt) << rebuilt.error().message;
  const std::vector<__half> k = keys.read(), v = values.read();
  const auto& codes = filled.recipe.codes[0];
  const std::vector<cuda::BandsTiles> layouts = layouts_of(codes);
  std::vector<std::vector<std::byte>> tiles;
  for (std::size_t g = 0; g < codes.size(); ++g) {
    tiles.push_back(filled.cache->read_tiles(0, 0, int(g)).value());
  }
  for (std::int32_t t = first; t < held; ++t) {
    for (std::int32_t h = 0; h < l.kv_heads; ++h) {
      const __half* key = k.data() + std::size_t(t - first) * key_row + std::size_t(h * l.key_dim);
      const __half* value =
          v.data() + std::size_t(t - first) * value_row + std::size_t(h * l.value_dim);
      if (t < coded && t >= sink) {
        const std::size_t g = std::size_t(h) / std::size_t(codes[0]->heads());
        const std::int32_t within = h % codes[0]->heads();
        const CodedToken token(*codes[g], layouts[g], tiles[g], t);
        check_row(token.key(within), key, "key", t, h);
        check_row(token.value(within), value, "value", t, h);
      } else {
        const KvRows row = text.rows(0, t, 1);
        check_row(kept(row.keys.row(0, h), l.key_dim), key, "kept key", t, h);
        check_row(kept(row.values.row(0, h), l.value_dim), value, "kept value", t, h);
      }
    }
  }
}

TEST(DeviceRebuild, RowsAreWhatIsHeld) {
  KVSPAN_NEEDS_DEVICE();
  check("full", wide_shape(2, 2, 64), 0, 128);
  check("bands:quantizer=uniform,escape=0,bits=2", wide_shape(2, 2, 64), 0, 4096);
  check("bands:quantizer=uniform,escape=0,bits=3,sink=20,recent=20", wide_shape(3, 3, 64), 45, 100);
  check("bands:quantizer=uniform,escape=0,bits=1.55,levels=0/2,grain=64,share=kvgroup",
        wide_shape(4, 2, 128), 300, 64);
  check("bands:quantizer=uniform,escape=0,bits=5,share=kvgroup,anchor=512,gain=none",
        wide_shape(4, 2, 64), 0, 256);
  check("bands:quantizer=uniform,escape=0,bits=2,sink=0", wide_shape(1, 4, 256), 650, 512);
}

TEST(DeviceRebuild, WrongCallsAreAnswered) {
  KVSPAN_NEEDS_DEVICE();
  const CacheShape shape = wide_shape(2, 2, 64);
  DeviceOptions options;
  options.budget_bytes = std::size_t{16} << 20;
  options.max_tokens = 256;
  const auto without = DeviceCache::create(shape, "full", nullptr, options).value();
  const std::int32_t s = without->add().value();
  EXPECT_EQ(without->rebuild(0, s, 0, {}, {}, nullptr).error().code, ErrorCode::kUnsupported);
  options.rebuild_tokens = 64;
  const auto with = DeviceCache::create(shape, "full", nullptr, options).value();
  const std::int32_t other = with->add().value();
  EXPECT_TRUE(with->rebuild(0, other, 0, {}, {}, nullptr));  // nothing is held, nothing written
  EXPECT_EQ(with->rebuild(0, other, 1, {}, {}, nullptr).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(with->rebuild(1, other, 0, {}, {}, nullptr).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(with->rebuild(0, other + 1, 0, {}, {}, nullptr).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace kvspan::testing

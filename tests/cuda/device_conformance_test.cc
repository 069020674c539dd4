// SPDX-License-Identifier: Apache-2.0
// Sequences on a device, as caches of kvspan/cache.h, do what every cache does (tests/conformance):
// with the recipes that devices have. Positions count from 0 there, and queries are the last ones.
#include "kvspan/cuda_home.h"
#include "tests/conformance/cache_properties.h"
#include "tests/cuda/device_run.h"

namespace kvspan::conformance {
namespace device_conformance_test {

class DeviceCaches final : public Caches {
 public:
  DeviceCaches(CacheFactory host, std::shared_ptr<DeviceHome> home)
      : Caches(std::move(host)), home_(std::move(home)), factory_(this->host().kept_in(home_)) {}

  std::unique_ptr<KvCache> make(int) const override { return factory_.make(); }
  Result<std::unique_ptr<KvCache>> load(std::span<const std::byte> bytes, int) const override {
    return factory_.load(bytes);
  }
  void limit(Traits& traits) const override {
    traits.any_query = false;
    traits.exact = false;
    traits.keeps_all = false;  // codes are not taken apart again
    traits.most_threads = 3;
  }

 private:
  std::shared_ptr<DeviceHome> home_;
  CacheFactory factory_;
};

Result<std::unique_ptr<Caches>> device_caches(CacheFactory host) {
  DeviceOptions options;
  options.budget_bytes = std::size_t{64} << 20;
  options.max_sequences = 64;
  options.max_tokens = 512;
  auto home = DeviceHome::create(host, options);
  if (!home) return std::move(home).error();
  return std::unique_ptr<Caches>(std::make_unique<DeviceCaches>(std::move(host), std::move(*home)));
}
constexpr Implementation kDevice{"device", device_caches};

std::vector<Case> device_cases() {
  std::vector<CacheProperty> properties;
  for (CacheProperty property : cache_properties()) {
    std::erase_if(property.scenes, [](const std::string& scene) {
      return scene != "Whole" && scene != "Windows";
    });
    if (!property.scenes.empty()) properties.push_back(std::move(property));
  }
  const std::string bands = "bands:quantizer=uniform,escape=0,anchor=128,";
  return all_cases({{"full"},
                    {bands + "bits=3,sink=16,recent=32"},
                    {bands + "bits=2,sink=32,recent=48,grain=64"},
                    {bands + "bits=3,share=kv,sink=0,recent=16"},
                    {bands + "bits=2.5,share=kvgroup,heads=1,gain=none,sink=16,recent=20"}},
                   properties);
}

class DeviceConformance : public ::testing::TestWithParam<Case> {};
TEST_P(DeviceConformance, Holds) {
  KVSPAN_NEEDS_DEVICE();
  run_case(kDevice, GetParam());
}
INSTANTIATE_TEST_SUITE_P(Of, DeviceConformance, ::testing::ValuesIn(device_cases()), case_name);

}  // namespace device_conformance_test
}  // namespace kvspan::conformance

// SPDX-License-Identifier: Apache-2.0
// Caches in the host's memory.
#include "tests/conformance/cache_properties.h"
#include "tests/conformance/recipes.h"

namespace kvspan::conformance {
namespace {

constexpr Implementation kHost{"host", host_caches};

std::vector<CacheProperty> all_properties() {
  std::vector<CacheProperty> all = cache_properties();
  all.push_back({"SurvivesTheEndOfMemory", survives_the_end_of_memory, {"Windows"}, true});
  return all;
}

class HostCaches : public ::testing::TestWithParam<Case> {};
TEST_P(HostCaches, Conform) {
  run_case(kHost, GetParam());
}
INSTANTIATE_TEST_SUITE_P(Of, HostCaches,
                         ::testing::ValuesIn(all_cases(recipes_of_the_table(), all_properties())),
                         case_name);

}  // namespace
}  // namespace kvspan::conformance

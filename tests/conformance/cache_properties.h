// SPDX-License-Identifier: Apache-2.0
// The contract of KvCache call by call (kvspan/cache.h): what a query sees, what is rejected, steps
// that end in the middle, memory that ends anywhere. And the cases of all properties, for every
// recipe that the table of methods gives (recipes.h).
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/conformance/caches.h"
#include "tests/conformance/recipes.h"

namespace kvspan::conformance {

// A query at any position, old, present or future, attends to those of the stored tokens that it
// sees, and to no other.
void sees_what_it_should(const CacheSource& source);
// Wrong calls are answered with kInvalidArgument and change nothing.
void rejects_wrong_calls(const CacheSource& source);
// Steps that leave calls out, or end in the middle, lose nothing and can be truncated.
void survives_half_steps(const CacheSource& source);
// A recipe that encodes tokens together rejects gaps by name, and keeps the tokens it has.
void names_gaps(const CacheSource& source);
// Every allocation of every call fails once: the call fails with kOutOfBudget and leaves the state
// that the contract names; made again, it does what it would have done.
void survives_the_end_of_memory(const CacheSource& source);

struct CacheProperty {
  std::string name;
  void (*check)(const CacheSource& source);
  std::vector<std::string> scenes;  // the texts that it is checked with
  bool costly = false;              // a short run checks usual recipes alone
};
// All but survives_the_end_of_memory, which needs a program whose allocations are watched.
const std::vector<CacheProperty>& cache_properties();

// One property of one recipe before one text.
struct Case {
  std::string name;
  std::string recipe;
  std::string scene;
  void (*check)(const CacheSource& source);
};
std::ostream& operator<<(std::ostream& to, const Case& one);

// Every property of every recipe. In a short run with every text where the recipe is usual, else
// with one of them, in turn.
std::vector<Case> all_cases(const std::vector<TableRecipe>& recipes,
                            const std::vector<CacheProperty>& properties);
std::string case_name(const ::testing::TestParamInfo<Case>& info);
// Skips where the implementation does not have the recipe, or it does not fit the texts' shapes.
void run_case(const Implementation& implementation, const Case& one);

}  // namespace kvspan::conformance

// SPDX-License-Identifier: Apache-2.0
// A random history of a cache: steps with gaps and without settling, questions about any position, truncation,
// forks, saving and loading, steps that end in the middle, calls that are refused. Throws Broken where the cache
// differs from the plain one by more than it may, or from a replica at all.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvspan/cache.h"
#include "recipe/recipe.h"
#include "tests/fuzz/history/plain_cache.h"
#include "tests/fuzz/history/replicas.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/model.h"

namespace kvspan::fuzz {

class History {
 public:
  // Empty where the recipe does not fit the shape.
  static std::optional<History> begin(Input& input);
  void run();
  // What was done so far.
  const std::string& told() const noexcept { return told_; }

 private:
  History(Input& input, Recipe recipe, CacheFactory factory, Model model);

  void engine_step();
  void ask_again();
  void settle_one();
  void truncate();
  void fork();
  void save_and_load();
  void half_step();
  void clear();
  void refused_append();

  std::vector<std::int32_t> next_positions(std::int32_t n);
  void append(std::size_t layer, const std::vector<std::int32_t>& positions, bool remember);
  std::vector<float> attend(std::size_t layer, const std::vector<std::int32_t>& positions);
  void settle(std::size_t layer);
  void check(std::size_t layer, std::span<const std::int32_t> positions, const std::vector<float>& queries,
             const std::vector<float>& outputs);
  void check_causality(std::size_t layer, std::int32_t position, const std::vector<float>& outputs);
  bool holds_all_seen(std::size_t layer, std::int32_t position) const noexcept;
  void forget(std::int32_t n);
  void compare() { replicas_.compare(alone_); }

  template <class... Values>
  void tell(fmt::format_string<Values...> what, Values&&... values);

  Input& input_;
  Recipe recipe_;
  CacheFactory factory_;
  std::unique_ptr<Model> model_;  // stays where it is: plain layers point to its shape
  Replicas replicas_;
  struct Layer {
    PlainLayer plain;
    std::int32_t settled_at = 0;  // the next position of the latest settle: what no query from there on sees is gone
  };
  std::vector<Layer> layers_;
  std::int32_t next_ = 0;    // position
  std::uint64_t text_ = 0;   // another one after each truncation
  std::int32_t most_tokens_;
  bool gaps_, alone_, reads_all_, certified_;
  std::string told_;
};

}  // namespace kvspan::fuzz

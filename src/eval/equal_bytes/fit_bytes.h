// SPDX-License-Identifier: Apache-2.0
// Recipes fitted to a number of bytes, so that methods are compared like with like.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "eval/equal_bytes/size_dial.h"

namespace kvspan {

struct FitOptions {
  double near = 0.01;      // off by less than this share is as good as met
  double most_off = 0.03;  // off by more is refused
  bool over = false;       // whether more bytes than asked for will do, where they are nearer
  // Whether steps of a recipe's size that are too far apart are bridged by tokens that stay as they
  // came: the larger step with fewer recent tokens, down to half of them, else the smaller with
  // more.
  bool spend_rest = true;
};

struct FittedRecipe {
  std::string recipe;  // canonical
  std::uint64_t bytes = 0;
};

// Bytes that a recipe holds; they grow with every step of a dial.
using BytesOf = std::function<Result<std::uint64_t>(const std::string& recipe)>;

// `recipe` with its size such that it holds `target` bytes. Fails with kInvalidArgument, saying how
// near it comes, where no setting is near enough, and as size_dial and `bytes_of` do. Few calls of
// bytes_of: bytes are nearly a straight line over the step.
Result<FittedRecipe> fit_recipe(const Recipe& recipe, std::uint64_t target, const CacheShape& shape,
                                std::int32_t tokens, const BytesOf& bytes_of,
                                const FitOptions& options = {});

}  // namespace kvspan

// SPDX-License-Identifier: Apache-2.0
// A recipe as a dial: step by step it holds more bytes. Which keys are turned, the table of methods
// says (MethodDeclaration::size_keys); the values they can have follow from their declarations.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kvspan/cache.h"
#include "kvspan/result.h"
#include "recipe/recipe.h"

namespace kvspan {

struct SizeDial {
  std::int32_t least = 0, most = 0;
  std::int32_t start = 0;                                // where the recipe stands now
  std::function<std::string(std::int32_t step)> recipe;  // canonical
};

// The dial of the method's size, or, where it has none or the recipe sets it, of the selector's.
// `tokens`: of the text, beyond which no number of tokens has to go. Fails, with the reason, where
// neither can be turned.
Result<SizeDial> size_dial(const Recipe& recipe, const CacheShape& shape, std::int32_t tokens);

// The dial of how many last tokens stay as they came: for bytes that are left over between two
// steps of the size. Fails where the method has no such key.
Result<SizeDial> recent_dial(const Recipe& recipe, std::int32_t tokens);

}  // namespace kvspan

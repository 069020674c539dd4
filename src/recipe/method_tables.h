// SPDX-License-Identifier: Apache-2.0
// The parts of the table of methods; all_methods() in method_table.cc joins them.
#pragma once

#include <span>

#include "base/fail.h"
#include "recipe/declaration.h"
#include "recipe/recipe.h"

namespace kvspan::detail {

std::span<const MethodDeclaration> subspace_methods() noexcept;
std::span<const MethodDeclaration> coding_methods() noexcept;
std::span<const MethodDeclaration> token_methods() noexcept;

}  // namespace kvspan::detail

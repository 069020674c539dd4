// SPDX-License-Identifier: Apache-2.0
#include "recipe/method_tables.h"

namespace kvspan {

std::span<const MethodDeclaration> all_methods() noexcept {
  static const std::vector<MethodDeclaration> all = [] {
    std::vector<MethodDeclaration> methods;
    for (const auto part :
         {detail::coding_methods(), detail::subspace_methods(), detail::token_methods()}) {
      methods.insert(methods.end(), part.begin(), part.end());
    }
    return methods;
  }();
  return all;
}

}  // namespace kvspan

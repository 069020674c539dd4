// SPDX-License-Identifier: Apache-2.0
// The table of methods: a line for each, whose row is in the file that makes it.
#include <array>

#include "recipe/declaration.h"

namespace kvspan {

MethodDeclaration bands_method(), auto_method(), full_method(), quant_method(), static_method(),
    fd_method(), rotate_method(), oja_method(), spectral_method(), prune_method(), window_method(),
    streaming_method(), h2o_method(), scissorhands_method(), snapkv_method(), quest_method(),
    shadowkv_method(), turbo_method(), oscar_method(), kvtc_method();

std::span<const MethodDeclaration> all_methods() noexcept {
  static const std::array all{
      bands_method(), auto_method(),         full_method(),   quant_method(),  turbo_method(),
      oscar_method(), kvtc_method(),         static_method(), fd_method(),     rotate_method(),
      oja_method(),   spectral_method(),     prune_method(),  window_method(), streaming_method(),
      h2o_method(),   scissorhands_method(), snapkv_method(), quest_method(),  shadowkv_method(),
  };
  return all;
}

}  // namespace kvspan

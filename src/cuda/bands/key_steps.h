// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kvspan::cuda {

// Steps of 16 numbers of a key, as operands have them: as many as the kernel that moves queries goes through, zeros
// added.
constexpr int key_steps_of(int key_dim) {
  return key_dim <= 64 ? 4 : key_dim <= 128 ? 8 : 16;
}

}  // namespace kvspan::cuda

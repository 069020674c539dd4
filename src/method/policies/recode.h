// SPDX-License-Identifier: Apache-2.0
// What happens to coefficients stored under an older basis when the basis changes.
//     rotate  mapped in place by the r x r matrix B_new B_old'; what the new basis does not span is
//             lost, and added to the residual norms
//     reuse   read with the new basis as they are, as a literal reading of OjaKV does
// Only for orthonormal codes of equal rank.
#pragma once

#include <memory>

#include "kvspan/result.h"
#include "method/group.h"

namespace kvspan {

// The codes that take the place of others in every coded segment; null: the side stays.
struct NewCodes {
  std::shared_ptr<const Code> keys;
  std::shared_ptr<const Code> values;
};

// Cost: tokens r^2. On failure the group is as it was.
Status rotate_coefficients(Group& group, const NewCodes& codes);
Status reuse_coefficients(Group& group, const NewCodes& codes);

}  // namespace kvspan

// SPDX-License-Identifier: Apache-2.0
#include "method/policies/policy.h"

#include "base/fail.h"

namespace kvspan {

std::string Policy::code_source(const Group&) const {
  return {};
}

Status Policy::save(const StateWriter&) const {
  return fail(ErrorCode::kUnsupported, "what this method has learnt cannot be saved");
}

Status Policy::load(Group&, const StateReader&) {
  return fail(ErrorCode::kUnsupported, "what this method has learnt cannot be loaded");
}

Status Policy::give_codes(const Group&, GroupTokens&, PositionRange&) const {
  return fail(ErrorCode::kUnsupported, "what this method codes is the host's alone");
}

Status Policy::take_codes(const LayerTokens&, std::size_t, Group&) {
  return fail(ErrorCode::kUnsupported, "what this method codes is the host's alone");
}

}  // namespace kvspan

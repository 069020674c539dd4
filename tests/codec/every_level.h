// SPDX-License-Identifier: Apache-2.0
// Runs a body once per instruction-set level of this processor, with that level in force.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/cpu_level.h"

namespace kvspan {

template <class Body>
void at_every_level(Body body) {
  for (const CpuLevel level : available_cpu_levels()) {
    SCOPED_TRACE("level " + std::string(name_of(level)));
    ASSERT_TRUE(force_cpu_level(level));
    body(level);
  }
  ASSERT_TRUE(force_cpu_level(available_cpu_levels().back()));
}

}  // namespace kvspan

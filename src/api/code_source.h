// SPDX-License-Identifier: Apache-2.0
// Which code a cache uses at the moment, in words, where a method has a say in that.
#pragma once

#include <string>

#include "kvspan/cache.h"

namespace kvspan {

// Of the first layer that has codes; layers of one cache get theirs alike. "" where rows are held
// without learned codes.
std::string code_source(const KvCache& cache);

}  // namespace kvspan

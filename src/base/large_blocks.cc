// SPDX-License-Identifier: Apache-2.0
#include "base/large_blocks.h"

#include <cstdlib>  // defines __GLIBC__ where that is the library
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace kvspan {

void keep_large_blocks_apart() noexcept {
#ifdef __GLIBC__
  // A threshold that is set does not grow with what is freed.
  mallopt(M_MMAP_THRESHOLD, 128 * 1024);
#endif
}

}  // namespace kvspan

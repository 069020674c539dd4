/* SPDX-License-Identifier: Apache-2.0
 * That C can read the headers of the C interface, each alone, and twice. */
#include <kvspan/kvspan_cuda.h>
#include <kvspan/kvspan_moments.h>

#include <kvspan/kvspan.h>
#include <kvspan/kvspan_cuda.h>

_Static_assert(offsetof(kvspan_cuda_step, struct_size) == 0, "structures begin with their size");
_Static_assert(offsetof(kvspan_cuda_rows, struct_size) == 0, "structures begin with their size");
_Static_assert(offsetof(kvspan_cuda_out, struct_size) == 0, "structures begin with their size");
_Static_assert(offsetof(kvspan_cuda_options, struct_size) == 0, "structures begin with their size");

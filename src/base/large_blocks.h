// SPDX-License-Identifier: Apache-2.0
// How the C library places large blocks.
#pragma once

namespace kvspan {

// From here on blocks of 128 KiB and more get pages of their own, which return to the system when
// they are freed. Else, once a larger one has been freed, they lie among small ones that stay (a
// cache's coded tokens), and what is between those is held without being used: a third of what they
// take. Not smaller ones: a block of whole pages and its header takes one page more, and segments
// of full rows are often such blocks. For a program to call first of all; nothing where the library
// has no such choice.
void keep_large_blocks_apart() noexcept;

}  // namespace kvspan

// SPDX-License-Identifier: Apache-2.0
// Checks of what a caller must guarantee (shapes, ranges). A failure is a bug in the calling code:
// it prints the condition and its place and aborts. What a user can type never reaches these; it is
// answered with an Error.
#pragma once

namespace kvspan::detail {
[[noreturn]] void expectation_failed(const char* condition, const char* message, const char* file,
                                     int line) noexcept;
}

#define KVSPAN_EXPECT(condition, message) \
  ((condition) ? void(0)                  \
               : ::kvspan::detail::expectation_failed(#condition, message, __FILE__, __LINE__))

#ifdef NDEBUG
#define KVSPAN_DEBUG_EXPECT(condition, message) void(0)
#else
#define KVSPAN_DEBUG_EXPECT(condition, message) KVSPAN_EXPECT(condition, message)
#endif

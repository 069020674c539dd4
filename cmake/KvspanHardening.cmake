# SPDX-License-Identifier: Apache-2.0
# What makes a fault of memory harder to use: kvspan takes bytes from files, the network and Redis.
#     kvspan_hardened   for modules and the program: stack protector, checks of buffers whose size is known (_FORTIFY_SOURCE)
#     kvspan_sealed     for what is linked as a program or a shared library: all symbols bound at the start, then read-only
# Programs are position-independent. Nothing of this in sanitized builds, which find the same and more. What it costs is in
# SECURITY.md; tests/install/hardening_test.py reads it from the files.
option(KVSPAN_HARDENING "Stack protector, _FORTIFY_SOURCE, full RELRO and BIND_NOW (off with sanitizers)" ON)

include(CheckPIESupported)
check_pie_supported()

add_library(kvspan_hardened INTERFACE)
add_library(kvspan_sealed INTERFACE)
if(KVSPAN_HARDENING AND NOT KVSPAN_SANITIZE)
  set(fortify 2)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12)
    set(fortify 3)
  endif()
  # glibc checks buffers in optimized code only, and warns elsewhere.
  target_compile_options(kvspan_hardened INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-fstack-protector-strong
    $<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=${fortify}>>)
  target_link_options(kvspan_sealed INTERFACE LINKER:-z,relro,-z,now,-z,noexecstack)
endif()

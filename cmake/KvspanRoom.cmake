# A room is one static library under src/ and one test program under tests/; both link only what
# the room may use, so that a forbidden dependency does not compile.
# SPDX-License-Identifier: Apache-2.0

add_library(kvspan_warnings INTERFACE)
target_compile_options(kvspan_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -Wpedantic -Wshadow -fvisibility=hidden>)
# Warnings stop a build with the compiler that the tests run with; what a newer one finds must not
# stop a newcomer.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 takes strings whose length it knows for arrays of 32 bytes.
  target_compile_options(kvspan_warnings INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror -Wno-error=array-bounds>)
endif()
add_library(kvspan_flags INTERFACE)  # of our own code
target_link_libraries(kvspan_flags INTERFACE kvspan_warnings)
if(KVSPAN_SANITIZE)
  # GCC's search for uninitialised values is misled by the code that sanitizers add. Null pointers,
  # pointers that wrap and accesses past an object are stopped by the address sanitizer too; alignment is
  # checked where it matters, in kernels: all four on every access doubled the time to compile.
  # Variables of a scope that has ended: a fifth of that time, in kernels two thirds.
  target_compile_options(kvspan_flags INTERFACE -fsanitize=${KVSPAN_SANITIZE}
    -fno-sanitize=null,alignment,pointer-overflow,object-size -fno-sanitize-address-use-after-scope
    -fno-sanitize-recover=all -fno-omit-frame-pointer $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(kvspan_flags INTERFACE -fsanitize=${KVSPAN_SANITIZE})
endif()
if(KVSPAN_FUZZ)  # counts of the edges that an input reaches, which guide libFuzzer
  target_compile_options(kvspan_flags INTERFACE -fsanitize=fuzzer-no-link)
  target_compile_definitions(kvspan_flags INTERFACE __SANITIZE_ADDRESS__)  # GCC says so, clang 19 does not
endif()

# kvspan_precompile(TARGET KIND headers...): the headers that nearly every file includes, parsed once for
# all targets of a kind, which are compiled with the same flags. The first target of a kind makes the file.
# CLI11 is not among them: every file that sees it, used or not, compiles its constants for four seconds.
set(KVSPAN_HEADERS <fmt/format.h> <algorithm> <functional> <memory> <span> <string> <vector>)
function(kvspan_precompile TARGET KIND)
  get_property(first GLOBAL PROPERTY KVSPAN_PRECOMPILED_${KIND})
  if(first)
    target_precompile_headers(${TARGET} REUSE_FROM ${first})
  else()
    set_property(GLOBAL PROPERTY KVSPAN_PRECOMPILED_${KIND} ${TARGET})
    target_precompile_headers(${TARGET} PRIVATE ${ARGN})
  endif()
endfunction()

# kvspan_unite(TARGET files...): with KVSPAN_UNITY, compiles the target's files several at a time, all but
# the given ones, and those with flags of their own. A file stands apart if it replaces operator new, or if a
# class of a header has members there whose types are the file's own, of which GCC warns in an included file.
function(kvspan_unite TARGET)
  if(KVSPAN_UNITY)
    set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# kvspan_room(NAME [COLD] [UNITED] SOURCES a.cc ... [USES room|library ...] [PRIVATE library ...] [HOT a.cc ...]
#             [APART a.cc ...])
# COLD: nothing in the room runs often, and its libraries are slow to compile (JSON, flags), so it is
# optimised little. COLD and UNITED rooms are for kvspan_unite, except the files APART. HOT: files of a UNITED
# room that run for every token. As released they, and rooms that are not UNITED, are compiled file by file in
# any case, so that code that must be fast does not depend on how it was built.
set(KVSPAN_COLD_FLAGS -O1)
if(KVSPAN_SANITIZE)
  set(KVSPAN_COLD_FLAGS -O0)
endif()
function(kvspan_room NAME)
  cmake_parse_arguments(ARG "COLD;UNITED" "" "SOURCES;USES;PRIVATE;HOT;APART" ${ARGN})
  set(target kvspan_${NAME})
  add_library(${target} STATIC ${ARG_SOURCES})
  if(KVSPAN_SANITIZE)
    kvspan_unite(${target} ${ARG_APART})
  elseif(ARG_COLD OR ARG_UNITED)
    kvspan_unite(${target} ${ARG_HOT} ${ARG_APART})
  endif()
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/src>)
  target_link_libraries(${target} PUBLIC ${ARG_USES}
    PRIVATE $<BUILD_INTERFACE:kvspan_flags> $<BUILD_INTERFACE:kvspan_hardened> ${ARG_PRIVATE})
  if(NOT ARG_COLD)
    kvspan_precompile(${target} rooms ${KVSPAN_HEADERS})
    return()
  endif()
  target_compile_options(${target} PRIVATE ${KVSPAN_COLD_FLAGS})
  if("nlohmann_json::nlohmann_json" IN_LIST ARG_USES OR "nlohmann_json::nlohmann_json" IN_LIST ARG_PRIVATE)
    kvspan_precompile(${target} json_rooms ${KVSPAN_HEADERS} <nlohmann/json.hpp>)
  else()
    kvspan_precompile(${target} cold_rooms ${KVSPAN_HEADERS})
  endif()
endfunction()

# kvspan_kernel(FILE flags...): the instruction set of one source file, given to no other. Files of
# another processor family are left out by the caller (KVSPAN_ARM, KVSPAN_X86).
function(kvspan_kernel FILE)
  if(KVSPAN_SANITIZE MATCHES "undefined")
    list(APPEND ARGN -fsanitize=alignment)
  endif()
  set_source_files_properties(${FILE} PROPERTIES COMPILE_OPTIONS "${ARGN}"
    SKIP_PRECOMPILE_HEADERS ON)
endfunction()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(KVSPAN_ARM ON)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  set(KVSPAN_X86 ON)
  # Of CpuLevel::kAvx512. GCC 12's own header reads an undefined register on purpose, and is warned about it.
  set(KVSPAN_AVX512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c
    -Wno-uninitialized -Wno-maybe-uninitialized)
endif()

# Tests of a sanitized build carry its name, so that one ctest run can hold several builds (./test).
set(KVSPAN_TEST_PREFIX "")
set(KVSPAN_TEST_BUILD release)
if(KVSPAN_SANITIZE)
  set(KVSPAN_TEST_BUILD asan)
  if(KVSPAN_SANITIZE MATCHES "thread")
    set(KVSPAN_TEST_BUILD tsan)
  endif()
  set(KVSPAN_TEST_PREFIX ${KVSPAN_TEST_BUILD}.)
endif()

# kvspan_room_tests(NAME [COLD] [TEAMS] [WATCHED] [COST n] [SHARDS n] [TEAM_TESTS filter] [RELEASED filter]
#                   SOURCES a_test.cc ... [LINKS library ...] [APART a_test.cc ...]): the tests of one room.
# COLD: they compute little themselves, so that they are not optimised at all.
# TEAMS: they count as two processors, because they run teams most of the time: members wait for each
# other spinning, and two such programs on two cores would wait long. TEAM_TESTS: those of that name do,
# and run apart from the others.
# WATCHED: allocations of the program are watched (tests/base/allocation_watch.h).
# COST: seconds, roughly; the longest tests start first. SHARDS: parts that run side by side.
# RELEASED: tests of that name run as released only: long sweeps about numbers, of code that others of the
# room run with sanitizers too.
function(kvspan_room_tests NAME)
  cmake_parse_arguments(ARG "COLD;TEAMS;WATCHED" "COST;SHARDS;TEAM_TESTS;RELEASED" "SOURCES;LINKS;APART" ${ARGN})
  set(target ${NAME}_tests)
  if(ARG_WATCHED)
    list(APPEND ARG_SOURCES ${CMAKE_SOURCE_DIR}/tests/base/allocation_watch.cc)
    list(APPEND ARG_APART ${CMAKE_SOURCE_DIR}/tests/base/allocation_watch.cc)
  endif()
  add_executable(${target} ${ARG_SOURCES})
  kvspan_unite(${target} ${ARG_APART})
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_definitions(${target} PRIVATE KVSPAN_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  if(KVSPAN_SANITIZE)
    target_compile_definitions(${target} PRIVATE KVSPAN_SANITIZED)
  endif()
  target_link_libraries(${target} PRIVATE kvspan_${NAME} ${ARG_LINKS} kvspan_flags
    GTest::gtest GTest::gtest_main fmt::fmt)
  # Tests are compiled more often than run for long: -O3 took nearly twice as long to compile.
  set(headers <gtest/gtest.h> <fmt/format.h> <random> <vector>)
  if(ARG_COLD)
    target_compile_options(${target} PRIVATE -O0)
    kvspan_precompile(${target} cold_tests ${headers})
  else()
    target_compile_options(${target} PRIVATE -O1)
    kvspan_precompile(${target} tests ${headers})
  endif()

  set(name ${KVSPAN_TEST_PREFIX}${NAME})
  set(others "")
  if(KVSPAN_SANITIZE AND ARG_RELEASED)
    list(APPEND others ${ARG_RELEASED})
  endif()
  if(ARG_TEAM_TESTS)
    add_test(NAME ${name}.teams COMMAND ${target} --gtest_filter=${ARG_TEAM_TESTS})
    set_tests_properties(${name}.teams PROPERTIES TIMEOUT 900 PROCESSORS 2)
    list(APPEND others ${ARG_TEAM_TESTS})
    if(ARG_COST)
      set_tests_properties(${name}.teams PROPERTIES COST ${ARG_COST})
    endif()
  endif()
  set(filter "")
  if(others)
    string(JOIN : others ${others})
    set(filter --gtest_filter=-${others})
  endif()
  set(names ${name})
  if(ARG_SHARDS)
    set(names "")
    foreach(shard RANGE 1 ${ARG_SHARDS})
      list(APPEND names ${name}.${shard})
      math(EXPR index "${shard} - 1")
      add_test(NAME ${name}.${shard} COMMAND ${target} ${filter})
      set_tests_properties(${name}.${shard} PROPERTIES
        ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${index}")
    endforeach()
  else()
    add_test(NAME ${name} COMMAND ${target} ${filter})
  endif()
  set(processors 1)
  if(ARG_TEAMS)
    set(processors 2)
  endif()
  set_tests_properties(${names} PROPERTIES TIMEOUT 900 PROCESSORS ${processors})
  if(ARG_COST)
    set_tests_properties(${names} PROPERTIES COST ${ARG_COST})
  endif()
endfunction()

# kvspan_program(SOURCES main.cc ... USES room ...): the program, at bin/kvspan of the build folder.
function(kvspan_program)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES" ${ARGN})
  add_executable(kvspan_program ${ARG_SOURCES})
  set_target_properties(kvspan_program PROPERTIES OUTPUT_NAME kvspan
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
  target_link_libraries(kvspan_program PRIVATE ${ARG_USES} kvspan_flags kvspan_hardened kvspan_sealed)
  install(TARGETS kvspan_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

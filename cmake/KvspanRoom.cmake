# A room is one static library under src/ and one test program under tests/; both link only what
# the room may use, so that a forbidden dependency does not compile.
# SPDX-License-Identifier: Apache-2.0

add_library(kvspan_warnings INTERFACE)
target_compile_options(kvspan_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -Wpedantic -Wshadow -fvisibility=hidden>)
# Warnings stop a build with the compiler that the tests run with; what a newer one finds must not
# stop a newcomer.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(kvspan_warnings INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()
add_library(kvspan_flags INTERFACE)  # of our own code
target_link_libraries(kvspan_flags INTERFACE kvspan_warnings)
if(KVSPAN_SANITIZE)
  # GCC's search for uninitialised values is misled by the code that sanitizers add. Null pointers are
  # stopped by the address sanitizer too; alignment is checked where it matters, in kernels: both on
  # every access doubled the time to compile.
  target_compile_options(kvspan_flags INTERFACE -fsanitize=${KVSPAN_SANITIZE} -fno-sanitize=null,alignment
    -fno-sanitize-recover=all -fno-omit-frame-pointer -Wno-maybe-uninitialized)
  target_link_options(kvspan_flags INTERFACE -fsanitize=${KVSPAN_SANITIZE})
endif()

# kvspan_room(NAME [COLD] SOURCES a.cc ... [USES room|library ...] [PRIVATE library ...])
# COLD: nothing in the room runs often, and its libraries are slow to compile (JSON, flags), so it is
# optimised little.
set(KVSPAN_COLD_FLAGS -O1)
if(KVSPAN_SANITIZE)
  set(KVSPAN_COLD_FLAGS -O0)
endif()
function(kvspan_room NAME)
  cmake_parse_arguments(ARG "COLD" "" "SOURCES;USES;PRIVATE" ${ARGN})
  set(target kvspan_${NAME})
  add_library(${target} STATIC ${ARG_SOURCES})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/src>)
  target_link_libraries(${target} PUBLIC ${ARG_USES}
    PRIVATE $<BUILD_INTERFACE:kvspan_flags> ${ARG_PRIVATE})
  # What nearly every file includes, parsed once; COLD rooms are those around JSON and flags.
  set(headers <fmt/format.h> <algorithm> <functional> <memory> <span> <string> <vector>)
  if("CLI11::CLI11" IN_LIST ARG_USES)
    list(APPEND headers <CLI/CLI.hpp>)
  endif()
  if("nlohmann_json::nlohmann_json" IN_LIST ARG_USES OR "nlohmann_json::nlohmann_json" IN_LIST ARG_PRIVATE)
    list(APPEND headers <nlohmann/json.hpp>)
  endif()
  target_precompile_headers(${target} PRIVATE ${headers})
  if(ARG_COLD)
    target_compile_options(${target} PRIVATE ${KVSPAN_COLD_FLAGS})
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
endif()

# Tests of a sanitized build carry its name, so that one ctest run can hold several builds (./test).
set(KVSPAN_TEST_PREFIX "")
if(KVSPAN_SANITIZE MATCHES "thread")
  set(KVSPAN_TEST_PREFIX "tsan.")
elseif(KVSPAN_SANITIZE)
  set(KVSPAN_TEST_PREFIX "asan.")
endif()

# kvspan_room_tests(NAME [COLD] [TEAMS] SOURCES a_test.cc ... [LINKS library ...]): the tests of one room.
# TEAMS: they count as two processors, because they run teams most of the time: members wait for each
# other spinning, and two such programs on two cores would wait long.
function(kvspan_room_tests NAME)
  cmake_parse_arguments(ARG "COLD;TEAMS" "" "SOURCES;LINKS" ${ARGN})
  set(processors 1)
  if(ARG_TEAMS)
    set(processors 2)
  endif()
  set(target ${NAME}_tests)
  add_executable(${target} ${ARG_SOURCES})
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_definitions(${target} PRIVATE KVSPAN_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE kvspan_${NAME} ${ARG_LINKS} kvspan_flags
    GTest::gtest GTest::gtest_main fmt::fmt)
  # Half of a test file's compile time was these, read again for every file.
  target_precompile_headers(${target} PRIVATE <gtest/gtest.h> <fmt/format.h> <random> <vector>)
  if(ARG_COLD)
    target_compile_options(${target} PRIVATE ${KVSPAN_COLD_FLAGS})
  endif()
  add_test(NAME ${KVSPAN_TEST_PREFIX}${NAME} COMMAND ${target})
  set_tests_properties(${KVSPAN_TEST_PREFIX}${NAME} PROPERTIES TIMEOUT 900 PROCESSORS ${processors})
endfunction()

# kvspan_program(SOURCES main.cc ... USES room ...): the program, at bin/kvspan of the build folder.
function(kvspan_program)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES" ${ARGN})
  add_executable(kvspan_program ${ARG_SOURCES})
  set_target_properties(kvspan_program PROPERTIES OUTPUT_NAME kvspan
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
  target_link_libraries(kvspan_program PRIVATE ${ARG_USES} kvspan_flags)
  install(TARGETS kvspan_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# SPDX-License-Identifier: Apache-2.0
# How scripts/dependencies.sh compiles llama.cpp's server, without a change of its sources: little of it is
# computation, and most of its time to compile went to the same headers again and again.
# Given to the archive's project as CMAKE_PROJECT_INCLUDE.
function(kvspan_server_flags)
  foreach(target IN ITEMS server-context llama-server-impl mtmd cpp-httplib)
    target_compile_options(${target} PRIVATE -O1)
  endforeach()
  target_precompile_headers(server-context PRIVATE <${PROJECT_SOURCE_DIR}/tools/server/server-task.h>)
  target_precompile_headers(llama-server-impl PRIVATE <${PROJECT_SOURCE_DIR}/tools/server/server-context.h>)
  target_precompile_headers(llama-common PRIVATE <${PROJECT_SOURCE_DIR}/common/chat.h>)
endfunction()
if(PROJECT_NAME STREQUAL "llama.cpp")
  cmake_language(DEFER DIRECTORY ${CMAKE_SOURCE_DIR} CALL kvspan_server_flags)
endif()

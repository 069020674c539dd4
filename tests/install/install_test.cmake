# SPDX-License-Identifier: Apache-2.0
# Run by ctest with BUILD, SOURCE, WORK, CXX and GENERATOR set; prints what the example prints.
function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${ARGN}\nended with ${code}:\n${text}")
  endif()
  set(text "${text}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK}/prefix ${WORK}/embed ${WORK}/source)
# The example is copied, so that no path inside it can reach kvspan's tree.
file(COPY ${SOURCE}/examples/embed/ DESTINATION ${WORK}/source)
step(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
step(${CMAKE_COMMAND} -G ${GENERATOR} -S ${WORK}/source -B ${WORK}/embed -DCMAKE_PREFIX_PATH=${WORK}/prefix
  -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS=-Wall\ -Wextra\ -Werror)
step(${CMAKE_COMMAND} --build ${WORK}/embed)
step(${WORK}/embed/embed)
message("${text}")

# C: nothing but the installed prefix, cc and pkg-config.
file(GLOB_RECURSE packages ${WORK}/prefix/*/kvspan.pc)
list(LENGTH packages count)
if(NOT count EQUAL 1)
  message(FATAL_ERROR "kvspan.pc is installed ${count} times: ${packages}")
endif()
cmake_path(GET packages PARENT_PATH package_folder)
cmake_path(GET package_folder PARENT_PATH libraries)
step(sh -c "PKG_CONFIG_PATH='${package_folder}' && export PKG_CONFIG_PATH && eval cc -std=c11 -Wall -Wextra -Werror \
  \"'${WORK}/source/embed_c.c'\" $(pkg-config --cflags --libs kvspan) -lm \"'-Wl,-rpath,${libraries}'\" \
  -o \"'${WORK}/embed_c'\"")
step(${WORK}/embed_c)
message("${text}")
# Only the C interface is shown.
step(sh -c "nm -D --defined-only '${libraries}/libkvspan.so' | grep -v ' kvspan_' || true")
if(text MATCHES "[^ \n]")
  message(FATAL_ERROR "libkvspan.so shows more than its C interface:\n${text}")
endif()

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

# Unpacks data files kept as .xz into the build folder.
# SPDX-License-Identifier: Apache-2.0

# kvspan_unpack(TARGET FILE.xz ...): FILE, relative to the source folder, is unpacked to the same path below
# ${CMAKE_BINARY_DIR} without its .xz, before TARGET is built. Needs the program xz.
function(kvspan_unpack TARGET)
  find_program(KVSPAN_XZ xz REQUIRED)
  foreach(file IN LISTS ARGN)
    string(REGEX REPLACE "\\.xz$" "" plain ${file})
    set(output ${CMAKE_BINARY_DIR}/${plain})
    cmake_path(GET output PARENT_PATH folder)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(OUTPUT ${output}
      COMMAND ${KVSPAN_XZ} -dc ${CMAKE_SOURCE_DIR}/${file} > ${output}
      DEPENDS ${CMAKE_SOURCE_DIR}/${file} VERBATIM COMMENT "Unpacking ${plain}")
    list(APPEND outputs ${output})
  endforeach()
  target_sources(${TARGET} PRIVATE ${outputs})
endfunction()

# SPDX-License-Identifier: Apache-2.0
# One file of the page's parts: cmake -DTO=page.html -P assemble.cmake
set(here ${CMAKE_CURRENT_LIST_DIR})
file(READ ${here}/page.css KVSPAN_PAGE_STYLE)
set(KVSPAN_PAGE_SCRIPT "")
foreach(part IN ITEMS markdown conversations stream charts page)
  file(READ ${here}/${part}.js text)
  string(APPEND KVSPAN_PAGE_SCRIPT "${text}\n")
endforeach()
configure_file(${here}/page.html.in ${TO} @ONLY)

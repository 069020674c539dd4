# What `cmake --install` gives: the library rooms as libkvspan.a, with its public headers and a package
# for find_package(kvspan) with the target kvspan::kvspan; and as libkvspan.so, which shows the C
# interface alone, with kvspan.pc for pkg-config. With KVSPAN_CUDA both have kvspan/cuda.h's functions too.
# SPDX-License-Identifier: Apache-2.0
include(CMakePackageConfigHelpers)

# The objects of the rooms are compiled once and archived again as one library, so that the rooms
# stay an inner matter. What a user's link line needs is found by the package file.
set(kvspan_installed_rooms ${KVSPAN_LIBRARY_ROOMS})
set(kvspan_installed_links fmt::fmt Threads::Threads)
set(kvspan_cuda_dependency "")
if(KVSPAN_CUDA)
  find_package(CUDAToolkit REQUIRED)
  list(APPEND kvspan_installed_rooms cuda)
  list(APPEND kvspan_installed_links CUDA::cudart_static CUDA::cublas CUDA::cusolver)
  set(kvspan_cuda_dependency "find_dependency(CUDAToolkit)")
endif()
add_library(kvspan_library STATIC)
set_target_properties(kvspan_library PROPERTIES OUTPUT_NAME kvspan EXPORT_NAME kvspan LINKER_LANGUAGE CXX)
foreach(room IN LISTS kvspan_installed_rooms)
  if(TARGET kvspan_${room})
    target_sources(kvspan_library PRIVATE $<TARGET_OBJECTS:kvspan_${room}>)
  endif()
endforeach()
target_link_libraries(kvspan_library PRIVATE ${kvspan_installed_links})
target_compile_features(kvspan_library INTERFACE cxx_std_20)
target_include_directories(kvspan_library INTERFACE
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
if(KVSPAN_SANITIZE)
  target_link_options(kvspan_library INTERFACE -fsanitize=${KVSPAN_SANITIZE})
endif()
add_library(kvspan::kvspan ALIAS kvspan_library)

if(NOT KVSPAN_SANITIZE)
  add_library(kvspan_shared SHARED)
  set_target_properties(kvspan_shared PROPERTIES OUTPUT_NAME kvspan LINKER_LANGUAGE CXX
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  foreach(room IN LISTS kvspan_installed_rooms)
    if(TARGET kvspan_${room})
      target_sources(kvspan_shared PRIVATE $<TARGET_OBJECTS:kvspan_${room}>)
    endif()
  endforeach()
  # fmt's and the standard library's templates stay inside, too.
  target_link_libraries(kvspan_shared PRIVATE ${kvspan_installed_links} kvspan_sealed)
  target_link_options(kvspan_shared PRIVATE LINKER:--version-script=${CMAKE_SOURCE_DIR}/cmake/kvspan.map)
  set_target_properties(kvspan_shared PROPERTIES LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/kvspan.map)
  install(TARGETS kvspan_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  configure_file(${CMAKE_SOURCE_DIR}/cmake/kvspan.pc.in kvspan.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kvspan.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()

set(kvspan_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvspan)
install(TARGETS kvspan_library EXPORT kvspanTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/kvspan DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT kvspanTargets NAMESPACE kvspan:: DESTINATION ${kvspan_package_dir})
file(CONFIGURE OUTPUT kvspanConfig.cmake @ONLY CONTENT
[[# Finds what libkvspan.a links to, then defines kvspan::kvspan.
include(CMakeFindDependencyMacro)
find_dependency(fmt)
find_dependency(Threads)
@kvspan_cuda_dependency@
include(${CMAKE_CURRENT_LIST_DIR}/kvspanTargets.cmake)
]])
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/kvspanConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kvspanConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/kvspanConfigVersion.cmake DESTINATION ${kvspan_package_dir})
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(KVSPAN_ENGINE)  # what the program reads: small models, texts, the converters of `kvspan import`
  foreach(folder IN ITEMS calibration models tasks text demo)
    if(EXISTS ${CMAKE_SOURCE_DIR}/data/${folder})
      install(DIRECTORY ${CMAKE_SOURCE_DIR}/data/${folder} DESTINATION ${CMAKE_INSTALL_DATADIR}/kvspan)
    endif()
  endforeach()
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/scripts DESTINATION ${CMAKE_INSTALL_DATADIR}/kvspan
    FILES_MATCHING PATTERN "convert_*.py" PATTERN "import_*.py" PATTERN "__pycache__" EXCLUDE)
endif()

# SPDX-License-Identifier: Apache-2.0
# ggml and libllama, as scripts/dependencies.sh builds them, for the rooms that may use them (llama, server).
#     kvspan_ggml    tensors, graphs, CPU backend
#     kvspan_libllama   libllama (vocabulary, GGUF metadata, the peer of the benchmarks), with kvspan_ggml
#     kvspan_libcommon  llama.cpp's common library (samplers, grammars, chat templates), with kvspan_libllama
# KVSPAN_LLAMA_PREFIX  where they are installed; unset: the user's cache folder
# KVSPAN_LLAMA_SOURCE  the sources beside them, with the Hugging Face converter and the server
# KVSPAN_LLAMA_LIBRARIES  the folder of the archives, with those of the server where that has been built
# KVSPAN_SERVER  whether the program has `kvspan serve`; unset: where the server has been built
# With KVSPAN_CUDA those that were built for CUDA (KVSPAN_CUDA=ON scripts/dependencies.sh). A named prefix need not
# have ggml's CUDA backend: layers then are the processor's.

set(KVSPAN_LLAMA_PREFIX "" CACHE PATH "Prefix of ggml and libllama; empty: the user's cache folder")
set(kvspan_dependencies_script ${CMAKE_CURRENT_LIST_DIR}/../scripts/dependencies.sh)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${kvspan_dependencies_script})

set(kvspan_llama_prefix "${KVSPAN_LLAMA_PREFIX}")
if(NOT kvspan_llama_prefix)
  set(kvspan_dependencies_cuda OFF)
  if(KVSPAN_CUDA)
    set(kvspan_dependencies_cuda ON)
  endif()
  set(kvspan_dependencies_sanitizer "")
  if(KVSPAN_SANITIZE STREQUAL "thread")
    set(kvspan_dependencies_sanitizer thread)
  endif()
  execute_process(COMMAND ${CMAKE_COMMAND} -E env KVSPAN_CUDA=${kvspan_dependencies_cuda}
    KVSPAN_SANITIZE=${kvspan_dependencies_sanitizer}
    ${kvspan_dependencies_script} --path OUTPUT_VARIABLE kvspan_deps_folder
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(kvspan_llama_prefix ${kvspan_deps_folder}/prefix)
endif()
if(NOT EXISTS ${kvspan_llama_prefix}/lib/libllama.a)
  message(FATAL_ERROR "ggml and libllama are not in ${kvspan_llama_prefix}.\n"
    "Build them once with\n    KVSPAN_CUDA=${KVSPAN_CUDA} scripts/dependencies.sh\n"
    "or name another prefix with -DKVSPAN_LLAMA_PREFIX=..., or build the library alone with -DKVSPAN_ENGINE=OFF.")
endif()
get_filename_component(KVSPAN_LLAMA_SOURCE ${kvspan_llama_prefix}/../src ABSOLUTE)
set(KVSPAN_LLAMA_LIBRARIES ${kvspan_llama_prefix}/lib)
if(NOT DEFINED KVSPAN_SERVER)
  set(KVSPAN_SERVER OFF)
  if(EXISTS ${kvspan_llama_prefix}/bin/llama-server)  # the last of its files
    set(KVSPAN_SERVER ON)
  endif()
elseif(KVSPAN_SERVER AND NOT EXISTS ${KVSPAN_LLAMA_LIBRARIES}/libserver-context.a)
  message(FATAL_ERROR "KVSPAN_SERVER=ON: llama.cpp's server is not in ${kvspan_llama_prefix}; scripts/dependencies.sh builds it.")
endif()

foreach(library IN ITEMS ggml-base ggml-cpu ggml llama cpp-httplib llama-common-base llama-common)
  add_library(kvspan_dep_${library} STATIC IMPORTED)
  set_target_properties(kvspan_dep_${library} PROPERTIES
    IMPORTED_LOCATION ${kvspan_llama_prefix}/lib/lib${library}.a
    INTERFACE_INCLUDE_DIRECTORIES ${kvspan_llama_prefix}/include)
endforeach()
set_property(TARGET kvspan_dep_ggml-base PROPERTY INTERFACE_LINK_LIBRARIES Threads::Threads m)
set_property(TARGET kvspan_dep_ggml-cpu PROPERTY INTERFACE_LINK_LIBRARIES kvspan_dep_ggml-base)
set(kvspan_ggml_backends kvspan_dep_ggml-cpu)
if(EXISTS ${kvspan_llama_prefix}/lib/libggml-cuda.a)
  if(NOT KVSPAN_CUDA)
    message(FATAL_ERROR "${kvspan_llama_prefix} was built for CUDA: configure with -DKVSPAN_CUDA=ON.")
  endif()
  find_package(CUDAToolkit REQUIRED)
  add_library(kvspan_dep_ggml-cuda STATIC IMPORTED)
  set_target_properties(kvspan_dep_ggml-cuda PROPERTIES
    IMPORTED_LOCATION ${kvspan_llama_prefix}/lib/libggml-cuda.a
    # The runtime that kvspan's own kernels have.
    INTERFACE_LINK_LIBRARIES "kvspan_dep_ggml-base;CUDA::cudart_static;CUDA::cublas;CUDA::cublasLt;CUDA::cuda_driver")
  list(APPEND kvspan_ggml_backends kvspan_dep_ggml-cuda)
endif()
set_property(TARGET kvspan_dep_ggml PROPERTY INTERFACE_LINK_LIBRARIES
  ${kvspan_ggml_backends} kvspan_dep_ggml-base ${CMAKE_DL_LIBS})
set_property(TARGET kvspan_dep_llama PROPERTY INTERFACE_LINK_LIBRARIES kvspan_dep_ggml)
set_property(TARGET kvspan_dep_llama-common PROPERTY INTERFACE_LINK_LIBRARIES
  kvspan_dep_llama-common-base kvspan_dep_cpp-httplib kvspan_dep_llama)
# Its HTTP client and server speak TLS where OpenSSL was there when they were built.
find_package(OpenSSL QUIET)
add_library(kvspan_libssl INTERFACE IMPORTED)
if(OpenSSL_FOUND)
  set_property(TARGET kvspan_libssl PROPERTY INTERFACE_LINK_LIBRARIES OpenSSL::SSL OpenSSL::Crypto)
endif()
set_property(TARGET kvspan_dep_cpp-httplib PROPERTY INTERFACE_LINK_LIBRARIES kvspan_libssl)
# Its headers are not installed.
set_property(TARGET kvspan_dep_llama-common APPEND PROPERTY INTERFACE_INCLUDE_DIRECTORIES
  ${KVSPAN_LLAMA_SOURCE}/common ${KVSPAN_LLAMA_SOURCE}/vendor)

add_library(kvspan_ggml INTERFACE IMPORTED)
set_property(TARGET kvspan_ggml PROPERTY INTERFACE_LINK_LIBRARIES kvspan_dep_ggml)
add_library(kvspan_libllama INTERFACE IMPORTED)
set_property(TARGET kvspan_libllama PROPERTY INTERFACE_LINK_LIBRARIES kvspan_dep_llama)
add_library(kvspan_libcommon INTERFACE IMPORTED)
set_property(TARGET kvspan_libcommon PROPERTY INTERFACE_LINK_LIBRARIES kvspan_dep_llama-common)

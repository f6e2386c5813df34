# The CUDA backend: whether it is built, for which GPUs, and how .cu files are compiled.
#
# OFF   (the default) ignores a toolkit: the program has no CUDA code and needs none to build.
# ON    fails without a toolkit.
# AUTO  is ON where nvcc is found and OFF elsewhere.
set(FATHOM_CUDA OFF CACHE STRING "The CUDA backend: OFF, ON or AUTO")
set(FATHOM_CUDA_ARCHS 90a CACHE STRING "GPU architectures that kernels are compiled for")
set_property(CACHE FATHOM_CUDA PROPERTY STRINGS OFF ON AUTO)
# To see that device code compiles, in half the time: nothing that anyone would run.
option(FATHOM_CUDA_FAST_COMPILE "Compile Hopper's kernels without optimising" OFF)
# For compute-sanitizer racecheck: every lane arrives at barriers, lines are known.
set(FATHOM_RACECHECK OFF CACHE STRING "Compile kernels for racecheck: OFF, ON, or a regular expression of the files that are")

set(FATHOM_WITH_CUDA OFF)
if(FATHOM_CUDA STREQUAL "AUTO" OR FATHOM_CUDA)
  include(CheckLanguage)
  find_program(FATHOM_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(FATHOM_NVCC AND NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${FATHOM_NVCC})
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(FATHOM_WITH_CUDA ON)
  elseif(NOT FATHOM_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "FATHOM_CUDA is ON but there is no nvcc; name it with -DCMAKE_CUDA_COMPILER")
  endif()
endif()

if(FATHOM_WITH_CUDA)
  # Machine code for the listed GPUs alone: no PTX that a driver would compile at the first launch.
  list(TRANSFORM FATHOM_CUDA_ARCHS APPEND -real OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  if(FATHOM_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${FATHOM_CCACHE})
  endif()
  enable_language(CUDA)
  # CMake 3.25 knows no dialect of CUDA above C++17 by itself.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA_STANDARD 20)
  find_package(CUDAToolkit REQUIRED)
  # What this program says it has code for: GPUs that have every kernel. 100a has a few alone.
  set(complete ${FATHOM_CUDA_ARCHS})
  list(REMOVE_ITEM complete 100a)
  if(NOT complete)
    message(FATAL_ERROR "FATHOM_CUDA_ARCHS has 100a alone, which not all kernels are compiled for; add 90a")
  endif()
  string(REGEX REPLACE "[a-z]" "" FATHOM_CUDA_SMS "${complete}")
  string(REPLACE ";" "," FATHOM_CUDA_SMS "${FATHOM_CUDA_SMS}")
endif()

# fathom_pick_backend(VARIABLE): drops from a list of sources those of the other choice:
# NAME_cuda files or their no_cuda counterparts.
function(fathom_pick_backend variable)
  set(sources ${${variable}})
  if(FATHOM_WITH_CUDA)
    list(FILTER sources EXCLUDE REGEX "/(kernel_set_)?no_cuda[a-z_]*\\.cc$")
  else()
    list(FILTER sources EXCLUDE REGEX "/(kernel_set_)?cuda[a-z_]*\\.cc$")
  endif()
  set(${variable} ${sources} PARENT_SCOPE)
endfunction()

# fathom_cuda_objects(TARGET SOURCES...): device code as objects, in a target of its own so that
# they can be compiled alone.
function(fathom_cuda_objects target)
  add_library(${target} OBJECT ${ARGN})
  target_link_libraries(${target} PRIVATE fathom_options fathom_cuda_warnings)
  target_compile_options(${target} PRIVATE --expt-relaxed-constexpr)
  if(NOT FATHOM_RACECHECK STREQUAL "OFF")
    set(checked ${ARGN})
    if(NOT FATHOM_RACECHECK STREQUAL "ON")
      list(FILTER checked INCLUDE REGEX "${FATHOM_RACECHECK}")
    endif()
    set_source_files_properties(${checked} TARGET_DIRECTORY ${target}
      PROPERTIES COMPILE_DEFINITIONS FATHOM_RACECHECK=1 COMPILE_OPTIONS -lineinfo)
  endif()
endfunction()

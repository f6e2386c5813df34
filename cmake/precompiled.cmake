# Headers that most files of a kind include, compiled once a build: they are a sixth of what a file takes
# under sanitizers, and more of a test. Ours only where every file of the kind has them: a change in one must
# not compile everything again.
#
# Without a sanitizer for tests and the program alone: GCC 12 reports false positives within the standard library's
# headers, which it knows for headers of the system no more when they come from there. Libraries have these warnings.
#
# AUTO (the default) is OFF where there is a compiler cache, which keeps no object that was made with
# precompiled headers.
set(FATHOM_PCH AUTO CACHE STRING "Precompiled headers: OFF, ON or AUTO")
set_property(CACHE FATHOM_PCH PROPERTY STRINGS OFF ON AUTO)
set(FATHOM_WITH_PCH ${FATHOM_PCH})
if(FATHOM_PCH STREQUAL "AUTO")
  set(FATHOM_WITH_PCH ON)
  if(CMAKE_CXX_COMPILER_LAUNCHER)
    set(FATHOM_WITH_PCH OFF)
  endif()
endif()

set(FATHOM_STANDARD_HEADERS <algorithm> <array> <cmath> <cstdint> <cstring> <functional> <limits> <map>
  <memory> <numeric> <optional> <set> <span> <string> <string_view> <utility> <vector>)
set(FATHOM_PCH_OF_TESTS ${FATHOM_STANDARD_HEADERS} <fstream> <random> <gmock/gmock.h> <gtest/gtest.h>)
set(FATHOM_PCH_OF_LIBRARIES ${FATHOM_STANDARD_HEADERS})
set(FATHOM_PCH_OF_CASES ${FATHOM_STANDARD_HEADERS} "fathom/kernels/conformance/kernel_case.h")
set(FATHOM_PCH_OF_PROGRAM ${FATHOM_STANDARD_HEADERS} <CLI/CLI.hpp>)

# fathom_precompiled(TARGET KIND): KIND is TESTS, LIBRARIES, CASES or PROGRAM. The first target of a kind
# compiles the headers and the others take what it made; all have the same flags.
function(fathom_precompiled target kind)
  if(NOT FATHOM_WITH_PCH OR NOT (FATHOM_SANITIZE OR kind MATCHES "^(TESTS|PROGRAM)$"))
    return()
  endif()
  target_compile_options(${target} PRIVATE
    $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds> $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overread>)
  get_property(first GLOBAL PROPERTY fathom_pch_of_${kind})
  if(first)
    target_precompile_headers(${target} REUSE_FROM ${first})
  else()
    target_precompile_headers(${target} PRIVATE ${FATHOM_PCH_OF_${kind}})
    set_property(GLOBAL PROPERTY fathom_pch_of_${kind} ${target})
  endif()
endfunction()

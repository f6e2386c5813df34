# Declares the options and prints what was chosen.
option(FATHOM_CLI "Build the fathom program" ON)
option(FATHOM_TESTS "Build the tests" ON)
option(FATHOM_TRACE "Compile the recording hook" ON)
option(FATHOM_WERROR "Treat warnings as errors" OFF)
option(FATHOM_FUZZ "Build libFuzzer targets (needs Clang)" OFF)
option(FATHOM_COVERAGE "Instrument for coverage" OFF)
option(FATHOM_FAILPOINTS "Compile fault injection in" OFF)
set(FATHOM_SANITIZE "" CACHE STRING "Sanitizers: empty, address, undefined, thread, or a list with commas")

# A process takes a thirtieth of a second to start, under a sanitizer more, which is most of what many tests take.
set(shards OFF)
if(FATHOM_SANITIZE)
  set(shards ON)
endif()
option(FATHOM_TEST_SHARDS "A ctest test is a sixteenth of a test program, not one of its tests" ${shards})

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# ccache only when it is there; it changes nothing but the time of a second build.
find_program(FATHOM_CCACHE ccache)
if(FATHOM_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${FATHOM_CCACHE})
endif()

add_library(fathom_options INTERFACE)
target_include_directories(fathom_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_definitions(fathom_options INTERFACE
  FATHOM_VERSION="${PROJECT_VERSION}"
  $<$<BOOL:${FATHOM_TRACE}>:FATHOM_TRACE=1>
  $<$<BOOL:${FATHOM_FAILPOINTS}>:FATHOM_FAILPOINTS=1>)
if(FATHOM_SANITIZE)
  target_compile_options(fathom_options INTERFACE -fsanitize=${FATHOM_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer -g1)
  target_link_options(fathom_options INTERFACE -fsanitize=${FATHOM_SANITIZE})
  # A check that fails ends in an illegal instruction, whose stack the address sanitizer prints, in place of a
  # message: a quarter less to compile. Null pointers fault by themselves, and what lies outside of an object the
  # address sanitizer finds, so that there are no checks of them: an eighth less.
  if(FATHOM_SANITIZE_TRAP)
    target_compile_options(fathom_options INTERFACE -fsanitize-undefined-trap-on-error
      -fno-sanitize=null,object-size,pointer-overflow,vptr)
    target_compile_options(fathom_options INTERFACE $<$<BOOL:$<TARGET_PROPERTY:FATHOM_IS_TEST>>:-fno-sanitize=undefined>)
  endif()
  target_compile_definitions(fathom_options INTERFACE FATHOM_SANITIZED=1)
endif()
if(FATHOM_FUZZ)
  target_compile_options(fathom_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(FATHOM_COVERAGE)
  target_compile_options(fathom_options INTERFACE --coverage -O0)
  target_link_options(fathom_options INTERFACE --coverage)
endif()

function(fathom_print_summary)
  set(backends cpu)
  if(FATHOM_WITH_CUDA)
    string(APPEND backends " and cuda (${FATHOM_CUDA_ARCHS})")
    message(STATUS "tests of the GPU run with ./dev gpu-test on a machine that has one, not with ctest")
  endif()
  message(STATUS "fathom ${PROJECT_VERSION}: ${CMAKE_BUILD_TYPE}, backends: ${backends}, "
                 "sanitizers: ${FATHOM_SANITIZE}, tests: ${FATHOM_TESTS}, ccache: ${FATHOM_CCACHE}")
endfunction()

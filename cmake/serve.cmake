# The server. Its logic (fathom/serve) needs no library of others and is always built and tested;
# HTTP and TLS (fathom/serve/http: Boost, OpenSSL, zlib, zstd) and metrics (fathom/serve/metrics:
# prometheus-cpp) are built where their packages are, and `fathom serve` with them.
option(FATHOM_SERVER "Build fathom serve: needs Boost, OpenSSL and prometheus-cpp" ON)
# Constrained decoding, from the sources that scripts/fetch_xgrammar.sh puts into build/xgrammar.
set(FATHOM_GRAMMAR AUTO CACHE STRING "Constrained decoding: xgrammar, off, or AUTO (xgrammar where its sources are)")
set_property(CACHE FATHOM_GRAMMAR PROPERTY STRINGS AUTO xgrammar off)

# The core of xgrammar as a static library, where its sources are. Left out: the bindings for Python and the
# reader of the Lark language, which nothing here writes (fathom/grammar/xgrammar_seams.cc stands for it).
function(fathom_xgrammar)
  if(NOT FATHOM_GRAMMAR MATCHES "^(AUTO|xgrammar|off)$")
    message(FATAL_ERROR "FATHOM_GRAMMAR is '${FATHOM_GRAMMAR}', expected AUTO, xgrammar or off")
  endif()
  set(root ${PROJECT_SOURCE_DIR}/build/xgrammar)
  if(FATHOM_GRAMMAR STREQUAL "off")
    return()
  endif()
  if(NOT EXISTS ${root}/VERSION)
    if(FATHOM_GRAMMAR STREQUAL "xgrammar")
      message(FATAL_ERROR "FATHOM_GRAMMAR is xgrammar, but ${root} is not there; run scripts/fetch_xgrammar.sh")
    endif()
    message(STATUS "constrained decoding is left out: run scripts/fetch_xgrammar.sh for its sources")
    return()
  endif()
  set(headers ${root}/include ${root}/3rdparty/picojson ${root}/3rdparty/dlpack/include)
  # Not instrumented under sanitizers: it is not ours. What a release build here has made is the same.
  set(made ${PROJECT_SOURCE_DIR}/build/release/libxgrammar.a)
  if(FATHOM_SANITIZE AND NOT FATHOM_FUZZ AND EXISTS ${made} AND ${made} IS_NEWER_THAN ${root}/VERSION)
    file(COPY_FILE ${made} ${PROJECT_BINARY_DIR}/libxgrammar.a ONLY_IF_DIFFERENT)
    add_library(xgrammar STATIC IMPORTED GLOBAL)
    set_target_properties(xgrammar PROPERTIES IMPORTED_LOCATION ${PROJECT_BINARY_DIR}/libxgrammar.a)
    target_include_directories(xgrammar SYSTEM INTERFACE ${headers})
    target_link_libraries(xgrammar INTERFACE Threads::Threads)
    return()
  endif()
  file(GLOB_RECURSE sources ${root}/cpp/*.cc)
  list(FILTER sources EXCLUDE REGEX "/(tvm_ffi/.*|lark_converter|logging)\\.cc$")
  add_library(xgrammar STATIC ${sources})
  target_include_directories(xgrammar SYSTEM PUBLIC ${headers})
  # Its messages come to fathom in place of the error stream.
  target_compile_definitions(xgrammar PRIVATE XGRAMMAR_LOG_CUSTOMIZE=1 XGRAMMAR_ENABLE_CPPTRACE=0
    XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
  target_compile_options(xgrammar PRIVATE -w -O2 -g0)
  # Its own standard: Clang refuses it in C++20, for vectors of types that are not complete.
  set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17)
  if(FATHOM_FUZZ)
    target_compile_options(xgrammar PRIVATE -fsanitize=fuzzer-no-link)
  endif()
  target_link_libraries(xgrammar PUBLIC Threads::Threads)
endfunction()

# Under sanitizers what is no arithmetic is compiled without optimising: a third less time. Not where
# precompiled headers, which are made with optimising, save as much.
function(fathom_quick_to_compile target)
  if(FATHOM_SANITIZE AND NOT FATHOM_FUZZ)
    target_compile_options(${target} PRIVATE -O0)
  endif()
endfunction()

# fathom_serve_part(NAME FOLDER LIBS ...): fathom/serve/FOLDER as a library with its tests.
function(fathom_serve_part name folder)
  cmake_parse_arguments(arg "" "" "LIBS" ${ARGN})
  fathom_sources(sources tests ${PROJECT_SOURCE_DIR}/fathom/serve/${folder})
  if(NOT sources)
    return()
  endif()
  add_library(fathom_${name} STATIC ${sources})
  target_link_libraries(fathom_${name} PUBLIC fathom_serve ${arg_LIBS} PRIVATE fathom_warnings)
  fathom_quick_to_compile(fathom_${name})
  if(FATHOM_TESTS AND tests)
    fathom_test(${name}_test SOURCES ${tests} LIBS fathom_${name} LABELS server)
  endif()
endfunction()

function(fathom_serve_modules)
  fathom_xgrammar()
  fathom_module(grammar DEPS runtime tokenizer text os base)
  if(TARGET xgrammar)
    target_link_libraries(fathom_grammar PUBLIC xgrammar)
    target_compile_definitions(fathom_grammar PUBLIC FATHOM_WITH_GRAMMAR=1)
    # The number of states is in no public header of the library.
    set_source_files_properties(fathom/grammar/library_compile.cc PROPERTIES
      COMPILE_OPTIONS "-isystem;${PROJECT_SOURCE_DIR}/build/xgrammar/cpp"
      COMPILE_DEFINITIONS "XGRAMMAR_LOG_CUSTOMIZE=1;XGRAMMAR_ENABLE_INTERNAL_CHECK=0;XGRAMMAR_ENABLE_CPPTRACE=0")
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/fathom/serve/*.cc)
  list(FILTER sources EXCLUDE REGEX "/serve/(http|metrics)/")
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  add_library(fathom_serve STATIC ${sources})
  fathom_embed_page(fathom_serve)
  target_link_libraries(fathom_serve PUBLIC fathom_api fathom_grammar fathom_options PRIVATE fathom_warnings)
  fathom_precompiled(fathom_serve LIBRARIES)
  if(FATHOM_TESTS AND tests)
    fathom_test(serve_test SOURCES ${tests} LIBS fathom_serve LABELS unit)
  endif()
  if(NOT FATHOM_SERVER)
    return()
  endif()
  # Static, as the other libraries of the program: it needs libc alone where it runs.
  set(OPENSSL_USE_STATIC_LIBS ON)
  set(ZLIB_USE_STATIC_LIBS ON)
  find_package(Boost 1.74 QUIET)
  find_package(OpenSSL 3.0 QUIET)
  find_package(ZLIB QUIET)
  find_library(FATHOM_ZSTD NAMES libzstd.a zstd)
  find_library(FATHOM_PROMETHEUS NAMES prometheus-cpp-core)
  if(NOT Boost_FOUND OR NOT OpenSSL_FOUND OR NOT ZLIB_FOUND OR NOT FATHOM_ZSTD OR NOT FATHOM_PROMETHEUS)
    message(STATUS "fathom serve is left out: it needs libboost-dev, libssl-dev, zlib1g-dev, libzstd-dev "
                   "and prometheus-cpp-dev (./dev build installs them)")
    return()
  endif()
  set(FATHOM_WITH_SERVER ON PARENT_SCOPE)
  fathom_serve_part(serve_http http LIBS Boost::headers OpenSSL::SSL OpenSSL::Crypto ZLIB::ZLIB ${FATHOM_ZSTD})
  fathom_serve_part(serve_metrics metrics LIBS ${FATHOM_PROMETHEUS})
endfunction()

# fathom_embed_page(TARGET): the bytes of the web page as a source of TARGET.
function(fathom_embed_page target)
  set(page ${PROJECT_SOURCE_DIR}/fathom/serve/page/page.html)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page})
  file(READ ${page} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(REPLACE "0x0a," "0x0a,\n" bytes "${bytes}")  # a line of the page is a line
  set(source ${PROJECT_BINARY_DIR}/page/page_bytes.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT [[
#include "fathom/serve/page/page_bytes.h"

namespace fathom::serve {

const unsigned char kPageBytes[] = {
@bytes@};
const size_t kPageSize = sizeof(kPageBytes);

}  // namespace fathom::serve
]] @ONLY)
  target_sources(${target} PRIVATE ${source})
endfunction()

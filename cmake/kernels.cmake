# The kernels module: core, simd and the group folders that kernels.def names. The suffix of a file
# sets its instruction set, so that no file needs an #ifdef around its body.
# fathom_isa_flags(TARGET SOURCES...)
function(fathom_isa_flags target)
  foreach(source ${ARGN})
    if(source MATCHES "_avx2\\.cc$")
      set(flags -mavx2 -mfma -mf16c -mbmi2)
    elseif(source MATCHES "_avx512\\.cc$")
      set(flags -mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi
                -mavx512vnni -mavx512bf16 -mprefer-vector-width=512)
    elseif(source MATCHES "_amx\\.cc$")
      set(flags -mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi
                -mavx512vnni -mavx512bf16 -mamx-tile -mamx-bf16 -mprefer-vector-width=512)
    else()
      continue()
    endif()
    # Contraction stays off: a variant says where it fuses, so that a row's bits are its own.
    # GCC 12 takes the undefined operands inside its own intrinsics for uninitialised variables.
    set_source_files_properties(${source} TARGET_DIRECTORY ${target}
      PROPERTIES COMPILE_OPTIONS "${flags};-ffp-contract=off;$<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>"
                 SKIP_PRECOMPILE_HEADERS ON)
  endforeach()
endfunction()

# The native products of Blackwell, through CUTLASS, where FATHOM_CUDA_ARCHS has 100a. Everything
# else is compiled for the other architectures: wgmma exists on Hopper alone.
function(fathom_blackwell_kernels)
  if(NOT "100a" IN_LIST FATHOM_CUDA_ARCHS)
    return()
  endif()
  set(cutlass ${PROJECT_SOURCE_DIR}/build/cutlass/include)
  if(NOT EXISTS ${cutlass}/cutlass/cutlass.h)
    message(FATAL_ERROR "FATHOM_CUDA_ARCHS has 100a, whose kernels need CUTLASS: run scripts/fetch_cutlass.sh")
  endif()
  file(GLOB_RECURSE device_code CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/fathom/kernels/*_sm100.cu)
  fathom_cuda_objects(fathom_kernels_sm100 ${device_code})
  target_include_directories(fathom_kernels_sm100 SYSTEM PRIVATE ${cutlass})
  set_target_properties(fathom_kernels_sm100 PROPERTIES CUDA_ARCHITECTURES 100a-real)
  set(others ${CMAKE_CUDA_ARCHITECTURES})
  list(REMOVE_ITEM others 100a-real)
  set_target_properties(fathom_kernels_cuda PROPERTIES CUDA_ARCHITECTURES "${others}")
  target_compile_definitions(fathom_kernels_cuda PRIVATE FATHOM_SM100=1)
  target_sources(fathom_kernels PRIVATE $<TARGET_OBJECTS:fathom_kernels_sm100>)
endfunction()

function(fathom_kernels_module)
  fathom_sources(sources tests ${PROJECT_SOURCE_DIR}/fathom/kernels)
  set(cases ${sources})
  list(FILTER cases INCLUDE REGEX "_cases\\.cc$|/conformance/")
  list(FILTER sources EXCLUDE REGEX "_cases\\.cc$|/conformance/")
  add_library(fathom_kernels STATIC ${sources})
  target_link_libraries(fathom_kernels
    PUBLIC fathom_trace fathom_device fathom_tensor fathom_formats fathom_os fathom_base fathom_options
    PRIVATE fathom_warnings)
  fathom_isa_flags(fathom_kernels ${sources})
  fathom_precompiled(fathom_kernels LIBRARIES)
  if(FATHOM_WITH_CUDA)
    file(GLOB_RECURSE device_code CONFIGURE_DEPENDS
      ${PROJECT_SOURCE_DIR}/fathom/kernels/*_cuda.cu ${PROJECT_SOURCE_DIR}/fathom/kernels/*_sm90.cu)
    fathom_cuda_objects(fathom_kernels_cuda ${device_code})
    if(FATHOM_CUDA_FAST_COMPILE)  # Blackwell's, of CUTLASS, do not compile so: their stacks have no fixed size
      target_compile_options(fathom_kernels_cuda PRIVATE --Ofast-compile=max)
    endif()
    target_sources(fathom_kernels PRIVATE $<TARGET_OBJECTS:fathom_kernels_cuda>)
    fathom_blackwell_kernels()
  endif()
  # Cases and oracles are shared by tests, benchmarks and fuzzers; the library does not carry them.
  if(cases)
    add_library(fathom_kernels_cases STATIC ${cases})
    target_link_libraries(fathom_kernels_cases PUBLIC fathom_kernels PRIVATE fathom_warnings)
    fathom_precompiled(fathom_kernels_cases CASES)
    if(FATHOM_SANITIZE AND FATHOM_SANITIZE_TRAP)  # two fifths less to compile: an oracle's own variables are not what is looked at
      set_source_files_properties(${cases} PROPERTIES COMPILE_OPTIONS "-fno-sanitize=alignment;--param=asan-stack=0")
    endif()
  else()
    add_library(fathom_kernels_cases INTERFACE)
    target_link_libraries(fathom_kernels_cases INTERFACE fathom_kernels)
  endif()
  if(FATHOM_TESTS AND tests)
    fathom_test(kernels_test SOURCES ${tests} LIBS fathom_kernels_cases LABELS kernel)
  endif()
endfunction()

# The warning set, as an interface target.
add_library(fathom_warnings INTERFACE)
target_compile_options(fathom_warnings INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wimplicit-fallthrough
  # GCC 12 reports false positives of these two in inlined std::string and std::variant code.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict -Wno-maybe-uninitialized>
  $<$<BOOL:${FATHOM_WERROR}>:-Werror>)

# For nvcc: its own warnings, and those of the host compiler that its generated code can keep.
add_library(fathom_cuda_warnings INTERFACE)
target_compile_options(fathom_cuda_warnings INTERFACE
  -Xcompiler=-Wall -Xcompiler=-Wextra -Xcompiler=-Wno-restrict -Xcompiler=-Wno-maybe-uninitialized
  $<$<BOOL:${FATHOM_WERROR}>:--Werror=all-warnings>)

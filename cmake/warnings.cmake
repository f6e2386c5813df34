# The warning set, as an interface target.
add_library(fathom_warnings INTERFACE)
target_compile_options(fathom_warnings INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wimplicit-fallthrough
  # GCC 12 reports false positives of these two in inlined std::string and std::variant code.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict -Wno-maybe-uninitialized>
  $<$<BOOL:${FATHOM_WERROR}>:-Werror>)

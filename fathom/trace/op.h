// Op: a named step in a model, with the place in the source that asked for it.
#pragma once

#include <string_view>

namespace fathom {

/// Converts from a string literal and remembers the call site. Costs nothing at run time: the
/// default arguments are constants of the caller.
struct Op {
  const char* name;
  const char* file;
  const char* function;
  int line;

  constexpr Op(const char* op_name,  // NOLINT: implicit on purpose
               const char* op_file = __builtin_FILE(),
               const char* op_function = __builtin_FUNCTION(),
               int op_line = __builtin_LINE())
      : name(op_name), file(op_file), function(op_function), line(op_line) {}
};

/// A place in the source. As a default argument it is the place of the caller: constants, no cost.
struct CallSite {
  const char* file = "";
  const char* function = "";
  int line = 0;

  static constexpr CallSite here(const char* site_file = __builtin_FILE(),
                                 const char* site_function = __builtin_FUNCTION(),
                                 int site_line = __builtin_LINE()) {
    return {site_file, site_function, site_line};
  }
};

/// The path of a source file within the project, "fathom/layers/norm.cc", whatever directory it was
/// compiled in; the text itself if it is not of the library.
constexpr std::string_view project_path(std::string_view file) {
  constexpr std::string_view kRoot = "/fathom/";
  const size_t at = file.rfind(kRoot);
  return at == std::string_view::npos ? file : file.substr(at + 1);
}

}  // namespace fathom

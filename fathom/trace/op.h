// Op: a named step in a model, with the place in the source that asked for it.
#pragma once

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

}  // namespace fathom

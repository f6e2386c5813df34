#include "fathom/kernels/core/contract/signature.h"

#include "fathom/base/str_cat.h"

namespace fathom {
namespace shape_language {

// Never called: a constant expression that reaches one of these does not compile.
void operand_name_expected() {}

void opening_bracket_expected() {}

void closing_bracket_expected() {}

void too_many_operands() {}

void too_many_axes() {}

void too_many_symbols() {}

void too_many_limits() {}

void unknown_format_name() {}

void axis_expected() {}

void expression_too_long() {}

void axis_is_not_in_the_signature() {}

void first_use_of_an_axis_must_be_its_name_alone() {}

void comparison_expected() {}

void closing_parenthesis_expected() {}

void formula_goes_on_where_it_should_end() {}

}  // namespace shape_language

namespace {

using shape_language::Operand;

std::string axes_text(const Operand& o) {
  std::string out(o.name);
  out += '[';
  for (int i = 0; i < o.rank; ++i) {
    if (i > 0) out += ',';
    out += o.axes[static_cast<size_t>(i)].expr.text;
  }
  return out += ']';
}

std::string formats_text(uint32_t mask) {
  std::string out;
  for (int f = 1; f < kNumFormats; ++f) {
    if ((mask >> f) & 1u)
      str_append(out, str_cat(out.empty() ? "" : " or ", format_name(static_cast<Format>(f))));
  }
  return out;
}

}  // namespace

int64_t evaluate(const Formula& formula, const Signature& signature, const View* const* operands) {
  int64_t symbols[kMaxSymbols] = {};
  for (int i = 0; i < signature.num_operands; ++i) {
    const Operand& o = signature.operands[static_cast<size_t>(i)];
    if (!operands[i]->present()) continue;
    for (int d = 0; d < o.rank; ++d) {
      const auto& axis = o.axes[static_cast<size_t>(d)];
      if (axis.binds) symbols[axis.expr.steps[0].value] = operands[i]->dim(d);
    }
  }
  return formula.eval(symbols);
}

std::string explain_mismatch(const Signature& signature,
                             const LimitList& limits,
                             const View* const* operands) {
  int64_t symbols[kMaxSymbols] = {};
  const Operand* bound_by[kMaxSymbols] = {};
  for (int i = 0; i < signature.num_operands; ++i) {
    const Operand& o = signature.operands[static_cast<size_t>(i)];
    const View& v = *operands[i];
    if (!v.present()) {
      if (o.optional) continue;
      return str_cat(o.name, " is missing");
    }
    if (((o.formats >> static_cast<int>(v.format)) & 1u) == 0) {
      return str_cat(o.name, " is ", format_name(v.format), " but must be ",
                     formats_text(o.formats));
    }
    if (v.rank != o.rank) return str_cat(axes_text(o), " is given as ", describe(v));
    for (int d = 0; d < o.rank; ++d) {
      const auto& axis = o.axes[static_cast<size_t>(d)];
      if (axis.binds) {
        const auto symbol = static_cast<size_t>(axis.expr.steps[0].value);
        symbols[symbol] = v.dim(d);
        bound_by[symbol] = &o;
        continue;
      }
      const int64_t expected = axis.expr.eval(symbols);
      if (v.dim(d) == expected) continue;
      const Operand* other = axis.expr.is_symbol() ? bound_by[axis.expr.steps[0].value] : nullptr;
      if (other != nullptr) {
        return str_cat(o.name, "[", axis.expr.text, "] is ", v.dim(d), " but ", axes_text(*other),
                       " has ", axis.expr.text, "=", expected);
      }
      return str_cat(o.name, "[", axis.expr.text, "] is ", v.dim(d), " but ", axis.expr.text,
                     " is ", expected);
    }
    if (v.rank > 0 && v.dim(v.rank - 1) > 1 && v.stride(v.rank - 1) != 1) {
      return str_cat(axes_text(o), " must be contiguous in its last axis, but its stride is ",
                     v.stride(v.rank - 1));
    }
  }
  for (int i = 0; i < limits.size; ++i) {
    const auto& limit = limits.limits[static_cast<size_t>(i)];
    if (limit.holds(symbols)) continue;
    return str_cat("limit ", limit.text, " does not hold: ", limit.left.text, " is ",
                   limit.left.eval(symbols));
  }
  return {};
}

}  // namespace fathom

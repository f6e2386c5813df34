// Names of axes: what a shape means beside what it is, "[T, Nh*Dq] = [T, 24576]".
//
// A layer names the axes of its views and a weight spec those of its tensors; the signature of the
// kernel ties axes of different operands to each other. Here the three meet. A name that stands for
// a size of the model must have that size; symbols of the step (T, B, R, ...) take the sizes of the
// call and must agree within it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/kernels/core/contract/signature.h"
#include "fathom/trace/record.h"
#include "fathom/weights/plan/weight_spec.h"

namespace fathom {

/// A symbol that the step gives, not the model.
struct StepSymbol {
  std::string_view name;
  std::string_view meaning;
};

/// T, B, R, ...: every symbol of a step that documents may print.
std::span<const StepSymbol> step_symbols();

struct AxisName {
  std::string text;    ///< "Nh*Dq"; "T*K"
  bool fixed = false;  ///< the model alone decides it
  /// With the sizes of the model in place of their symbols: "24576"; "T*8".
  std::string number;
};

/// Names of the axes of one record's operands, in the order of the signature; operands that are
/// absent or empty get none.
struct NamedAxes {
  std::vector<std::vector<AxisName>> operands;
  std::map<std::string, int64_t> step;  ///< sizes of the step's symbols in this call
};

/// `limits` are those of the contract; "K==128*G" names G. Errors: Internal naming op, operand and
/// axis, for an axis without a name, a name that does not have the size it stands for, and a symbol
/// that nobody has described.
Result<NamedAxes> name_axes(const OpRecord& record,
                            const Signature& signature,
                            std::string_view limits,
                            const SymbolTable& model);

/// "Lq+Lkv+Dr" as "1536+512+64": the model's sizes in place of its symbols.
std::string with_numbers(std::string_view axis, const SymbolTable& model);

}  // namespace fathom

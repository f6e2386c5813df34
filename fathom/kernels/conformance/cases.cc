#include "fathom/kernels/conformance/cases.h"

#include "fathom/base/check.h"
#include "fathom/kernels/conformance/kernel_case.h"

namespace fathom {

std::string phase_of_case(bool timed, int64_t tokens) {
  constexpr int64_t kMostDecoded = 128;
  if (!timed) return {};
  return tokens > kMostDecoded ? "prefill" : "decode";
}

CaseSpec timed_spec(std::string_view name, std::string_view op, int64_t tokens) {
  return {.name = str_cat(name, "_t", tokens),
          .op = std::string(op),
          .bench = true,
          .phase = phase_of_case(true, tokens),
          .rows = tokens};
}

void CaseList::add_case(Case c) {
  FATHOM_CHECK(names_.insert(str_cat(c.kernel, "/", c.spec.name)).second,
               str_cat("two cases of ", c.kernel, " are called ", c.spec.name));
  if (c.spec.op.empty()) c.spec.op = c.kernel;
  cases_.push_back(std::move(c));
}

void CaseList::serve_calls(std::string_view kernel, CaseOfCall f) {
  FATHOM_CHECK(of_calls_.emplace(kernel, std::move(f)).second,
               str_cat("two ways to make a case of a call of ", kernel));
}

const CaseOfCall* CaseList::case_of_call(std::string_view kernel) const {
  const auto found = of_calls_.find(kernel);
  return found == of_calls_.end() ? nullptr : &found->second;
}

void CaseList::set_reference_limit(std::string_view kernel, const ReferenceLimit& limit) {
  reference_limits_.insert_or_assign(std::string(kernel), limit);
}

const ReferenceLimit* CaseList::reference_limit(std::string_view kernel) const {
  const auto found = reference_limits_.find(kernel);
  return found == reference_limits_.end() ? nullptr : &found->second;
}

std::vector<const Case*> CaseList::of(std::string_view kernel) const {
  std::vector<const Case*> out;
  for (const Case& c : cases_) {
    if (c.kernel == kernel) out.push_back(&c);
  }
  return out;
}

namespace internal {

std::string shape_text(const Signature& signature, const View* const* operands) {
  std::string out;
  for (int i = 0; i < signature.num_operands; ++i) {
    const auto& o = signature.operands[static_cast<size_t>(i)];
    for (int d = 0; d < o.rank; ++d) {
      const auto& axis = o.axes[static_cast<size_t>(d)];
      if (!axis.binds) continue;
      str_append(out, str_cat(out.empty() ? "" : ";", axis.expr.text, "=", operands[i]->dim(d)));
    }
  }
  return out;
}

std::vector<OperandInfo> operand_infos(const Signature& signature, const View* const* operands) {
  std::vector<OperandInfo> out;
  for (int i = 0; i < signature.num_operands; ++i) {
    const auto& o = signature.operands[static_cast<size_t>(i)];
    if (!operands[i]->present()) continue;
    out.push_back({.name = std::string(o.name),
                   .format = operands[i]->format,
                   .read = o.read,
                   .written = o.written,
                   .is_weight = o.name == "w",
                   .dims = {operands[i]->dims.begin(), operands[i]->dims.begin() + o.rank}});
  }
  return out;
}

}  // namespace internal
}  // namespace fathom

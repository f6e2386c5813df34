#include "fathom/kernels/conformance/recorded_call.h"

#include <algorithm>
#include <cmath>

#include "fathom/base/check.h"
#include "fathom/base/str_cat.h"

namespace fathom {
namespace {

std::string_view name_of(const OperandRecord& o) {
  return {o.name, o.name_length};
}

std::string text_of(Format format, std::span<const int64_t> dims) {
  std::string out = str_cat(format_name(format), " [");
  for (size_t i = 0; i < dims.size(); ++i)
    str_append(out, str_cat(i == 0 ? "" : ", ", dims[i]));
  return out + "]";
}

std::string difference_of(const OperandRecord& wanted, const OperandInfo& found) {
  const std::span dims(wanted.dims.data(), wanted.rank);
  if (found.format == wanted.format && std::ranges::equal(found.dims, dims)) return {};
  return str_cat("operand ", found.name, " is ", text_of(found.format, found.dims),
                 ", the recorded call has ", text_of(wanted.format, dims));
}

}  // namespace

const OperandRecord* RecordedCall::find(std::string_view operand) const {
  for (size_t i = 0; i < record_.num_operands; ++i) {
    const OperandRecord& o = record_.operands[i];
    if (name_of(o) == operand && o.format != Format::kNone) return &o;
  }
  return nullptr;
}

const OperandRecord& RecordedCall::get(std::string_view operand) const {
  const OperandRecord* found = find(operand);
  FATHOM_CHECK(found != nullptr,
               str_cat("a call of ", record_.kernel, " has no operand ", operand));
  return *found;
}

int RecordedCall::rank(std::string_view operand) const {
  return get(operand).rank;
}

int64_t RecordedCall::dim(std::string_view operand, int axis) const {
  const OperandRecord& o = get(operand);
  FATHOM_CHECK(axis < o.rank, str_cat(operand, " of ", record_.kernel, " has ", o.rank, " axes"));
  return o.dims[static_cast<size_t>(axis)];
}

Format RecordedCall::format(std::string_view operand) const {
  return get(operand).format;
}

int64_t RecordedCall::row_gap(std::string_view operand) const {
  const OperandRecord& o = get(operand);
  if (o.rank < 2) return 0;
  // Axes of one row between the first and the last say nothing.
  int axis = o.rank - 2;
  while (axis > 0 && o.dims[static_cast<size_t>(axis)] == 1)
    --axis;
  const int64_t gap = o.strides[static_cast<size_t>(axis)] - o.dims[size_t{o.rank} - 1];
  return std::max<int64_t>(gap, 0);
}

Result<Case> make_case_of_call(const CaseList& list,
                               const RecordedCall& call,
                               const CaseSpec& spec) {
  const std::string_view kernel = call.record().kernel;
  const CaseOfCall* add = list.case_of_call(kernel);
  if (add == nullptr) {
    return not_found(str_cat("the cases of ", kernel, " do not say how one is made of a call"));
  }
  CaseList one;
  (*add)(one, call, spec);
  FATHOM_CHECK(one.cases().size() == 1 && one.cases()[0].kernel == kernel,
               str_cat("one case of ", kernel, " was asked for"));
  return one.cases()[0];
}

std::string difference_from(const RecordedCall& call, CaseInstance& instance) {
  const OpRecord& record = call.record();
  std::vector<OperandInfo> found = instance.operands();
  size_t next = 0;
  for (size_t i = 0; i < record.num_operands; ++i) {
    const OperandRecord& wanted = record.operands[i];
    if (wanted.format == Format::kNone) continue;
    if (next == found.size() || found[next].name != name_of(wanted)) {
      return str_cat("the recorded call has operand ", name_of(wanted), ", the case has not");
    }
    if (std::string why = difference_of(wanted, found[next]); !why.empty()) return why;
    ++next;
  }
  if (next < found.size()) {
    return str_cat("the case has operand ", found[next].name, ", the recorded call has not");
  }
  const Cost cost = instance.cost();
  if (cost.bytes_read != record.cost.bytes_read || cost.bytes_written != record.cost.bytes_written)
    return str_cat("the case reads ", cost.bytes_read, " bytes and writes ", cost.bytes_written,
                   ", the recorded call ", record.cost.bytes_read, " and ",
                   record.cost.bytes_written);
  if (std::abs(cost.flops - record.cost.flops) <= 1e-9 * record.cost.flops) return {};
  return str_cat("the case has ", cost.flops, " FLOPs, the recorded call ", record.cost.flops);
}

}  // namespace fathom

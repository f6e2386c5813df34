#include "fathom/kernels/core/launch.h"

#include <chrono>

#include "fathom/device/stream_marks.h"

namespace fathom {

int64_t operand_bytes(const View& v) {
  if (v.rank == 0) return bytes_for(v.format, 1, 1);
  int64_t rows = 1;
  for (int i = 0; i + 1 < v.rank; ++i)
    rows *= v.dim(i);
  if (is_quantised(v.format) && v.rank == 3) {  // a stack: scale blocks do not cross matrices
    return v.dim(0) * bytes_for(v.format, v.dim(1), v.dim(2));
  }
  return bytes_for(v.format, rows, v.dim(v.rank - 1));
}

namespace internal {
namespace {

std::string place(Op op) {
  // The origin of a Status is where it was made; the place a reader wants is the call site.
  return str_cat("(", op.file, ":", op.line, ")");
}

}  // namespace

Status mismatch_error(Op op, std::string_view kernel, std::string why) {
  return Status::error(StatusCode::kInvalidArgument,
                       str_cat(op.name, ": ", kernel, ": ", why, " ", place(op)), op.file, op.line);
}

Status no_variant_error(Op op,
                        std::string_view kernel,
                        Backend backend,
                        std::string last_reason,
                        bool batch_invariant) {
  return Status::error(
      StatusCode::kUnsupported,
      str_cat(op.name, ": ", kernel, " has no ", batch_invariant ? "batch-invariant " : "",
              "variant for this call on ", std::string_view(backend_name(backend)), ": ",
              last_reason, " ", place(op)),
      op.file, op.line);
}

Status workspace_error(const Arena& scratch, int64_t bytes, std::string_view kernel) {
  return std::move(scratch.exhausted(bytes)).add_context(str_cat("workspace of ", kernel));
}

Status pin_error(Op op, std::string_view kernel, std::string_view variant) {
  return Status::error(StatusCode::kUnsupported,
                       str_cat(op.name, ": ", kernel, " is pinned to variant ", variant,
                               ", which does not exist here or does not take this call; remove the "
                               "pin or choose another variant"),
                       op.file, op.line);
}

std::string_view pinned_variant(const Pins& pins, Op op, const KernelInfo& kernel) {
  for (const auto& [name, variant] : pins) {
    if (name == op.name || name == kernel.name) return variant;
    for (std::string_view reference : kernel.reference_names) {
      if (name == reference) return variant;
    }
  }
  return {};
}

int64_t record_clock(const Exec& ex) {
  if (ex.recorder->level() == RecordLevel::kShapes) return 0;
  if (ex.marks != nullptr) return ex.marks->mark(*ex.stream);
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t record_begin(const Exec& ex) {
  if (ex.marks != nullptr) return ex.marks->newest(*ex.stream);
  return record_clock(ex);
}

OpRecord& begin_record(Exec& ex,
                       Op op,
                       CallSite site,
                       SelectionRow row,
                       std::string_view kernel,
                       const Signature& signature,
                       const View* const* operands) {
  OpRecord& record = ex.recorder->next();
  record.op = op;
  record.launch = site;
  record.kernel = kernel.data();
  record.backend = ex.backend;
  record.selection_row = row.index;
  record.num_operands = static_cast<uint8_t>(signature.num_operands);
  for (int i = 0; i < signature.num_operands; ++i) {
    const auto& declared = signature.operands[static_cast<size_t>(i)];
    OperandRecord& out = record.operands[static_cast<size_t>(i)];
    const View& v = *operands[i];
    out.name = declared.name.data();
    out.name_length = static_cast<uint8_t>(declared.name.size());
    out.written = declared.written;
    out.rank = static_cast<uint8_t>(v.rank);
    out.format = v.format;
    out.dims = v.dims;
    out.strides = v.strides;
    out.axes = v.axes;
  }
  return record;
}

void end_record(Exec& ex,
                OpRecord& record,
                const Signature& signature,
                const View* const* operands) {
  record.end_ns = record_clock(ex);
  if (ex.recorder->level() != RecordLevel::kProbed || ex.dry()) return;
  record.statistics = static_cast<int32_t>(ex.recorder->statistics().size());
  for (int i = 0; i < signature.num_operands; ++i) {
    if (!signature.operands[static_cast<size_t>(i)].written || !operands[i]->present()) continue;
    if (operands[i]->on_device) continue;
    ex.recorder->add_statistics(statistics_of(*operands[i]));
  }
}

}  // namespace internal
}  // namespace fathom

#include "fathom/report/recording.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "fathom/base/str_cat.h"
#include "fathom/kernels/core/kernel_set/catalog.h"
#include "fathom/trace/scope.h"

namespace fathom {
namespace {

template <class F>
std::string bracket(size_t count, F&& item) {
  std::string out = "[";
  for (size_t i = 0; i < count; ++i)
    str_append(out, str_cat(i == 0 ? "" : ", ", item(i)));
  return out + "]";
}

bool is_integer(Format format) {
  return format == Format::kI32 || format == Format::kI64 || format == Format::kBool;
}

OperandKind kind_of(const TraceOperand& o) {
  const auto names = [&](std::string_view symbol) {
    return std::any_of(o.axes.begin(), o.axes.end(),
                       [&](const AxisName& a) { return a.text == symbol; });
  };
  if (names("page_size") || names("page_rows") || names("ring")) return OperandKind::kCache;
  if (names("P")) return OperandKind::kTable;
  if (is_integer(o.format)) return OperandKind::kIndex;
  const bool fixed =
      std::all_of(o.axes.begin(), o.axes.end(), [](const AxisName& a) { return a.fixed; });
  return fixed && !o.axes.empty() && !o.written ? OperandKind::kWeight : OperandKind::kActivation;
}

int64_t bytes_of(const TraceOperand& o) {
  View v;
  v.rank = static_cast<int>(o.dims.size());
  v.format = o.format;
  std::copy(o.dims.begin(), o.dims.end(), v.dims.begin());
  return operand_bytes(v);
}

// The contract counts what a call must move; what is not weights or cache is each operand once.
Traffic split_traffic(const TraceOp& op) {
  int64_t others_read = 0;
  int64_t others_written = 0;
  bool weights = false;
  bool cache_read = false;
  bool cache_written = false;
  for (const TraceOperand& o : op.operands()) {
    const bool is_cache = o.kind == OperandKind::kCache;
    weights = weights || o.kind == OperandKind::kWeight;
    cache_read = cache_read || (is_cache && o.read);
    cache_written = cache_written || (is_cache && o.written);
    if (is_cache || o.kind == OperandKind::kWeight) continue;
    if (o.read && o.kind != OperandKind::kTable) others_read += bytes_of(o);
    if (o.written) others_written += bytes_of(o);
  }
  Traffic out;
  if (cache_read) {
    out.cache = std::max<int64_t>(op.cost.bytes_read - others_read, 0);
  } else if (weights) {
    out.weights = std::max<int64_t>(op.cost.bytes_read - others_read, 0);
  }
  if (cache_written) out.cache += std::max<int64_t>(op.cost.bytes_written - others_written, 0);
  out.activations = op.cost.bytes() - out.weights - out.cache;
  return out;
}

// What two calls must share to have the same names and sizes, as bytes.
std::string key_of(const OpRecord& r) {
  std::string key;
  const auto add = [&](const void* data, size_t bytes) {
    key.append(static_cast<const char*>(data), bytes);
  };
  add(&r.kernel, sizeof r.kernel);
  add(&r.op.name, sizeof r.op.name);
  for (size_t i = 0; i < r.num_operands; ++i) {
    const OperandRecord& o = r.operands[i];
    add(&o.format, sizeof o.format);
    add(&o.rank, sizeof o.rank);
    add(o.dims.data(), sizeof o.dims[0] * o.rank);
    add(&o.axes, sizeof o.axes);
  }
  return key;
}

std::vector<TraceOperand> make_operands(const OpRecord& r,
                                        const Signature& signature,
                                        NamedAxes names) {
  std::vector<TraceOperand> out;
  for (size_t i = 0; i < r.num_operands; ++i) {
    const OperandRecord& o = r.operands[i];
    TraceOperand operand{.name = {o.name, o.name_length},
                         .format = o.format,
                         .read = signature.operands[i].read,
                         .written = o.written,
                         .axes = std::move(names.operands[i]),
                         .dims = {o.dims.begin(), o.dims.begin() + o.rank}};
    const auto& dims = operand.dims;
    if (o.format == Format::kNone || std::find(dims.begin(), dims.end(), 0) != dims.end()) continue;
    operand.kind = kind_of(operand);
    out.push_back(std::move(operand));
  }
  return out;
}

TraceOp make_op(const OpRecord& r, std::span<const TensorStatistics> statistics) {
  TraceOp op;
  op.op = r.op.name;
  op.kernel = r.kernel;
  if (r.variant != nullptr) op.variant = r.variant;
  op.site = {r.op.file, r.op.function, r.op.line};
  op.launch = r.launch;
  op.scopes.assign(r.scopes.begin(), r.scopes.begin() + r.scope_depth);
  op.calls = calls_of(r);
  op.backend = r.backend;
  op.selection_row = r.selection_row;
  op.cost = r.cost;
  op.start_ns = r.start_ns;
  op.end_ns = r.end_ns;
  if (r.statistics < 0) return op;
  auto next = static_cast<size_t>(r.statistics);
  for (size_t i = 0; i < r.num_operands; ++i) {
    const OperandRecord& o = r.operands[i];
    if (!o.written || o.format == Format::kNone || next >= statistics.size()) continue;
    op.statistics.push_back({{o.name, o.name_length}, statistics[next++]});
  }
  return op;
}

std::string operands_text(const TraceOp& op, bool results) {
  std::string out;
  for (const TraceOperand& o : op.operands()) {
    if (results ? !o.written : !o.read) continue;
    str_append(
        out, str_cat(out.empty() ? "" : ", ", o.name, " ", format_name(o.format), " ", o.shape()));
  }
  return out;
}

}  // namespace

std::string TraceOperand::symbols() const {
  return bracket(axes.size(), [&](size_t i) { return axes[i].text; });
}

std::string TraceOperand::numbers() const {
  return bracket(axes.size(), [&](size_t i) { return axes[i].number; });
}

std::string TraceOperand::sizes() const {
  return bracket(dims.size(), [&](size_t i) { return str_cat(dims[i]); });
}

std::string TraceOperand::shape() const {
  const std::string left = symbols();
  const std::string right = numbers();
  return left == right ? left : str_cat(left, " = ", right);
}

int TraceOp::index_in(std::string_view scope) const {
  for (const ScopeName& s : scopes)
    if (scope == s.name) return s.index;
  return -1;
}

const TraceOperand* TraceOp::operand(std::string_view name) const {
  for (const TraceOperand& o : operands())
    if (o.name == name) return &o;
  return nullptr;
}

bool same_call(const TraceOp& a, const TraceOp& b) {
  return a.op == b.op && a.kernel == b.kernel && a.variant == b.variant &&
         a.selection_row == b.selection_row &&
         (a.shared_operands == b.shared_operands ||
          std::equal(a.operands().begin(), a.operands().end(), b.operands().begin(),
                     b.operands().end(), [](const TraceOperand& x, const TraceOperand& y) {
                       return x.name == y.name && x.format == y.format && x.dims == y.dims &&
                              x.symbols() == y.symbols();
                     }));
}

std::span<const TraceOp> TracePhase::first_step() const {
  const auto end = std::find_if(ops.begin(), ops.end(),
                                [&](const TraceOp& op) { return op.step != ops.front().step; });
  return {ops.begin(), end};
}

int64_t TracePhase::calls() const {
  int64_t sum = 0;
  for (const TraceOp& op : ops)
    sum += op.calls;
  return sum;
}

Result<TracePhase> make_phase(std::string name,
                              std::string title,
                              std::span<const OpRecord> records,
                              std::span<const TensorStatistics> statistics,
                              const SymbolTable& symbols) {
  TracePhase phase;
  phase.name = std::move(name);
  phase.title = std::move(title);
  phase.ops.reserve(records.size());
  std::map<std::string, std::set<int64_t>> sizes;
  std::unordered_map<std::string, std::shared_ptr<const std::vector<TraceOperand>>> known;
  for (const OpRecord& r : records) {
    const KernelEntry* kernel = find_kernel(r.kernel);
    if (kernel == nullptr) {
      return internal_error(str_cat(std::string_view(r.op.name), " ran ",
                                    std::string_view(r.kernel),
                                    ", which is not in the catalogue of kernels"));
    }
    auto& operands = known[key_of(r)];
    if (operands == nullptr) {
      FATHOM_ASSIGN(NamedAxes names,
                    name_axes(r, *kernel->signature, kernel->info.limits, symbols));
      for (const auto& [symbol, size] : names.step)
        sizes[symbol].insert(size);
      operands = std::make_shared<const std::vector<TraceOperand>>(
          make_operands(r, *kernel->signature, std::move(names)));
    }
    TraceOp& op = phase.ops.emplace_back(make_op(r, statistics));
    op.shared_operands = operands;
    op.traffic = split_traffic(op);
  }
  for (const auto& [symbol, values] : sizes)
    phase.step_sizes[symbol].assign(values.begin(), values.end());
  return phase;
}

void keep_layers(TracePhase& phase, int first, int last) {
  std::erase_if(phase.ops, [&](const TraceOp& op) {
    const int layer = op.index_in("layer");
    return layer >= 0 && (layer < first || layer > last);
  });
}

std::string inputs_text(const TraceOp& op) {
  return operands_text(op, false);
}

std::string outputs_text(const TraceOp& op) {
  return operands_text(op, true);
}

}  // namespace fathom

#include "fathom/weights/plan/shard.h"

#include <algorithm>

namespace fathom {
namespace {

// The symbol that ranks share out in shapes of that role; empty if there is none.
std::string_view shared_symbol(WeightRole role, const Shard& shard) {
  switch (role) {
    case WeightRole::kEmbedding:
    case WeightRole::kHead:
      return "V";
    case WeightRole::kAttention:
    case WeightRole::kOutput:
      return "Nh";
    case WeightRole::kMlp:
      return "Id";
    case WeightRole::kSharedExpert:
      return "I";
    case WeightRole::kExpert:
      return shard.experts == ExpertShards::kWidth ? "I" : "";
    case WeightRole::kNorm:
    case WeightRole::kRouter:
    case WeightRole::kRouterBias:
    case WeightRole::kDraft:
    case WeightRole::kStream:
    case WeightRole::kAttentionBias:
    case WeightRole::kCompressor:
    case WeightRole::kOutputGroups:
    case WeightRole::kHashTable:
      break;
  }
  return "";
}

// "1, 2, 4": numbers of ranks that cut `size` into parts of whole steps, and `units` evenly.
std::string fitting_ranks(int64_t units, int64_t size, int64_t step) {
  constexpr int64_t kMostRanks = 1024;
  std::string out = "1";
  for (int64_t ranks = 2; ranks <= std::min(units, kMostRanks); ++ranks) {
    if (units % ranks == 0 && size / ranks % step == 0) str_append(out, str_cat(", ", ranks));
  }
  return out;
}

// The axis whose size depends on `symbol`, -1 if none does.
Result<int> axis_of(const WeightSpec& spec, SymbolTable symbols, std::string_view symbol) {
  symbols.set(symbol, 0);
  FATHOM_ASSIGN(const std::vector<int64_t> without, eval_axes(spec.axes, symbols));
  for (size_t axis = 0; axis < without.size(); ++axis)
    if (without[axis] != spec.dims[axis]) return static_cast<int>(axis);
  return -1;
}

}  // namespace

int64_t cut_step(Format format, int axis) {
  constexpr int64_t kPackedRows = 32;  // QServe: in both directions
  const FormatInfo& info = format_info(format);
  const bool packed = format == Format::kW4a8Channel || format == Format::kW4a8Group;
  const int64_t block = axis == 0 ? info.block_n : info.block_k;
  return std::max<int64_t>(block, packed ? kPackedRows : 1);
}

Status cut_tensor(const SymbolTable& symbols,
                  const Shard& shard,
                  const std::string& place,
                  WeightSpec& spec) {
  const std::string_view symbol = shared_symbol(spec.role, shard);
  const auto units = symbol.empty() ? std::nullopt : symbols.find(symbol);
  if (shard.whole() || !units) return {};
  FATHOM_ASSIGN(const int axis, axis_of(spec, symbols, symbol));
  if (axis < 0) return {};
  const int64_t size = spec.dims[static_cast<size_t>(axis)];
  const int64_t step = cut_step(spec.format, axis);
  if (*units % shard.count != 0 || size / shard.count % step != 0) {
    return unsupported(str_cat(place, " has ", size, axis == 0 ? " rows (" : " columns (", symbol,
                               " = ", *units, "), in ", format_name(spec.format),
                               step > 1 ? str_cat(" in blocks of ", step) : std::string(),
                               ", which ", shard.count, " ranks cannot share; expected one of ",
                               fitting_ranks(*units, size, step)));
  }
  spec.part = {.axis = axis, .begin = size / shard.count * shard.rank, .count = size / shard.count};
  return {};
}

Result<ExpertRange> experts_of(const Shard& shard, int64_t experts, const std::string& place) {
  if (shard.experts == ExpertShards::kWidth) return ExpertRange{0, experts};
  const int64_t each = experts / shard.count;
  if (each * shard.count == experts) return ExpertRange{each * shard.rank, each};
  return unsupported(str_cat(place, " is one of ", experts, " experts, which ", shard.count,
                             " ranks cannot share; expected one of ",
                             fitting_ranks(experts, experts, 1)));
}

}  // namespace fathom

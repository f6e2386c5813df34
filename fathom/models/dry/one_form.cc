#include "fathom/models/dry/one_form.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "fathom/models/dry/dry_records.h"

namespace fathom {
namespace {

// Steps of few rows and of many, whose requests have as many keys.
std::vector<BatchShape> shapes_of(const Model& model) {
  const int64_t keys = std::clamp<int64_t>(model.config().max_position_embeddings / 2, 1, 64);
  std::vector<BatchShape> out;
  for (const int64_t requests : {1, 2, 40}) {
    BatchShape shape;
    shape.decode = {.count = requests, .new_tokens = 1, .cached = keys - 1};
    out.push_back(shape);
  }
  for (const int64_t tokens : {int64_t{1}, int64_t{2}, int64_t{5}, keys}) {
    BatchShape shape;
    const int64_t count = std::min(tokens, keys);
    shape.prefill = {.count = 1, .new_tokens = count, .cached = keys - count};
    out.push_back(shape);
  }
  for (const int64_t drafts : {1, 4}) {
    BatchShape shape;
    const int64_t count = std::min(1 + drafts, keys);
    shape.decode = {.count = 3, .new_tokens = count, .cached = keys - count};
    out.push_back(shape);
  }
  return out;
}

// The variant of each call, by its op and how many calls of it came before.
using Choices = std::map<std::pair<std::string_view, int>, std::string_view>;

Choices choices_of(const std::vector<OpRecord>& calls) {
  std::map<std::string_view, int> before;
  Choices out;
  for (const OpRecord& call : calls) {
    const std::string_view op = call.op.name;
    out[{op, before[op]++}] = call.variant == nullptr ? "" : call.variant;
  }
  return out;
}

Status two_forms(std::string_view op, std::string_view one, std::string_view other) {
  return unsupported(str_cat(op, ": steps of few rows run ", one, ", others ", other,
                             ": a row's bits would depend on the step"));
}

}  // namespace

Status check_one_form(const Model& model, const DryRunOptions& options) {
  constexpr std::string_view kNothing = "nothing";
  Choices all;
  for (const BatchShape& shape : shapes_of(model)) {
    FATHOM_ASSIGN(const std::vector<OpRecord> calls, dry_records(model, shape, options));
    const Choices found = choices_of(calls);
    const bool is_first = all.empty();
    for (const auto& [call, variant] : found) {
      const auto [known, is_new] = all.try_emplace(call, variant);
      if (known->second != variant) return two_forms(call.first, known->second, variant);
      // How often an op runs may follow from the number of rows, but not whether it does.
      if (is_new && !is_first && call.second == 0) return two_forms(call.first, kNothing, variant);
    }
    for (const auto& [call, variant] : all) {
      if (call.second == 0 && !found.contains(call))
        return two_forms(call.first, variant, kNothing);
    }
  }
  return {};
}

}  // namespace fathom

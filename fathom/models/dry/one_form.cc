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

}  // namespace

Status check_one_form(const Model& model, const DryRunOptions& options) {
  Choices first;
  for (const BatchShape& shape : shapes_of(model)) {
    FATHOM_ASSIGN(const std::vector<OpRecord> calls, dry_records(model, shape, options));
    for (const auto& [call, variant] : choices_of(calls)) {
      const auto [known, is_new] = first.try_emplace(call, variant);
      if (is_new || known->second == variant) continue;
      return unsupported(str_cat(call.first, ": steps of few rows run ", known->second, ", others ",
                                 variant, ": a row's bits would depend on the step"));
    }
  }
  return {};
}

}  // namespace fathom

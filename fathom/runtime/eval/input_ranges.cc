#include "fathom/runtime/eval/input_ranges.h"

#include <algorithm>
#include <cmath>

#include "fathom/base/check.h"
#include "fathom/weights/export/quant_scope.h"

namespace fathom {

void InputRanges::watch(const WeightPlan& plan) {
  FATHOM_CHECK(plan.placement().is_host(), "weights that are watched lie on the host");
  items_.clear();
  items_.reserve(plan.items().size());  // views point into its elements
  for (const WeightItem& item : plan.items()) {
    if (item.kind != WeightItem::Kind::kMatrix) continue;
    const auto matrices = static_cast<size_t>(item.e);
    const size_t each = item.sources.size() / matrices;
    Matrices m{.names = std::vector<std::vector<std::string>>(matrices),
               .amax = std::vector<float>(matrices, -1.0f)};
    for (size_t i = 0; i < each * matrices; ++i)
      m.names[i / each].push_back(item.sources[i].name);
    items_.push_back(std::move(m));
    item.linear_out->input_amax = make_view(items_.back().amax.data(), {item.e}, Format::kF32);
  }
}

Result<std::map<std::string, float>> InputRanges::by_weight() const {
  std::map<std::string, float> out;
  for (const Matrices& m : items_) {
    for (size_t e = 0; e < m.amax.size(); ++e) {
      if (std::isfinite(m.amax[e])) continue;
      return numerical_error(str_cat("what ", m.names[e].front(), " reads is ", m.amax[e],
                                     ", expected finite numbers"));
    }
    const float largest = *std::max_element(m.amax.begin(), m.amax.end());
    if (largest < 0) continue;
    for (size_t e = 0; e < m.amax.size(); ++e) {
      for (const std::string& name : m.names[e]) {
        const bool shares = !fused_partner(name).empty();
        out[name] = shares || m.amax[e] < 0 ? largest : m.amax[e];
      }
    }
  }
  return out;
}

}  // namespace fathom

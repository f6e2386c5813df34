#include "fathom/runtime/eval/compare_taps.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "fathom/base/check.h"
#include "fathom/base/str_cat.h"
#include "fathom/formats/minifloat.h"

namespace fathom {
namespace {

constexpr std::string_view kNames[] = {"layer.input", "attn.output", "ffn.output"};

bool is_compared(std::string_view name) {
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

template <class Take>
void for_elements(const View& v, const Take& take) {
  for (int64_t t = 0; t < v.dim(0); ++t) {
    for (int64_t d = 0; d < v.dim(1); ++d)
      take(tapped_element(v, t, d));
  }
}

}  // namespace

float tapped_element(const View& v, int64_t row, int64_t column) {
  const int64_t at = row * v.stride(0) + column;
  return v.format == Format::kBf16 ? to_float(v.as<Bf16>()[at]) : v.as<float>()[at];
}

double TapCosine::cosine() const {
  if (reference_norm == 0 && other_norm == 0) return 1;
  return dot / std::sqrt(reference_norm * other_norm);
}

Probe TapComparison::reference_probe() {
  return {.tap = [](void* self, std::string_view name, int layer,
                    const View& v) { static_cast<TapComparison*>(self)->keep(name, layer, v); },
          .self = this};
}

Probe TapComparison::other_probe() {
  return {.tap = [](void* self, std::string_view name, int layer,
                    const View& v) { static_cast<TapComparison*>(self)->compare(name, layer, v); },
          .self = this};
}

void TapComparison::next_sequence() {
  kept_.clear();
}

void TapComparison::keep(std::string_view name, int layer, const View& v) {
  if (!is_compared(name)) return;
  auto& values = kept_[{layer, std::string(name)}].values;
  values.reserve(values.size() + static_cast<size_t>(v.numel()));
  for_elements(v, [&](float x) { values.push_back(x); });
}

void TapComparison::compare(std::string_view name, int layer, const View& v) {
  if (!is_compared(name)) return;
  const Key key{layer, std::string(name)};
  const auto kept = kept_.find(key);
  if (kept == kept_.end()) return;  // another kind of model
  auto& [values, at] = kept->second;
  FATHOM_CHECK(at + static_cast<size_t>(v.numel()) <= values.size(),
               str_cat(name, " of layer ", layer, " has more elements than the reference's"));
  TapCosine& sum = results_[key];
  for_elements(v, [&](float x) {
    const double a = values[at++];
    const double b = x;
    sum.dot += a * b;
    sum.reference_norm += a * a;
    sum.other_norm += b * b;
  });
}

}  // namespace fathom

// How cases hold what a router chose to the exact scores.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/moe/gate/gate_oracle.h"

namespace fathom {

/// Ids and weights as the exact scores say; where float32 scores may order experts otherwise, as
/// the choice found says.
template <class K>
void expect_choice(CaseBuilder<K>& c,
                   const Tensor& weights,
                   const Tensor& ids,
                   const std::function<oracle::Rule(int64_t t)>& rule_of) {
  /// The ids found, if they are not the exact ones but may be.
  const auto other_ids = [=](int64_t t, const oracle::Rule& rule) -> std::vector<int> {
    const std::vector<double> row = ids.row(t);
    const std::vector<int> found(row.begin(), row.end());
    if (found == oracle::ids_of(rule) || !oracle::near_tie(rule, found)) return {};
    return found;
  };
  c.expect_rows(
      weights, gates::router_weights(),
      [=](int64_t t, std::span<double> out) {
        const oracle::Rule rule = rule_of(t);
        std::ranges::copy(oracle::weights_of(rule, oracle::ids_of(rule)), out.begin());
      },
      [=](int64_t t, std::span<double> expected) {
        const oracle::Rule rule = rule_of(t);
        const std::vector<int> found = other_ids(t, rule);
        if (!found.empty()) std::ranges::copy(oracle::weights_of(rule, found), expected.begin());
      });
  c.expect_rows(
      ids, gates::exact(),
      [=](int64_t t, std::span<double> out) {
        std::ranges::copy(oracle::ids_of(rule_of(t)), out.begin());
      },
      [=](int64_t t, std::span<double> expected) {
        std::ranges::copy(other_ids(t, rule_of(t)), expected.begin());
      });
}

}  // namespace fathom

// A constraint that a test says itself.
#pragma once

#include <algorithm>
#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "fathom/runtime/sample/token_constraint.h"

namespace fathom {

/// Allows what a function of the accepted tokens says.
struct FakeConstraint final : TokenConstraint {
  struct Next {
    ConstraintPlace place = ConstraintPlace::kPayload;
    std::vector<int32_t> allowed;
  };

  ConstraintPlace next(std::span<uint32_t> mask) override {
    ++asked;
    const Next n = rule(accepted);
    if (n.place == ConstraintPlace::kFree) return n.place;
    words = mask.size();
    std::ranges::fill(mask, 0u);
    for (const int32_t token : n.allowed)
      mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
    return n.place;
  }

  bool accept(int32_t token) override {
    const Next n = rule(accepted);
    const bool allowed =
        n.place == ConstraintPlace::kFree || std::ranges::count(n.allowed, token) > 0;
    if (token == refuses || !allowed) return false;
    accepted.push_back(token);
    return true;
  }

  void rollback(int64_t count) override {
    ASSERT_LE(count, static_cast<int64_t>(accepted.size()));
    accepted.resize(accepted.size() - static_cast<size_t>(count));
    rolled_back += count;
  }

  std::function<Next(const std::vector<int32_t>&)> rule;
  std::vector<int32_t> accepted;
  int32_t refuses = -1;
  int asked = 0;
  int64_t rolled_back = 0;
  size_t words = 0;
};

inline std::shared_ptr<FakeConstraint> constraint_of(decltype(FakeConstraint::rule) rule) {
  auto made = std::make_shared<FakeConstraint>();
  made->rule = std::move(rule);
  return made;
}

}  // namespace fathom

// What a router's exact scores choose, in double: for the cases of the gates, and of the layers
// that route.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fathom::oracle {

/// The `count` largest of `score` in decreasing order, the lower index first among equals.
inline std::vector<int> best(const std::vector<double>& score, int count) {
  std::vector<int> order(score.size());
  for (size_t i = 0; i < order.size(); ++i)
    order[i] = static_cast<int>(i);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(count));
  return order;
}

inline std::vector<double> softmax(const std::vector<double>& z) {
  const double max = *std::max_element(z.begin(), z.end());
  double sum = 0;
  std::vector<double> p;
  for (double v : z) {
    p.push_back(std::exp(v - max));
    sum += p.back();
  }
  for (double& v : p)
    v /= sum;
  return p;
}

inline std::vector<double> sigmoids_of(std::vector<double> logits) {
  for (double& v : logits)
    v = 1.0 / (1.0 + std::exp(-v));
  return logits;
}

/// sqrt(log(1 + e^z)), with the digits of both ends.
inline double sqrt_softplus(double z) {
  return z > 40 ? std::sqrt(z) : z < -40 ? std::exp(z / 2) : std::sqrt(std::log1p(std::exp(z)));
}

inline std::vector<double> sqrt_softplus_of(std::vector<double> logits) {
  for (double& v : logits)
    v = sqrt_softplus(v);
  return logits;
}

/// What a choice goes by: NaN, which has no place in an order, counts as -inf.
inline std::vector<double> orderly(std::vector<double> score) {
  for (double& v : score)
    v = std::isnan(v) ? -HUGE_VAL : v;
  return score;
}

/// What one token may choose from, and how its choice is weighed.
struct Rule {
  std::vector<double> choice;  // scores that are compared
  std::vector<double> score;   // what weights are made of
  int count = 0;
  int groups = 1;
  int kept = 1;
  size_t top = 1;  // of a group, summed
  bool renormalize = false;
  double epsilon = 0;
  double scaling = 1;
  int shared = 0;
  double shared_weight = 0;
  double rounding = 0x1p-21;  // relative error of a score in the kernel's precision, generous

  size_t group_size() const { return choice.size() / static_cast<size_t>(groups); }
};

inline std::vector<double> group_scores(const Rule& r) {
  std::vector<double> scores;
  for (size_t begin = 0; begin < r.choice.size(); begin += r.group_size()) {
    std::vector<double> group(r.choice.begin() + static_cast<int64_t>(begin),
                              r.choice.begin() + static_cast<int64_t>(begin + r.group_size()));
    std::sort(group.rbegin(), group.rend());
    double sum = 0;
    for (size_t i = 0; i < std::min(r.top, group.size()); ++i)
      sum += group[i];
    scores.push_back(sum);
  }
  return scores;
}

/// `choice` with -inf outside of those groups.
inline std::vector<double> limited(const Rule& r, const std::vector<int>& kept) {
  std::vector<double> choice = r.choice;
  for (size_t e = 0; e < choice.size(); ++e) {
    const auto group = static_cast<int>(e / r.group_size());
    if (std::count(kept.begin(), kept.end(), group) == 0) choice[e] = -HUGE_VAL;
  }
  return choice;
}

/// The ids that exact scores choose, shared experts behind them.
inline std::vector<int> ids_of(const Rule& r) {
  std::vector<int> ids = best(limited(r, best(group_scores(r), r.kept)), r.count);
  for (int i = 0; i < r.shared; ++i)
    ids.push_back(static_cast<int>(r.choice.size()) + i);
  return ids;
}

/// The weights of a choice, whichever it is.
inline std::vector<double> weights_of(const Rule& r, const std::vector<int>& ids) {
  std::vector<double> weights;
  double sum = 0;
  for (int k = 0; k < r.count; ++k) {
    weights.push_back(r.score[static_cast<size_t>(ids[static_cast<size_t>(k)])]);
    sum += weights.back();
  }
  for (double& w : weights)
    w = w / (r.renormalize ? sum + r.epsilon : 1.0) * r.scaling;
  weights.insert(weights.end(), static_cast<size_t>(r.shared), r.shared_weight);
  return weights;
}

/// How far two scores of the size of `score` may be apart and still be in either order.
inline double slack(const Rule& r, double score) {
  return 2 * r.rounding * std::max(1.0, std::fabs(score));
}

/// True if every id is, but for the rounding of scores, a best of those not taken before it.
inline bool in_order(const Rule& r, std::vector<double> choice, const std::vector<int>& ids) {
  for (int k = 0; k < r.count; ++k) {
    const int id = ids[static_cast<size_t>(k)];
    if (id < 0 || static_cast<size_t>(id) >= choice.size()) return false;
    const double score = choice[static_cast<size_t>(id)];
    const double most = *std::max_element(choice.begin(), choice.end());
    if (!(score > -HUGE_VAL) || score < most - slack(r, most)) return false;
    choice[static_cast<size_t>(id)] = -HUGE_VAL;
  }
  return true;
}

/// True if scores with float32's rounding could have chosen these ids: the groups or experts that
/// differ from the exact choice tie with it within that rounding.
inline bool near_tie(const Rule& r, const std::vector<int>& ids) {
  const std::vector<int> exact = ids_of(r);
  if (!std::equal(ids.begin() + r.count, ids.end(), exact.begin() + r.count, exact.end()))
    return false;
  const std::vector<double> scores = group_scores(r);
  const std::vector<int> kept = best(scores, r.kept);
  if (in_order(r, limited(r, kept), ids)) return true;
  // One group at the edge may have given way to one of nearly the same score.
  for (size_t out = 0; out < kept.size(); ++out) {
    for (int g = 0; g < r.groups; ++g) {
      if (std::count(kept.begin(), kept.end(), g) > 0) continue;
      const double score = scores[static_cast<size_t>(kept[out])];
      if (score - scores[static_cast<size_t>(g)] > 2 * slack(r, score)) continue;
      std::vector<int> other = kept;
      other[out] = g;
      if (in_order(r, limited(r, other), ids)) return true;
    }
  }
  return false;
}

/// The smallest distance between a choice that was made and one that was not, of experts or groups:
/// above the rounding of scores there is one right choice.
inline double margin(const Rule& r) {
  const auto gap = [](std::vector<double> scores, int taken) {
    std::sort(scores.rbegin(), scores.rend());
    const auto n = static_cast<size_t>(taken);
    return n < scores.size() ? scores[n - 1] - scores[n] : HUGE_VAL;
  };
  const std::vector<int> kept = best(group_scores(r), r.kept);
  return std::min(gap(group_scores(r), r.kept), gap(limited(r, kept), r.count));
}

}  // namespace fathom::oracle

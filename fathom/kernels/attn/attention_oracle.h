// Exact answers for the attention kernels: softmax in two passes, in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace fathom::oracle {

/// One output row and its natural log-sum-exp.
struct AttentionRow {
  std::vector<double> o;
  double lse = -std::numeric_limits<double>::infinity();
};

/// Attention of q over keys 0 .. num_keys-1; key(j) and value(j) give vectors. Without keys o is 0
/// and lse -inf.
inline AttentionRow attend(const std::vector<double>& q,
                           int64_t num_keys,
                           int64_t value_width,
                           double scale,
                           const std::function<std::vector<double>(int64_t)>& key,
                           const std::function<std::vector<double>(int64_t)>& value) {
  AttentionRow row;
  row.o.assign(static_cast<size_t>(value_width), 0.0);
  if (num_keys <= 0) return row;
  std::vector<double> scores;
  for (int64_t j = 0; j < num_keys; ++j) {
    const std::vector<double> k = key(j);
    double dot = 0;
    for (size_t d = 0; d < q.size(); ++d)
      dot += q[d] * k[d];
    scores.push_back(scale * dot);
  }
  double max = scores[0];
  for (double s : scores)
    max = std::max(max, s);
  double sum = 0;
  for (double s : scores)
    sum += std::exp(s - max);
  for (int64_t j = 0; j < num_keys; ++j) {
    const double weight = std::exp(scores[static_cast<size_t>(j)] - max) / sum;
    const std::vector<double> v = value(j);
    for (size_t d = 0; d < row.o.size(); ++d)
      row.o[d] += weight * v[d];
  }
  row.lse = max + std::log(sum);
  return row;
}

/// The row with a sink, a logit without a value, in its softmax.
inline AttentionRow with_sink(AttentionRow row, double sink) {
  const double max = std::max(row.lse, sink);
  const double lse = max + std::log(std::exp(row.lse - max) + std::exp(sink - max));
  for (double& o : row.o)
    o *= std::exp(row.lse - lse);
  row.lse = lse;
  return row;
}

/// Remembers rows, so that o and lse of a row, and all its columns, are worked out once.
class AttentionRows {
 public:
  explicit AttentionRows(std::function<AttentionRow(int64_t row)> f) : f_(std::move(f)) {}

  const AttentionRow& operator()(int64_t row) {
    const auto found = rows_.find(row);
    return found != rows_.end() ? found->second : rows_.emplace(row, f_(row)).first->second;
  }

 private:
  std::function<AttentionRow(int64_t)> f_;
  std::map<int64_t, AttentionRow> rows_;
};

}  // namespace fathom::oracle

// Exact answers for the kernels that rotate, and a table like that of a model.
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "fathom/kernels/conformance/operands/operands.h"
#include "fathom/kernels/rope/rope/rope.h"

namespace fathom::oracle {

/// x rotated by the angle of `position`, in double, with a table of any format; term(p) is applied
/// to each product.
template <class Term>
void rotate(const std::vector<double>& x,
            const Tensor& table,
            int64_t position,
            RopeStyle style,
            std::span<double> out,
            Term term) {
  const auto num_pairs = static_cast<int64_t>(x.size() / 2);
  for (int64_t i = 0; i < num_pairs; ++i) {
    const double c = table.at(position, i);
    const double s = table.at(position, num_pairs + i);
    const bool adjacent = style == RopeStyle::kInterleaved;
    const auto first = static_cast<size_t>(adjacent ? 2 * i : i);
    const auto second = static_cast<size_t>(adjacent ? 2 * i + 1 : num_pairs + i);
    out[first] = term(x[first] * c) - term(x[second] * s);
    out[second] = term(x[second] * c) + term(x[first] * s);
  }
}

inline void rotate(const std::vector<double>& x,
                   const Tensor& table,
                   int64_t position,
                   RopeStyle style,
                   std::span<double> out) {
  rotate(x, table, position, style, out, [](double p) { return p; });
}

/// Turns the last channels of a head, as many as the table has columns, by the angle of -position.
inline void rotate_back(std::vector<double>& head, const Tensor& table, int64_t position) {
  const int64_t pairs = table.dim(1) / 2;
  double* pe = head.data() + head.size() - static_cast<size_t>(2 * pairs);
  for (int64_t i = 0; i < pairs; ++i, pe += 2) {
    const double c = table.at(position, i);
    const double s = table.at(position, pairs + i);
    const double a = pe[0];
    pe[0] = a * c + pe[1] * s;
    pe[1] = pe[1] * c - a * s;
  }
}

/// Entry i of the row of a position: cos or sin of position * 10000^(-2i/R).
inline double rope_entry(int64_t position, int64_t i, int64_t R) {
  const auto pair = static_cast<double>(i % (R / 2));
  const double angle =
      static_cast<double>(position) * std::pow(10000.0, -2.0 * pair / static_cast<double>(R));
  return i < R / 2 ? std::cos(angle) : std::sin(angle);
}

/// Fills a table [P,R].
inline void fill_rope_table(const Tensor& table) {
  const int64_t R = table.dim(1);
  table.fill([R](int64_t place) { return rope_entry(place / R, place % R, R); });
}

/// Fills the rows of these positions alone: a model's whole table takes longer than a measurement.
inline void fill_rope_rows(const Tensor& table, const Tensor& positions) {
  const int64_t R = table.dim(1);
  for (int64_t t = 0; t < positions.numel(); ++t) {
    const auto position = static_cast<int64_t>(positions[t]);
    for (int64_t i = 0; i < R; ++i)
      table.set(position * R + i, rope_entry(position, i, R));
  }
}

}  // namespace fathom::oracle

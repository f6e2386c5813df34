// Measures of how far an output is from what it should be, and the gates that decide.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "fathom/formats/format.h"

namespace fathom {

/// Distances between found x and expected y, in double. Places where y is not finite are left out.
struct Measures {
  int64_t count = 0;   ///< finite places
  double max_abs = 0;  ///< max |x - y|
  double max_rel = 0;  ///< max |x - y| / |y|, places with |y| < 1e-30 left out
  double cos = 1;      ///< x.y / (|x| |y|)
  double diff = 0;     ///< |x - y|^2 / (|x|^2 + |y|^2)
  double rel_l2 = 0;   ///< |x - y| / |y|
  double sqnr_db = 0;  ///< 10 log10(|y|^2 / |x - y|^2), capped at 300
};

Measures measure(std::span<const double> found, std::span<const double> expected);

/// What an output must satisfy; every bound that is not negative applies. NaN and the infinities
/// must be in the same places always.
struct Gate {
  double rel_l2 = -1;  ///< of the whole output
  double diff = -1;    ///< of the whole output
  double abs = -1;     ///< each element: |x - y| <= abs, or the relative bound, or the ulp bound
  double rel = -1;     ///< each element: |x - y| <= rel |y|
  int bf16_ulps = -1;  ///< each element: distance in steps of bf16 at y
  double bf16_ulps_doubled = 0;  ///< share of elements that may be twice as many steps away

  /// "relL2 <= 0.003", for reports.
  std::string text() const;
};

/// The table of docs/numerics.md.
namespace gates {
/// Bit for bit (values of one format compared as numbers; -0 equals 0).
Gate exact();
/// Products and sums in float32, by the format of the result: 5e-6 for f32, 3e-3 for bf16.
Gate gemm(Format result);
/// Norms, activations, rotations: one step of bf16 (two for at most 0.1 %) or of f16; 2e-6 for f32.
Gate row_op(Format result);
/// Attention: diff 5e-6, each element abs 1e-3 or rel 2/128; f32: diff 1e-11, 1e-5 each. abs is of
/// outputs that are multiplied by `o_scale`.
Gate attention(Format result, double o_scale = 1);
/// Log-sum-exp: abs 1e-6 or rel 8/65536; an f32 path keeps it as well.
Gate log_sum_exp();
/// Router weights: rel 1e-3.
Gate router_weights();
/// Gate B of products, against unquantised weights: by the weight format.
Gate full_precision(Format weight);
}  // namespace gates

/// The result of holding an output to a gate.
struct Verdict {
  bool passed = true;
  Measures measures;
  int64_t first_bad = -1;  ///< place of the worst element, or -1
  std::string why;         ///< empty if passed
};

Verdict judge(const Gate& gate, std::span<const double> found, std::span<const double> expected);

}  // namespace fathom

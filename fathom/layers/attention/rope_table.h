// Tables of cosines and sines for rotary position embedding, with YaRN's frequencies.
#pragma once

#include <cstdint>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/device/memory.h"
#include "fathom/tensor/view.h"

namespace fathom {

/// What determines a table. Symbols as in YaRN (arXiv 2309.00071) and DeepSeek's configuration.
struct RopeParams {
  int64_t dim = 0;  ///< Dr, even
  double theta = 10000.0;
  bool yarn = false;
  double factor = 1.0;
  int64_t original_positions = 0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double attention_factor = 1.0;  ///< multiplies every cosine and sine; 1 for DeepSeek's models
};

/// The Dr/2 angular frequencies, in float64.
///
///   f_i = theta^(-2i/Dr);  without YaRN w_i = f_i, else
///   w_i = f_i (1 - ramp_i) + (f_i / factor) ramp_i,
///   ramp_i = clamp((i - low) / (high - low), 0, 1),
///   low = max(floor(D(beta_fast)), 0), high = min(ceil(D(beta_slow)), Dr - 1),
///   D(r) = Dr ln(original / (2 pi r)) / (2 ln theta)
///
/// i counts pairs. YaRN's stretch holds at every position, short prompts included.
std::vector<double> rope_frequencies(const RopeParams& params);

/// A float32 table [P, Dr]; row p is c_0 .. c_{Dr/2-1} s_0 .. s_{Dr/2-1} of the angles
/// phi_i = fl32(p * fl32(w_i)), as the reference engines form them, with cosine and sine of that
/// float32 angle correctly rounded (computed in float64).
class RopeTable {
 public:
  RopeTable() = default;

  /// Errors: InvalidArgument for an odd dim, OutOfMemory; those of the GPU if it shall lie there.
  static Result<RopeTable> build(const RopeParams& params,
                                 int64_t num_positions,
                                 DeviceKind device = DeviceKind::kCpu);

  /// The shape without memory, for dry runs.
  static RopeTable dry(const RopeParams& params, int64_t num_positions);

  const View& view() const { return view_; }

 private:
  Buffer memory_;
  View view_;
};

}  // namespace fathom

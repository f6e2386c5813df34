// Tables of cosines and sines for rotary position embedding, with YaRN's frequencies.
#pragma once

#include <cstdint>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/tensor/view.h"
#include "fathom/weights/weight_store.h"

namespace fathom {

/// What determines a table. Symbols as in YaRN (arXiv 2309.00071) and DeepSeek's configuration.
struct RopeParams {
  int64_t dim = 0;  ///< Dr, even
  double theta = 10000.0;
  bool yarn = false;
  double factor = 1.0;  ///< of YaRN
  int64_t original_positions = 0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double attention_factor = 1.0;  ///< multiplies every cosine and sine; 1 for DeepSeek's models
  double position_divisor = 1.0;  ///< linear scaling: positions are divided by it
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

/// Fills a float32 table [P, Dr] in host memory; row p is c_0 .. c_{Dr/2-1} s_0 .. s_{Dr/2-1} of
/// the angles phi_i = fl32(fl32(p / position_divisor) * fl32(w_i)), as the reference engines form
/// them, with cosine and sine of that float32 angle correctly rounded (computed in float64).
void fill_rope_table(const RopeParams& params, const View& table);

/// That table of so many positions, in the memory of the weights. Errors: InvalidArgument for an
/// odd dim; those of WeightStore::constant.
Result<View> rope_table(WeightStore& store, const RopeParams& params, int64_t num_positions);

}  // namespace fathom

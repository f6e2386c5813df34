#include "fathom/kernels/sparse/request_offsets.h"

namespace fathom {

Status check_request_offsets(const View& q_offsets, int64_t tokens) {
  const auto* begins = q_offsets.as<const int32_t>();
  for (int64_t b = 0; b < q_offsets.dim(0); ++b) {
    const int32_t least = b == 0 ? 0 : begins[b - 1];
    const int64_t most = b == 0 ? 0 : tokens;
    if (begins[b] >= least && begins[b] <= most) continue;
    return invalid_argument(str_cat("q_offsets[", b, "] is ", begins[b], ", expected ",
                                    b == 0 ? "0" : str_cat(least, " to ", most)));
  }
  return {};
}

}  // namespace fathom

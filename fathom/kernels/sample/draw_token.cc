#include <algorithm>

#include "fathom/kernels/sample/thresholds.h"

namespace fathom {
namespace {

/// Blocks of a row whose masses are kept until the one with the token is known.
constexpr int64_t kMaxBlocks = 256;
constexpr int64_t kLeastBlock = 512;

/// The first token of [begin, end) whose running mass exceeds the target; the last one that is kept
/// and possible, where rounding lets none exceed it; -1 if there is none.
int32_t find_token(
    const float* p, int64_t begin, int64_t end, float threshold, double running, double target) {
  int32_t last = -1;
  for (int64_t v = begin; v < end; ++v) {
    const float value = usable_probability(p[v]);
    if (value < threshold || value == 0) continue;
    running += double{value};
    last = static_cast<int32_t>(v);
    if (running > target) break;
  }
  return last;
}

}  // namespace

int32_t draw_token(
    const ProbabilityScans& scans, const float* p, int64_t count, float threshold, double uniform) {
  const int64_t block = std::max(kLeastBlock, (count + kMaxBlocks - 1) / kMaxBlocks);
  const int64_t num_blocks = (count + block - 1) / block;
  double masses[kMaxBlocks];
  double mass = 0;
  for (int64_t b = 0; b < num_blocks; ++b) {
    masses[b] = scans.mass_from(p + b * block, std::min(block, count - b * block), threshold);
    mass += masses[b];
  }
  const double target = uniform * mass;
  double running = 0;
  double before = 0;
  int64_t chosen = 0;  // block that holds the token: the newest that has mass
  for (int64_t b = 0; b < num_blocks && !(running > target); ++b) {
    if (masses[b] <= 0) continue;
    chosen = b;
    before = running;
    running += masses[b];
  }
  const int64_t begin = chosen * block;
  return find_token(p, begin, std::min(count, begin + block), threshold, before, target);
}

}  // namespace fathom

#include "fathom/kernels/attn/attention_sink.h"

#include <cmath>
#include <limits>

namespace fathom {

SinkState add_sink(float max, float sum, float sink) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  if (sink == kLowest) return {max, sum, 1.0f};
  const float most = sink > max ? sink : max;
  // A row that has seen nothing has max -inf and shrinks to nothing.
  const float shrink = max == kLowest ? 0.0f : std::exp(max - most);
  return {most, sum * shrink + std::exp(sink - most), shrink};
}

}  // namespace fathom

// Attention sinks: a logit of each head that takes part in the softmax and has no value.
#pragma once

namespace fathom {

/// Running maximum of the scores and sum of e^(score - maximum) of a row, with a sink in it.
struct SinkState {
  float max;
  float sum;
  float shrink;  ///< what sums of values so far are multiplied by
};

/// Adds e^sink to the sum of a row. A sink of -inf changes nothing.
SinkState add_sink(float max, float sum, float sink);

/// log2(x) for a natural logarithm.
inline constexpr float kLog2E = 1.44269504f;

}  // namespace fathom

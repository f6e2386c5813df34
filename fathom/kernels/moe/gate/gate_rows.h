// What the routers do with a row, for each instruction set. `count` is at most kMaxExperts.
#pragma once

#include <cstdint>

namespace fathom {

/// The parts of a router that run over all experts. NaN marks what may not be chosen any more.
struct GateRow {
  /// out[i] = 1 / (1 + exp(-z[i])).
  void (*sigmoid)(const float* z, float* out, int64_t count);

  /// out[i] = sqrt(log(1 + exp(z[i]))).
  void (*sqrt_softplus)(const float* z, float* out, int64_t count);

  /// out = softmax(z). A NaN, an infinity or nothing but -inf in z makes all of out NaN.
  void (*softmax)(const float* z, float* out, int64_t count);

  /// out[i] = s[i] + beta[i]; NaN, which may stand nowhere in an order, becomes -inf.
  void (*choice)(const float* s, const float* beta, float* out, int64_t count);

  /// The lowest index of the largest value, NaN left out; -1 if there is nothing but NaN.
  int64_t (*argmax)(const float* values, int64_t count);
};

/// Beyond these, log(1 + e^z) is z, and e^z, to the last bit of float32.
inline constexpr float kSoftplusIsLinear = 18.0f;
inline constexpr float kSoftplusIsExponential = -18.0f;

namespace avx512 {

void gate_sigmoid(const float* z, float* out, int64_t count);
void gate_sqrt_softplus(const float* z, float* out, int64_t count);
void gate_softmax(const float* z, float* out, int64_t count);
void gate_choice(const float* s, const float* beta, float* out, int64_t count);
int64_t gate_argmax(const float* values, int64_t count);

}  // namespace avx512
}  // namespace fathom

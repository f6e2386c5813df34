// What the indexer of sparse attention does to a row, query or key, between its projection and the
// memory that the scores are computed from: rotation, Hadamard transform, quantisation. The pieces
// are here, for rows of float32, so that whoever makes a row (a projection, a compressor) can end
// with the same steps.
//
//   DeepSeek-V3.2   first channels, half-split pairs   Hadamard   e4m3, one scale a row
//   DeepSeek-V4     last channels, adjacent pairs      Hadamard   e2m1, a scale per 32
//
// Each step rounds its result to `rounding`, the format of the activations: bf16 as the models were
// trained, f32 for a path that rounds nowhere. All functions of this header have the same bits for
// every instruction set; those in avx512:: need that one. Rows are independent.
#pragma once

#include <cstdint>

#include "fathom/formats/format.h"
#include "fathom/formats/minifloat.h"
#include "fathom/kernels/rope/rope/rope.h"

namespace fathom {

/// Which channels of a row the rotation takes.
enum class RopeChannels : uint8_t {
  kFirst,  ///< 0 .. R-1: the indexer of V3.2 (its attention has them last)
  kLast,   ///< D-R .. D-1: V4
};

enum class IndexTransform : uint8_t {
  kNone,      ///< scores without quantisation are the same, since the transform is orthogonal
  kHadamard,  ///< natural order, times D^-0.5; D is a power of two
};

/// The widest row: rows are worked on in memory of the stack.
inline constexpr int64_t kMaxIndexWidth = 1024;

/// Channels that share a scale in e2m1.
inline constexpr int64_t kIndexScaleGroup = 32;

/// What is done to rows of `width` (D) values.
struct IndexSteps {
  int64_t width = 0;
  int64_t rope_dim = 0;  ///< R, even, at most D
  RopeStyle style = RopeStyle::kHalfSplit;
  RopeChannels channels = RopeChannels::kFirst;
  IndexTransform transform = IndexTransform::kHadamard;
  Format rounding = Format::kBf16;  ///< bf16 or f32
};

/// Where a finished row goes. `format` is f32, bf16, e4m3, or u8 for pairs of e2m1 (even channel in
/// the low nibble), which also has a scale for each group of 32.
struct IndexRowOut {
  Format format = Format::kNone;
  void* values = nullptr;
  Ue8m0* group_scales = nullptr;
};

/// Bytes that hold `width` values: elements of a row in an operand of that format.
constexpr int64_t index_elements(Format format, int64_t width) {
  return format == Format::kU8 ? width / 2 : width;
}

/// Values in a row of so many elements.
constexpr int64_t index_width(Format format, int64_t elements) {
  return format == Format::kU8 ? 2 * elements : elements;
}

/// x[D] = its rotation by table_row (R/2 cosines, then R/2 sines). In place; products and sums in
/// float32, then rounded. Channels that do not rotate stay as they are.
void rotate_index_row(const IndexSteps& steps, const float* table_row, float* x);

/// x[D] = D^-0.5 H x, if the steps have a transform. In place; butterflies of strides 1, 2, 4, ..
/// in float32 as in the kernel `hadamard`, then rounded.
void transform_index_row(const IndexSteps& steps, float* x);

/// Stores x[D]. Returns the scale of the row: value = code * scale; 1 for all formats but e4m3.
///
///   e4m3   a = max(max |x|, 1e-4);          s = 2^ceil(log2(a / 448));   code = e4m3(x / s)
///   e2m1   a = max(max |x|, 6 * 2^-126);    s = 2^ceil(log2(a / 6));     code = e2m1(x / s)
///   bf16   rounded to nearest even;   f32   as it is
///
/// e4m3 has one a for the row, e2m1 one for each 32 channels. NaN does not enter a; its code is NaN
/// in e4m3 and that of 6 in e2m1. An infinity makes s = 2^127 and has the largest code.
/// Source: DeepSeek-V3.2 and V4, inference/kernel.py (act_quant, fp4_act_quant).
float store_index_row(const IndexSteps& steps, const float* x, const IndexRowOut& out);

namespace avx512 {
void rotate_index_row(const IndexSteps& steps, const float* table_row, float* x);
void transform_index_row(const IndexSteps& steps, float* x);
float store_index_row(const IndexSteps& steps, const float* x, const IndexRowOut& out);
}  // namespace avx512

}  // namespace fathom

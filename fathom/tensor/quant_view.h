// QuantView: values, scales and global scale as one unit, so that a kernel cannot be handed one
// without the others. Also used for dense weights, whose scales are absent.
#pragma once

#include "fathom/tensor/view.h"

namespace fathom {

/// How the bytes of a weight matrix lie in memory (formats/layout/tile_layout.h has the diagrams).
enum class WeightLayout : uint8_t {
  kRowMajor,  ///< as in the checkpoint: values [N, K] packed along K, scales [N/bn, K/bk]
  kRows16,    ///< 16 output rows in the lanes of a vector; scales folded in (tile_layout.h)
  kPairs,     ///< NVFP4 on a GPU: row-major, the codes of 32 k in an order of their own
              ///< (pair_layout.h)
};

/// A weight [N, K] or a stack of them [E, N, K], or quantised activations [T, K].
///
/// kRowMajor: `values.data` is packed row-major; `scales` is [ceil(N/bn), ceil(K/bk)] in the scale
/// format ([E, ...] for stacks); `global` is one float32 (or [E]).
/// kPairs: the same, K a multiple of 32.
/// kRows16: `values.data` is the tile stream, `scales` and `global` are as tile_layout.h says.
struct QuantView {
  View values;
  View scales;
  View global;
  WeightLayout layout = WeightLayout::kRowMajor;

  Format format() const { return values.format; }

  bool present() const { return values.present(); }

  int64_t rows() const { return values.dim(values.rank - 2); }

  int64_t cols() const { return values.dim(values.rank - 1); }

  /// A dense operand is a quantised one without scales.
  static QuantView dense(const View& v) {
    QuantView q;
    q.values = v;
    return q;
  }
};

}  // namespace fathom

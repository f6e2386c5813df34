// Two models on the same tokens, block by block: how far the outputs of attention and of the
// feed-forward part and the residual stream are apart in each layer.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fathom/layers/probe.h"

namespace fathom {

/// An element of a tapped tensor in bf16 or f32, whose rows may lie in a wider one.
float tapped_element(const View& v, int64_t row, int64_t column);

/// A tensor of one layer over all tokens, as one vector.
struct TapCosine {
  double dot = 0;  ///< reference . other, and their squares
  double reference_norm = 0;
  double other_norm = 0;

  /// 1 for two zero vectors; NaN where an element is not finite.
  double cosine() const;
};

/// Cosines of the tensors that both models tap: "attn.output" and "ffn.output" of a layer, and
/// "layer.input", its residual stream. What a layer reads holds the errors of those before it.
class TapComparison {
 public:
  using Key = std::pair<int, std::string>;  ///< layer, name

  /// Keeps what the reference taps, in its order.
  Probe reference_probe();

  /// Compares with what was kept, pass by pass.
  Probe other_probe();

  /// Forgets what was kept; the sums stay. Between two sequences.
  void next_sequence();

  const std::map<Key, TapCosine>& results() const { return results_; }

 private:
  struct Kept {
    std::vector<float> values;
    size_t compared = 0;
  };

  void keep(std::string_view name, int layer, const View& v);
  void compare(std::string_view name, int layer, const View& v);

  std::map<Key, Kept> kept_;
  std::map<Key, TapCosine> results_;
};

}  // namespace fathom

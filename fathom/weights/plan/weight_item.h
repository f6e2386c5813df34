// One piece of the plan of a model's weights: what it is, which tensors it is made of, where it
// lies.
#pragma once

#include <cstdint>
#include <vector>

#include "fathom/tensor/quant_view.h"
#include "fathom/weights/plan/weight_spec.h"

namespace fathom {

/// A matrix [N, K] or a stack of them [E, N, K].
struct LinearWeight {
  QuantView w;
  /// The checkpoint's scale of quantised activations. Experts without take the largest of their
  /// stack; 1 where there is none. nvfp4: f32 [1] or [E]; products that keep activations in bf16 do
  /// not read it. w4_fp8: f32 [1], the largest of all.
  View input_scale;
  /// nvfp4 in a plan of Nvfp4Inputs::kQuantised: 1 / input_scale, what nvfp4_quant takes. Where it
  /// is present, products quantise what they read.
  View input_gs;
  /// On a CPU, while somebody calibrates: f32 [1] or [E], the largest magnitude that products with
  /// each matrix have read so far.
  View input_amax;
  /// QServe only: zero points f16 [N] (w4a8_channel) or i8 [K/128, N] (w4a8_group); the latter has
  /// a second scale, f16 [N].
  View zeros;
  View row_scales;

  bool present() const { return w.present(); }

  bool quantises_input() const { return input_gs.present(); }
};

struct WeightItem {
  enum class Kind : uint8_t {
    kVector,     ///< a row of numbers, format kept (router bias: float32)
    kTable,      ///< a row-major matrix: the embedding
    kMatrix,     ///< a linear weight or a stack of them
    kAbsorbedK,  ///< w_kc [Nh, Lkv, Dn]: of each head of kv_b the key rows, transposed
    kAbsorbedV,  ///< w_vc [Nh, Dv, Lkv]: of each head of kv_b the value rows
  };

  Kind kind = Kind::kVector;
  WeightRole role = WeightRole::kNorm;
  Format format = Format::kNone;  ///< in memory
  WeightLayout layout = WeightLayout::kRowMajor;
  bool draft = false;
  bool stacked = false;          ///< [E, N, K] rather than [N, K]
  bool shared = false;           ///< ranks have different parts
  bool quantises_input = false;  ///< LinearWeight::input_gs lies behind input_scale
  int64_t e = 1;
  int64_t n = 1;
  int64_t k = 0;
  int64_t index_limit = 0;  ///< of a table of indices: they are below it
  const char* axes = "";
  /// Tensors of the checkpoint: matrix by matrix, within one from its first row to its last. Empty
  /// for the absorbed copies, which are made from the item `derived_from`.
  std::vector<WeightSpec> sources;
  size_t derived_from = 0;
  int64_t head_rows_k = 0;  ///< absorbed copies: Dn
  int64_t head_rows_v = 0;  ///< absorbed copies: Dv

  // Byte offsets within the store; -1 where there is no such part.
  int64_t values_offset = -1;
  int64_t scales_offset = -1;
  int64_t global_offset = -1;
  int64_t input_scale_offset = -1;
  int64_t zeros_offset = -1;
  int64_t row_scales_offset = -1;
  int64_t bytes = 0;  ///< of all parts, padding between them included

  View* view_out = nullptr;
  LinearWeight* linear_out = nullptr;

  bool is_linear() const { return kind != Kind::kVector && kind != Kind::kTable; }

  bool in_tiles() const { return layout == WeightLayout::kRows16; }

  /// Row groups of 16 of one matrix, and of the stack.
  int64_t groups_per_matrix() const;
  int64_t groups() const;

  /// Bytes of all values.
  int64_t value_bytes() const;

  /// Block, group or channel scales: how many there are, and their type.
  int64_t num_scales() const;
  Format scale_type() const;

  /// Global scales: of nvfp4 one a matrix, in tiles of nvfp4 and mxfp4 one a row group.
  int64_t num_globals() const;

  /// input_scale has so many numbers.
  int64_t num_input_scales() const;

  /// Those and input_gs.
  int64_t num_input_floats() const { return num_input_scales() * (quantises_input ? 2 : 1); }
};

/// Gives an item its place from byte `begin` on: values, then scales, then global and activation
/// scales, each at a multiple of `alignment`.
void place_item(WeightItem& item, int64_t begin, int64_t alignment);

enum class HostReads : uint8_t { kYes, kNo };

/// Fills the views of an item; `base` is the store, or null for a dry run.
void bind_item(const WeightItem& item, std::byte* base, HostReads host);

}  // namespace fathom

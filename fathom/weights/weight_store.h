// The weights of a model in memory: a plan that is made before anything is read, and the one block
// of memory that holds them all.
//
//   WeightPlan plan(config.symbols(), formats_of(checkpoint));
//   model.declare_weights(plan);                      // names, shapes, and where views go
//   plan.total_bytes(), plan.summary();               // what `fathom inspect` prints
//   WeightStore store = load_weights(plan, checkpoint, ...);   // or random, or dry
//
// A model declares each weight with the place of its view; the views are filled when the memory is
// there (null pointers in a dry run). Linear weights lie in layout kRows16 where their format has
// it (bf16, FP8 in blocks, NVFP4), and row-major as their kernels take them elsewhere. On a GPU all
// of them are row-major (NVFP4: kPairs), with scales as the checkpoint has them.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "fathom/device/memory.h"
#include "fathom/tensor/quant_view.h"
#include "fathom/weights/weight_spec.h"

namespace fathom {

/// A matrix [N, K] or a stack of them [E, N, K].
struct LinearWeight {
  QuantView w;
  /// The checkpoint's scale of quantised activations; 1 where it has none. nvfp4: f32 [1] or [E];
  /// kernels that keep activations in bf16 do not read it. w4_fp8: f32 [1], the largest of all.
  View input_scale;
  /// QServe only: zero points f16 [N] (w4a8_channel) or i8 [K/128, N] (w4a8_group); the latter has
  /// a second scale, f16 [N].
  View zeros;
  View row_scales;

  bool present() const { return w.present(); }
};

/// Matrices that take the same input, one below the other: [gate; up], [q_a; kv_a], or a stack of
/// such pairs. One weight if their formats agree and the rows of the first fill whole tiles or
/// scale blocks (and, row-major in NVFP4, their global scales agree); else two.
struct RowsWeight {
  LinearWeight parts[2];
  int num_parts = 0;

  /// Rows of all parts.
  int64_t rows() const;
};

/// One tensor in a call of WeightPlan: its name in the checkpoint and its shape in symbols.
struct RowPart {
  std::string name;
  const char* axes;
};

/// The format a tensor is stored in: asked of a checkpoint, or of a preset by role.
using FormatSource = std::function<Result<Format>(const WeightSpec&)>;

/// How messages begin that speak of a tensor: "DIR/FILE: tensor "x" at byte 1024".
using TensorPlaces = std::function<std::string(const std::string& tensor)>;

/// Whether two stored tensors have the same global scale. A row-major NVFP4 matrix has one, so only
/// such tensors can lie in one.
using SameGlobalScale = std::function<Result<bool>(const WeightSpec& a, const WeightSpec& b)>;

/// One piece of the plan: what it is, which tensors it is made of, where it lies.
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
  bool draft = false;
  bool stacked = false;  ///< [E, N, K] rather than [N, K]
  bool on_gpu = false;   ///< nvfp4 in pairs, everything else row-major
  int64_t e = 1;
  int64_t n = 1;
  int64_t k = 0;
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
  int64_t bytes = 0;  ///< of all parts, padding to 64 bytes included

  View* view_out = nullptr;
  LinearWeight* linear_out = nullptr;

  /// Row groups of 16 of one matrix, and of the stack.
  int64_t groups_per_matrix() const;
  int64_t groups() const;
  WeightLayout layout() const;
  /// input_scale has so many numbers.
  int64_t num_input_scales() const;
};

/// A line of the memory plan.
struct WeightSummary {
  WeightRole role;
  Format format;
  bool draft;
  int64_t tensors;     ///< of the checkpoint
  int64_t parameters;  ///< their numbers
  int64_t bytes;       ///< in memory
};

/// All weights of a model with their places. Reads nothing and allocates no weights.
class WeightPlan {
 public:
  WeightPlan(SymbolTable symbols, FormatSource formats, TensorPlaces places = {});

  /// The weights will lie in memory of a GPU. Called before anything is declared.
  void place_on_gpu(SameGlobalScale same_global_scale);

  bool on_gpu() const { return on_gpu_; }

  /// Tensors declared from here on belong to a draft layer.
  void set_draft(bool draft) { draft_ = draft; }

  /// A vector in bf16 or f32; a router bias becomes f32.
  Status vector(std::string name, const char* axes, WeightRole role, View* out);

  /// A row-major table in bf16 or f32.
  Status table(std::string name, const char* axes, WeightRole role, View* out);

  /// One linear weight. Stored as bf16, f32, fp8_block, fp8_block_ue8m0, fp8_channel, fp8_tensor
  /// (in memory fp8_channel), int8_channel, w4a8_channel, w4a8_group or nvfp4. Errors: Unsupported
  /// for another format, and for sizes that the format's packing does not take.
  Status matrix(std::string name, const char* axes, WeightRole role, LinearWeight* out);

  /// Two linear weights with the same input, fused where that is possible; `fused_axes` names the
  /// shape of the fused one.
  Status rows(const RowPart& first,
              const RowPart& second,
              const char* fused_axes,
              WeightRole role,
              RowsWeight* out);

  /// The parts of `count` experts as one stack; "{}" in a name stands for the expert's number. Also
  /// stored as w4_fp8, but not in QServe's formats. Errors: Unsupported if the formats of the
  /// experts differ or rows are no multiples of 16 where they lie in tiles.
  Status stack(std::initializer_list<RowPart> parts,
               int64_t count,
               const char* axes,
               WeightRole role,
               LinearWeight* out);

  /// A stack whose matrices have two parts each, one below the other; two stacks where the parts
  /// cannot lie in one matrix (RowsWeight), which only happens on a GPU. `part_axes` is the shape
  /// of each of the two stacks.
  Status stack_rows(const RowPart& first,
                    const RowPart& second,
                    int64_t count,
                    const char* axes,
                    const char* part_axes,
                    WeightRole role,
                    RowsWeight* out);

  /// The two halves of kv_b for the absorbed form, from the matrix declared last: w_kc [Nh, Lkv,
  /// Dn] and w_vc [Nh, Dv, Lkv], in f32 if kv_b is, else in bf16 (exact unless kv_b is quantised).
  Status absorbed(
      int64_t num_heads, int64_t nope_dim, int64_t v_dim, LinearWeight* w_kc, LinearWeight* w_vc);

  const SymbolTable& symbols() const { return symbols_; }

  const std::vector<WeightItem>& items() const { return items_; }

  /// Bytes of the store.
  int64_t total_bytes() const { return total_bytes_; }

  /// Numbers in the declared tensors of the checkpoint; the draft layers apart.
  int64_t parameters(bool draft) const;

  /// One line for each role, format and draft flag that occurs.
  std::vector<WeightSummary> summary() const;

  /// Fills the views of the model; `base` is the store, or null for a dry run.
  void bind(std::byte* base) const;

 private:
  Result<WeightSpec> spec(std::string name, const char* axes, WeightRole role, size_t rank) const;
  Status add_matrix(WeightItem item);
  std::string place_of(const WeightSpec& spec) const;
  Status wrong_format(const WeightSpec& spec, std::string_view expected) const;
  void place(WeightItem& item);
  void place_row_major_scales(WeightItem& item);
  void place_block_scales(WeightItem& item);
  Result<bool> lie_in_one(const WeightSpec& a, const WeightSpec& b) const;
  int64_t row_step(Format format) const;
  int64_t take(int64_t bytes);

  SymbolTable symbols_;
  FormatSource formats_;
  TensorPlaces places_;
  std::vector<WeightItem> items_;
  int64_t total_bytes_ = 0;
  bool draft_ = false;
  bool on_gpu_ = false;
  SameGlobalScale same_global_scale_;
};

/// The memory of all weights. Owned by the model; the views of the plan point into it.
class WeightStore {
 public:
  WeightStore() = default;

  /// Allocates the bytes of the plan, where the plan says, and binds its views. Errors:
  /// OutOfMemory.
  static Result<WeightStore> allocate(const WeightPlan& plan);

  /// Binds null pointers: for plans of models that no machine here can hold.
  static WeightStore dry(const WeightPlan& plan);

  std::byte* data() const { return memory_.data(); }

  int64_t bytes() const { return bytes_; }

  const std::vector<WeightSummary>& summary() const { return summary_; }

 private:
  Buffer memory_;
  int64_t bytes_ = 0;
  std::vector<WeightSummary> summary_;
};

}  // namespace fathom

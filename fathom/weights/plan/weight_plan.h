// A plan of the weights of a model, made before anything is read.
//
//   WeightPlan plan(config.symbols(), tensors_of(checkpoint), placement);
//   model.declare_weights(plan);                      // names, shapes, and where views go
//   plan.total_bytes(), plan.summary();               // what `fathom inspect` prints
//   WeightStore store = load_weights(plan, checkpoint, ...);   // or random, or dry
//
// A model declares each weight with the place of its view; the views are filled when the memory is
// there (null pointers in a dry run). How a weight lies, and which part of it, is the placement's
// business: a model asks for [gate; up] and gets one weight or two.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "fathom/weights/plan/placement.h"
#include "fathom/weights/plan/weight_item.h"
#include "fathom/weights/plan/weight_spec.h"

namespace fathom {

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

/// What a plan asks about the tensors that it is made of. Empty functions have their default.
struct TensorSource {
  FormatSource format;
  /// How messages begin that speak of a tensor: "DIR/FILE: tensor "x" at byte 1024". Default: its
  /// name.
  std::function<std::string(const std::string& tensor)> place = {};
  /// Whether two stored tensors have the same global scale. Default: they have, as in NVIDIA's
  /// exports those have that share an input.
  std::function<Result<bool>(const WeightSpec& a, const WeightSpec& b)> same_global_scale = {};
  /// Whether a tensor of that name is stored. Default: none but the declared ones.
  std::function<bool(std::string_view tensor)> stored = {};
};

/// Whether two matrices with one input are wanted as one.
enum class JoinRows : uint8_t {
  kWherePossible,
  kWhereItGains,  ///< on devices that are busier with one product
};

/// What products with weights in NVFP4 read.
enum class Nvfp4Inputs : uint8_t {
  kExact,      ///< activations as they are (W4A16)
  kQuantised,  ///< NVFP4 too, by the checkpoint's input_scale (W4A4): lossy
};

/// A line of the memory plan.
struct WeightSummary {
  WeightRole role;
  Format format;
  bool draft;
  int64_t tensors;     ///< of the checkpoint
  int64_t parameters;  ///< their numbers, of the parts that are held
  int64_t bytes;       ///< in memory
};

/// All weights of a model with their places. Reads nothing and allocates no weights.
class WeightPlan {
 public:
  WeightPlan(SymbolTable symbols, TensorSource tensors, Placement placement = {});
  WeightPlan(SymbolTable symbols, FormatSource formats, Placement placement = {});

  const Placement& placement() const { return placement_; }

  /// Tensors declared from here on belong to a draft layer.
  void set_draft(bool draft) { draft_ = draft; }

  /// Weights declared from here on that are stored in NVFP4 get LinearWeight::input_gs, or none.
  void set_nvfp4_inputs(Nvfp4Inputs inputs) { nvfp4_inputs_ = inputs; }

  /// Whether the source has a tensor of that name: for those that a model may do without.
  bool is_stored(std::string_view tensor) const;

  /// A vector in bf16 or f32; what is_kept_in_f32 becomes f32.
  Status vector(std::string name, const char* axes, WeightRole role, View* out);

  /// A row-major table in bf16 or f32, likewise.
  Status table(std::string name, const char* axes, WeightRole role, View* out);

  /// A row-major table of numbers from 0 to limit - 1, in i32 or i64 as it is stored. Other numbers
  /// are refused when it is loaded.
  Status index_table(std::string name, const char* axes, int64_t limit, View* out);

  /// One linear weight. Stored as bf16, f32, fp8_block, fp8_block_ue8m0, fp8_channel, fp8_tensor
  /// (in memory fp8_channel), int8_channel, w4a8_channel, w4a8_group, nvfp4, mxfp4 or mxfp8.
  /// Errors:
  /// Unsupported for another format, for sizes that the format's packing does not take, and for
  /// cuts that the ranks of the placement cannot make (shard.h).
  Status matrix(std::string name, const char* axes, WeightRole role, LinearWeight* out);

  /// Two linear weights with the same input, fused where that is possible and wanted; `fused_axes`
  /// names the shape of the fused one.
  Status rows(const RowPart& first,
              const RowPart& second,
              const char* fused_axes,
              WeightRole role,
              RowsWeight* out,
              JoinRows join = JoinRows::kWherePossible);

  /// The parts of `count` experts as one stack; "{}" in a name stands for the expert's number. Also
  /// stored as w4_fp8, but not in QServe's formats. Errors: Unsupported if the formats of the
  /// experts differ or rows are no multiples of 16 where they lie in tiles.
  Status stack(std::initializer_list<RowPart> parts,
               int64_t count,
               const char* axes,
               WeightRole role,
               LinearWeight* out);

  /// A stack whose matrices have two parts each, one below the other; two stacks where the parts
  /// cannot lie in one matrix (RowsWeight) and the kernels take that. `part_axes` is the shape of
  /// each of the two stacks.
  Status stack_rows(const RowPart& first,
                    const RowPart& second,
                    int64_t count,
                    const char* axes,
                    const char* part_axes,
                    WeightRole role,
                    RowsWeight* out);

  /// The two halves of kv_b for the absorbed form, from the matrix declared last: w_kc [Nh, Lkv,
  /// Dn] and w_vc [Nh, Dv, Lkv], in f32 if kv_b is. A kv_b in bf16 is copied as it is; a quantised
  /// one is rounded to bf16 once, or exact in f32 where the activations are f32.
  Status absorbed(
      int64_t nope_dim, int64_t v_dim, Format activations, LinearWeight* w_kc, LinearWeight* w_vc);

  const SymbolTable& symbols() const { return symbols_; }

  const std::vector<WeightItem>& items() const { return items_; }

  /// Tensors that other ranks load and this one does not: experts.
  const std::vector<WeightSpec>& of_other_ranks() const { return of_other_ranks_; }

  /// Bytes of the store.
  int64_t total_bytes() const { return total_bytes_; }

  /// Numbers that are held of the declared tensors; the draft layers apart.
  int64_t parameters(bool draft) const;

  /// One line for each role, format and draft flag that occurs.
  std::vector<WeightSummary> summary() const;

  /// Fills the views of the model; `base` is the store, or null for a dry run.
  void bind(std::byte* base) const;

 private:
  Result<WeightSpec> spec(std::string name, const char* axes, WeightRole role, size_t rank) const;
  Status add_dense(
      WeightItem::Kind kind, std::string name, const char* axes, WeightRole role, View* out);
  Status add_matrix(WeightItem item);
  Status check_source(const WeightItem& item, size_t index) const;
  void add(WeightItem item);
  std::string place_of(const std::string& tensor) const;
  Status wrong_format(const WeightSpec& spec, std::string_view expected) const;
  Result<bool> lie_in_one(const WeightSpec& a, const WeightSpec& b) const;

  SymbolTable symbols_;
  TensorSource tensors_;
  Placement placement_;
  std::vector<WeightItem> items_;
  std::vector<WeightSpec> of_other_ranks_;
  int64_t total_bytes_ = 0;
  bool draft_ = false;
  Nvfp4Inputs nvfp4_inputs_ = Nvfp4Inputs::kExact;
};

}  // namespace fathom

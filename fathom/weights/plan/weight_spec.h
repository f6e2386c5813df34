// What a model expects of a checkpoint: the names of its tensors, their shapes in the paper's
// symbols, and what each is for. The text of a shape ("Nh*Dq,Lq") is evaluated with the model's
// symbol table to verify the checkpoint, and carried on to traces, so that documents print names
// beside numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/formats/format.h"

namespace fathom {

/// The sizes of a model by the symbols of its paper: H, Lq, Nh, ...
class SymbolTable {
 public:
  /// Adds or replaces a symbol.
  void set(std::string_view name, int64_t value);

  std::optional<int64_t> find(std::string_view name) const;

  /// In the order in which they were added.
  const std::vector<std::pair<std::string, int64_t>>& entries() const { return entries_; }

 private:
  std::vector<std::pair<std::string, int64_t>> entries_;
};

/// Evaluates sums and products of symbols and integers, with parentheses: "Nh*(Dn+Dv)".
/// Errors: InvalidArgument for malformed text, unknown symbols and overflow.
Result<int64_t> eval_axis(std::string_view text, const SymbolTable& symbols);

/// The axes of a shape, separated by commas outside parentheses: "Nh*Dq,Lq".
Result<std::vector<int64_t>> eval_axes(std::string_view text, const SymbolTable& symbols);

/// What a tensor is for. Presets choose formats by it and memory plans are summed by it.
enum class WeightRole : uint8_t {
  kEmbedding,
  kHead,  ///< LM head
  kNorm,
  kAttention,  ///< projections into attention: q_a, q_b, kv_a, kv_b and the absorbed copies
  kOutput,     ///< o_proj
  kMlp,        ///< dense layers
  kExpert,     ///< routed experts
  kSharedExpert,
  kRouter,
  kRouterBias,
  kDraft,          ///< what only the draft layer has: eh_proj, or e_proj and h_proj
  kStream,         ///< V4: how residual streams are read, mixed and written
  kAttentionBias,  ///< V4: attention sinks, and position biases of compressors
  kCompressor,     ///< V4: projections of compressors, and of what an indexer keeps
  kOutputGroups,   ///< V4: o_a_proj, a product for each group of heads
  kHashTable,      ///< V4: experts by token id
};

inline constexpr int kNumWeightRoles = static_cast<int>(WeightRole::kHashTable) + 1;

/// "expert", "shared_expert", ...: for plans and messages.
std::string_view weight_role_name(WeightRole role);

/// Whether every number of such a weight is checked when it is loaded. NaN in a router reads as the
/// lowest score, so other experts are chosen and nothing shows; elsewhere it reaches the logits.
bool must_be_finite(WeightRole role);

/// Small tensors that are float32 in memory however they are stored.
bool is_kept_in_f32(WeightRole role);

/// The part of a tensor that a rank holds: a run of one axis, the others whole.
struct TensorPart {
  int axis = -1;      ///< -1: the whole tensor
  int64_t begin = 0;  ///< of the run
  int64_t count = 0;
};

/// One tensor of a checkpoint, as the model expects it.
struct WeightSpec {
  std::string name;       ///< "model.layers.3.self_attn.q_b_proj.weight"
  const char* axes = "";  ///< static text: "Nh*Dq,Lq"
  WeightRole role = WeightRole::kNorm;
  bool draft = false;             ///< belongs to a draft layer
  std::vector<int64_t> dims;      ///< axes, evaluated; the logical shape for packed formats
  Format format = Format::kNone;  ///< as stored
  TensorPart part;                ///< what of it is loaded

  /// Numbers of the whole tensor, and of the part.
  int64_t numel() const;
  int64_t held_numel() const;

  /// Size of an axis, of the part.
  int64_t held(int axis) const {
    return axis == part.axis ? part.count : dims[static_cast<size_t>(axis)];
  }
};

/// "[24576, 1536]".
std::string describe_dims(const std::vector<int64_t>& dims);

}  // namespace fathom

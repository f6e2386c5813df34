#include "fathom/weights/stored_tensors.h"

#include <algorithm>
#include <charconv>
#include <unordered_set>
#include <utility>

namespace fathom {
namespace {

constexpr size_t kNamesInMessage = 5;

int64_t number_behind(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return -1;
  int64_t number = -1;
  const char* begin = name.data() + prefix.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), number);
  return error == std::errc{} && end != begin ? number : -1;
}

// A draft layer takes the embedding and the hidden state through norms of their own.
bool is_draft_layer(const Checkpoint& checkpoint, std::string_view name, int64_t layer) {
  if (name.starts_with("mtp.")) return true;
  return checkpoint.find(str_cat("model.layers.", layer, ".enorm.weight")) != nullptr;
}

// Tensors that no forward pass of ours reads: tables that are computed, and cache scales.
bool is_ignored(std::string_view name) {
  for (std::string_view suffix : {".inv_freq", ".k_scale", ".v_scale", ".kv_scale"}) {
    if (name.ends_with(suffix)) return true;
  }
  return false;
}

Status missing_error(const Checkpoint& checkpoint, const std::vector<std::string_view>& missing) {
  std::string message =
      str_cat(checkpoint.directory(), ": ", static_cast<int64_t>(missing.size()),
              missing.size() == 1 ? " tensor is missing:" : " tensors are missing:");
  for (size_t i = 0; i < std::min(missing.size(), kNamesInMessage); ++i) {
    str_append(message, str_cat(i == 0 ? " " : ", ", missing[i]));
  }
  if (missing.size() > kNamesInMessage) message += ", ...";
  return corrupt(std::move(message));
}

// The tensor of a spec and what belongs to it, by name.
Status note_used(const Checkpoint& checkpoint,
                 const WeightSpec& spec,
                 std::unordered_set<std::string_view>& used) {
  FATHOM_ASSIGN(const StoredLinear stored, describe_source(checkpoint, spec));
  for (const TensorRef* ref :
       {stored.weight, stored.scale, stored.global_scale, stored.input_scale}) {
    if (ref != nullptr) used.insert(ref->entry.name);
  }
  return {};
}

}  // namespace

int64_t layer_number(std::string_view name, int64_t num_layers) {
  if (const int64_t draft = number_behind(name, "mtp."); draft >= 0) return num_layers + draft;
  return std::max(number_behind(name, "model.layers."), number_behind(name, "layers."));
}

Result<StoredLinear> describe_source(const Checkpoint& checkpoint, const WeightSpec& spec) {
  FATHOM_ASSIGN(StoredLinear stored, describe_linear(checkpoint, spec.name));
  const std::vector<int64_t>& shape = stored.weight->entry.shape;
  const bool fits = spec.dims.size() == 2
                        ? shape.size() == 2 && stored.n == spec.dims[0] && stored.k == spec.dims[1]
                        : shape == spec.dims;
  if (!fits) {
    return corrupt(str_cat(checkpoint.locate(*stored.weight), " has shape ", describe_dims(shape),
                           ", expected ", spec.axes, " = ", describe_dims(spec.dims),
                           is_quantised(stored.format) ? " values" : ""));
  }
  return stored;
}

TensorSource tensors_of(const Checkpoint& checkpoint) {
  const auto scale_of = [&checkpoint](const WeightSpec& spec) -> Result<float> {
    if (checkpoint.find(spec.name) == nullptr) return 1.0f;  // verify_tensors will say so
    FATHOM_ASSIGN(const StoredLinear stored, describe_linear(checkpoint, spec.name));
    if (stored.global_scale == nullptr) return 1.0f;
    return read_tensor_scale(checkpoint, *stored.global_scale);
  };
  return {
      .format = [&checkpoint](const WeightSpec& spec) -> Result<Format> {
        if (checkpoint.find(spec.name) == nullptr) return Format::kBf16;
        FATHOM_ASSIGN(const StoredLinear stored, describe_source(checkpoint, spec));
        return stored.format;
      },
      .place =
          [&checkpoint](const std::string& name) {
            const TensorRef* tensor = checkpoint.find(name);
            return tensor != nullptr ? checkpoint.locate(*tensor)
                                     : str_cat(checkpoint.directory(), ": tensor ", quoted(name));
          },
      .same_global_scale = [scale_of](const WeightSpec& a, const WeightSpec& b) -> Result<bool> {
        FATHOM_ASSIGN(const float of_a, scale_of(a));
        FATHOM_ASSIGN(const float of_b, scale_of(b));
        return of_a == of_b;
      },
      .stored = [&checkpoint](std::string_view name) { return checkpoint.find(name) != nullptr; }};
}

Result<TensorReport> verify_tensors(const WeightPlan& plan,
                                    const Checkpoint& checkpoint,
                                    int64_t num_layers) {
  std::vector<std::string_view> missing;
  std::unordered_set<std::string_view> used;
  const auto note = [&](const std::vector<WeightSpec>& specs) -> Status {
    for (const WeightSpec& spec : specs) {
      if (checkpoint.find(spec.name) != nullptr) {
        FATHOM_TRY(note_used(checkpoint, spec, used));
      } else {
        missing.push_back(spec.name);
      }
    }
    return {};
  };
  for (const WeightItem& item : plan.items())
    FATHOM_TRY(note(item.sources));
  FATHOM_TRY(note(plan.of_other_ranks()));
  if (!missing.empty()) return missing_error(checkpoint, missing);
  TensorReport report;
  for (const TensorRef& ref : checkpoint.tensors()) {
    if (used.contains(ref.entry.name) || is_ignored(ref.entry.name)) continue;
    const int64_t layer = layer_number(ref.entry.name, num_layers);
    if (layer < num_layers) {
      report.surplus.push_back(ref.entry.name);
    } else if (is_draft_layer(checkpoint, ref.entry.name, layer)) {
      ++report.draft_tensors;
    } else {
      return corrupt(str_cat(checkpoint.locate(ref), " belongs to layer ", layer,
                             ", which is no draft layer, expected layers 0 to ", num_layers - 1,
                             " (num_hidden_layers)"));
    }
  }
  return report;
}

}  // namespace fathom

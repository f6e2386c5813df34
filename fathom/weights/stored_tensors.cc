#include "fathom/weights/stored_tensors.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
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

// Declarations of FP8 are told apart by how the scales lie, which published ones do not always say.
bool bears_out(QuantAlgo declared, Format stored) {
  switch (declared) {
    case QuantAlgo::kNone:
    case QuantAlgo::kMixed:
      return true;
    case QuantAlgo::kFp8Block:
    case QuantAlgo::kFp8Channel:
    case QuantAlgo::kFp8Tensor:
      return stored == Format::kFp8Block || stored == Format::kFp8BlockUe8m0 ||
             stored == Format::kFp8Channel || stored == Format::kFp8Tensor;
    case QuantAlgo::kNvfp4:
      return stored == Format::kNvfp4;
    case QuantAlgo::kMxfp4:
      return stored == Format::kMxfp4;
    case QuantAlgo::kMxfp8:
      return stored == Format::kMxfp8;
    case QuantAlgo::kInt8Channel:
    case QuantAlgo::kInt8Block:
      return stored == Format::kInt8Channel;
    case QuantAlgo::kW4Fp8:
      return stored == Format::kW4Fp8;
  }
  return true;
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

Status check_one_format(const WeightPlan& plan,
                        const Checkpoint& checkpoint,
                        const QuantConfig& declared) {
  if (declared.algo == QuantAlgo::kMixed) return {};
  std::array<const WeightSpec*, 2 * kNumWeightRoles> first{};
  for (const WeightItem& item : plan.items()) {
    for (const WeightSpec& spec : item.sources) {
      const TensorRef* const tensor = checkpoint.find(spec.name);
      if (!is_quantised(spec.format) || tensor == nullptr) continue;
      const auto role = 2 * static_cast<size_t>(spec.role) + (spec.draft ? 1 : 0);
      if (first[role] == nullptr) first[role] = &spec;
      const WeightSpec& other = *first[role];
      if (other.format == spec.format) continue;
      return corrupt(str_cat(
          checkpoint.locate(*tensor), " is stored as ", format_name(spec.format), ", but ",
          quoted(other.name), " as ", format_name(other.format), ", and ",
          declared.source.empty()
              ? "config.json has no quantization_config"
              : str_cat(declared.source, " declares ", quant_algo_name(declared.algo), " for both"),
          "; a checkpoint of several formats says quant_algo MIXED_PRECISION there"));
    }
  }
  return {};
}

std::string unmet_declaration(const WeightPlan& plan,
                              const Checkpoint& checkpoint,
                              const QuantConfig& declared) {
  if (declared.algo == QuantAlgo::kNone || declared.algo == QuantAlgo::kMixed) return {};
  std::set<std::string_view> found;
  for (const WeightItem& item : plan.items()) {
    for (const WeightSpec& spec : item.sources) {
      if (spec.dims.size() != 2 || checkpoint.find(spec.name) == nullptr) continue;
      if (bears_out(declared.algo, spec.format)) return {};
      found.insert(format_name(spec.format));
    }
  }
  std::string formats;
  for (const std::string_view format : found)
    str_append(formats, str_cat(formats.empty() ? "" : ", ", format));
  return str_cat(checkpoint.directory(), ": ", declared.source, " declares ",
                 quant_algo_name(declared.algo), ", but the weights are ", formats,
                 "; they are read as what they are (are config and weights of one model?)");
}

}  // namespace fathom

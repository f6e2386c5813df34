#include "fathom/weights/checkpoint/linear_format.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "fathom/base/checked_math.h"
#include "fathom/base/str_cat.h"
#include "fathom/formats/minifloat.h"
#include "fathom/tensor/view.h"

namespace fathom {
namespace {

constexpr std::string_view kWeightSuffix = ".weight";
constexpr int64_t kBlock = 128;

using Shape = std::vector<int64_t>;

bool is_scalar(const Shape& shape) {
  return shape.empty() || shape == Shape{1};
}

bool is_per_row(const Shape& shape, int64_t n) {
  return shape == Shape{n} || shape == Shape{n, 1};
}

bool is_block_grid(const Shape& shape, int64_t n, int64_t k) {
  return shape == Shape{ceil_div(n, kBlock), ceil_div(k, kBlock)};
}

// A weight and whatever tensors stand beside it.
struct Found {
  const Checkpoint& checkpoint;
  const TensorRef* weight;
  const TensorRef* weight_scale = nullptr;
  const TensorRef* weight_scale_2 = nullptr;
  const TensorRef* weight_scale_inv = nullptr;
  const TensorRef* scale = nullptr;
  const TensorRef* input_scale = nullptr;

  Format dtype() const { return weight->entry.dtype; }

  int64_t rows() const { return weight->entry.shape[0]; }

  int64_t columns() const { return weight->entry.shape[1]; }

  std::string describe(const TensorRef& tensor) const {
    return str_cat(checkpoint.locate(tensor), " is ",
                   describe_tensor(tensor.entry.dtype, tensor.entry.shape));
  }

  Status error(const TensorRef& tensor, std::string_view expected) const {
    return corrupt(str_cat(describe(tensor), ", expected ", expected, " for ",
                           describe_tensor(dtype(), weight->entry.shape)));
  }

  // Only one tensor of block scales may be there.
  Result<const TensorRef*> only_scale() const {
    const TensorRef* only = nullptr;
    for (const TensorRef* candidate : {weight_scale, weight_scale_inv, scale}) {
      if (candidate == nullptr) continue;
      if (only != nullptr) {
        return corrupt(str_cat(checkpoint.describe(*candidate), " and ", checkpoint.describe(*only),
                               " both scale ", quoted(weight->entry.name)));
      }
      only = candidate;
    }
    if (only != nullptr) return only;
    return corrupt(
        str_cat(describe(*weight),
                " and has no scale beside it (weight_scale, weight_scale_inv or scale)"));
  }

  // Two values a byte, in groups along K.
  Status uneven(int64_t group) const {
    return corrupt(str_cat(describe(*weight), ", expected rows of a multiple of ", group / 2,
                           " bytes, for groups of ", group, " values"));
  }

  Status refuse_global() const {
    if (weight_scale_2 == nullptr) return {};
    return error(*weight_scale_2, "no second scale");
  }

  StoredLinear stored(Format format, int64_t k, const TensorRef* block_scale) const {
    return {format, rows(), k, weight, block_scale, nullptr, input_scale};
  }
};

Found find_companions(const Checkpoint& checkpoint, const TensorRef& weight) {
  Found found{checkpoint, &weight};
  std::string_view stem = weight.entry.name;
  if (!stem.ends_with(kWeightSuffix)) return found;
  stem.remove_suffix(kWeightSuffix.size());
  const auto beside = [&](std::string_view suffix) {
    return checkpoint.find(str_cat(stem, suffix));
  };
  found.weight_scale = beside(".weight_scale");
  found.weight_scale_2 = beside(".weight_scale_2");
  found.weight_scale_inv = beside(".weight_scale_inv");
  found.scale = beside(".scale");
  found.input_scale = beside(".input_scale");
  return found;
}

Result<StoredLinear> describe_dense(const Found& found) {
  for (const TensorRef* extra :
       {found.weight_scale, found.weight_scale_2, found.weight_scale_inv, found.scale}) {
    if (extra != nullptr) return found.error(*extra, "no scale");
  }
  StoredLinear out{.format = found.dtype(), .n = 1, .k = 1, .weight = found.weight};
  out.input_scale = found.input_scale;
  const Shape& shape = found.weight->entry.shape;
  for (size_t i = 0; i < shape.size(); ++i) {
    // The last axis of a matrix is K; what comes before it are rows. Sizes were checked on opening.
    (i > 0 && i + 1 == shape.size() ? out.k : out.n) *= shape[i];
  }
  return out;
}

// UE8M0 scales of 32 columns of k. U8 stands for E8M0 in files of writers that do not know the
// dtype, ModelOpt among them.
bool has_mx_scale(const Found& found, const TensorRef& scale, int64_t k) {
  return (scale.entry.dtype == Format::kUe8m0 || scale.entry.dtype == Format::kU8) && k % 32 == 0 &&
         scale.entry.shape == Shape{found.rows(), k / 32};
}

Result<StoredLinear> describe_fp8(const Found& found) {
  FATHOM_TRY(found.refuse_global());
  FATHOM_ASSIGN(const TensorRef* scale, found.only_scale());
  const int64_t n = found.rows();
  const int64_t k = found.columns();
  const TensorEntry& entry = scale->entry;
  const bool is_plain = scale == found.weight_scale;
  if (entry.dtype == Format::kF32) {
    if (is_plain && is_scalar(entry.shape)) return found.stored(Format::kFp8Tensor, k, scale);
    if (is_plain && is_per_row(entry.shape, n)) return found.stored(Format::kFp8Channel, k, scale);
    if (is_block_grid(entry.shape, n, k)) return found.stored(Format::kFp8Block, k, scale);
  }
  if (entry.dtype == Format::kUe8m0 && is_block_grid(entry.shape, n, k)) {
    return found.stored(Format::kFp8BlockUe8m0, k, scale);
  }
  if (has_mx_scale(found, *scale, k)) return found.stored(Format::kMxfp8, k, scale);
  if (entry.dtype == Format::kU8) {
    return found.error(*scale, k % 32 == 0 ? str_cat("U8 [", n, ", ", k / 32, "], as for MXFP8,")
                                           : str_cat("rows of a multiple of 32, as for MXFP8,"));
  }
  const std::string grid = str_cat("[", ceil_div(n, kBlock), ", ", ceil_div(k, kBlock), "]");
  return found.error(*scale, is_plain ? str_cat("F32 or F8_E8M0 ", grid, ", or F32 [], [1], [", n,
                                                "] or [", n, ", 1]")
                                      : str_cat("F32 or F8_E8M0 ", grid));
}

Result<StoredLinear> describe_nvfp4(const Found& found) {
  const int64_t k = 2 * found.columns();
  FATHOM_ASSIGN(const TensorRef* only, found.only_scale());
  if (only != found.weight_scale) return found.error(*only, "a weight_scale instead");
  if (k % 16 != 0) return found.uneven(16);
  const TensorEntry& scale = found.weight_scale->entry;
  if (scale.dtype != Format::kE4m3 || scale.shape != Shape{found.rows(), k / 16}) {
    return found.error(*found.weight_scale, str_cat("F8_E4M3 [", found.rows(), ", ", k / 16, "]"));
  }
  const TensorEntry& global = found.weight_scale_2->entry;
  if (global.dtype != Format::kF32 || !is_scalar(global.shape)) {
    return found.error(*found.weight_scale_2, "F32 [] or [1]");
  }
  StoredLinear out = found.stored(Format::kNvfp4, k, found.weight_scale);
  out.global_scale = found.weight_scale_2;
  return out;
}

Result<StoredLinear> describe_u8(const Found& found) {
  if (found.weight_scale_2 != nullptr) return describe_nvfp4(found);
  FATHOM_ASSIGN(const TensorRef* scale, found.only_scale());
  if (has_mx_scale(found, *scale, 2 * found.columns())) {
    return found.stored(Format::kMxfp4, 2 * found.columns(), scale);
  }
  if (scale->entry.dtype == Format::kE4m3) {
    return corrupt(str_cat(found.describe(*scale),
                           ", as for NVFP4, and has no weight_scale_2 "
                           "beside it"));
  }
  return found.error(*scale, str_cat("F8_E8M0 [", found.rows(), ", ",
                                     ceil_div<int64_t>(2 * found.columns(), 32), "]"));
}

Result<StoredLinear> describe_i8(const Found& found) {
  FATHOM_TRY(found.refuse_global());
  FATHOM_ASSIGN(const TensorRef* scale, found.only_scale());
  const int64_t n = found.rows();
  const int64_t columns = found.columns();
  const TensorEntry& entry = scale->entry;
  if (scale == found.weight_scale_inv) {
    const int64_t k = 2 * columns;
    const bool is_float = entry.dtype == Format::kF32 || entry.dtype == Format::kBf16;
    if (is_float && k % kBlock == 0 && entry.shape == Shape{n, k / kBlock}) {
      return found.stored(Format::kW4Fp8, k, scale);
    }
    if (entry.dtype == Format::kF32 && is_block_grid(entry.shape, n, columns)) {
      return unsupported(str_cat(found.describe(*found.weight),
                                 " with scales per block (int8 in blocks), which no kernel "
                                 "supports\nhint: use a checkpoint with scales per channel"));
    }
    return found.error(*scale, str_cat("F32 or BF16 [", n, ", ", ceil_div(k, kBlock), "]"));
  }
  if (has_mx_scale(found, *scale, 2 * columns)) {
    return found.stored(Format::kMxfp4, 2 * columns, scale);
  }
  if (scale == found.weight_scale && entry.dtype == Format::kF32 && is_per_row(entry.shape, n)) {
    return found.stored(Format::kInt8Channel, columns, scale);
  }
  return found.error(*scale,
                     scale == found.weight_scale
                         ? str_cat("F32 [", n, ", 1] or [", n, "]")
                         : str_cat("F8_E8M0 [", n, ", ", ceil_div<int64_t>(2 * columns, 32), "]"));
}

float stored_value(Format dtype, const std::byte* values, int64_t index) {
  const std::byte* at = values + index * element_bytes(dtype);
  if (dtype == Format::kE4m3) return to_float(E4m3{static_cast<uint8_t>(*at)});
  if (dtype == Format::kUe8m0 || dtype == Format::kU8) {
    return to_float(Ue8m0{static_cast<uint8_t>(*at)});
  }
  if (dtype == Format::kBf16) {
    Bf16 value{};
    std::memcpy(&value, at, sizeof value);
    return to_float(value);
  }
  if (dtype == Format::kF16) {
    F16 value{};
    std::memcpy(&value, at, sizeof value);
    return to_float(value);
  }
  float value = 0.0f;
  std::memcpy(&value, at, sizeof value);
  return value;
}

}  // namespace

Status check_block_scales(const Checkpoint& checkpoint,
                          const StoredLinear& linear,
                          std::span<const std::byte> scales,
                          int64_t offset) {
  const TensorEntry& entry = linear.scale->entry;
  const int64_t size = element_bytes(entry.dtype);
  const auto count = static_cast<int64_t>(scales.size()) / size;
  for (int64_t i = 0; i < count; ++i) {
    const float value = stored_value(entry.dtype, scales.data(), i);
    if (std::isfinite(value) && value >= 0.0f) continue;
    return corrupt(str_cat(checkpoint.describe(*linear.scale), ": scale ", offset / size + i,
                           " at byte ", entry.begin + offset + i * size, " is ", value,
                           ", expected a finite number that is not negative"));
  }
  return {};
}

Status check_finite_values(const Checkpoint& checkpoint,
                           const TensorRef& tensor,
                           std::span<const std::byte> values,
                           int64_t offset) {
  const TensorEntry& entry = tensor.entry;
  if (entry.dtype == Format::kU8 || entry.dtype == Format::kI8) return {};
  const int64_t size = element_bytes(entry.dtype);
  const auto count = static_cast<int64_t>(values.size()) / size;
  for (int64_t i = 0; i < count; ++i) {
    const float value = stored_value(entry.dtype, values.data(), i);
    if (std::isfinite(value)) continue;
    return corrupt(str_cat(checkpoint.describe(tensor), ": element ", offset / size + i,
                           " at byte ", entry.begin + offset + i * size, " is ", value,
                           ", expected a finite number"));
  }
  return {};
}

Result<float> read_tensor_scale(const Checkpoint& checkpoint, const TensorRef& scale) {
  float value = 0.0f;
  FATHOM_TRY(checkpoint.read(scale, std::as_writable_bytes(std::span<float, 1>(&value, 1))));
  if (std::isfinite(value) && value > 0.0f) return value;
  return corrupt(str_cat(checkpoint.locate(scale), " is ", value,
                         ", expected a finite positive number, the scale of the tensor"));
}

Result<StoredLinear> describe_linear(const Checkpoint& checkpoint, std::string_view weight_name) {
  FATHOM_ASSIGN(const TensorRef* weight, checkpoint.get(weight_name));
  const Found found = find_companions(checkpoint, *weight);
  const Format dtype = weight->entry.dtype;
  if (found.input_scale != nullptr) {
    const TensorEntry& entry = found.input_scale->entry;
    if (entry.dtype != Format::kF32 || !is_scalar(entry.shape)) {
      return found.error(*found.input_scale, "F32 [] or [1]");
    }
  }
  const bool is_weight = weight_name.ends_with(kWeightSuffix);
  if (!is_weight || dtype == Format::kF32 || dtype == Format::kF16 || dtype == Format::kBf16) {
    return describe_dense(found);
  }
  if (weight->entry.shape.size() != 2) {
    return corrupt(
        str_cat(found.describe(*weight), ", expected two dimensions, or F32, F16, BF16"));
  }
  if (dtype == Format::kE4m3) return describe_fp8(found);
  if (dtype == Format::kU8) return describe_u8(found);
  if (dtype == Format::kI8) return describe_i8(found);
  return corrupt(str_cat(found.describe(*weight),
                         ", expected F32, F16, BF16, F8_E4M3, U8 or I8 for a weight"));
}

}  // namespace fathom

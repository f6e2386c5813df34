#include "fathom/weights/export/quantize_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "fathom/base/checked_math.h"
#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/block/block_fp8.h"
#include "fathom/formats/integer/group_int.h"

namespace fathom {
namespace {

template <class T>
StoredTensor stored(std::string name,
                    Format dtype,
                    std::vector<int64_t> shape,
                    const std::vector<T>& values) {
  StoredTensor t{std::move(name), dtype, std::move(shape), {}};
  t.bytes.resize(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
  return t;
}

// "model.layers.0.mlp.up_proj.weight" without ".weight".
std::string stem_of(const std::string& weight_name) {
  constexpr std::string_view kSuffix = ".weight";
  return weight_name.ends_with(kSuffix) ? weight_name.substr(0, weight_name.size() - kSuffix.size())
                                        : weight_name;
}

// Whether a weight is called as in DeepSeek-V4's release, whose scales are X.scale.
bool has_release_name(const std::string& weight_name) {
  return weight_name.starts_with("layers.") || weight_name.starts_with("mtp.");
}

std::string release_scale(const std::string& weight_name) {
  return stem_of(weight_name) + ".scale";
}

QuantError error_of(const std::vector<float>& w, const std::vector<float>& decoded) {
  QuantError e;
  for (size_t i = 0; i < w.size(); ++i) {
    const double d = static_cast<double>(decoded[i]) - static_cast<double>(w[i]);
    e.squared_error += d * d;
    e.squared_weight += static_cast<double>(w[i]) * static_cast<double>(w[i]);
    e.max_error = std::max(e.max_error, std::abs(d));
  }
  return e;
}

Result<QuantizedMatrix> to_nvfp4(
    const std::vector<float>& w, int64_t n, int64_t k, float amax, const std::string& name) {
  const float global = nvfp4_global_scale(amax);
  std::vector<uint8_t> packed(w.size() / 2);
  std::vector<E4m3> scales(static_cast<size_t>(n * (k / kNvfp4Block)));
  FATHOM_TRY(nvfp4_quantize_weights(w.data(), n, k, global, packed.data(), scales.data()));
  std::vector<float> decoded(w.size());
  nvfp4_dequantize(packed.data(), scales.data(), global, n, k, decoded.data());
  QuantizedMatrix q;
  q.error = error_of(w, decoded);
  q.tensors.push_back(stored(name, Format::kU8, {n, k / 2}, packed));
  q.tensors.push_back(stored(name + "_scale", Format::kE4m3, {n, k / kNvfp4Block}, scales));
  q.tensors.push_back(stored(name + "_scale_2", Format::kF32, {}, std::vector<float>{global}));
  return q;
}

QuantizedMatrix to_mxfp4(const std::vector<float>& w,
                         int64_t n,
                         int64_t k,
                         const std::string& name) {
  std::vector<uint8_t> packed(w.size() / 2);
  std::vector<Ue8m0> scales(static_cast<size_t>(n * (k / kMxfp4Block)));
  mxfp4_quantize(w.data(), n, k, Mxfp4Rule::kCeil, packed.data(), scales.data());
  std::vector<float> decoded(w.size());
  mxfp4_dequantize(packed.data(), scales.data(), n, k, decoded.data());
  QuantizedMatrix q;
  q.error = error_of(w, decoded);
  const bool release = has_release_name(name);
  q.tensors.push_back(stored(name, release ? Format::kI8 : Format::kU8, {n, k / 2}, packed));
  q.tensors.push_back(stored(release ? release_scale(name) : name + "_scale", Format::kUe8m0,
                             {n, k / kMxfp4Block}, scales));
  return q;
}

QuantizedMatrix to_mxfp8(const std::vector<float>& w,
                         int64_t n,
                         int64_t k,
                         const std::string& name) {
  std::vector<E4m3> codes(w.size());
  std::vector<Ue8m0> scales(static_cast<size_t>(n * (k / kMxfp8Block)));
  mxfp8_quantize(w.data(), n, k, codes.data(), scales.data());
  std::vector<float> decoded(w.size());
  fp8_dequantize_groups(codes.data(), scales.data(), n, k, kMxfp8Block, decoded.data());
  QuantizedMatrix q;
  q.error = error_of(w, decoded);
  q.tensors.push_back(stored(name, Format::kE4m3, {n, k}, codes));
  q.tensors.push_back(stored(name + "_scale", Format::kU8, {n, k / kMxfp8Block}, scales));
  return q;
}

Result<QuantizedMatrix> to_fp8_block(
    const std::vector<float>& w, int64_t n, int64_t k, Format format, const std::string& name) {
  using Rounding = Fp8QuantOptions::Rounding;
  const bool powers = format == Format::kFp8BlockUe8m0;
  const int64_t blocks_n = ceil_div(n, kFp8Block);
  const int64_t blocks_k = ceil_div(k, kFp8Block);
  std::vector<E4m3> codes(w.size());
  std::vector<float> scales(static_cast<size_t>(blocks_n * blocks_k));
  FATHOM_TRY(fp8_quantize_blocks(w.data(), n, k, powers ? Rounding::kPowerOfTwoUp : Rounding::kNone,
                                 codes.data(), scales.data()));
  std::vector<float> decoded(w.size());
  fp8_dequantize_blocks(codes.data(), scales.data(), n, k, decoded.data());
  QuantizedMatrix q;
  q.error = error_of(w, decoded);
  q.tensors.push_back(stored(name, Format::kE4m3, {n, k}, codes));
  if (!powers) {
    q.tensors.push_back(stored(name + "_scale_inv", Format::kF32, {blocks_n, blocks_k}, scales));
    return q;
  }
  std::vector<Ue8m0> exponents(scales.size());
  FATHOM_TRY(fp8_scales_to_ue8m0(scales, exponents));
  q.tensors.push_back(stored(has_release_name(name) ? release_scale(name) : name + "_scale_inv",
                             Format::kUe8m0, {blocks_n, blocks_k}, exponents));
  return q;
}

QuantizedMatrix to_int8(const std::vector<float>& w,
                        int64_t n,
                        int64_t k,
                        const std::string& name) {
  std::vector<int8_t> codes(w.size());
  std::vector<float> scales(static_cast<size_t>(n));
  int8_quantize_rows(w.data(), n, k, codes.data(), scales.data());
  std::vector<float> decoded(w.size());
  int8_dequantize_groups(codes.data(), scales.data(), n, k, k, decoded.data());
  QuantizedMatrix q;
  q.error = error_of(w, decoded);
  q.tensors.push_back(stored(name, Format::kI8, {n, k}, codes));
  q.tensors.push_back(stored(name + "_scale", Format::kF32, {n, 1}, scales));
  return q;
}

QuantizedMatrix to_bf16(const std::vector<float>& w,
                        int64_t n,
                        int64_t k,
                        const std::string& name) {
  std::vector<Bf16> values(w.size());
  std::vector<float> decoded(w.size());
  for (size_t i = 0; i < w.size(); ++i) {
    values[i] = bf16_from_float(w[i]);
    decoded[i] = to_float(values[i]);
  }
  QuantizedMatrix q;
  q.error = error_of(w, decoded);
  q.tensors.push_back(stored(name, Format::kBf16, {n, k}, values));
  return q;
}

Status check_block(int64_t k, int64_t block, Format format, const std::string& name) {
  if (k % block == 0) return {};
  return unsupported(str_cat(name, ": ", k, " columns are no multiple of ", block, ", which ",
                             format_name(format), " needs\nhint: leave it out with --ignore"));
}

}  // namespace

double QuantError::relative() const {
  return squared_weight > 0 ? std::sqrt(squared_error / squared_weight) : 0.0;
}

void QuantError::add(const QuantError& other) {
  squared_error += other.squared_error;
  squared_weight += other.squared_weight;
  max_error = std::max(max_error, other.max_error);
}

std::span<const FormatChoice> writable_formats() {
  static constexpr FormatChoice kFormats[] = {
      {"nvfp4", Format::kNvfp4},
      {"mxfp4", Format::kMxfp4},
      {"mxfp8", Format::kMxfp8},
      {"fp8_block", Format::kFp8Block},
      {"fp8_block_ue8m0", Format::kFp8BlockUe8m0},
      {"int8", Format::kInt8Channel},
      {"bf16", Format::kBf16},
      {"f32", Format::kF32},
  };
  return kFormats;
}

bool can_write_format(Format format) {
  const auto all = writable_formats();
  return std::any_of(all.begin(), all.end(), [&](const auto& f) { return f.format == format; });
}

Result<float> matrix_amax(const std::vector<float>& w, const std::string& name) {
  float amax = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    if (!std::isfinite(w[i])) {
      return corrupt(
          str_cat("tensor ", name, ": element ", i, " is ", w[i], ", expected a finite number"));
    }
    amax = std::max(amax, std::abs(w[i]));
  }
  return amax;
}

Result<QuantizedMatrix> quantize_matrix(const std::vector<float>& w,
                                        int64_t n,
                                        int64_t k,
                                        Format format,
                                        const std::string& weight_name,
                                        std::optional<float> shared_amax) {
  FATHOM_CHECK(static_cast<int64_t>(w.size()) == n * k, weight_name);
  FATHOM_ASSIGN(const float own_amax, matrix_amax(w, weight_name));
  const std::string name = stem_of(weight_name) + ".weight";
  if (format == Format::kNvfp4) {
    FATHOM_TRY(check_block(k, kNvfp4Block, format, weight_name));
    return to_nvfp4(w, n, k, shared_amax.value_or(own_amax), name);
  }
  if (format == Format::kMxfp4) {
    FATHOM_TRY(check_block(k, kMxfp4Block, format, weight_name));
    return to_mxfp4(w, n, k, name);
  }
  if (format == Format::kMxfp8) {
    FATHOM_TRY(check_block(k, kMxfp8Block, format, weight_name));
    return to_mxfp8(w, n, k, name);
  }
  if (is_fp8_block(format)) return to_fp8_block(w, n, k, format, name);
  if (format == Format::kInt8Channel) return to_int8(w, n, k, name);
  if (format == Format::kBf16) return to_bf16(w, n, k, name);
  if (format == Format::kF32) {
    QuantizedMatrix q;
    q.tensors.push_back(stored(name, Format::kF32, {n, k}, w));
    return q;
  }
  return unsupported(str_cat(weight_name, ": cannot write format ", format_name(format),
                             ", expected ", format_names(writable_formats())));
}

Result<std::vector<StoredTensor>> plan_quantised_matrix(const std::string& weight_name,
                                                        int64_t n,
                                                        int64_t k,
                                                        Format format) {
  // One row has the same tensors as n rows but for the first dimension.
  const std::vector<float> row(static_cast<size_t>(k), 0.0f);
  FATHOM_ASSIGN(QuantizedMatrix one, quantize_matrix(row, 1, k, format, weight_name));
  for (StoredTensor& t : one.tensors) {
    t.bytes.clear();
    if (t.shape.empty()) continue;
    const bool blocks = is_fp8_block(format) && t.dtype != Format::kE4m3;
    t.shape[0] = blocks ? ceil_div(n, kFp8Block) : n;
  }
  return std::move(one.tensors);
}

}  // namespace fathom

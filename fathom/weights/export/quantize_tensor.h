// One matrix from float32 to the tensors that a checkpoint stores for it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/formats/format_choice.h"

namespace fathom {

/// One tensor to be written: dtype as in the container, shape, bytes.
struct StoredTensor {
  std::string name;
  Format dtype = Format::kNone;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

/// How far a quantised matrix is from the original.
struct QuantError {
  double squared_error = 0;   ///< sum of (w' - w)^2
  double squared_weight = 0;  ///< sum of w^2
  double max_error = 0;       ///< largest |w' - w|

  /// |w' - w| / |w|, 0 for a matrix of zeros.
  double relative() const;
  void add(const QuantError& other);
};

struct QuantizedMatrix {
  std::vector<StoredTensor> tensors;
  QuantError error;
};

/// The formats that quantize_matrix writes: nvfp4, mxfp4, mxfp8, fp8_block, fp8_block_ue8m0, int8
/// (int8_channel), bf16, f32.
std::span<const FormatChoice> writable_formats();

bool can_write_format(Format format);

/// Largest |w|. Errors: Corrupt for NaN and infinities, naming the first index.
Result<float> matrix_amax(const std::vector<float>& w, const std::string& name);

/// Quantises w [n, k] (row-major) and names its tensors as published checkpoints do
/// (DeepSeek-V3's fp8_block, ModelOpt's nvfp4 and mxfp8); `weight_name` ends in ".weight":
///
///   nvfp4            X.weight U8 [N,K/2], X.weight_scale E4M3 [N,K/16], X.weight_scale_2 F32 []
///   mxfp4            X.weight U8 [N,K/2], X.weight_scale UE8M0 [N,K/32]
///   mxfp8            X.weight E4M3 [N,K], X.weight_scale U8 (UE8M0) [N,K/32]
///   fp8_block        X.weight E4M3 [N,K], X.weight_scale_inv F32 [N/128, K/128]
///   fp8_block_ue8m0  X.weight E4M3 [N,K], X.weight_scale_inv UE8M0 [N/128, K/128]
///   int8             X.weight I8 [N,K], X.weight_scale F32 [N,1]
///
/// DeepSeek-V4's own names ("layers.3.attn.wq_a.weight") get the layout of its release: mxfp4 is
/// I8 [N,K/2] with X.scale, fp8_block_ue8m0 has X.scale. Exponents of mxfp4 are the least that clip
/// nothing (Mxfp4Rule::kCeil).
///
/// `shared_amax` replaces the matrix's own largest value in the NVFP4 global scale: gate and up are
/// fused by engines and share it. Errors: Unsupported when K is no multiple of the format's block.
Result<QuantizedMatrix> quantize_matrix(const std::vector<float>& w,
                                        int64_t n,
                                        int64_t k,
                                        Format format,
                                        const std::string& weight_name,
                                        std::optional<float> shared_amax = std::nullopt);

/// Names, dtypes and shapes of what quantize_matrix would give, without bytes.
Result<std::vector<StoredTensor>> plan_quantised_matrix(const std::string& weight_name,
                                                        int64_t n,
                                                        int64_t k,
                                                        Format format);

}  // namespace fathom

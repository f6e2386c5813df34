// The format of one weight as it is stored, decided by its dtype and by the scale tensors beside
// it. A linear layer X is stored as X.weight [N, K] and, by format:
//
//   format           X.weight        scales
//   f32, f16, bf16   [N, K]          none
//   fp8_block        E4M3 [N, K]     X.weight_scale_inv (or .weight_scale) F32
//                                    [ceil(N/128), ceil(K/128)]
//   fp8_block_ue8m0  E4M3 [N, K]     X.weight_scale_inv or X.scale, E8M0, same shape
//   fp8_channel      E4M3 [N, K]     X.weight_scale F32 [N, 1] or [N]
//   fp8_tensor       E4M3 [N, K]     X.weight_scale F32 [] or [1]
//   nvfp4            U8 [N, K/2]     X.weight_scale E4M3 [N, K/16], X.weight_scale_2 F32 [] or [1]
//   mxfp4            U8 or I8        X.weight_scale or X.scale, E8M0 (or U8) [N, K/32]
//                    [N, K/2]
//   mxfp8            E4M3 [N, K]     X.weight_scale, X.weight_scale_inv or X.scale, U8 or E8M0
//                                    [N, K/32]
//   int8_channel     I8 [N, K]       X.weight_scale F32 [N, 1] or [N]
//   w4_fp8           I8 [N, K/2]     X.weight_scale_inv F32 or BF16 [N, K/128]
//
// X.input_scale, F32 [] or [1], may stand beside any quantised weight. Names and shapes
// are those of published checkpoints: DeepSeek-V3 (fp8_block), ModelOpt (nvfp4, mxfp8).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "fathom/base/status.h"
#include "fathom/formats/format.h"
#include "fathom/weights/checkpoint/checkpoint.h"

namespace fathom {

/// A weight with the tensors that belong to it. Pointers live as long as the checkpoint.
struct StoredLinear {
  Format format = Format::kNone;
  int64_t n = 0;  ///< logical rows; of a vector or scalar its elements
  int64_t k = 0;  ///< logical columns; 1 for a vector or scalar
  const TensorRef* weight = nullptr;
  const TensorRef* scale = nullptr;         ///< block, group or channel scales; null for dense ones
  const TensorRef* global_scale = nullptr;  ///< NVFP4
  const TensorRef* input_scale = nullptr;   ///< may be null for any format
};

/// Finds out how `weight_name` ("model.layers.3.self_attn.o_proj.weight") is stored. A tensor whose
/// name does not end with ".weight" has no companions, and its dtype is its format.
/// Errors: NotFound; Corrupt when scales are missing, superfluous, or of the wrong dtype or shape,
/// naming file, tensor, found and expected; Unsupported for int8 in blocks.
Result<StoredLinear> describe_linear(const Checkpoint& checkpoint, std::string_view weight_name);

/// Scales as a checkpoint may hold them: finite and not negative; a block of zeros may have scale
/// 0. `scales` are those of `linear.scale` from byte `offset` of the tensor on. Errors: Corrupt
/// naming file, tensor, index, byte, found and expected.
Status check_block_scales(const Checkpoint& checkpoint,
                          const StoredLinear& linear,
                          std::span<const std::byte> scales,
                          int64_t offset);

/// Numbers as a router may hold them: finite. `values` are those of `tensor`, floats or codes of a
/// weight, from its byte `offset` on; codes of integers and of FP4 are always finite. Errors:
/// Corrupt as above.
Status check_finite_values(const Checkpoint& checkpoint,
                           const TensorRef& tensor,
                           std::span<const std::byte> values,
                           int64_t offset);

/// The scale of a whole tensor, from a tensor of one number: finite and positive. Errors: those of
/// reading; Corrupt as above.
Result<float> read_tensor_scale(const Checkpoint& checkpoint, const TensorRef& scale);

}  // namespace fathom

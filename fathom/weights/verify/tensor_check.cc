#include "fathom/weights/verify/tensor_check.h"

#include <cmath>
#include <cstring>

#include "fathom/base/hint.h"

namespace fathom {
namespace {

// Whether any element has the exponent of infinities and NaN. Most tensors have none, and are then
// done without a look at each number.
template <class Bits>
bool has_exponent(std::span<const std::byte> values, Bits mask) {
  bool found = false;
  for (size_t i = 0; i + sizeof(Bits) <= values.size(); i += sizeof(Bits)) {
    Bits bits{};
    std::memcpy(&bits, values.data() + i, sizeof bits);
    found |= (bits & mask) == mask;
  }
  return found;
}

bool may_hold_nonfinite(Format dtype, std::span<const std::byte> values) {
  if (dtype == Format::kF32) return has_exponent<uint32_t>(values, 0x7F80'0000u);
  if (dtype == Format::kF16) return has_exponent<uint16_t>(values, 0x7C00u);
  if (dtype == Format::kBf16) return has_exponent<uint16_t>(values, 0x7F80u);
  if (dtype == Format::kE4m3) return has_exponent<uint8_t>(values, 0x7Fu);
  return false;  // no float that a weight is stored in
}

}  // namespace

TensorCheck::TensorCheck(const Checkpoint& checkpoint) : checkpoint_(&checkpoint) {
  for (const TensorRef& tensor : checkpoint.tensors()) {
    if (!tensor.entry.name.ends_with(".weight")) continue;
    const Result<StoredLinear> stored = describe_linear(checkpoint, tensor.entry.name);
    if (!stored.ok()) {
      faults_.push_back(in_one_line(stored.status().message()));
      continue;
    }
    const bool only_one = stored->format == Format::kFp8Tensor;
    if (stored->scale != nullptr && !only_one) block_scales_[stored->scale] = *stored;
    for (const TensorRef* scale :
         {only_one ? stored->scale : nullptr, stored->global_scale, stored->input_scale}) {
      if (scale != nullptr) tensor_scales_.insert(scale);
    }
  }
}

Status TensorCheck::check(const TensorRef& tensor,
                          std::span<const std::byte> values,
                          int64_t offset) const {
  if (const auto found = block_scales_.find(&tensor); found != block_scales_.end()) {
    return check_block_scales(*checkpoint_, found->second, values, offset);
  }
  if (tensor_scales_.contains(&tensor)) return read_tensor_scale(*checkpoint_, tensor).status();
  if (!may_hold_nonfinite(tensor.entry.dtype, values)) return {};
  return check_finite_values(*checkpoint_, tensor, values, offset);
}

}  // namespace fathom

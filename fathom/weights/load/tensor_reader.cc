#include "fathom/weights/load/tensor_reader.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "fathom/formats/minifloat.h"
#include "fathom/tensor/view.h"
#include "fathom/weights/stored_tensors.h"

namespace fathom {

void cut_columns(std::span<const std::byte> rows,
                 int64_t row_bytes,
                 int64_t begin,
                 int64_t count,
                 std::span<std::byte> out) {
  const size_t num_rows = rows.size() / static_cast<size_t>(row_bytes);
  for (size_t r = 0; r < num_rows; ++r) {
    std::memcpy(out.data() + r * static_cast<size_t>(count),
                rows.data() + r * static_cast<size_t>(row_bytes) + begin,
                static_cast<size_t>(count));
  }
}

Status convert_floats(Format from,
                      Format to,
                      std::span<const std::byte> in,
                      std::span<std::byte> out) {
  if (from == to) {
    std::memcpy(out.data(), in.data(), in.size());
    return {};
  }
  if (from != Format::kBf16 || to != Format::kF32) {
    return unsupported(str_cat("stored as ", format_name(from), ", expected ", format_name(to)));
  }
  for (size_t i = 0; i < in.size() / sizeof(Bf16); ++i) {
    Bf16 value{};
    std::memcpy(&value, in.data() + i * sizeof value, sizeof value);
    const float wide = to_float(value);
    std::memcpy(out.data() + i * sizeof wide, &wide, sizeof wide);
  }
  return {};
}

Result<TensorReader> TensorReader::open(const Checkpoint& checkpoint, const WeightSpec& spec) {
  TensorReader out(checkpoint, spec);
  FATHOM_ASSIGN(out.stored_, describe_source(checkpoint, spec));
  const StoredLinear& s = out.stored_;
  out.rows_ = spec.part.axis == 0 ? spec.part.count : s.n;
  out.columns_ = spec.part.axis == 1 ? spec.part.count : s.k;
  out.first_row_ = spec.part.axis == 0 ? spec.part.begin : 0;
  out.first_column_ = spec.part.axis == 1 ? spec.part.begin : 0;
  const TensorRef* only = s.format == Format::kFp8Tensor ? s.scale : s.global_scale;
  if (only != nullptr) {
    FATHOM_ASSIGN(out.tensor_scale_, read_tensor_scale(checkpoint, *only));
  }
  return out;
}

Result<float> TensorReader::input_scale() const {
  if (stored_.input_scale == nullptr) return 0.0f;
  return read_tensor_scale(*checkpoint_, *stored_.input_scale);
}

int64_t TensorReader::staged_row_bytes() const {
  return columns_ == stored_.k ? 0 : value_bytes_for(stored_.format, 1, stored_.k);
}

Status TensorReader::values(int64_t row,
                            int64_t count,
                            std::span<std::byte> out,
                            std::span<std::byte> staging) const {
  const bool whole = columns_ == stored_.k;
  const int64_t row_bytes = value_bytes_for(stored_.format, 1, stored_.k);
  const int64_t offset = (first_row_ + row) * row_bytes;
  const std::span<std::byte> read =
      whole ? out : staging.first(static_cast<size_t>(count * row_bytes));
  FATHOM_TRY(checkpoint_->read_at(*stored_.weight, offset, read));
  if (must_be_finite(spec_->role)) {
    FATHOM_TRY(check_finite_values(*checkpoint_, *stored_.weight, read, offset));
  }
  if (!whole) {
    cut_columns(read, row_bytes, value_bytes_for(stored_.format, 1, first_column_),
                value_bytes_for(stored_.format, 1, columns_), out);
  }
  return {};
}

std::string TensorReader::place() const {
  return checkpoint_->describe(*stored_.weight);
}

Status TensorReader::scales(Format type,
                            int64_t scale_row,
                            int64_t count,
                            std::span<std::byte> out) const {
  if (stored_.format == Format::kFp8Tensor) {  // one for all rows is one for each
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(out.data() + i * 4, &tensor_scale_, 4);
    return {};
  }
  const FormatInfo& info = format_info(stored_.format);
  const Format dtype = stored_.scale->entry.dtype;
  // Exponents of mxfp4 may be stored as plain bytes.
  const Format from = type == Format::kUe8m0 && dtype == Format::kU8 ? type : dtype;
  const int64_t size = element_bytes(from);
  const int64_t row_bytes = scale_count_for(stored_.format, 1, stored_.k) * size;
  const int64_t held_bytes = scale_count_for(stored_.format, 1, columns_) * size;
  const int64_t offset = (first_row_ / std::max(info.block_n, 1) + scale_row) * row_bytes;
  const bool as_stored = from == type && held_bytes == row_bytes;
  std::vector<std::byte> other(as_stored ? 0 : static_cast<size_t>(count * row_bytes));
  const std::span<std::byte> raw = as_stored ? out : std::span(other);
  FATHOM_TRY(checkpoint_->read_at(*stored_.scale, offset, raw));
  FATHOM_TRY(check_block_scales(*checkpoint_, stored_, raw, offset));
  if (as_stored) return {};
  const int64_t begin = info.block_k == 0 ? 0 : first_column_ / info.block_k * size;
  std::vector<std::byte> held(static_cast<size_t>(count * held_bytes));
  cut_columns(raw, row_bytes, begin, held_bytes, held);
  return convert_floats(from, type, held, out);
}

}  // namespace fathom

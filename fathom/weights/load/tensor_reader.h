// The first stages of loading: rows of a stored tensor are read, checked, and cut to the part that
// a rank holds.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "fathom/weights/checkpoint/checkpoint.h"
#include "fathom/weights/checkpoint/linear_format.h"
#include "fathom/weights/load/fill.h"
#include "fathom/weights/plan/weight_spec.h"

namespace fathom {

/// What lies in the same columns of `rows` rows of `row_bytes` bytes each: bytes [begin, begin +
/// count) of each go to `out`, one row after the other.
void cut_columns(std::span<const std::byte> rows,
                 int64_t row_bytes,
                 int64_t begin,
                 int64_t count,
                 std::span<std::byte> out);

/// Numbers of type `from` as numbers of type `to`: the same type, or bf16 as float32. Errors:
/// Unsupported for other pairs.
Status convert_floats(Format from,
                      Format to,
                      std::span<const std::byte> in,
                      std::span<std::byte> out);

/// The part of one tensor. Rows and columns are counted within the part; a vector is a column.
/// Thread-safe.
class TensorReader {
 public:
  /// Errors: those of describe_source and read_tensor_scale. The checkpoint and the spec outlive
  /// it.
  static Result<TensorReader> open(const Checkpoint& checkpoint, const WeightSpec& spec);

  const StoredLinear& stored() const { return stored_; }

  /// Where the tensor is stored, for messages.
  std::string place() const;

  int64_t rows() const { return rows_; }

  int64_t columns() const { return columns_; }

  /// The scale of the whole tensor: global (nvfp4), or the only one (fp8_tensor); else 1.
  float tensor_scale() const { return tensor_scale_; }

  /// Of quantised activations; 0 where the checkpoint has none. Errors: those of read_tensor_scale.
  Result<float> input_scale() const;

  /// Bytes that reading a row takes of the staging: none where rows are whole.
  int64_t staged_row_bytes() const;

  /// Values of `count` rows, as stored. `staging` holds count * staged_row_bytes(). Errors: those
  /// of reading; Corrupt for numbers of a router that are not finite.
  Status values(int64_t row,
                int64_t count,
                std::span<std::byte> out,
                std::span<std::byte> staging) const;

  /// Rows of block, group or channel scales, in type `type`; a row of scales serves as many rows as
  /// the format's blocks have. Errors: those of reading and convert_floats; Corrupt for scales that
  /// are negative or not finite.
  Status scales(Format type, int64_t scale_row, int64_t count, std::span<std::byte> out) const;

 private:
  TensorReader(const Checkpoint& checkpoint, const WeightSpec& spec)
      : checkpoint_(&checkpoint), spec_(&spec) {}

  const Checkpoint* checkpoint_;
  const WeightSpec* spec_;
  StoredLinear stored_;
  int64_t rows_ = 0;
  int64_t columns_ = 0;
  int64_t first_row_ = 0;
  int64_t first_column_ = 0;
  float tensor_scale_ = 1.0f;
};

}  // namespace fathom

#include "fathom/weights/load/checkpoint_jobs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "fathom/base/checked_math.h"
#include "fathom/formats/block/mxfp4_as_nvfp4.h"
#include "fathom/formats/layout/pair_layout.h"
#include "fathom/tensor/view.h"
#include "fathom/weights/load/tensor_reader.h"
#include "fathom/weights/load/tiles.h"

namespace fathom {
namespace {

// Rows that one row of scales serves; 1 where every row has its own, or there are none.
int64_t rows_per_scale(Format format) {
  return std::max(format_info(format).block_n, 1);
}

// A few numbers at their place in the store.
FillJob write_floats(int64_t offset, std::vector<float> values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
  FillJob job{.units = 1, .parts = {{.offset = offset, .unit_bytes = bytes, .bytes = bytes}}};
  job.fill = [values = std::move(values)](const FillCall& call) -> Status {
    std::memcpy(call.parts[0].data(), values.data(), call.parts[0].size());
    return {};
  };
  return job;
}

// ---- vectors and small tables: as stored, but that some in bf16 are kept in float32.

FillJob dense_job(const TensorReader& tensor, const WeightItem& item) {
  const Format from = tensor.stored().format;
  const int64_t bytes = item.value_bytes();
  const int64_t stored_bytes = item.n * item.k * element_bytes(from);
  FillJob job{.units = 1, .parts = {{item.values_offset, bytes, bytes}}};
  job.fill = [=, to = item.format](const FillCall& call) -> Status {
    if (from == to) return tensor.values(0, tensor.rows(), call.parts[0], {});
    const auto [raw, none, rest] = call.staging->take({stored_bytes, 0, 0});
    FATHOM_TRY(tensor.values(0, tensor.rows(), raw, {}));
    return convert_floats(from, to, raw, call.parts[0]);
  };
  return job;
}

// ---- rows as stored, or with the codes of NVFP4 in pairs: a job a tensor, whose unit is as many
// rows as have their scales in common.

bool becomes_nvfp4(const TensorReader& tensor, const WeightItem& item) {
  return tensor.stored().format == Format::kMxfp4 && item.format == Format::kNvfp4;
}

Status read_mxfp4_scales(const TensorReader& tensor,
                         int64_t row,
                         int64_t count,
                         std::vector<std::byte>& out) {
  const int64_t row_bytes = scale_count_for(Format::kMxfp4, 1, tensor.columns());
  out.resize(static_cast<size_t>(count * row_bytes));
  return tensor.scales(Format::kUe8m0, row, count, out);
}

// The exponent of the global scale of a matrix in MXFP4 that becomes one in NVFP4. Its parts have
// it in common.
Result<int> nvfp4_global_exponent(std::span<const TensorReader> parts) {
  int most = -127;
  for (const TensorReader& tensor : parts) {
    std::vector<std::byte> scales;
    FATHOM_TRY(read_mxfp4_scales(tensor, 0, tensor.rows(), scales));
    const std::span bytes(reinterpret_cast<const uint8_t*>(scales.data()), scales.size());
    Result<int> exponent = largest_mxfp4_exponent(bytes);
    if (!exponent.ok()) return std::move(exponent).status().add_context(tensor.place());
    most = std::max(most, *exponent);
  }
  return mxfp4_global_exponent(most);
}

// Scales of rows whose codes are there, in their order of a checkpoint.
Status nvfp4_scales_of(const TensorReader& tensor,
                       int64_t row,
                       int64_t count,
                       int exponent,
                       std::span<const std::byte> codes,
                       std::span<std::byte> out) {
  std::vector<std::byte> scales;
  FATHOM_TRY(read_mxfp4_scales(tensor, row, count, scales));
  const int64_t k = tensor.columns();
  const auto from = static_cast<size_t>(scale_count_for(Format::kMxfp4, 1, k));
  const auto to = static_cast<size_t>(scale_count_for(Format::kNvfp4, 1, k));
  const int64_t row_bytes = value_bytes_for(Format::kMxfp4, 1, k);
  for (int64_t i = 0; i < count; ++i) {
    const auto r = static_cast<size_t>(i);
    Status status =
        mxfp4_scales_to_nvfp4(reinterpret_cast<const uint8_t*>(codes.data()) + i * row_bytes,
                              {reinterpret_cast<const uint8_t*>(scales.data()) + r * from, from}, k,
                              exponent, {reinterpret_cast<uint8_t*>(out.data()) + r * to, to});
    if (!status.ok()) {
      return std::move(status).add_context(
          str_cat(tensor.place(), ", row ", row + i, " (--device cpu takes it)"));
    }
  }
  return {};
}

FillJob row_major_job(const TensorReader& tensor,
                      const WeightItem& item,
                      int64_t values_offset,
                      int64_t scales_offset,
                      int global_exponent) {
  const int64_t rows = tensor.rows();
  const int64_t unit_rows = rows_per_scale(item.format);
  const int64_t row_bytes = value_bytes_for(item.format, 1, item.k);
  FillJob job;
  job.units = ceil_div(rows, unit_rows);
  job.parts = {{values_offset, unit_rows * row_bytes, rows * row_bytes}};
  job.staged_bytes = unit_rows * tensor.staged_row_bytes();
  const bool scaled = item.scales_offset >= 0;
  if (scaled) {
    const int64_t bytes =
        scale_count_for(item.format, 1, item.k) * element_bytes(item.scale_type());
    job.parts.push_back({scales_offset, bytes, job.units * bytes});
  }
  const bool in_pairs = item.layout == WeightLayout::kPairs;
  const bool converted = becomes_nvfp4(tensor, item);
  job.fill = [=, type = item.scale_type()](const FillCall& call) -> Status {
    const int64_t row = call.begin * unit_rows;
    const int64_t count = std::min(call.end * unit_rows, rows) - row;
    const auto [staged, none, rest] = call.staging->take({count * tensor.staged_row_bytes(), 0, 0});
    FATHOM_TRY(tensor.values(row, count, call.parts[0], staged));
    if (converted) {
      FATHOM_TRY(
          nvfp4_scales_of(tensor, row, count, global_exponent, call.parts[0], call.parts[1]));
    }
    if (in_pairs) pair_codes(call.parts[0]);
    if (converted) return {};
    return scaled ? tensor.scales(type, call.begin, call.end - call.begin, call.parts[1])
                  : Status{};
  };
  return job;
}

// ---- tiles: one job, whose unit is a group of 16 rows.

// Whether tiles hold the scales of these rows exactly.
Status check_mxfp4(const TensorReader& tensor, const RowMajorMatrix& rows, int64_t first_row) {
  Status status = check_mxfp4_tiles(rows, first_row);
  if (!status.ok()) status.add_context(tensor.place());
  return status;
}

// A tensor of an item and the groups that its rows fill.
struct TiledTensor {
  TensorReader tensor;
  int64_t first_group;
  int64_t end_group;
};

class TiledJob {
 public:
  TiledJob(const WeightItem& item, std::vector<TensorReader> tensors) : item_(&item) {
    int64_t group = 0;
    for (TensorReader& tensor : tensors) {
      const int64_t end = group + ceil_div(tensor.rows(), kTileRows);
      staged_row_bytes_ = std::max(staged_row_bytes_, tensor.staged_row_bytes());
      tensors_.push_back({std::move(tensor), group, end});
      group = end;
    }
    row_bytes_ = value_bytes_for(item.format, 1, item.k);
    const Format scale = format_info(item.format).scale;
    scale_bytes_ =
        scale == Format::kNone ? 0 : scale_count_for(item.format, 1, item.k) * element_bytes(scale);
  }

  FillJob job() && {
    const WeightItem& item = *item_;
    FillJob job;
    job.units = item.groups();
    job.parts = tiled_parts(item);
    const bool own_scales = rows_per_scale(item.format) == 1;
    job.staged_bytes =
        kTileRows * (row_bytes_ + staged_row_bytes_ + (own_scales ? scale_bytes_ : 0));
    job.fill = [self = std::make_shared<const TiledJob>(std::move(*this))](const FillCall& call) {
      return self->fill(call);
    };
    return job;
  }

 private:
  // Groups of a call, tensor by tensor; a piece stays within one row of scale blocks.
  Status fill(const FillCall& call) const {
    auto at = std::upper_bound(
        tensors_.begin(), tensors_.end(), call.begin,
        [](int64_t group, const TiledTensor& tensor) { return group < tensor.end_group; });
    for (int64_t group = call.begin; group < call.end; ++at) {
      const int64_t last = std::min(call.end, at->end_group);
      while (group < last) {
        const int64_t per_block = rows_per_scale(item_->format) / kTileRows;
        const int64_t in_block = per_block > 0 ? (group - at->first_group) % per_block : 0;
        const int64_t count =
            per_block > 0 ? std::min(last - group, per_block - in_block) : last - group;
        FATHOM_TRY(pack(call, *at, group, count));
        group += count;
      }
    }
    return {};
  }

  Status pack(const FillCall& call, const TiledTensor& at, int64_t group, int64_t count) const {
    const TensorReader& tensor = at.tensor;
    const int64_t per_scale = rows_per_scale(item_->format);
    const int64_t row = (group - at.first_group) * kTileRows;
    const int64_t rows = std::min(count * kTileRows, tensor.rows() - row);
    const int64_t scale_rows = scale_bytes_ == 0 ? 0 : per_scale == 1 ? rows : 1;
    const auto [values, scales, staged] = call.staging->take(
        {rows * row_bytes_, scale_rows * scale_bytes_, rows * tensor.staged_row_bytes()});
    FATHOM_TRY(tensor.values(row, rows, values, staged));
    if (scale_rows > 0) {
      FATHOM_TRY(
          tensor.scales(format_info(item_->format).scale, row / per_scale, scale_rows, scales));
    }
    const RowMajorMatrix src{.format = item_->format,
                             .n = rows,
                             .k = item_->k,
                             .values = values.data(),
                             .scales = scales.data(),
                             .global = tensor.tensor_scale()};
    if (src.format == Format::kMxfp4) FATHOM_TRY(check_mxfp4(tensor, src, row));
    pack_rows16(src, tiles_of(*item_, call, group, rows), 0, count);
    return {};
  }

  const WeightItem* item_;
  std::vector<TiledTensor> tensors_;
  int64_t row_bytes_ = 0;
  int64_t scale_bytes_ = 0;  // of a row of scales, as stored
  int64_t staged_row_bytes_ = 0;
};

// Scales of activations: of several tensors that share an input the largest holds for all.
Result<FillJob> input_scales_job(const WeightItem& item, const std::vector<TensorReader>& tensors) {
  std::vector<float> scales(static_cast<size_t>(item.num_input_scales()), 0.0f);
  for (size_t i = 0; i < tensors.size(); ++i) {
    FATHOM_ASSIGN(const float scale, tensors[i].input_scale());
    float& of_matrix = scales[i * scales.size() / tensors.size()];
    of_matrix = std::max(of_matrix, scale);
  }
  const float largest = *std::max_element(scales.begin(), scales.end());
  for (float& scale : scales) {
    if (scale <= 0.0f) scale = largest > 0.0f ? largest : 1.0f;
  }
  for (size_t i = 0, count = scales.size(); item.quantises_input && i < count; ++i)
    scales.push_back(1.0f / scales[i]);
  return write_floats(item.input_scale_offset, std::move(scales));
}

Result<std::vector<FillJob>> jobs_of(const Checkpoint& checkpoint, const WeightItem& item) {
  std::vector<TensorReader> tensors;
  tensors.reserve(item.sources.size());
  for (const WeightSpec& spec : item.sources) {
    FATHOM_ASSIGN(TensorReader tensor, TensorReader::open(checkpoint, spec));
    tensors.push_back(std::move(tensor));
  }
  std::vector<FillJob> jobs;
  const bool converted = item.kind == WeightItem::Kind::kTable && is_kept_in_f32(item.role);
  if (item.kind == WeightItem::Kind::kVector || converted) {
    jobs.push_back(dense_job(tensors[0], item));
    return jobs;
  }
  if (item.input_scale_offset >= 0) {
    FATHOM_ASSIGN(FillJob scales, input_scales_job(item, tensors));
    jobs.push_back(std::move(scales));
  }
  if (item.in_tiles()) {
    jobs.push_back(TiledJob(item, std::move(tensors)).job());
    return jobs;
  }
  int64_t values = item.values_offset;
  int64_t scales = item.scales_offset;
  std::vector<float> globals;
  const size_t per_matrix = tensors.size() / static_cast<size_t>(item.e);
  int exponent = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (i % per_matrix == 0 && becomes_nvfp4(tensors[i], item)) {
      FATHOM_ASSIGN(exponent, nvfp4_global_exponent(std::span(tensors).subspan(i, per_matrix)));
      globals.push_back(std::ldexp(1.0f, exponent));
    } else if (i % per_matrix == 0) {
      globals.push_back(tensors[i].tensor_scale());
    }
    jobs.push_back(row_major_job(tensors[i], item, values, scales, exponent));
    values += jobs.back().parts[0].bytes;
    if (item.scales_offset >= 0) scales += jobs.back().parts[1].bytes;
  }
  if (item.global_offset >= 0) {
    jobs.push_back(write_floats(item.global_offset, std::move(globals)));
  }
  return jobs;
}

// ---- tables of indices: each is a number that it may be.

int64_t index_at(Format format, const std::byte* data, int64_t i) {
  if (format == Format::kI64) {
    int64_t value = 0;
    std::memcpy(&value, data + i * 8, 8);
    return value;
  }
  int32_t value = 0;
  std::memcpy(&value, data + i * 4, 4);
  return value;
}

Status check_index_table(const TensorReader& tensor, const WeightItem& item) {
  const int64_t row_bytes = item.k * element_bytes(item.format);
  const int64_t step = std::max<int64_t>(1, (int64_t{1} << 20) / row_bytes);
  std::vector<std::byte> piece(static_cast<size_t>(std::min(step, item.n) * row_bytes));
  for (int64_t row = 0; row < item.n; row += step) {
    const int64_t rows = std::min(step, item.n - row);
    FATHOM_TRY(tensor.values(row, rows,
                             std::span(piece).first(static_cast<size_t>(rows * row_bytes)), {}));
    for (int64_t i = 0; i < rows * item.k; ++i) {
      const int64_t value = index_at(item.format, piece.data(), i);
      if (value >= 0 && value < item.index_limit) continue;
      return corrupt(str_cat(tensor.place(), ": element [", row + i / item.k, ", ", i % item.k,
                             "] is ", value, ", expected 0 to ", item.index_limit - 1));
    }
  }
  return {};
}

}  // namespace

Status check_index_tables(const WeightPlan& plan, const Checkpoint& checkpoint) {
  for (const WeightItem& item : plan.items()) {
    if (item.index_limit == 0) continue;
    FATHOM_ASSIGN(const TensorReader tensor, TensorReader::open(checkpoint, item.sources[0]));
    FATHOM_TRY(check_index_table(tensor, item));
  }
  return {};
}

JobSource checkpoint_source(const Checkpoint& checkpoint) {
  return [&checkpoint](const WeightItem& item, size_t) { return jobs_of(checkpoint, item); };
}

}  // namespace fathom

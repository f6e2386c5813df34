#include "fathom/kernels/moe/sorted_moe/sorted_chunk.h"

#include <algorithm>
#include <cstring>

#include "fathom/formats/layout/tile_layout.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/cpu/products/run_products.h"
#include "fathom/kernels/gemm/gemm_shape.h"
#include "fathom/kernels/moe/code_products.h"

namespace fathom {
namespace {

using Args = SortedMoeGemm::Args;

constexpr int64_t kChunkRows = 512;

int64_t chunk_rows(const Args& a) {
  return std::clamp<int64_t>(std::min(num_slots(a), a.sorted_ids.dim(0)), 1, kChunkRows);
}

DecodedRow decoded_row(const Args& a, ElementType type) {
  const int64_t k = a.x.dim(1);
  return type == ElementType::kBf16 ? DecodedRow::of(2, k, ceil_div(k, kCodeBlock))
                                    : DecodedRow::of(4, k, 0);
}

/// Experts [begin, end) of a stack.
QuantView slice_experts(const QuantView& w, int64_t begin, int64_t end) {
  QuantView out = w;
  const int64_t experts = w.values.dim(0);
  const auto cut = [&](View& v, int64_t bytes_per_expert) {
    if (v.present()) v.data = v.as<std::byte>() + begin * bytes_per_expert;
  };
  const auto part_bytes = [&](const View& v) {
    return v.present() ? v.numel() / experts * element_bytes(v.format) : 0;
  };
  const int64_t matrix_bytes = w.layout == WeightLayout::kRows16
                                   ? w.rows() / kTileRows * rows16_group_bytes(w.format(), w.cols())
                                   : value_bytes_for(w.format(), w.rows(), w.cols());
  cut(out.values, matrix_bytes);
  cut(out.scales, part_bytes(w.scales));
  cut(out.global, part_bytes(w.global));
  out.values.dims[0] = end - begin;
  return out;
}

/// The codes of experts from `first` on with their scales.
CodeWeight code_weight(const Args& a, const QuantView& w, int64_t first) {
  const int64_t blocks = a.w_scales.dim(2);
  const int64_t matrix = a.w_scales.dim(1) * blocks;
  return {.type = w.format() == Format::kI8 ? CodeType::kInt8 : CodeType::kE4m3,
          .codes = w.values.as<const uint8_t>(),
          .n = w.rows(),
          .k = w.cols(),
          .row_bytes = w.cols(),
          .scales = a.w_scales.as<const float>() + first * matrix,
          .matrix_stride = matrix,
          .row_stride = blocks,
          .quad_stride = 4,
          .block_stride = 1,
          .block_rows = a.group_n,
          .block_k = a.group_k};
}

/// Of row t of x in column k.
float x_scale(const Args& a, int64_t t, int64_t k) {
  const View& s = a.x_scales;
  if (!s.present()) return 1.0f;
  const int64_t row = s.dim(0) == 1 ? 0 : t;
  const int64_t block = s.dim(1) == 1 ? 0 : k / a.group_k;
  return s.as<const float>()[row * s.stride(0) + block * s.stride(1)];
}

/// Code or value k of row t of x, without its scale.
float x_value(const View& x, int64_t t, int64_t k) {
  const int64_t at = t * x.stride(0) + k;
  switch (x.format) {
    case Format::kI8:
      return static_cast<float>(x.as<const int8_t>()[at]);
    case Format::kE4m3:
      return to_float(x.as<const E4m3>()[at]);
    case Format::kF16:
      return to_float(x.as<const F16>()[at]);
    case Format::kBf16:
      return to_float(x.as<const Bf16>()[at]);
    default:
      return x.as<const float>()[at];
  }
}

float bias_at(const View& bias, int64_t e, int64_t n) {
  return with_float_type(bias.format,
                         [&]<class T>(T) { return to_float(bias.row<const T>(e)[n]); });
}

}  // namespace

int64_t num_slots(const Args& a) {
  return a.rows == ResultRows::kSlots ? a.y.dim(0) : a.x.dim(0) * a.top_k;
}

SortedChunk::Memory::Memory(const Args& a, int num_threads, void* memory) {
  const int64_t chunk = chunk_rows(a);
  const int64_t k = a.x.dim(1);
  const int64_t row =
      std::max(decoded_row(a, ElementType::kBf16).bytes, decoded_row(a, ElementType::kF32).bytes);
  WorkspaceCut cut(memory);
  x = cut.take<std::byte>(chunk * row);
  y = cut.take<float>(chunk * a.y.dim(1));
  slots = cut.take<int32_t>(chunk);
  experts = cut.take<int32_t>(chunk);
  rows = cut.take<int32_t>(chunk);
  offsets = cut.take<int32_t>(a.w.values.dim(0) + 1);
  products =
      cut.take<std::byte>(product_workspace(chunk, align_up<int64_t>(k, kPaddedK), num_threads));
  bytes = cut.bytes();
}

int64_t sorted_chunk_workspace(const Args& a, int num_threads) {
  return SortedChunk::Memory(a, num_threads, nullptr).bytes;
}

// Without weights and bias the loop rounds to the format of y itself, as the grouped GEMM does.
SortedChunk::SortedChunk(Exec& ex, const Args& a, const SortedLoop& loop)
    : ex_(ex),
      a_(a),
      loop_(loop),
      memory_(a, ex.num_threads, ex.workspace),
      row_(decoded_row(a, loop.type)),
      capacity_(chunk_rows(a)),
      finishes_(a.weights.dim(0) > 0 || a.bias.present()) {}

Status SortedChunk::add(int32_t slot, int32_t expert, int32_t row) {
  if (count_ == capacity_ || (count_ > 0 && expert < last_expert_)) FATHOM_TRY(multiply());
  if (count_ == 0) {
    first_expert_ = expert;
    last_expert_ = expert;
    memory_.offsets[0] = 0;
  }
  for (; last_expert_ < expert; ++last_expert_) {
    memory_.offsets[last_expert_ - first_expert_ + 1] = static_cast<int32_t>(count_);
  }
  memory_.slots[count_] = slot;
  memory_.experts[count_] = expert;
  memory_.rows[count_++] = row;
  return {};
}

Status SortedChunk::multiply() {
  if (count_ == 0) return {};
  const int64_t experts = last_expert_ - first_expert_ + 1;
  memory_.offsets[experts] = static_cast<int32_t>(count_);
  gather();
  const View x = make_view(memory_.x, {count_, a_.x.dim(1)}, a_.x.format);
  const View y =
      make_view(memory_.y, {count_, a_.y.dim(1)}, finishes_ ? Format::kF32 : a_.y.format);
  const View offsets = make_view(memory_.offsets, {experts + 1}, Format::kI32);
  const QuantView w = slice_experts(a_.w, first_expert_, last_expert_ + 1);
  FATHOM_ASSIGN(Products products, make_grouped_products(x, w, offsets, y));
  products.weight = &w;
  CodeWeight codes;
  if (a_.w_scales.present()) {
    codes = code_weight(a_, w, first_expert_);
    products.weight = &codes;
    products.decode_weight_row = decode_code_row;
  }
  FATHOM_TRY(run(products));
  scatter();
  count_ = 0;
  return {};
}

Status SortedChunk::run(Products& p) {
  if (loop_.decodes) {
    p.x_type = loop_.type;
    p.x_row_stride = row_.bytes / row_.element_bytes;
    p.x_scales_at = row_.scales_at;
    if (loop_.type == ElementType::kBf16) p.k = align_up<int64_t>(p.k, 2);
  }
  void* const whole = ex_.workspace;
  ex_.workspace = memory_.products;
  Status status = run_products(ex_, p, loop_.loop);
  ex_.workspace = whole;
  return status;
}

void SortedChunk::gather() {
  const int64_t element = element_bytes(a_.x.format);
  const int64_t row_bytes = loop_.decodes ? row_.bytes : a_.x.dim(1) * element;
  for_rows(ex_, count_, 2 * row_bytes, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::byte* out = memory_.x + r * row_bytes;
      if (loop_.decodes) {
        decode(memory_.slots[r] / a_.top_k, out);
      } else {
        const int64_t token = memory_.slots[r] / a_.top_k;
        std::memcpy(out, a_.x.as<const std::byte>() + token * a_.x.stride(0) * element,
                    static_cast<size_t>(row_bytes));
      }
    }
  });
}

/// Row t of x: values with their scales, or bf16 codes with a scale for each 128 behind them.
void SortedChunk::decode(int64_t t, std::byte* out) const {
  const int64_t k = a_.x.dim(1);
  if (loop_.type == ElementType::kF32) {
    auto* values = reinterpret_cast<float*>(out);
    for (int64_t i = 0; i < k; ++i)
      values[i] = x_value(a_.x, t, i) * x_scale(a_, t, i);
    return;
  }
  if (a_.x.format == Format::kE4m3) {
    decode_to_bf16(a_.x.format, a_.x.as<const uint8_t>() + t * a_.x.stride(0), k, row_.scales_at,
                   out);
  } else {
    auto* values = reinterpret_cast<Bf16*>(out);
    for (int64_t i = 0; i < k; ++i)
      values[i] = bf16_from_float(x_value(a_.x, t, i));
    std::fill(values + k, values + row_.scales_at, Bf16{0});
  }
  auto* scales = reinterpret_cast<float*>(out + row_.scales_at * row_.element_bytes);
  for (int64_t b = 0; b < ceil_div(k, kCodeBlock); ++b)
    scales[b] = x_scale(a_, t, b * kCodeBlock);
}

void SortedChunk::scatter() {
  const int64_t N = a_.y.dim(1);
  for_rows(ex_, count_, 8 * N, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (finishes_) {
        finish_row(r);
      } else {
        const int64_t element = element_bytes(a_.y.format);
        std::memcpy(a_.y.as<std::byte>() + memory_.rows[r] * a_.y.stride(0) * element,
                    reinterpret_cast<const std::byte*>(memory_.y) + r * N * element,
                    static_cast<size_t>(N * element));
      }
    }
  });
}

void SortedChunk::finish_row(int64_t r) {
  float* sums = memory_.y + r * a_.y.dim(1);
  const int64_t N = a_.y.dim(1);
  if (a_.bias.present()) {
    for (int64_t n = 0; n < N; ++n)
      sums[n] += bias_at(a_.bias, memory_.experts[r], n);
  }
  const float weight =
      a_.weights.dim(0) > 0 ? a_.weights.as<const float>()[memory_.slots[r]] : 1.0f;
  with_float_type(a_.y.format, [&]<class Y>(Y) {
    Y* out = a_.y.row<Y>(memory_.rows[r]);
    for (int64_t n = 0; n < N; ++n)
      out[n] = from_float<Y>(sums[n] * weight);
  });
}

}  // namespace fathom

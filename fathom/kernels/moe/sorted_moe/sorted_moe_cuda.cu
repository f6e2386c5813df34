#include "fathom/kernels/cuda/products/any_products.cuh"
#include "fathom/kernels/moe/sorted_moe/sorted_moe.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

using Args = SortedMoeGemm::Args;

/// Where rows and scales of a call lie.
struct SortedCall {
  const int32_t* sorted_ids;
  const int32_t* block_expert;
  const int32_t* num_padded;
  int64_t block;
  int64_t top_k;
  int64_t num_slots;
  int64_t num_rows;  ///< of sorted_ids
  bool rows_are_sorted;

  const void* x;
  Format x_format;
  int64_t x_row;
  const float* x_scales;  ///< null: none
  int64_t x_scale_row;
  int64_t x_scale_column;

  AnyMatrix w;  ///< of all experts
  int64_t w_scale_bytes;
  const float* global;
  const float* code_scales;  ///< of codes; null: none
  int64_t code_rows;         ///< of code_scales, an expert
  int64_t code_columns;
  int64_t group_n;
  int64_t group_k;

  const void* bias;
  Format bias_format;
  int64_t bias_row;
  const float* weights;
  void* y;
  Format y_format;
  int64_t y_row;
  int64_t N;
  int64_t K;
};

__device__ __forceinline__ float load_code(const void* p, Format format, int64_t i) {
  if (format == Format::kI8) return static_cast<float>(static_cast<const int8_t*>(p)[i]);
  return load_any(p, format, i);
}

/// Sum over k of a row of x and a row of w, over the lanes of a warp.
__device__ float slot_sum(const SortedCall& c, int64_t x_row, int e, int64_t n) {
  AnyMatrix w = c.w;
  w.scales += e * c.w_scale_bytes;
  const int64_t w_row = e * c.N + n;
  const float* code_scales =
      c.code_scales == nullptr ? nullptr
                               : c.code_scales + (e * c.code_rows + n / c.group_n) * c.code_columns;
  float sum = 0.0f;
  for (int64_t k = lane_id(); k < c.K; k += 32) {
    float a = load_code(c.x, c.x_format, x_row * c.x_row + k);
    if (c.x_scales != nullptr)
      a *= c.x_scales[x_row * c.x_scale_row + k / c.group_k * c.x_scale_column];
    const float b = c.code_scales != nullptr ? load_code(w.values, w.format, w_row * w.row + k) *
                                                   code_scales[k / c.group_k]
                                             : w.load(w_row, n, static_cast<int>(k));
    sum = fmaf(a, b, sum);
  }
  return combine_lanes(sum, Add());
}

/// A warp for output n of place j of the sorted slots.
__global__ void __launch_bounds__(kAnyWarps * 32) multiply_slots(SortedCall c) {
  let_next_start();
  wait_for_previous();
  const int64_t item = int64_t{blockIdx.x} * kAnyWarps + warp_id();
  const int64_t j = item / c.N;
  const int64_t n = item - j * c.N;
  if (j >= c.num_rows || j >= *c.num_padded) return;
  const int64_t slot = c.sorted_ids[j];
  if (slot >= c.num_slots) return;
  const int e = c.block_expert[j / c.block];
  const int64_t place = (c.rows_are_sorted ? j : slot) * c.y_row + n;
  if (e < 0) {
    if (lane_id() == 0) store_any(c.y, c.y_format, place, 0.0f);
    return;
  }
  float sum = slot_sum(c, slot / c.top_k, e, n);
  if (lane_id() != 0) return;
  if (c.global != nullptr) sum *= c.global[e];
  if (c.bias != nullptr) sum = __fadd_rn(sum, load_any(c.bias, c.bias_format, e * c.bias_row + n));
  if (c.weights != nullptr) sum = __fmul_rn(sum, c.weights[slot]);
  store_any(c.y, c.y_format, place, sum);
}

/// The weights as single elements, with scales of their own.
void place_weights(const Args& a, SortedCall* c) {
  const Format format = a.w.format();
  c->w = {.values = a.w.values.data, .format = format, .row = a.w.cols()};
  c->w.in_pairs = a.w.layout == WeightLayout::kPairs;
  if (format == Format::kFp8Block || format == Format::kFp8BlockUe8m0) c->w.format = Format::kE4m3;
  if (!a.w.scales.present()) return;
  const bool fp4 = format == Format::kNvfp4;
  const int64_t block = fp4 ? 16 : 128;
  c->w.scales = a.w.scales.as<const uint8_t>();
  c->w.scale_format = a.w.scales.format;
  c->w.places = fp4 ? ScalePlaces::kPerGroup : ScalePlaces::kPerBlock;
  c->w.scale_row = (a.w.cols() + block - 1) / block;
  c->w_scale_bytes = c->w.scale_row * (fp4 ? a.w.rows() : (a.w.rows() + 127) / 128) *
                     (a.w.scales.format == Format::kF32 ? 4 : 1);
}

Status run_each(Exec& ex, const Args& a) {
  SortedCall c{};
  c.sorted_ids = a.sorted_ids.as<const int32_t>();
  c.block_expert = a.block_expert.as<const int32_t>();
  c.num_padded = a.num_padded.as<const int32_t>();
  c.block = a.block;
  c.top_k = a.top_k;
  c.num_slots = num_slots(a);
  c.num_rows = std::min(a.sorted_ids.dim(0), a.block_expert.dim(0) * a.block);
  c.rows_are_sorted = a.rows == ResultRows::kSorted;
  c.x = a.x.data;
  c.x_format = a.x.format;
  c.x_row = a.x.stride(0);
  c.group_n = a.group_n > 0 ? a.group_n : std::max<int64_t>(1, a.w.rows());
  c.group_k = a.group_k > 0 ? a.group_k : std::max<int64_t>(1, a.w.cols());
  if (a.x_scales.present()) {
    c.x_scales = a.x_scales.as<const float>();
    c.x_scale_row = a.x_scales.dim(0) == 1 ? 0 : a.x_scales.stride(0);
    c.x_scale_column = a.x_scales.dim(1) == 1 ? 0 : a.x_scales.stride(1);
  }
  place_weights(a, &c);
  if (a.w.global.present()) c.global = a.w.global.as<const float>();
  if (a.w_scales.present()) {
    c.code_scales = a.w_scales.as<const float>();
    c.code_rows = a.w_scales.dim(1);
    c.code_columns = a.w_scales.dim(2);
  }
  if (a.bias.present()) {
    c.bias = a.bias.data;
    c.bias_format = a.bias.format;
    c.bias_row = a.bias.stride(0);
  }
  if (a.weights.dim(0) > 0) c.weights = a.weights.as<const float>();
  c.y = a.y.data;
  c.y_format = a.y.format;
  c.y_row = a.y.stride(0);
  c.N = a.w.rows();
  c.K = a.w.cols();
  const int64_t outputs = c.num_rows * c.N;
  return launch_kernel(ex, multiply_slots,
                       {.blocks = (outputs + kAnyWarps - 1) / kAnyWarps, .threads = kAnyWarps * 32},
                       c);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<SortedMoeGemm> sorted_moe_gemm_cuda{
    {"each", sm(90), "", kTraits, run_each, MathUnit::kF32, has_rows},
};

}  // namespace fathom

#include <utility>

#include "fathom/kernels/cuda/products/any_products.cuh"
#include "fathom/kernels/moe/bf16_group_gemm/bf16_experts.cuh"
#include "fathom/kernels/moe/fp8_group_gemm/fp8_experts.cuh"
#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_experts.cuh"
#include "fathom/kernels/moe/sorted_moe/expert_rows.cuh"
#include "fathom/kernels/moe/sorted_moe/sorted_moe.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

using Args = SortedMoeGemm::Args;

int64_t num_places(const Args& a) {
  return std::min(a.sorted_ids.dim(0), a.block_expert.dim(0) * a.block);
}

// ---- an output at a time ----

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

Status run_any_layout(Exec& ex, const Args& a) {
  SortedCall c{};
  c.sorted_ids = a.sorted_ids.as<const int32_t>();
  c.block_expert = a.block_expert.as<const int32_t>();
  c.num_padded = a.num_padded.as<const int32_t>();
  c.block = a.block;
  c.top_k = a.top_k;
  c.num_slots = num_slots(a);
  c.num_rows = num_places(a);
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

// ---- by expert ----

/// What J must be a multiple of for the grouped product of these formats; 0: there is none. E4M3
/// codes in blocks of 128 x 128 are FP8 block weights whose scales lie elsewhere.
int64_t unit_of_j(const Args& a) {
  const bool bf16 = a.x.format == Format::kBf16;
  const Format w = a.w.format();
  if (w == Format::kE4m3) {
    const bool codes = a.x.format == Format::kE4m3 && a.y.format != Format::kF32;
    return a.w_scales.present() && a.group_n == 128 && a.group_k == 128 && (bf16 || codes) ? 16 : 0;
  }
  if (!bf16) return 0;
  if (w == Format::kBf16) return 8;
  if (w == Format::kFp8Block || w == Format::kFp8BlockUe8m0) return 16;
  const bool paired = w == Format::kNvfp4 && a.w.layout == WeightLayout::kPairs &&
                      reinterpret_cast<uintptr_t>(a.w.scales.data) % 4 == 0;
  return paired ? 64 : 0;
}

bool takes_experts(const Args& a) {
  constexpr int64_t kMostSlots = int64_t{1} << 30;
  const int64_t unit = unit_of_j(a);
  return has_rows(a) && unit > 0 && a.w.cols() > 0 && a.w.cols() % unit == 0 &&
         reinterpret_cast<uintptr_t>(a.w.values.data) % 16 == 0 && num_slots(a) < kMostSlots &&
         num_places(a) < kMostSlots;
}

int64_t gathered_workspace(const Args& a, const Exec&) {
  return ExpertRowsMemory(a).bytes();
}

/// A call whose rows of x are copied to its workspace, expert after expert. The product writes each
/// result to its row of y, with its weight.
class GatheredCall {
 public:
  GatheredCall(Exec& ex, const Args& a) : ex_(ex), a_(a) {
    const ExpertRowsMemory memory(a);
    auto* at = static_cast<uint8_t*>(ex.workspace);
    const auto take = [&](int64_t bytes) { return std::exchange(at, at + bytes); };
    x_ = take(memory.x);
    x_scales_ = reinterpret_cast<float*>(take(memory.scales));
    rows_ = {.from = {.sorted_ids = a.sorted_ids.as<const int32_t>(),
                      .block_expert = a.block_expert.as<const int32_t>(),
                      .num_padded = a.num_padded.as<const int32_t>(),
                      .block = FastDivide(a.block),
                      .num_slots = static_cast<int>(num_slots(a)),
                      .num_experts = static_cast<int>(a.w.values.dim(0))},
             .rows_are_sorted = a.rows == ResultRows::kSorted,
             .slot_weights = nullptr,
             .offsets = reinterpret_cast<int32_t*>(take(memory.offsets)),
             .row_of_slot = reinterpret_cast<int32_t*>(take(memory.of_slots)),
             .y_rows = reinterpret_cast<int32_t*>(take(memory.of_slots)),
             .weights = nullptr};
    if (a.weights.dim(0) == 0) return;
    rows_.slot_weights = a.weights.as<const float>();
    rows_.weights = reinterpret_cast<float*>(take(memory.of_slots));
  }

  Status run() {
    if (rows_.from.num_slots == 0) return {};
    FATHOM_TRY(sort_slots(ex_, static_cast<int>(num_places(a_)), rows_.from.num_experts + 1,
                          rows_.from, rows_));
    FATHOM_TRY(copy());
    FATHOM_TRY(write_zeros());
    return multiply();
  }

 private:
  Status copy() {
    const int64_t row_bytes = a_.w.cols() * element_bytes(a_.x.format);
    RowCopies c{.x = a_.x.as<const uint8_t>(),
                .x_row = a_.x.stride(0) * element_bytes(a_.x.format),
                .to = x_,
                .to_row = row_bytes,
                .scales = nullptr,
                .scale_row = 0,
                .scale_block = 0,
                .to_scales = x_scales_,
                .num_blocks = 0,
                .top_k = a_.top_k,
                .num_slots = rows_.from.num_slots,
                .row_of_slot = rows_.row_of_slot,
                .items = flat_items(a_.x.dim(0), row_bytes / 16)};
    if (a_.x_scales.present()) {
      c.scales = a_.x_scales.as<const float>();
      c.scale_row = a_.x_scales.dim(0) == 1 ? 0 : a_.x_scales.stride(0);
      c.scale_block = a_.x_scales.dim(1) == 1 ? 0 : a_.x_scales.stride(1);
      c.num_blocks = num_blocks();
    }
    return copy_rows(ex_, c);
  }

  Status write_zeros() {
    const int64_t blocks = std::min<int64_t>(rows_.from.num_slots, 2 * ex_.device->num_sms);
    return launch_kernel(ex_, write_zero_rows, {.blocks = blocks, .threads = kFlatThreads},
                         any_rows(a_.y), static_cast<const int32_t*>(rows_.y_rows),
                         static_cast<const int32_t*>(rows_.offsets), a_.w.rows());
  }

  Status multiply() {
    ProductCall c = product_of(a_);
    c.x = x_;
    c.x_row = a_.w.cols();
    c.T = rows_.from.num_slots;
    c.offsets = rows_.offsets;
    c.y_rows = rows_.y_rows;
    c.row_weights = rows_.weights;
    if (a_.bias.present()) {
      c.bias = a_.bias.data;
      c.bias_format = a_.bias.format;
      c.bias_matrix = a_.bias.stride(0);
    }
    if (a_.w_scales.present()) {
      c.scales = a_.w_scales.as<const uint8_t>();
      c.scale_format = Format::kF32;
      c.scale_row = a_.w_scales.dim(2);
      c.scale_matrix = a_.w_scales.dim(1) * c.scale_row;
    }
    if (a_.x_scales.present()) {
      c.x_scales = x_scales_;
      c.x_scale_row = num_blocks();
      c.x_scale_block = 1;
    }
    if (a_.w.format() == Format::kBf16) return run_bf16_experts(ex_, c);
    if (a_.w.format() == Format::kNvfp4)
      return run_nvfp4_experts(ex_, c, a_.y.format == Format::kF32);
    return run_fp8_experts(ex_, c);
  }

  int num_blocks() const { return static_cast<int>((a_.w.cols() + 127) / 128); }

  Exec& ex_;
  const Args& a_;
  uint8_t* x_;
  float* x_scales_;
  ExpertRows rows_{};
};

Status run_gathered(Exec& ex, const Args& a) {
  return GatheredCall(ex, a).run();
}

constexpr uint32_t kEachTraits = kDeterministic | kBatchInvariant | kGraphSafe;
constexpr uint32_t kGatheredTraits = kDeterministic | kGraphSafe;

}  // namespace

constinit const VariantTable<SortedMoeGemm> sorted_moe_gemm_cuda{
    {"gathered", sm(90), "E<=1024, J<=16384", kGatheredTraits, run_gathered, MathUnit::kBf16,
     takes_experts, gathered_workspace},
    {"any_layout", sm(90), "", kEachTraits, run_any_layout, MathUnit::kF32, has_rows},
};

}  // namespace fathom

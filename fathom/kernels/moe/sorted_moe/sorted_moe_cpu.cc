#include <algorithm>
#include <cstring>
#include <vector>

#include "fathom/base/checked_math.h"
#include "fathom/formats/tile_layout.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/gemm/gemm_shape.h"
#include "fathom/kernels/gemm/run_products.h"
#include "fathom/kernels/moe/sorted_moe/sorted_moe.h"

namespace fathom {
namespace {

// Rows are gathered into scratch memory a chunk at a time, multiplied by the loops of the grouped
// GEMM, weighted and scattered: the copies stay in the second-level cache, and a layer needs no
// buffer of the size of all slots. A chunk may span experts, so that a decode step is one region.
constexpr int64_t kChunkRows = 512;

/// The scratch memory of a call, in the order in which it lies there.
struct Scratch {
  std::byte* x;      // [chunk, J] of the format of x
  float* y;          // [chunk, N] of float32, or of the format of y
  int32_t* slots;    // [chunk]
  int32_t* offsets;  // [E + 1]
  std::byte* products;
  int64_t bytes = 0;

  Scratch(const SortedMoeGemm::Args& a, int num_threads, void* memory) {
    const int64_t chunk = chunk_rows(a);
    auto* base = static_cast<std::byte*>(memory);
    const auto take = [&](int64_t size) {
      // A dry run counts with a null pointer.
      std::byte* at = base == nullptr ? nullptr : base + bytes;
      bytes += align_up<int64_t>(size, 64);
      return at;
    };
    x = take(chunk * a.x.dim(1) * element_bytes(a.x.format));
    y = reinterpret_cast<float*>(take(chunk * a.y.dim(1) * 4));
    slots = reinterpret_cast<int32_t*>(take(chunk * 4));
    offsets = reinterpret_cast<int32_t*>(take((a.w.values.dim(0) + 1) * 4));
    products = take(product_workspace(chunk, a.x.dim(1), num_threads));
  }

  static int64_t chunk_rows(const SortedMoeGemm::Args& a) {
    return std::clamp<int64_t>(std::min(a.y.dim(0), a.sorted_ids.dim(0)), 1, kChunkRows);
  }
};

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

/// One chunk: slots in the order of their experts.
class Chunk {
 public:
  Chunk(Exec& ex, const SortedMoeGemm::Args& a, ProductLoop loop)
      : ex_(ex),
        a_(a),
        loop_(loop),
        scratch_(a, ex.num_threads, ex.workspace),
        capacity_(Scratch::chunk_rows(a)),
        weighted_(a.weights.dim(0) > 0) {}

  /// Adds a slot; multiplies first what is there if the chunk is full or the order of experts ends.
  Status add(int32_t slot, int32_t expert) {
    if (rows_ == capacity_ || (rows_ > 0 && expert < last_expert_)) FATHOM_TRY(multiply());
    if (rows_ == 0) {
      first_expert_ = expert;
      last_expert_ = expert;
      scratch_.offsets[0] = 0;
    }
    for (; last_expert_ < expert; ++last_expert_) {
      scratch_.offsets[last_expert_ - first_expert_ + 1] = static_cast<int32_t>(rows_);
    }
    scratch_.slots[rows_++] = slot;
    return {};
  }

  Status multiply() {
    if (rows_ == 0) return {};
    const int64_t experts = last_expert_ - first_expert_ + 1;
    scratch_.offsets[experts] = static_cast<int32_t>(rows_);
    gather();
    const View x = make_view(scratch_.x, {rows_, a_.x.dim(1)}, a_.x.format);
    // Without weights the loop rounds to the format of y itself, as the grouped GEMM does.
    const View y =
        make_view(scratch_.y, {rows_, a_.y.dim(1)}, weighted_ ? Format::kF32 : a_.y.format);
    const View offsets = make_view(scratch_.offsets, {experts + 1}, Format::kI32);
    const QuantView w = slice_experts(a_.w, first_expert_, last_expert_ + 1);
    FATHOM_ASSIGN(Products products, make_grouped_products(x, w, offsets, y));
    products.portable_weight = &w;
    void* const whole = ex_.workspace;
    ex_.workspace = scratch_.products;
    Status status = run_products(ex_, products, loop_);
    ex_.workspace = whole;
    FATHOM_TRY(std::move(status));
    scatter();
    rows_ = 0;
    return {};
  }

 private:
  void gather() {
    const int64_t element = element_bytes(a_.x.format);
    const int64_t row_bytes = a_.x.dim(1) * element;
    for_rows(ex_, rows_, 2 * row_bytes, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t token = scratch_.slots[r] / a_.top_k;
        std::memcpy(scratch_.x + r * row_bytes,
                    a_.x.as<const std::byte>() + token * a_.x.stride(0) * element,
                    static_cast<size_t>(row_bytes));
      }
    });
  }

  void scatter() {
    const int64_t N = a_.y.dim(1);
    for_rows(ex_, rows_, 8 * N, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int32_t slot = scratch_.slots[r];
        if (weighted_) {
          scale_row(scratch_.y + r * N, a_.weights.as<const float>()[slot], slot);
        } else {
          const int64_t element = element_bytes(a_.y.format);
          std::memcpy(a_.y.as<std::byte>() + slot * a_.y.stride(0) * element,
                      reinterpret_cast<const std::byte*>(scratch_.y) + r * N * element,
                      static_cast<size_t>(N * element));
        }
      }
    });
  }

  void scale_row(const float* row, float weight, int32_t slot) {
    with_activation_type(a_.y.format, [&]<class Y>(Y) {
      Y* out = a_.y.row<Y>(slot);
      for (int64_t n = 0; n < a_.y.dim(1); ++n)
        out[n] = from_float<Y>(row[n] * weight);
    });
  }

  Exec& ex_;
  const SortedMoeGemm::Args& a_;
  ProductLoop loop_;
  Scratch scratch_;
  int64_t capacity_;
  bool weighted_;
  int64_t rows_ = 0;
  int32_t first_expert_ = 0;
  int32_t last_expert_ = 0;
};

void write_zeros(const View& y, int32_t row) {
  const int64_t element = element_bytes(y.format);
  std::memset(y.as<std::byte>() + row * y.stride(0) * element, 0,
              static_cast<size_t>(y.dim(1) * element));
}

Status run_slots(Exec& ex, const SortedMoeGemm::Args& a, ProductLoop loop) {
  const auto* sorted = a.sorted_ids.as<const int32_t>();
  const auto* block_expert = a.block_expert.as<const int32_t>();
  Chunk chunk(ex, a, loop);
  for (int32_t j = 0; j < a.num_padded.as<const int32_t>()[0]; ++j) {
    const int32_t slot = sorted[j];
    if (slot >= a.y.dim(0)) continue;  // padding
    const int32_t expert = block_expert[j / a.block];
    if (expert < 0) {
      write_zeros(a.y, slot);
    } else {
      FATHOM_TRY(chunk.add(slot, expert));
    }
  }
  return chunk.multiply();
}

/// The loops of one instruction set, by weight format.
struct Loops {
  ProductLoop bf16, fp8, nvfp4;
};

constexpr Loops kAvx512{bf16_products_avx512, fp8_products_avx512, nvfp4_products_avx512};
constexpr Loops kAvx2{bf16_products_avx2, fp8_products_avx2, nvfp4_products_avx2};
constexpr Loops kPortable{products_portable, products_portable, products_portable};

template <const Loops& kLoops>
Status sorted_moe_gemm(Exec& ex, const SortedMoeGemm::Args& a) {
  switch (a.w.format()) {
    case Format::kNvfp4:
      return run_slots(ex, a, kLoops.nvfp4);
    case Format::kFp8Block:
    case Format::kFp8BlockUe8m0:
      return run_slots(ex, a, kLoops.fp8);
    default:  // bf16, and f32, which the portable loop alone accepts
      return run_slots(ex, a, kLoops.bf16);
  }
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

/// Experts that have slots.
int64_t active_experts(const SortedMoeGemm::Args& a) {
  std::vector<bool> active(static_cast<size_t>(a.w.values.dim(0)), false);
  const int64_t blocks = a.num_padded.as<const int32_t>()[0] / a.block;
  for (int64_t b = 0; b < blocks; ++b) {
    const int32_t e = a.block_expert.as<const int32_t>()[b];
    if (e >= 0) active[static_cast<size_t>(e)] = true;
  }
  return std::count(active.begin(), active.end(), true);
}

}  // namespace

Cost SortedMoeGemm::cost(const Args& a) {
  return product_cost(a.y.dim(0), a.w.rows(), a.w.cols());
}

void SortedMoeGemm::bytes(const Args& a, Cost& cost) {
  // Offsets stand for the routing arrays, which are counted below.
  grouped_product_bytes(a.x, a.w.values, a.num_padded, a.y, a.top_k, cost);
  cost.bytes_read += operand_bytes(a.sorted_ids) + operand_bytes(a.block_expert);
  if (a.weights.dim(0) > 0) cost.bytes_read += operand_bytes(a.weights);
  if (a.num_padded.data == nullptr || a.block_expert.data == nullptr) return;
  cost.bytes_read = operand_bytes(a.x) + operand_bytes(a.sorted_ids) +
                    operand_bytes(a.block_expert) + operand_bytes(a.num_padded) +
                    (a.weights.dim(0) > 0 ? operand_bytes(a.weights) : 0) +
                    active_experts(a) * bytes_for(a.w.format(), a.w.rows(), a.w.cols());
}

int64_t SortedMoeGemm::workspace(const Args& a, int num_threads) {
  return Scratch(a, num_threads, nullptr).bytes;
}

Status SortedMoeGemm::check(const Args& a) {
  if (a.block < 1 || a.top_k < 1) {
    return invalid_argument(
        str_cat("block is ", a.block, " and top_k ", a.top_k, ", expected at least 1"));
  }
  FATHOM_TRY(check_weight(a.w));
  if (a.weights.dim(0) != 0 && a.weights.dim(0) != a.y.dim(0)) {
    return invalid_argument(str_cat("weights has ", a.weights.dim(0), " values, expected none or ",
                                    a.y.dim(0), ", one a row of y"));
  }
  if (a.num_padded.data == nullptr) return {};
  const int32_t padded = a.num_padded.as<const int32_t>()[0];
  const int64_t most = std::min(a.sorted_ids.dim(0), a.block_expert.dim(0) * a.block);
  if (padded < 0 || padded > most) {
    return invalid_argument(str_cat("num_padded is ", padded, ", expected 0 to ", most));
  }
  for (int32_t j = 0; j < padded; ++j) {
    const int32_t slot = a.sorted_ids.as<const int32_t>()[j];
    const int32_t expert = a.block_expert.as<const int32_t>()[j / a.block];
    const bool row_exists = slot >= a.y.dim(0) || slot / a.top_k < a.x.dim(0);
    if (slot < 0 || !row_exists) {
      return invalid_argument(str_cat("sorted_ids[", j, "] is ", slot, ", but x has ", a.x.dim(0),
                                      " rows for ", a.top_k, " slots each"));
    }
    if (expert < -1 || expert >= a.w.values.dim(0)) {
      return invalid_argument(str_cat("block_expert[", j / a.block, "] is ", expert,
                                      ", expected -1 to ", a.w.values.dim(0) - 1));
    }
  }
  return {};
}

constinit const VariantTable<SortedMoeGemm> sorted_moe_gemm_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, sorted_moe_gemm<kAvx512>, MathUnit::kBf16,
     is_rows16_bf16<SortedMoeGemm::Args>},
    {"avx2", Isa::kAvx2, "", kTraits, sorted_moe_gemm<kAvx2>, MathUnit::kF32,
     is_rows16<SortedMoeGemm::Args>},
    {"portable", Isa::kPortable, "", kTraits, sorted_moe_gemm<kPortable>},
};

}  // namespace fathom

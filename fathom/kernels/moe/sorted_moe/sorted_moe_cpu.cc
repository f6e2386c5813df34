#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/cpu/products/run_products.h"
#include "fathom/kernels/gemm/gemm_shape.h"
#include "fathom/kernels/moe/code_products.h"
#include "fathom/kernels/moe/sorted_moe/sorted_chunk.h"
#include "fathom/kernels/moe/sorted_moe/sorted_moe.h"

namespace fathom {
namespace {

using Args = SortedMoeGemm::Args;

void write_zeros(const View& y, int32_t row) {
  const int64_t element = element_bytes(y.format);
  std::memset(y.as<std::byte>() + row * y.stride(0) * element, 0,
              static_cast<size_t>(y.dim(1) * element));
}

Status run_slots(Exec& ex, const Args& a, const SortedLoop& loop) {
  const auto* sorted = a.sorted_ids.as<const int32_t>();
  const auto* block_expert = a.block_expert.as<const int32_t>();
  const int64_t slots = num_slots(a);
  SortedChunk chunk(ex, a, loop);
  for (int32_t j = 0; j < a.num_padded.as<const int32_t>()[0]; ++j) {
    const int32_t slot = sorted[j];
    if (slot >= slots) continue;  // padding
    const int32_t expert = block_expert[j / a.block];
    const int32_t row = a.rows == ResultRows::kSlots ? slot : j;
    if (expert < 0) {
      write_zeros(a.y, row);
    } else {
      FATHOM_TRY(chunk.add(slot, expert, row));
    }
  }
  return chunk.multiply();
}

/// The loops of one instruction set, by weight format.
struct Loops {
  ProductLoop bf16, fp8, nvfp4;
};

constexpr Loops kAmx{bf16_products_amx, fp8_products_amx, nvfp4_products_amx};
constexpr Loops kAvx512{bf16_products_avx512, fp8_products_avx512, nvfp4_products_avx512};
constexpr Loops kAvx2{bf16_products_avx2, fp8_products_avx2, nvfp4_products_avx2};
constexpr Loops kPortable{products_portable, products_portable, products_portable};

template <const Loops& kLoops>
Status sorted_moe_gemm(Exec& ex, const Args& a) {
  switch (a.w.format()) {
    case Format::kNvfp4:
      return run_slots(ex, a, {.loop = kLoops.nvfp4});
    case Format::kFp8Block:
    case Format::kFp8BlockUe8m0:
      return run_slots(ex, a, {.loop = kLoops.fp8});
    default:  // bf16, and f32, which the portable loop alone accepts
      return run_slots(ex, a, {.loop = kLoops.bf16});
  }
}

bool is_f16(const Args& a) {
  return a.x.format == Format::kF16 || a.w.format() == Format::kF16;
}

bool is_codes(const Args& a) {
  return a.w_scales.present();
}

Status run_portable(Exec& ex, const Args& a) {
  if (is_codes(a) || is_f16(a)) {
    return run_slots(ex, a,
                     {.loop = products_portable, .decodes = true, .type = ElementType::kF32});
  }
  return sorted_moe_gemm<kPortable>(ex, a);
}

Status run_codes_avx512(Exec& ex, const Args& a) {
  return run_slots(ex, a,
                   {.loop = code_products_avx512, .decodes = true, .type = ElementType::kBf16});
}

/// x that bf16 holds, and groups that are whole chains of sums.
bool takes_codes(const Args& a) {
  return is_codes(a) && a.x.format != Format::kF32 && a.x.format != Format::kF16 &&
         a.group_k % kCodeBlock == 0;
}

bool takes_rows16_float(const Args& a) {
  return is_rows16(a) && !is_f16(a);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

/// Experts that have slots.
int64_t active_experts(const Args& a) {
  std::vector<bool> active(static_cast<size_t>(a.w.values.dim(0)), false);
  const int64_t blocks = a.num_padded.as<const int32_t>()[0] / a.block;
  for (int64_t b = 0; b < blocks; ++b) {
    const int32_t e = a.block_expert.as<const int32_t>()[b];
    if (e >= 0) active[static_cast<size_t>(e)] = true;
  }
  return std::count(active.begin(), active.end(), true);
}

// ---- checks ----

Status check_plain_weight(const Args& a) {
  const bool codes = a.x.format == Format::kE4m3 || a.x.format == Format::kI8;
  if (codes || a.x_scales.present() || a.w.format() == Format::kE4m3 ||
      a.w.format() == Format::kI8) {
    return invalid_argument(str_cat("x is ", format_name(a.x.format), " and w ",
                                    format_name(a.w.format()),
                                    ", which need w_scales, and x_scales where x is codes"));
  }
  return check_weight(a.w);
}

Status check_x_scales(const Args& a, int64_t blocks) {
  const View& s = a.x_scales;
  const bool codes = a.x.format == Format::kE4m3 || a.x.format == Format::kI8;
  if (!codes) {
    if (!s.present()) return {};
    return invalid_argument(
        str_cat("x_scales is ", describe(s), " but x is ", format_name(a.x.format)));
  }
  if (a.x.format != a.w.format()) {
    return invalid_argument(str_cat("x is ", format_name(a.x.format), " but w is ",
                                    format_name(a.w.format()), "; both must be codes of one kind"));
  }
  const bool fits = s.format == Format::kF32 && s.rank == 2 &&
                    (s.dim(0) == a.x.dim(0) || s.dim(0) == 1) &&
                    (s.dim(1) == blocks || s.dim(1) == 1);
  if (fits) return {};
  return invalid_argument(str_cat("x_scales is ", describe(s), ", expected [", a.x.dim(0),
                                  " or 1, ", blocks, " or 1] f32"));
}

Status check_codes(const Args& a) {
  if (a.w.format() != Format::kE4m3 && a.w.format() != Format::kI8) {
    return invalid_argument(str_cat("w is ", format_name(a.w.format()),
                                    ", which has scales of its own; w_scales are for codes of e4m3 "
                                    "or i8"));
  }
  if (a.w.layout != WeightLayout::kRowMajor || !a.w.values.contiguous() ||
      !a.w_scales.contiguous()) {
    return invalid_argument("w and w_scales must be packed and row-major");
  }
  if (a.group_n < 0 || a.group_k < 0) {
    return invalid_argument(str_cat("group_n is ", a.group_n, " and group_k ", a.group_k,
                                    ", expected 0 (the whole axis) or more"));
  }
  const int64_t rows = a.group_n == 0 ? 1 : ceil_div(a.w.rows(), a.group_n);
  const int64_t blocks = a.group_k == 0 ? 1 : ceil_div(a.w.cols(), a.group_k);
  if (a.w_scales.dim(1) != rows || a.w_scales.dim(2) != blocks || a.w.cols() == 0) {
    return invalid_argument(str_cat("w_scales is ", describe(a.w_scales), ", expected [",
                                    a.w.values.dim(0), ", ", rows, ", ", blocks, "] for ",
                                    describe(a.w.values)));
  }
  return check_x_scales(a, blocks);
}

}  // namespace

Cost SortedMoeGemm::cost(const Args& a) {
  return product_cost(a.y.dim(0), a.w.rows(), a.w.cols());
}

void SortedMoeGemm::bytes(const Args& a, Cost& cost) {
  const bool known = a.num_padded.readable() && a.block_expert.readable();
  const double experts = known ? static_cast<double>(active_experts(a))
                               : expected_experts(a.w.values.dim(0), num_slots(a), a.top_k);
  const double matrix = static_cast<double>(bytes_for(a.w.format(), a.w.rows(), a.w.cols()));
  cost.bytes_read = operand_bytes(a.x) + operand_bytes(a.sorted_ids) +
                    operand_bytes(a.block_expert) + operand_bytes(a.num_padded) +
                    (a.weights.dim(0) > 0 ? operand_bytes(a.weights) : 0) +
                    static_cast<int64_t>(std::llround(experts * matrix));
  cost.bytes_written = operand_bytes(a.y);
}

int64_t SortedMoeGemm::workspace(const Args& a, int num_threads) {
  return sorted_chunk_workspace(a, num_threads);
}

Status SortedMoeGemm::check(const Args& a) {
  if (a.block < 1 || a.top_k < 1) {
    return invalid_argument(
        str_cat("block is ", a.block, " and top_k ", a.top_k, ", expected at least 1"));
  }
  FATHOM_TRY(is_codes(a) ? check_codes(a) : check_plain_weight(a));
  const int64_t slots = num_slots(a);
  if (a.weights.dim(0) != 0 && a.weights.dim(0) != slots) {
    return invalid_argument(str_cat("weights has ", a.weights.dim(0), " values, expected none or ",
                                    slots, ", one a slot"));
  }
  if (!a.num_padded.readable()) return {};
  const int32_t padded = a.num_padded.as<const int32_t>()[0];
  int64_t most = std::min(a.sorted_ids.dim(0), a.block_expert.dim(0) * a.block);
  if (a.rows == ResultRows::kSorted) most = std::min(most, a.y.dim(0));
  if (padded < 0 || padded > most) {
    return invalid_argument(str_cat("num_padded is ", padded, ", expected 0 to ", most));
  }
  for (int32_t j = 0; j < padded; ++j) {
    const int32_t slot = a.sorted_ids.as<const int32_t>()[j];
    const int32_t expert = a.block_expert.as<const int32_t>()[j / a.block];
    const bool row_exists = slot >= slots || slot / a.top_k < a.x.dim(0);
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
    {"amx", Isa::kAmx, "", kTraits, sorted_moe_gemm<kAmx>, MathUnit::kBf16, is_rows16_bf16<Args>},
    {"avx512", Isa::kAvx512, "", kTraits, sorted_moe_gemm<kAvx512>, MathUnit::kBf16,
     is_rows16_bf16<Args>},
    {"avx512_codes", Isa::kAvx512, "", kTraits, run_codes_avx512, MathUnit::kBf16, takes_codes},
    {"avx2", Isa::kAvx2, "", kTraits, sorted_moe_gemm<kAvx2>, MathUnit::kF32, takes_rows16_float},
    {"portable", Isa::kPortable, "", kTraits, run_portable},
};

}  // namespace fathom

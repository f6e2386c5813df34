// Products of int8 activations with integer weights: exact sums in int32, scaled in float32. What
// int8_gemm and w4a8_gemm share.
//
// x is decoded first (decoded_rows.h): int8 codes, zeros, and behind them an int32 that AVX-512
// subtracts from the sums, since its product wants one operand without sign: weights of int8 enter
// as w + 128, and 128 * sum_k x[t,k] leaves again.
#pragma once

#include <cstdint>

#include "fathom/kernels/cpu/products/products.h"

namespace fathom {

/// How weights are stored; formats/integer/qserve.h has the diagrams of the packed ones.
enum class IntCodes : uint8_t {
  kInt8,         ///< int8 [n, k]
  kW4a8Channel,  ///< uint4, packed; a product takes the codes
  kW4a8Group,    ///< uint4, packed; a product takes int8(code * group_scale + group_zero)
};

/// Products::weight of integer loops. Plain data, see products.h.
struct IntWeight {
  IntCodes codes = IntCodes::kInt8;
  const uint8_t* values = nullptr;
  int64_t n = 0;
  int64_t k = 0;
  const int8_t* group_scales = nullptr;  ///< [k/128][n], each 32 columns in the order of qserve.h
  const int8_t* group_zeros = nullptr;   ///< the same
};

/// Sums of at most this many products of two int8 cannot leave int32.
inline constexpr int64_t kMostIntColumns = (int64_t{1} << 31) / (128 * 128) - 1;

void int_products_portable(const Products& p, const WorkItem& item, void* scratch);
void int8_products_avx512(const Products& p, const WorkItem& item, void* scratch);
void w4a8_channel_products_avx512(const Products& p, const WorkItem& item, void* scratch);
void w4a8_group_products_avx512(const Products& p, const WorkItem& item, void* scratch);

}  // namespace fathom

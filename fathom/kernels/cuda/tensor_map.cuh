// Boxes of a matrix in global memory that the copy engine (TMA) brings to shared memory by itself:
// the map that the host makes, and the copy. Elements outside the matrix arrive as zeros.
#pragma once

#include <array>
#include <cstdint>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "fathom/device/cuda_status.h"
#include "fathom/kernels/cuda/tensor_core.cuh"

namespace fathom::cuda {

/// A matrix of bytes (or of bf16) with three axes, the innermost dense.
struct TensorBox {
  const void* data = nullptr;
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  std::array<int64_t, 3> dims{};     ///< elements, innermost first
  std::array<int64_t, 2> strides{};  ///< bytes from row to row and from matrix to matrix
  std::array<int, 2> box{};          ///< columns and rows of one copy
  int depth = 1;                     ///< matrices of one copy
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
};

/// True if the copy engine can address rows: sixteen bytes divide the address and every stride.
inline bool takes_tensor_map(const void* data, int64_t row_bytes, int64_t matrix_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && row_bytes % 16 == 0 &&
         matrix_bytes % 16 == 0;
}

/// The function of the driver that encodes a map; null if the driver has none.
inline auto tensor_map_encoder() {
  static const auto encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    constexpr unsigned kSince = 12000;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                               kSince, cudaEnableDefault, &found);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) entry = nullptr;
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  }();
  return encode;
}

/// Errors: Unavailable for a driver without maps, Internal for a box that it refuses.
template <size_t kRank>
Status encode_tensor_map(CUtensorMap* map,
                         CUtensorMapDataType type,
                         const void* data,
                         const std::array<int64_t, kRank>& dims,
                         const std::array<int64_t, kRank - 1>& strides,
                         const std::array<int, kRank>& box,
                         CUtensorMapSwizzle swizzle) {
  const auto encode = tensor_map_encoder();
  if (encode == nullptr)
    return unavailable("the driver has no cuTensorMapEncodeTiled; CUDA 12.0 or newer is needed");
  cuuint64_t sizes[kRank];
  cuuint64_t bytes[kRank - 1];
  cuuint32_t of_box[kRank];
  cuuint32_t steps[kRank];
  for (size_t i = 0; i < kRank; ++i) {
    sizes[i] = static_cast<cuuint64_t>(dims[i]);
    of_box[i] = static_cast<cuuint32_t>(box[i]);
    steps[i] = 1;
    if (i == 0) continue;
    // An axis of one element may have any stride; the driver still asks for one that it could use.
    const int64_t stride = strides[i - 1];
    bytes[i - 1] = static_cast<cuuint64_t>(dims[i] > 1 || stride > 0 ? stride : 16);
  }
  const CUresult result =
      encode(map, type, kRank, const_cast<void*>(data), sizes, bytes, of_box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return {};
  std::string axes = str_cat(dims[0]);
  for (size_t i = 1; i < kRank; ++i)
    str_append(axes, str_cat(" x ", dims[i], " (", strides[i - 1], " bytes apart)"));
  return internal_error(str_cat("cuTensorMapEncodeTiled refused axes of ", axes, ": error ",
                                static_cast<int>(result)));
}

/// Errors: those of encode_tensor_map.
inline Status make_tensor_map(const TensorBox& b, CUtensorMap* map) {
  return encode_tensor_map<3>(map, b.type, b.data, b.dims, b.strides, {b.box[0], b.box[1], b.depth},
                              b.swizzle);
}

/// Gate and up rows of stacked matrices as the copy engine brings them group by group, eight gate
/// rows and the eight up rows of the same outputs (kGatedRows), one behind the other.
struct GatedBox {
  const void* data = nullptr;
  int64_t row_bytes = 0;
  int64_t half_rows = 0;  ///< from a gate row to the up row of the same output
  int64_t columns = 0;    ///< bytes
  int64_t groups = 0;
  int64_t lasts = 1;         ///< of the last axis: matrices, or panels of columns
  int64_t last_bytes = 0;    ///< from one to the next
  std::array<int, 3> box{};  ///< columns, groups and lasts of one copy
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
};

/// Errors: those of encode_tensor_map.
inline Status make_gated_map(const GatedBox& b, CUtensorMap* map) {
  return encode_tensor_map<5>(
      map, CU_TENSOR_MAP_DATA_TYPE_UINT8, b.data, {b.columns, 8, 2, b.groups, b.lasts},
      {b.row_bytes, b.half_rows * b.row_bytes, 8 * b.row_bytes, b.last_bytes},
      {b.box[0], 8, 2, b.box[1], b.box[2]}, b.swizzle);
}

/// Brings the map itself nearer.
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(&map)) : "memory");
}

/// Says how many bytes will arrive at a barrier, and arrives. PTX ISA, mbarrier.arrive.expect_tx.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// Starts to bring the box at (column, row, matrix). PTX ISA, cp.async.bulk.tensor.
__device__ __forceinline__ void copy_box(
    uint32_t to, const CUtensorMap& map, int column, int row, int matrix, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(row), "r"(matrix), "r"(barrier)
      : "memory");
}

/// Starts to bring `bytes` that follow each other: they and both addresses are multiples of 16. The
/// last cache keeps them by `policy` (weights_policy). PTX ISA, cp.async.bulk.
__device__ __forceinline__ void copy_bytes(
    uint32_t to, const void* from, uint32_t bytes, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

/// The box at (column, row, matrix), kept in the last cache by `policy`.
__device__ __forceinline__ void copy_box(uint32_t to,
                                         const CUtensorMap& map,
                                         int column,
                                         int row,
                                         int matrix,
                                         uint32_t barrier,
                                         uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(row), "r"(matrix), "r"(barrier),
      "l"(policy)
      : "memory");
}

/// The box of a GatedBox at (column, group, last), kept in the last cache by `policy`.
__device__ __forceinline__ void copy_gated_box(uint32_t to,
                                               const CUtensorMap& map,
                                               int column,
                                               int group,
                                               int last,
                                               uint32_t barrier,
                                               uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(0), "r"(group), "r"(last),
      "r"(barrier), "l"(policy)
      : "memory");
}

/// Brings the box at (column, row, matrix) into the last cache.
__device__ __forceinline__ void prefetch_box(const CUtensorMap& map,
                                             int column,
                                             int row,
                                             int matrix) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(
                   reinterpret_cast<uint64_t>(&map)),
               "r"(column), "r"(row), "r"(matrix)
               : "memory");
}

// ---- by a warp ----
//
// All lanes of a warp call these, and one of them does it. In a branch of one lane the assembler
// makes a loop of a copy; here it makes one instruction. PTX ISA, elect.sync.

/// As barrier_expect.
__device__ __forceinline__ void warp_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile(
      "{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\n"
      "@one mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n}" ::"r"(barrier),
      "r"(bytes)
      : "memory");
}

/// As copy_box.
__device__ __forceinline__ void warp_copy_box(
    uint32_t to, const CUtensorMap& map, int column, int row, int matrix, uint32_t barrier) {
  asm volatile(
      "{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\n"
      "@one cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];\n}" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(row), "r"(matrix), "r"(barrier)
      : "memory");
}

/// The same, kept in the last cache by `policy`.
__device__ __forceinline__ void warp_copy_box(uint32_t to,
                                              const CUtensorMap& map,
                                              int column,
                                              int row,
                                              int matrix,
                                              uint32_t barrier,
                                              uint64_t policy) {
  asm volatile(
      "{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\n"
      "@one cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;\n}" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(row), "r"(matrix), "r"(barrier),
      "l"(policy)
      : "memory");
}

}  // namespace fathom::cuda

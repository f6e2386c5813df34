// Rows of probabilities on one block of the GPU: what renorm and draw share.
#pragma once

#include "fathom/kernels/sample/row_thresholds.cuh"

namespace fathom::cuda {

inline constexpr float kSmallestPositive = 0x1p-149f;

struct ProbabilityShared {
  Bins bins;
  PieceTable table;
  float floor;
};

/// Keys and masses of probabilities: bits of floats from 0 on order as their values do.
struct ProbabilityScale {
  static constexpr int kKeyBits = 31;

  double unit;  ///< of masses: a power of two that takes the largest probability to 2^41 .. 2^42

  /// max is positive.
  __device__ explicit ProbabilityScale(float max) {
    const int exponent = static_cast<int>(__float_as_uint(max) >> 23) - 127;
    unit = __hiloint2double((1023 + 41 - exponent) << 20, 0);
  }

  __device__ uint32_t key(float p) const { return __float_as_uint(p); }

  __device__ uint64_t mass(float p) const { return __double2ull_rn(double{p} * unit); }
};

/// Fills the table for this warp's pieces: the largest value, and the mass. Whoever reads it waits
/// for all warps first.
template <class Row>
__device__ void scan_probabilities(const Row& row, PieceTable& table) {
  for (int piece = warp_id(); piece < row.num_pieces(); piece += kRowWarps) {
    PieceValues x;
    row.load(piece, x);
    const float peak = peak_of(x);
    const double mass = mass_of_piece(x, [](float p) { return double{p}; });
    if (lane_id() == 0) {
      table.peak[piece] = peak;
      table.mass[piece] = mass;
    }
  }
}

/// Values of which no more than `spare` mass may be left out are not below this.
__device__ inline float floor_of_mass(double spare, int V) {
  return fmaxf(static_cast<float>(0.999 * spare / V), kSmallestPositive);
}

/// The k-th largest value of a row that has mass, and what is not below it; key 0 where that is
/// zero. By all threads; the table is filled.
template <class Row>
__device__ KeptValues
keep_top_k(const Row& row, int k, const ProbabilityScale& scale, ProbabilityShared& s) {
  float floor = kSmallestPositive;
  if (k <= row.num_pieces()) {
    find_kth_peak(s.table.peak, row.num_pieces(), k, &s.floor);
    __syncthreads();
    floor = fmaxf(s.floor, kSmallestPositive);
  }
  return find_threshold(s.bins, RowFrom<Row>{row, floor}, scale,
                        {.count = static_cast<uint32_t>(k), .mass = 0.0});
}

/// The largest threshold at which what is not below it has `target` mass, of a row that has `mass`;
/// values below `floor` do not matter. By all threads.
template <class Row>
__device__ KeptValues keep_top_p(const Row& row,
                                 double target,
                                 float floor,
                                 const ProbabilityScale& scale,
                                 ProbabilityShared& s) {
  return find_threshold(s.bins, RowFrom<Row>{row, floor}, scale, {.count = 0, .mass = target});
}

}  // namespace fathom::cuda

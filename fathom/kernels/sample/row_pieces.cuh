// A row of a vocabulary on one block of the GPU. Its 32 warps take pieces of 1,024 tokens, each of
// which one warp loads whole, so that a multiprocessor asks for 128 KiB at once:
//
//   piece i of a row:  tokens 1024 i .. 1024 i + 1023;   warp w has pieces w, w + 32, w + 64, ...
//   lane l, quad j:    tokens 1024 i + 128 j + 4 l .. + 3
//
// What is found of a piece (its largest value, its mass) comes from one warp whose lanes add up in
// one order, and pieces are put together in their order: results depend on nothing but the row.
//
// A draw needs the row once: the masses of pieces say in which one the token lies, and that one is
// read again.
#pragma once

#include <cfloat>
#include <climits>
#include <cstdint>

#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/reduce.cuh"

namespace fathom::cuda {

inline constexpr int kRowThreads = 1024;
inline constexpr int kRowWarps = kRowThreads / 32;
inline constexpr int kQuads = 8;
inline constexpr int kPiece = kQuads * 128;
inline constexpr int kMostPieces = 1024;  // what a limit V<=1048576 of a variant means
inline constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

/// What a lane has of a piece.
using PieceValues = float[kQuads][4];

/// Calls f(value) for each value that a lane has of a piece.
template <class F>
__device__ __forceinline__ void for_values(PieceValues& x, F f) {
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
#pragma unroll
    for (int c = 0; c < 4; ++c)
      f(x[j][c]);
  }
}

/// The first token of quad 0 that this lane has of a piece; that of quad j is 128 j further.
__device__ __forceinline__ int first_token(int piece) {
  return piece * kPiece + 4 * lane_id();
}

/// Logits: NaN is -inf, and so is what lies behind the row.
struct LogitValues {
  static constexpr float kMissing = -INFINITY;

  static __device__ float clean(float z) { return isnan(z) ? -INFINITY : z; }
};

/// Probabilities: NaN and negative values are 0, and so is what lies behind the row.
struct ProbabilityValues {
  static constexpr float kMissing = 0.0f;

  static __device__ float clean(float p) { return p > 0.0f ? fminf(p, FLT_MAX) : 0.0f; }
};

/// A row of V values of a kind. kVectors: its address is a multiple of sixteen bytes.
template <bool kVectors, class Kind>
struct PieceRow {
  const float* data;
  int V;

  __device__ int num_pieces() const { return (V + kPiece - 1) / kPiece; }

  /// A piece as it lies in memory. By a whole warp.
  __device__ void load_raw(int piece, PieceValues& x) const {
    const float* own = data + first_token(piece);
    if (kVectors && (piece + 1) * kPiece <= V) {
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        const float4 quad = *reinterpret_cast<const float4*>(own + 128 * j);
        x[j][0] = quad.x;
        x[j][1] = quad.y;
        x[j][2] = quad.z;
        x[j][3] = quad.w;
      }
      return;
    }
    const int left = V - first_token(piece);
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c)
        x[j][c] = 128 * j + c < left ? own[128 * j + c] : Kind::kMissing;
    }
  }

  __device__ void load(int piece, PieceValues& x) const {
    load_raw(piece, x);
    for_values(x, [](float& value) { value = Kind::clean(value); });
  }
};

/// Stores a piece of a row. y may be the row that the piece was loaded from.
template <bool kVectors>
__device__ void store_piece(float* y, int V, int piece, const PieceValues& x) {
  float* own = y + first_token(piece);
  if (kVectors && (piece + 1) * kPiece <= V) {
#pragma unroll
    for (int j = 0; j < kQuads; ++j)
      *reinterpret_cast<float4*>(own + 128 * j) = make_float4(x[j][0], x[j][1], x[j][2], x[j][3]);
    return;
  }
  const int left = V - first_token(piece);
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (128 * j + c < left) own[128 * j + c] = x[j][c];
    }
  }
}

/// What is known of the pieces of a row.
struct PieceTable {
  double mass[kMostPieces];
  float peak[kMostPieces];
};

__device__ __forceinline__ double sum_of_lanes(double value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

__device__ __forceinline__ uint64_t sum_of_lanes(uint64_t value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value += __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(value), offset);
  return value;
}

/// The sums of this lane's value and those of the lanes below it.
__device__ __forceinline__ double sum_up_to(double value) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const double lower = __shfl_up_sync(kAllLanes, value, offset);
    if (lane_id() >= offset) value += lower;
  }
  return value;
}

/// The largest value of a piece, in all lanes.
__device__ __forceinline__ float peak_of(PieceValues& x) {
  float peak = -INFINITY;
  for_values(x, [&](float value) { peak = fmaxf(peak, value); });
  return combine_lanes(peak, Max{});
}

/// The largest of all pieces, in every lane of every warp that calls it.
__device__ __forceinline__ float largest_peak(const float* peaks, int num_pieces) {
  float largest = -INFINITY;
  for (int p = lane_id(); p < num_pieces; p += 32)
    largest = fmaxf(largest, peaks[p]);
  return combine_lanes(largest, Max{});
}

/// The sum of mass_of(piece) over all pieces, in every lane of every warp that calls it.
template <class MassOf>
__device__ double mass_of_row(int num_pieces, MassOf mass_of) {
  double mass = 0;
  for (int p = lane_id(); p < num_pieces; p += 32)
    mass += mass_of(p);
  return sum_of_lanes(mass);
}

/// The first token of the row that equals `max`, its largest value; 0 if that is -inf. By a warp.
template <class Row>
__device__ int first_of_largest(const Row& row, const float* peaks, float max) {
  if (max == -INFINITY) return 0;
  int piece = INT_MAX;
  for (int p = lane_id(); p < row.num_pieces(); p += 32) {
    if (peaks[p] == max) piece = min(piece, p);
  }
  piece = __reduce_min_sync(kAllLanes, piece);
  PieceValues x;
  row.load(piece, x);
  int token = INT_MAX;
#pragma unroll
  for (int j = kQuads - 1; j >= 0; --j) {
#pragma unroll
    for (int c = 3; c >= 0; --c) {
      if (x[j][c] == max) token = first_token(piece) + 128 * j + c;
    }
  }
  return __reduce_min_sync(kAllLanes, token);
}

// ---- a draw ----

/// Where a draw ends: in a piece, at the first token whose running mass exceeds the target.
struct DrawPlace {
  int piece;      // -1: the row has no mass
  double before;  // mass of the pieces before it
  double target;  // infinite where rounding let no piece exceed it: the last token is meant then
};

/// The first piece whose running mass exceeds uniform times the mass of the row, in all lanes. By a
/// warp. Lanes have neighbouring pieces.
template <class MassOf>
__device__ DrawPlace draw_piece(int num_pieces, double uniform, MassOf mass_of) {
  const int each = (num_pieces + 31) / 32;
  const int begin = min(num_pieces, each * lane_id());
  const int end = min(num_pieces, begin + each);
  double own = 0;
  int last = -1;
  for (int p = begin; p < end; ++p) {
    const double mass = mass_of(p);
    own += mass;
    if (mass > 0) last = p;
  }
  const double upto = sum_up_to(own);
  const double target = uniform * __shfl_sync(kAllLanes, upto, 31);
  double running = __shfl_up_sync(kAllLanes, upto, 1);
  if (lane_id() == 0) running = 0;
  int chosen = -1;
  double before = 0;
  for (int p = begin; p < end && chosen < 0; ++p) {
    const double mass = mass_of(p);
    before = running;
    running += mass;
    if (mass > 0 && running > target) chosen = p;
  }
  const uint32_t found = __ballot_sync(kAllLanes, chosen >= 0);
  last = __reduce_max_sync(kAllLanes, last);
  if (found == 0) return {last, 0.0, static_cast<double>(INFINITY)};
  const int lane = __ffs(static_cast<int>(found)) - 1;
  return {__shfl_sync(kAllLanes, chosen, lane), __shfl_sync(kAllLanes, before, lane), target};
}

/// The first token of a piece whose running mass exceeds the target, or else the last one that has
/// mass, in all lanes; -1 if none has. By a warp. weight(value) is a float64 from 0 on, in the unit
/// of `before` and `target`.
template <class Weight>
__device__ int draw_token(PieceValues& x, int piece, double before, double target, Weight weight) {
  double running = before;
  int last = -1;
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const int first = first_token(piece) + 128 * j;
    double weights[4];
    double quad = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      weights[c] = weight(x[j][c]);
      quad += weights[c];
      if (weights[c] > 0) last = first + c;
    }
    const double upto = sum_up_to(quad);
    double at = __shfl_up_sync(kAllLanes, upto, 1);
    at = running + (lane_id() == 0 ? 0.0 : at);
    const uint32_t found = __ballot_sync(kAllLanes, quad > 0 && running + upto > target);
    if (found != 0) {
      int token = -1;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        at += weights[c];
        if (token < 0 && weights[c] > 0 && at > target) token = first + c;
      }
      // Where the additions of a quad and of its lane round differently, the quad's last.
      if (token < 0) token = last;
      return __shfl_sync(kAllLanes, token, __ffs(static_cast<int>(found)) - 1);
    }
    running += __shfl_sync(kAllLanes, upto, 31);
  }
  return __reduce_max_sync(kAllLanes, last);
}

/// The mass of a piece, in all lanes.
template <class Weight>
__device__ double mass_of_piece(PieceValues& x, Weight weight) {
  double mass = 0;
  for_values(x, [&](float value) { mass += weight(value); });
  return sum_of_lanes(mass);
}

// ---- softmax ----

/// Logits in octaves of probability: factor = log2(e) / temperature, finite and positive for any
/// temperature above 0.
__device__ __forceinline__ float octaves_per_logit(float temperature) {
  constexpr float kLog2E = 1.44269504f;
  return fminf(fmaxf(__fdiv_rn(kLog2E, temperature), FLT_MIN), 1e38f);
}

/// exp((z - reference) / temperature) for z <= reference.
__device__ __forceinline__ float exp_below(float z, float reference, float factor) {
  return exp2_approx((z - reference) * factor);
}

/// Whether a row asks for probabilities, or for the largest logit alone.
enum class Scan { kPeaks, kMasses };

/// A piece of a row of logits, NaN as -inf. True if one is NaN or +inf. By a whole warp.
template <class Row>
__device__ __forceinline__ bool load_logits(const Row& row, int piece, PieceValues& x) {
  row.load_raw(piece, x);
  bool odd = false;
  for_values(x, [&](float z) { odd |= !(z < INFINITY); });
  if (!__any_sync(kAllLanes, odd)) return false;
  for_values(x, [](float& z) { z = LogitValues::clean(z); });
  return true;
}

/// The mass of a piece of logits relative to its largest one, in all lanes; 0 where that is not
/// finite. Sums of four are in float32, sums of those in float64.
__device__ __forceinline__ double softmax_mass(PieceValues& x, float peak, float factor) {
  if (!(fabsf(peak) < INFINITY)) return 0;
  double mass = 0;
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const float low = exp_below(x[j][0], peak, factor) + exp_below(x[j][1], peak, factor);
    const float high = exp_below(x[j][2], peak, factor) + exp_below(x[j][3], peak, factor);
    mass += double{low + high};
  }
  return sum_of_lanes(mass);
}

/// Fills the table for this warp's pieces of a row of logits: the largest logit, and the mass
/// relative to it. True if a logit is NaN or +inf. Whoever reads the table waits for all warps
/// first.
template <class Row>
__device__ bool scan_logits(const Row& row, Scan scan, float factor, PieceTable& table) {
  bool unusable = false;
  for (int piece = warp_id(); piece < row.num_pieces(); piece += kRowWarps) {
    PieceValues x;
    if (load_logits(row, piece, x)) unusable = true;
    const float peak = peak_of(x);
    const double mass = scan == Scan::kMasses ? softmax_mass(x, peak, factor) : 0;
    if (lane_id() == 0) {
      table.peak[piece] = peak;
      table.mass[piece] = mass;
    }
  }
  return unusable;
}

/// The mass of a piece relative to the largest logit of the row, which is finite.
__device__ __forceinline__ double mass_below(const PieceTable& table,
                                             int piece,
                                             float max,
                                             float factor) {
  return table.mass[piece] * double{exp_below(table.peak[piece], max, factor)};
}

}  // namespace fathom::cuda

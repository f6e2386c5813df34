#include "fathom/base/rng.h"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/sample/draw/draw.h"
#include "fathom/kernels/sample/probability_rows.cuh"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

/// What all draws have: rows, the row and the random number of each output.
struct Draws {
  Rows<const float> probs;
  int64_t num_rows;
  int V;
  const int32_t* indices;
  const float* uniform;
  uint64_t seed;
  uint64_t offset;
  int32_t* ids;

  /// The host cannot see indices that lie on the GPU: one outside is put in range.
  __device__ int64_t row_of(int64_t b) const {
    if (indices == nullptr) return b;
    return max(int64_t{0}, min(int64_t{indices[b]}, num_rows - 1));
  }

  __device__ double uniform_of(int64_t b) const {
    if (uniform != nullptr) return double{uniform[b]};
    return double{Rng(seed, static_cast<uint64_t>(b), offset).next_uniform()};
  }
};

/// The token of output b among the values that weigh something, by the masses in the table. By a
/// warp.
template <class Row, class Weight>
__device__ void draw(
    const Draws& draws, int64_t b, const Row& row, const PieceTable& table, Weight weight) {
  const DrawPlace place =
      draw_piece(row.num_pieces(), draws.uniform_of(b), [&](int p) { return table.mass[p]; });
  int token = 0;
  if (place.piece >= 0) {
    PieceValues x;
    row.load(place.piece, x);
    token = draw_token(x, place.piece, place.before, place.target, weight);
  }
  if (lane_id() == 0) draws.ids[b] = token;
}

/// The masses of what weighs something, to the table. Whoever reads it waits for all warps first.
template <class Row, class Weight>
__device__ void weigh_pieces(const Row& row, PieceTable& table, Weight weight) {
  for (int piece = warp_id(); piece < row.num_pieces(); piece += kRowWarps) {
    PieceValues x;
    row.load(piece, x);
    const double mass = mass_of_piece(x, weight);
    if (lane_id() == 0) table.mass[piece] = mass;
  }
}

template <bool kVectors>
__global__ void __launch_bounds__(kRowThreads, 1)
    sample_min_p_rows(const Draws draws, const float* min_ps, float min_p_all) {
  __shared__ PieceTable table;
  let_next_start();
  wait_for_previous();
  const int64_t b = blockIdx.x;
  const PieceRow<kVectors, ProbabilityValues> row{draws.probs[draws.row_of(b)], draws.V};
  const float min_p = fminf(min_ps == nullptr ? min_p_all : min_ps[b], 1.0f);
  scan_probabilities(row, table);
  __syncthreads();
  // The product is exact, and comparing with it or with the next float above is the same.
  const float least =
      __double2float_ru(double{min_p} * double{largest_peak(table.peak, row.num_pieces())});
  const auto weight = [=](float p) { return p >= least ? double{p} : 0.0; };
  if (min_p > 0.0f) {
    weigh_pieces(row, table, weight);
    __syncthreads();
  }
  if (warp_id() == 0) draw(draws, b, row, table, weight);
}

template <bool kVectors>
__global__ void __launch_bounds__(kRowThreads, 1) sample_top_k_top_p_rows(const Draws draws,
                                                                          const int32_t* ks,
                                                                          int32_t k_all,
                                                                          const float* top_ps,
                                                                          float top_p_all,
                                                                          FilterOrder order) {
  extern __shared__ __align__(16) unsigned char probability_shared[];
  ProbabilityShared& s = *reinterpret_cast<ProbabilityShared*>(probability_shared);
  let_next_start();
  wait_for_previous();
  const int64_t b = blockIdx.x;
  const int64_t t = draws.row_of(b);
  const PieceRow<kVectors, ProbabilityValues> row{draws.probs[t], draws.V};
  const int k = max(1, ks == nullptr ? k_all : ks[t]);
  const double top_p = double{fmaxf(top_ps == nullptr ? top_p_all : top_ps[t], FLT_MIN)};
  scan_probabilities(row, s.table);
  __syncthreads();
  const float largest = largest_peak(s.table.peak, row.num_pieces());
  uint32_t least = 0;
  if (largest > 0.0f && (k < row.V || top_p < 1.0)) {
    const ProbabilityScale scale(largest);
    const double all = mass_of_row(row.num_pieces(), [&](int p) { return s.table.mass[p]; });
    double left = all;  // mass that top-p sees
    if (k < row.V) {
      const KeptValues kept = keep_top_k(row, k, scale, s);
      least = kept.key;
      if (order == FilterOrder::kTopKFirst) left = static_cast<double>(kept.mass) / scale.unit;
    }
    if (top_p < 1.0) {
      const double target = order == FilterOrder::kTopKFirst ? top_p * left : top_p;
      // What both filters keep is not below what one keeps.
      const float floor = fmaxf(floor_of_mass(all - target, row.V), __uint_as_float(least));
      least = max(least, keep_top_p(row, target * scale.unit, floor, scale, s).key);
    }
    weigh_pieces(row, s.table,
                 [=](float p) { return __float_as_uint(p) >= least ? double{p} : 0.0; });
    __syncthreads();
  }
  if (warp_id() == 0) {
    draw(draws, b, row, s.table,
         [=](float p) { return __float_as_uint(p) >= least ? double{p} : 0.0; });
  }
}

template <class Args>
Draws draws_of(const Args& a) {
  return {.probs = rows_of<const float>(a.probs),
          .num_rows = a.probs.dim(0),
          .V = static_cast<int>(a.probs.dim(1)),
          .indices = a.indices.template as<const int32_t>(),
          .uniform = a.uniform.template as<const float>(),
          .seed = a.seed,
          .offset = a.offset,
          .ids = a.ids.template as<int32_t>()};
}

template <bool kVectors>
Status sample_min_p(Exec& ex, const SampleMinP::Args& a) {
  const LaunchShape shape{.blocks = a.probs.dim(0), .threads = kRowThreads};
  return launch_kernel(ex, sample_min_p_rows<kVectors>, shape, draws_of(a),
                       a.min_p.as<const float>(), a.min_p_all);
}

template <bool kVectors>
Status sample_top_k_top_p(Exec& ex, const SampleTopKTopP::Args& a) {
  const LaunchShape shape{
      .blocks = a.probs.dim(0), .threads = kRowThreads, .shared_bytes = sizeof(ProbabilityShared)};
  return launch_kernel(ex, sample_top_k_top_p_rows<kVectors>, shape, draws_of(a),
                       a.k.as<const int32_t>(), a.k_all, a.top_p.as<const float>(), a.top_p_all,
                       a.order);
}

/// An error of a NaN would have to wait for the GPU.
template <class Args>
bool takes_nan_as_zero(const Args& a) {
  return a.nan_check == NanCheck::kZero;
}

template <class Args>
bool is_aligned(const Args& a) {
  return takes_nan_as_zero(a) && takes_vectors(a.probs);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<SampleMinP> sample_min_p_cuda{
    {"vectors", sm(90), "V<=1048576", kTraits, sample_min_p<true>, MathUnit::kF32,
     is_aligned<SampleMinP::Args>},
    {"elements", sm(90), "V<=1048576", kTraits, sample_min_p<false>, MathUnit::kF32,
     takes_nan_as_zero<SampleMinP::Args>},
};

constinit const VariantTable<SampleTopKTopP> sample_top_k_top_p_cuda{
    {"vectors", sm(90), "V<=1048576", kTraits, sample_top_k_top_p<true>, MathUnit::kF32,
     is_aligned<SampleTopKTopP::Args>},
    {"elements", sm(90), "V<=1048576", kTraits, sample_top_k_top_p<false>, MathUnit::kF32,
     takes_nan_as_zero<SampleTopKTopP::Args>},
};

}  // namespace fathom

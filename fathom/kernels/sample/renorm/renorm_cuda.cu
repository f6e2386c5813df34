#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/sample/probability_rows.cuh"
#include "fathom/kernels/sample/renorm/renorm.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

constexpr double kLeastMass = 1e-8;

// ---- softmax ----

struct SoftmaxShared {
  PieceTable table;
  int largest;  // token
};

template <bool kVectors>
__global__ void __launch_bounds__(kRowThreads, 1)
    softmax_rows(Rows<const float> logits, int V, const float* temperatures, Rows<float> probs) {
  __shared__ SoftmaxShared s;
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.x;
  const PieceRow<kVectors, LogitValues> row{logits[t], V};
  const float temperature = temperatures[t];
  const float factor = octaves_per_logit(temperature);
  const bool is_hot = !(temperature > 0.0f);
  scan_logits(row, is_hot ? Scan::kPeaks : Scan::kMasses, factor, s.table);
  __syncthreads();
  const float max = largest_peak(s.table.peak, row.num_pieces());
  const bool one_hot = is_hot || !(fabsf(max) < INFINITY);
  if (one_hot && warp_id() == 0) {
    const int token = first_of_largest(row, s.table.peak, max);
    if (lane_id() == 0) s.largest = token;
  }
  __syncthreads();  // before the row, which may be logits, is written
  double mass = 1;
  if (!one_hot) {
    mass =
        mass_of_row(row.num_pieces(), [&](int p) { return mass_below(s.table, p, max, factor); });
  }
  const auto inverse = static_cast<float>(1.0 / mass);
  for (int piece = warp_id(); piece < row.num_pieces(); piece += kRowWarps) {
    PieceValues x;
    if (one_hot) {
      for_values(x, [](float& value) { value = 0.0f; });
    } else {
      row.load(piece, x);
      for_values(x, [&](float& z) { z = exp_below(z, max, factor) * inverse; });
    }
    store_piece<kVectors>(probs[t], V, piece, x);
  }
  if (!one_hot) return;
  __syncthreads();
  if (threadIdx.x == 0) probs[t][s.largest] = 1.0f;
}

template <bool kVectors>
Status softmax_temperature(Exec& ex, const SoftmaxTemperature::Args& a) {
  const LaunchShape shape{.blocks = a.logits.dim(0), .threads = kRowThreads};
  return launch_kernel(ex, softmax_rows<kVectors>, shape, rows_of<const float>(a.logits),
                       static_cast<int>(a.logits.dim(1)), a.temperature.as<const float>(),
                       rows_of<float>(a.probs));
}

// ---- filters ----

/// y[v] = p[v] / mass where the key is not below the least. y may be p. By all threads.
template <bool kVectors, class Row>
__device__ void keep_and_scale(const Row& row, uint32_t least, double mass, float* y) {
  const double inverse = 1.0 / fmax(mass, kLeastMass);
  for (int piece = warp_id(); piece < row.num_pieces(); piece += kRowWarps) {
    PieceValues x;
    row.load(piece, x);
    for_values(x, [&](float& p) {
      p = __float_as_uint(p) >= least ? static_cast<float>(double{p} * inverse) : 0.0f;
    });
    store_piece<kVectors>(y, row.V, piece, x);
  }
}

/// A copy of the row with every bit.
template <bool kVectors, class Row>
__device__ void copy_row(const Row& row, float* y) {
  for (int piece = warp_id(); piece < row.num_pieces(); piece += kRowWarps) {
    PieceValues x;
    row.load_raw(piece, x);
    store_piece<kVectors>(y, row.V, piece, x);
  }
}

template <bool kVectors>
__global__ void __launch_bounds__(kRowThreads, 1) renorm_top_k_rows(
    Rows<const float> probs, int V, const int32_t* ks, int32_t k_all, Rows<float> y) {
  extern __shared__ __align__(16) unsigned char probability_shared[];
  ProbabilityShared& s = *reinterpret_cast<ProbabilityShared*>(probability_shared);
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.x;
  const PieceRow<kVectors, ProbabilityValues> row{probs[t], V};
  const int k = max(1, ks == nullptr ? k_all : ks[t]);
  if (k >= V) {
    if (y[t] != row.data) copy_row<kVectors>(row, y[t]);
    return;
  }
  scan_probabilities(row, s.table);
  __syncthreads();
  const float largest = largest_peak(s.table.peak, row.num_pieces());
  KeptValues kept{0, 0};
  double mass = 0;
  if (largest > 0.0f) {
    const ProbabilityScale scale(largest);
    kept = keep_top_k(row, k, scale, s);
    mass = static_cast<double>(kept.mass) / scale.unit;
  }
  keep_and_scale<kVectors>(row, kept.key, mass, y[t]);
}

template <bool kVectors>
__global__ void __launch_bounds__(kRowThreads, 1)
    renorm_top_p_rows(Rows<const float> probs, int V, const float* ps, float p_all, Rows<float> y) {
  extern __shared__ __align__(16) unsigned char probability_shared[];
  ProbabilityShared& s = *reinterpret_cast<ProbabilityShared*>(probability_shared);
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.x;
  const PieceRow<kVectors, ProbabilityValues> row{probs[t], V};
  const double target = double{fmaxf(ps == nullptr ? p_all : ps[t], FLT_MIN)};
  scan_probabilities(row, s.table);
  __syncthreads();
  double mass = mass_of_row(row.num_pieces(), [&](int p) { return s.table.mass[p]; });
  uint32_t least = 0;
  if (target < 1.0 && target <= mass) {
    const ProbabilityScale scale(largest_peak(s.table.peak, row.num_pieces()));
    const KeptValues kept =
        keep_top_p(row, target * scale.unit, floor_of_mass(mass - target, V), scale, s);
    least = kept.key;
    if (least > 0) mass = static_cast<double>(kept.mass) / scale.unit;
  }
  keep_and_scale<kVectors>(row, least, mass, y[t]);
}

template <bool kVectors>
Status renorm_top_k(Exec& ex, const RenormTopK::Args& a) {
  const LaunchShape shape{
      .blocks = a.probs.dim(0), .threads = kRowThreads, .shared_bytes = sizeof(ProbabilityShared)};
  return launch_kernel(ex, renorm_top_k_rows<kVectors>, shape, rows_of<const float>(a.probs),
                       static_cast<int>(a.probs.dim(1)), a.k.as<const int32_t>(), a.k_all,
                       rows_of<float>(a.y));
}

template <bool kVectors>
Status renorm_top_p(Exec& ex, const RenormTopP::Args& a) {
  const LaunchShape shape{
      .blocks = a.probs.dim(0), .threads = kRowThreads, .shared_bytes = sizeof(ProbabilityShared)};
  return launch_kernel(ex, renorm_top_p_rows<kVectors>, shape, rows_of<const float>(a.probs),
                       static_cast<int>(a.probs.dim(1)), a.p.as<const float>(), a.p_all,
                       rows_of<float>(a.y));
}

template <class Args>
bool is_aligned(const Args& a) {
  return takes_vectors(a.probs) && takes_vectors(a.y);
}

template <>
bool is_aligned(const SoftmaxTemperature::Args& a) {
  return takes_vectors(a.logits) && takes_vectors(a.probs);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<SoftmaxTemperature> softmax_temperature_cuda{
    {"vectors", sm(90), "V<=1048576", kTraits, softmax_temperature<true>, MathUnit::kF32,
     is_aligned<SoftmaxTemperature::Args>},
    {"elements", sm(90), "V<=1048576", kTraits, softmax_temperature<false>},
};

constinit const VariantTable<RenormTopK> renorm_top_k_cuda{
    {"vectors", sm(90), "V<=1048576", kTraits, renorm_top_k<true>, MathUnit::kF32,
     is_aligned<RenormTopK::Args>},
    {"elements", sm(90), "V<=1048576", kTraits, renorm_top_k<false>},
};

constinit const VariantTable<RenormTopP> renorm_top_p_cuda{
    {"vectors", sm(90), "V<=1048576", kTraits, renorm_top_p<true>, MathUnit::kF32,
     is_aligned<RenormTopP::Args>},
    {"elements", sm(90), "V<=1048576", kTraits, renorm_top_p<false>},
};

}  // namespace fathom

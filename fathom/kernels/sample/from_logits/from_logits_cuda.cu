#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/sample/from_logits/from_logits.h"
#include "fathom/kernels/sample/row_thresholds.cuh"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

/// Values that may be kept and fit here spare the passes over the row that filters would take.
constexpr int kMostCandidates = 8192;

struct Shared {
  Bins bins;
  PieceTable table;
  float candidates[kMostCandidates];
  int tokens[kMostCandidates];  // of the candidates
  int num_candidates;           // that there are, whether they fit or not
  float floor;
};

/// What the rows are and ask for; numbers that lie on the GPU are put in range where they are read.
struct Batch {
  Rows<const float> logits;
  int V;
  const float* temperature;
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const float* uniform;
  int32_t* ids;
  int32_t* bad;
};

struct Filters {
  int top_k;
  float top_p;
  float min_p;

  __device__ Filters(const Batch& batch, int64_t t)
      : top_k(max(1, batch.top_k[t])),
        top_p(fmaxf(batch.top_p[t], FLT_MIN)),
        min_p(fminf(batch.min_p[t], 1.0f)) {}

  __device__ bool limits_count(int V) const { return top_k < V; }

  __device__ bool limits_mass() const { return top_p < 1.0f; }

  __device__ bool limits_ratio() const { return min_p > 0.0f; }

  __device__ bool any(int V) const { return limits_count(V) || limits_mass() || limits_ratio(); }
};

/// Keys and masses of logits below the largest one, from their distance to it in units of 2^-20
/// octaves of probability. What lies more than 64 octaves below has no mass and one key.
struct LogitScale {
  static constexpr int kKeyBits = 26;
  static constexpr float kPerOctave = 0x1p20f;
  static constexpr uint32_t kLargestKey = (1u << kKeyBits) - 1;

  float max;
  float factor;

  __device__ uint32_t key_below(float octaves) const {
    return kLargestKey - min(__float2uint_rn(octaves * kPerOctave), kLargestKey);
  }

  __device__ uint32_t key(float z) const { return key_below((max - z) * factor); }

  __device__ uint64_t mass(float z) const {
    return __float2ull_rn(exp_below(z, max, factor) * kWholeMass);
  }
};

/// The candidates, in no order.
struct Candidates {
  const Shared& s;

  template <class F>
  __device__ void for_each(F f) const {
    for (int i = static_cast<int>(threadIdx.x); i < s.num_candidates; i += kRowThreads)
      f(s.candidates[i], s.tokens[i]);
  }
};

/// A logit that is not above the smallest one kept; -inf where none is known. By all threads.
template <class Row>
__device__ float floor_of(const Row& row,
                          const Filters& filters,
                          const LogitScale& scale,
                          Shared& s) {
  const int num_pieces = row.num_pieces();
  float octaves = 0.0f;
  if (filters.limits_count(row.V)) {
    if (filters.top_k > num_pieces) return -INFINITY;
    find_kth_peak(s.table.peak, num_pieces, filters.top_k, &s.floor);
    __syncthreads();
    return s.floor;
  }
  if (filters.limits_mass()) {
    // Logits below this have less mass together than what may be left out. A hundredth is for
    // rounding.
    const double mass = mass_of_row(
        num_pieces, [&](int p) { return mass_below(s.table, p, scale.max, scale.factor); });
    octaves = log2f(static_cast<float>(0.99 * (1.0 - double{filters.top_p}) * mass / row.V));
  } else {
    octaves = log2f(filters.min_p) - 0.01f;
  }
  return scale.max + octaves / scale.factor;
}

/// Lists the logits that are not below the floor, as far as they fit. By all threads.
template <class Row>
__device__ void gather_candidates(const Row& row, float floor, Shared& s) {
  for (int piece = warp_id(); piece < row.num_pieces(); piece += kRowWarps) {
    PieceValues x;
    row.load(piece, x);
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const bool taken = x[j][c] >= floor;
        const uint32_t lanes = __ballot_sync(kAllLanes, taken);
        if (lanes == 0) continue;
        int place = 0;
        if (lane_id() == 0) place = atomicAdd(&s.num_candidates, __popc(lanes));
        place = __shfl_sync(kAllLanes, place, 0) + __popc(lanes & ((1u << lane_id()) - 1));
        if (taken && place < kMostCandidates) {
          s.candidates[place] = x[j][c];
          s.tokens[place] = first_token(piece) + 128 * j + c;
        }
      }
    }
  }
}

/// The key of the smallest logit that all filters keep. By all threads.
template <class Values>
__device__ uint32_t smallest_kept(
    const Values& values, int V, const Filters& filters, const LogitScale& scale, Shared& s) {
  uint32_t least = 0;
  double mass = 0;
  if (filters.limits_count(V)) {
    const KeptValues kept = find_threshold(
        s.bins, values, scale, {.count = static_cast<uint32_t>(filters.top_k), .mass = 0});
    least = kept.key;
    mass = static_cast<double>(kept.mass);
  } else if (filters.limits_mass()) {
    mass = double{kWholeMass} * mass_of_row((V + kPiece - 1) / kPiece, [&](int p) {
             return mass_below(s.table, p, scale.max, scale.factor);
           });
  }
  if (filters.limits_mass()) {
    const Goal goal{.count = 0, .mass = double{filters.top_p} * mass};
    least = max(least, find_threshold(s.bins, values, scale, goal).key);
  }
  if (filters.limits_ratio()) least = max(least, scale.key_below(-log2f(filters.min_p)));
  return least;
}

/// The mass that each piece keeps, to the bins. By all threads; the bins are free.
__device__ void keep_masses(const Candidates& candidates,
                            uint32_t least,
                            const LogitScale& scale,
                            Bins& bins) {
  bins.clear();
  __syncthreads();
  candidates.for_each([&](float z, int token) {
    if (scale.key(z) >= least) bins.add_mass(static_cast<uint32_t>(token / kPiece), scale.mass(z));
  });
}

template <class Row>
__device__ void keep_masses(const RowFrom<Row>& values,
                            uint32_t least,
                            const LogitScale& scale,
                            Bins& bins) {
  for (int piece = warp_id(); piece < values.row.num_pieces(); piece += kRowWarps) {
    PieceValues x;
    values.row.load(piece, x);
    uint64_t mass = 0;
    for_values(x, [&](float z) {
      if (z >= values.floor && scale.key(z) >= least) mass += scale.mass(z);
    });
    mass = sum_of_lanes(mass);
    if (lane_id() == 0) bins.set_mass(static_cast<uint32_t>(piece), mass);
  }
}

/// A token of the values that the filters keep, for warp 0. By all threads.
template <class Values, class Row>
__device__ int draw_kept(const Values& values,
                         const Row& row,
                         float floor,
                         const Filters& filters,
                         const LogitScale& scale,
                         double uniform,
                         Shared& s) {
  const uint32_t least = smallest_kept(values, row.V, filters, scale, s);
  keep_masses(values, least, scale, s.bins);
  __syncthreads();
  if (warp_id() != 0) return 0;
  const DrawPlace place = draw_piece(row.num_pieces(), uniform, [&](int p) {
    return static_cast<double>(s.bins.mass(static_cast<uint32_t>(p)));
  });
  if (place.piece < 0) return 0;
  PieceValues x;
  row.load(place.piece, x);
  return draw_token(x, place.piece, place.before, place.target, [&](float z) {
    return z >= floor && scale.key(z) >= least ? static_cast<double>(scale.mass(z)) : 0.0;
  });
}

template <class Row>
__device__ int draw_filtered(
    const Row& row, const Filters& filters, const LogitScale& scale, double uniform, Shared& s) {
  const float floor = floor_of(row, filters, scale, s);
  if (floor > -INFINITY) {
    gather_candidates(row, floor, s);
    __syncthreads();
    if (s.num_candidates <= kMostCandidates) {
      return draw_kept(Candidates{s}, row, floor, filters, scale, uniform, s);
    }
  }
  return draw_kept(RowFrom<Row>{row, floor}, row, floor, filters, scale, uniform, s);
}

/// A token of the whole distribution, by what the scan has found. By a warp.
template <class Row>
__device__ int draw_unfiltered(const Row& row,
                               const LogitScale& scale,
                               double uniform,
                               const PieceTable& table) {
  const DrawPlace place = draw_piece(row.num_pieces(), uniform, [&](int p) {
    return mass_below(table, p, scale.max, scale.factor);
  });
  if (place.piece < 0) return 0;
  // Relative to the piece's largest logit, as its mass was found.
  const float peak = table.peak[place.piece];
  const double unit = exp_below(peak, scale.max, scale.factor);
  PieceValues x;
  row.load(place.piece, x);
  return draw_token(x, place.piece, 0.0, (place.target - place.before) / unit,
                    [&](float z) { return double{exp_below(z, peak, scale.factor)}; });
}

template <bool kVectors>
__global__ void __launch_bounds__(kRowThreads, 1) sample_rows(const Batch batch) {
  extern __shared__ __align__(16) unsigned char sample_shared[];
  Shared& s = *reinterpret_cast<Shared*>(sample_shared);
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.x;
  const PieceRow<kVectors, LogitValues> row{batch.logits[t], batch.V};
  const float temperature = batch.temperature[t];
  const bool drawn = temperature > 0.0f;
  const float factor = octaves_per_logit(temperature);
  if (threadIdx.x == 0) s.num_candidates = 0;
  const bool odd = scan_logits(row, drawn ? Scan::kMasses : Scan::kPeaks, factor, s.table);
  const bool unusable = __syncthreads_or(odd ? 1 : 0) != 0;
  const float max = largest_peak(s.table.peak, row.num_pieces());
  if (threadIdx.x == 0) batch.bad[t] = unusable || max == -INFINITY ? 1 : 0;

  const LogitScale scale{max, factor};
  const Filters filters(batch, t);
  const double uniform = double{batch.uniform[t]};
  int token = 0;
  if (!drawn || !(fabsf(max) < INFINITY)) {
    if (warp_id() == 0) token = first_of_largest(row, s.table.peak, max);
  } else if (!filters.any(row.V)) {
    if (warp_id() == 0) token = draw_unfiltered(row, scale, uniform, s.table);
  } else {
    token = draw_filtered(row, filters, scale, uniform, s);
  }
  if (threadIdx.x == 0) batch.ids[t] = token;
}

template <bool kVectors>
Status sample_from_logits(Exec& ex, const SampleFromLogits::Args& a) {
  const LaunchShape shape{
      .blocks = a.logits.dim(0), .threads = kRowThreads, .shared_bytes = sizeof(Shared)};
  const Batch batch{.logits = rows_of<const float>(a.logits),
                    .V = static_cast<int>(a.logits.dim(1)),
                    .temperature = a.temperature.as<const float>(),
                    .top_k = a.top_k.as<const int32_t>(),
                    .top_p = a.top_p.as<const float>(),
                    .min_p = a.min_p.as<const float>(),
                    .uniform = a.uniform.as<const float>(),
                    .ids = a.ids.as<int32_t>(),
                    .bad = a.bad.as<int32_t>()};
  return launch_kernel(ex, sample_rows<kVectors>, shape, batch);
}

bool is_aligned(const SampleFromLogits::Args& a) {
  return takes_vectors(a.logits);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<SampleFromLogits> sample_from_logits_cuda{
    {"vectors", sm(90), "V<=1048576", kTraits, sample_from_logits<true>, MathUnit::kF32,
     is_aligned},
    {"elements", sm(90), "V<=1048576", kTraits, sample_from_logits<false>},
};

}  // namespace fathom

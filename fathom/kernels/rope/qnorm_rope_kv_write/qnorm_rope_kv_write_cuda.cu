#include "fathom/kernels/attn/cache_row.cuh"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/rope/qnorm_rope_kv_write/qnorm_rope_kv_write.h"
#include "fathom/kernels/rope/rotate_heads.cuh"
#include "fathom/kernels/rope/shared_row.cuh"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

using Args = QnormRopeKvWrite::Args;

constexpr int kThreads = kFlatThreads;
constexpr int kWarps = kThreads / kWarp;

struct Preparation {
  Heads q, q_out;
  const void* kv;
  int64_t kv_stride;
  ChannelWeights kv_norm;
  RotaryTable table;
  const int64_t* slots;  ///< null: row t
  StoredRows cache;
  int D;
  float eps;
};

Preparation preparation_of(const Args& a) {
  return {.q = heads_of(a.q),
          .q_out = heads_of(a.q_out),
          .kv = a.kv.data,
          .kv_stride = a.kv.stride(0),
          .kv_norm = channel_weights(a.kv_norm),
          .table = rotary_table(a.positions, a.table, RopeStyle::kInterleaved),
          .slots = a.slots.as<const int64_t>(),
          .cache = stored_rows(a.fields()),
          .D = static_cast<int>(a.kv.dim(1)),
          .eps = a.eps};
}

// ---- a row by a block ----

enum class Norm : uint8_t { kNone, kRms };

/// Norms and turns a row of token t in shared memory, which all threads see then. False, for the
/// whole block, if the token is left out.
template <class A>
__device__ __forceinline__ bool prepare_row(const Preparation& p,
                                            const RowMemory& m,
                                            int64_t t,
                                            const A* x,
                                            Norm norm,
                                            const float* weights) {
  const int R = p.table.R;
  const RowOnItsWay<A> values(x, p.D);
  const float* turn = nullptr;
  if (!p.table.find(t, &turn)) return false;
  const RowOnItsWay<float> angles(turn, R);
  values.store(m.row);
  angles.store(m.angles);
  __syncthreads();
  const float r = norm == Norm::kRms ? inverse_rms_of_row(m.row, p.D, p.eps) : 1.0f;
  scale_and_turn(m.row, p.D, R, r, weights, m.angles, m.result);
  __syncthreads();
  return true;
}

/// All that a block with the row of a token for the cache does.
template <class A>
__device__ __forceinline__ void cache_token(const Preparation& p, const RowMemory& m, int64_t t) {
  const bool norms = p.kv_norm.data != nullptr;
  if (norms) p.kv_norm.bring(p.D, m.weights);
  wait_for_previous();
  const int64_t slot = p.slots == nullptr ? t : p.slots[t];
  const A* kv = static_cast<const A*>(p.kv) + t * p.kv_stride;
  const bool is_ready =
      prepare_row(p, m, t, kv, norms ? Norm::kRms : Norm::kNone, norms ? m.weights : nullptr);
  if (is_ready && p.cache.has(slot)) store_cache_row(p.cache, slot, m.result);
}

// ---- vectors: a warp has some heads of a token, a lane two vectors of each ----

constexpr int kEach = 2;
constexpr int kMostWidth = kWarp * kEach * kVector;

/// Heads of a warp where there are many tokens.
template <class A>
inline constexpr int kHeadsAtOnce = sizeof(A) == 2 ? 4 : 2;

// All loads first; q_out may be the memory of q, head by head.
template <class A, int kHeads>
__device__ __forceinline__ void prepare_heads(const Preparation& p, int64_t t, int first) {
  const int num_vectors = p.D / kVector;
  const int count = min(kHeads, p.q.count - first);
  if (count <= 0) return;
  const auto exists = [&](int v) { return lane_id() + kWarp * v < num_vectors; };
  const auto place = [&](int v) { return kVector * (lane_id() + kWarp * v); };
  // held[h][v]: channels place(v) .. place(v) + 7 of head first + h
  Packed<A> held[kHeads][kEach] = {};
  const A* from = static_cast<const A*>(p.q.data) + p.q.offset(t, first);
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int v = 0; v < kEach; ++v) {
      if (h < count && exists(v)) held[h][v] = load_packed(from + h * p.q.head_stride + place(v));
    }
  }
  const float* angles = nullptr;
  if (!p.table.find(t, &angles)) return;
  Angles of_vector[kEach] = {};
  bool turns[kEach];
#pragma unroll
  for (int v = 0; v < kEach; ++v) {
    const int unit = (place(v) - (p.D - p.table.R)) / kVector;
    turns[v] = place(v) >= p.D - p.table.R && exists(v);
    if (turns[v]) of_vector[v].load(angles, unit, p.table.R);
  }
  A* to = static_cast<A*>(p.q_out.data) + p.q_out.offset(t, first);
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (h >= count) break;
    float x[kEach][kVector];
    float sum = 0.0f;
#pragma unroll
    for (int v = 0; v < kEach; ++v) {
      unpack(held[h][v], x[v]);
#pragma unroll
      for (const float value : x[v])
        sum += value * value;
    }
    sum = combine_lanes(sum, Add());
    const float r = 1.0f / sqrtf(sum / static_cast<float>(p.D) + p.eps);
#pragma unroll
    for (int v = 0; v < kEach; ++v) {
#pragma unroll
      for (float& value : x[v])
        value *= r;
      if (turns[v]) {
#pragma unroll
        for (int i = 0; i < kPairs; ++i)
          rotate_pair<float>(x[v][2 * i], x[v][2 * i + 1], of_vector[v].c[i], of_vector[v].s[i]);
      }
      if (exists(v)) store8(to + h * p.q_out.head_stride + place(v), x[v]);
    }
  }
}

// The first block of a token has its row for the cache, the others have its heads.
template <class A, int kHeads>
__global__ void __launch_bounds__(kThreads)
    prepare_vectors(const __grid_constant__ Preparation p, FlatItems blocks) {
  extern __shared__ float row_memory[];
  let_next_start();
  const ItemPlace at = blocks.place(blockIdx.x);
  if (at.item == 0) {
    cache_token<A>(p, RowMemory(row_memory, p.D), at.row);
  } else {
    wait_for_previous();
    prepare_heads<A, kHeads>(p, at.row, ((at.item - 1) * kWarps + warp_id()) * kHeads);
  }
}

// ---- rows: a block a head or a token's row for the cache, any widths and strides ----

template <class A>
__global__ void __launch_bounds__(kThreads)
    prepare_rows(const __grid_constant__ Preparation p, FlatItems blocks) {
  extern __shared__ float row_memory[];
  let_next_start();
  const ItemPlace at = blocks.place(blockIdx.x);
  const RowMemory m(row_memory, p.D);
  if (at.item == 0) return cache_token<A>(p, m, at.row);
  wait_for_previous();
  const int h = at.item - 1;
  const A* head = static_cast<const A*>(p.q.data) + p.q.offset(at.row, h);
  if (!prepare_row(p, m, at.row, head, Norm::kRms, nullptr)) return;
  store_channels(m.result, p.D, static_cast<A*>(p.q_out.data) + p.q_out.offset(at.row, h));
}

template <class A, int kHeads>
Status launch_vectors(Exec& ex, const Args& a) {
  const int64_t of_heads = ceil_div<int64_t>(a.q.dim(1), kWarps * kHeads);
  const FlatItems blocks = flat_items(a.kv.dim(0), 1 + of_heads);
  return launch_kernel(ex, prepare_vectors<A, kHeads>,
                       {.blocks = blocks.total,
                        .threads = kThreads,
                        .shared_bytes = RowMemory::bytes(a.kv.dim(1), a.table.dim(1))},
                       preparation_of(a), blocks);
}

/// A head a warp while all of them have room at once, else as many as keep memory busy.
Status run_vectors(Exec& ex, const Args& a) {
  const int64_t warps = a.kv.dim(0) * (a.q.dim(1) + kWarps);
  return with_activation_type(a.kv.format, [&]<class A>(A) {
    if (warps * kWarp <= ex.device->num_sms * kThreadsOfSm) return launch_vectors<A, 1>(ex, a);
    return launch_vectors<A, kHeadsAtOnce<A>>(ex, a);
  });
}

Status run_rows(Exec& ex, const Args& a) {
  const FlatItems blocks = flat_items(a.kv.dim(0), 1 + a.q.dim(1));
  return with_activation_type(a.kv.format, [&]<class A>(A) {
    return launch_kernel(ex, prepare_rows<A>,
                         {.blocks = blocks.total,
                          .threads = kThreads,
                          .shared_bytes = RowMemory::bytes(a.kv.dim(1), a.table.dim(1))},
                         preparation_of(a), blocks);
  });
}

bool is_aligned(const Args& a) {
  return takes_vectors(a.q) && takes_vectors(a.q_out) && takes_vectors(a.table);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;
static_assert(kMostWidth == 512, "the limit of the variant");

}  // namespace

constinit const VariantTable<QnormRopeKvWrite> qnorm_rope_kv_write_cuda{
    {"vectors", sm(90), "D%8==0, R%8==0, D<=512", kTraits, run_vectors, MathUnit::kF32, is_aligned},
    {"rows", sm(90), "D<=8192", kTraits, run_rows},
};

}  // namespace fathom

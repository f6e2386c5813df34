#include "fathom/kernels/attn/cache_row.cuh"
#include "fathom/kernels/compress/kv_compress/kv_compress.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/products/cluster.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/rope/shared_row.cuh"
#include "fathom/kernels/sparse/hadamard/hadamard_stage.cuh"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

// Slots, positions and gather are values of GPU memory that the host cannot check: what is out of
// range is not followed.

/// A state [N,Q,W] of float32; strides in elements.
struct State {
  float* data;
  int64_t page_stride;
  int64_t row_stride;

  __device__ float* row(const RowOfGroup& at) const {
    return data + at.group * page_stride + at.row * row_stride;
  }
};

State state_of(const View& v) {
  return {v.as<float>(), v.stride(0), v.stride(1)};
}

// ---- compress_state_write ----

struct StateWrite {
  const void* u_z;
  int64_t token_stride;
  Rows<const float> ape;
  const int32_t* positions;
  const int64_t* slots;
  State u, z;
  int64_t page_rows;
  int64_t num_slots;
  FastDivide ratio;
  int W;
};

/// kUnit elements of the state.
template <int kUnit>
struct StateUnit {
  float x[kUnit];

  template <class A>
  __device__ void load(const A* p) {
    if constexpr (kUnit == 1) {
      x[0] = cuda::load(p);
    } else {
      load8(p, x);
    }
  }

  __device__ void add(const float* p) {
    StateUnit other;
    other.load(p);
#pragma unroll
    for (int i = 0; i < kUnit; ++i)
      x[i] += other.x[i];
  }

  __device__ void store(float* p) const {
    if constexpr (kUnit == 1) {
      *p = x[0];
    } else {
      store8(p, x);
    }
  }
};

/// A thread kUnit channels of u or of z. Of many tokens most go nowhere: they are not read
/// (`looks_first`). Of few, the slot and the token are loaded side by side.
template <class A, int kUnit>
__global__ void __launch_bounds__(kFlatThreads)
    write_tokens(StateWrite w, FlatItems items, bool looks_first) {
  let_next_start();
  wait_for_previous();
  const ItemPlace at = items.mine<1>(0);
  if (!at.exists) return;
  const int64_t slot = w.slots[at.row];
  const int32_t position = w.positions[at.row];
  const bool goes = slot >= 0 && slot < w.num_slots && position >= 0;
  if (looks_first && !goes) return;
  const int first = kUnit * at.item;
  StateUnit<kUnit> unit;
  unit.load(static_cast<const A*>(w.u_z) + at.row * w.token_stride + first);
  if (!goes) return;
  const RowOfGroup place(slot, w.page_rows);
  if (first < w.W) return unit.store(w.u.row(place) + first);
  const auto number = static_cast<uint32_t>(position);
  const uint32_t row = number - w.ratio.of(number) * w.ratio.divisor;
  const int column = first - w.W;
  unit.add(w.ape[row] + column);
  unit.store(w.z.row(place) + column);
}

template <int kUnit>
Status run_state_write(Exec& ex, const CompressStateWrite::Args& a) {
  const StateWrite w{.u_z = a.u_z.data,
                     .token_stride = a.u_z.stride(0),
                     .ape = rows_of<const float>(a.ape),
                     .positions = a.positions.as<const int32_t>(),
                     .slots = a.slots.as<const int64_t>(),
                     .u = state_of(a.state_u),
                     .z = state_of(a.state_z),
                     .page_rows = a.state_u.dim(1),
                     .num_slots = a.state_u.dim(0) * a.state_u.dim(1),
                     .ratio = FastDivide(a.ape.dim(0)),
                     .W = static_cast<int>(a.ape.dim(1))};
  const FlatItems items = flat_items(a.u_z.dim(0), a.u_z.dim(1) / kUnit);
  const bool looks_first = items.total > ex.device->num_sms * kThreadsOfSm;
  return with_activation_type(a.u_z.format, [&]<class A>(A) {
    return launch_kernel(ex, write_tokens<A, kUnit>, one_item_each(items), w, items, looks_first);
  });
}

bool state_write_is_aligned(const CompressStateWrite::Args& a) {
  return takes_vectors(a.u_z) && takes_vectors(a.ape) && takes_vectors(a.state_u) &&
         takes_vectors(a.state_z);
}

// ---- compress_pool ----

using PoolArgs = CompressPool::Args;

struct Pool {
  const void* u_z;
  int64_t token_stride;
  int64_t num_tokens;
  State u, z;
  int64_t page_rows;
  int64_t num_slots;  ///< of the state
  Rows<const float> ape;
  Rows<const int64_t> gather;
  RotaryTable table;  ///< by row, not by token
  ChannelWeights norm;
  const int64_t* slots;
  StoredRows cache;
  int E, D, W;
  int ratio;
  float eps;
  bool rounds;  ///< to bf16 where activations are
  bool transforms;
};

Pool pool_of(const PoolArgs& a) {
  return {.u_z = a.u_z.data,
          .token_stride = a.u_z.stride(0),
          .num_tokens = a.u_z.dim(0),
          .u = state_of(a.state_u),
          .z = state_of(a.state_z),
          .page_rows = a.state_u.dim(1),
          .num_slots = a.state_u.dim(0) * a.state_u.dim(1),
          .ape = rows_of<const float>(a.ape),
          .gather = rows_of<const int64_t>(a.gather),
          .table = rotary_table(a.positions, a.table, RopeStyle::kInterleaved),
          .norm = channel_weights(a.norm),
          .slots = a.slots.as<const int64_t>(),
          .cache = stored_rows(a.fields()),
          .E = static_cast<int>(a.gather.dim(1)),
          .D = static_cast<int>(a.norm.dim(0)),
          .W = static_cast<int>(a.ape.dim(1)),
          .ratio = static_cast<int>(a.ape.dim(0)),
          .eps = a.eps,
          .rounds = a.activations == Format::kBf16,
          .transforms = a.transform == CompressTransform::kHadamard};
}

/// u and z of an entry from channel 0 of the row on. Those of the step have the format of u_z and z
/// without ape; those of the state are float32. Null: no entry.
struct Entry {
  const void* u = nullptr;
  const void* z = nullptr;
  const float* ape = nullptr;  ///< null for an entry of the state
};

template <class A>
__device__ __forceinline__ Entry entry_of(const Pool& p, int e, int64_t index) {
  if (index < 0 || index >= p.num_tokens + p.num_slots) return {};
  // Older entries of overlapping rows have the first half of the channels, newer ones the second.
  const bool is_own = e >= p.ratio;
  const int column = is_own ? p.W - p.D : 0;
  if (index < p.num_tokens) {
    const A* token = static_cast<const A*>(p.u_z) + index * p.token_stride + column;
    return {token, token + p.W, p.ape[is_own ? e - p.ratio : e] + column};
  }
  const RowOfGroup at(index - p.num_tokens, p.page_rows);
  return {p.u.row(at) + column, p.z.row(at) + column, nullptr};
}

// ---- the end of a row: norm, rotation, transform, store ----

/// Times the Walsh-Hadamard matrix and D^-0.5, in place, by all threads of the block. Strides 1, 2,
/// 4, ...: up to 32 both elements of the pairs of a warp's lanes are those that it had before.
__device__ __forceinline__ void transform_row(float* x, int D) {
  const float scale = 1.0f / sqrtf(static_cast<float>(D));
#pragma unroll 1
  for (int stride = 1; stride < D; stride *= 2) {
    transform_stage(x, D, stride, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x),
                    2 * stride == D ? scale : 1.0f);
    if (2 * stride <= 32) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }
  if (D <= 32) __syncthreads();
}

/// From the pooled channels in m.row, which all threads see, as are the weights and angles.
__device__ __forceinline__ void finish_row(const Pool& p, const RowMemory& m, int64_t slot) {
  const float r = inverse_rms_of_row(m.row, p.D, p.eps);
  scale_and_turn(m.row, p.D, p.table.R, r, m.weights, m.angles, m.result);
  __syncthreads();
  if (p.transforms) {
    if (p.rounds) {
#pragma unroll 1
      for (int i = static_cast<int>(threadIdx.x); i < p.D; i += static_cast<int>(blockDim.x))
        m.result[i] = rounded<Bf16>(m.result[i]);
      __syncthreads();
    }
    transform_row(m.result, p.D);
  }
  store_cache_row(p.cache, slot, m.result);
}

__device__ __forceinline__ float pooled(const Pool& p, float weighted, float sum) {
  const float x = __fdiv_rn(weighted, sum);
  return p.rounds ? rounded<Bf16>(x) : x;
}

/// What softmax needs of entries that come one after the other. Nothing is fused, as on the CPU.
struct WeightedSum {
  float sum = 0.0f;
  float weighted = 0.0f;

  __device__ void add(float weight, float u) {
    sum = __fadd_rn(sum, weight);
    weighted = __fadd_rn(weighted, __fmul_rn(weight, u));
  }
};

// ---- few entries: a block a row, a thread four channels, whose entries are all under way ----

constexpr int kFewEntries = 8;
constexpr int kFewThreads = 128;

struct Four {
  float x[4];

  __device__ void load(const void* p, int channel) {
    load4(static_cast<const float*>(p) + channel, x);
  }

  __device__ void set(float value) { x[0] = x[1] = x[2] = x[3] = value; }
};

/// What is known of a row before anything of it is read: all of it is under way at once.
struct RowStart {
  int64_t slot;
  int64_t index[kFewEntries];  ///< of entries `first` and on
  const float* turn;
  bool exists;

  __device__ __forceinline__ RowStart(const Pool& p, int64_t row, int first) {
    slot = p.slots[row];
#pragma unroll
    for (int j = 0; j < kFewEntries; ++j)
      index[j] = first + j < p.E ? p.gather[row][first + j] : -1;
    const bool has_angles = p.table.find(row, &turn);
    exists = has_angles && p.cache.has(slot);
  }
};

/// kFewEntries entries from number `first` on, four channels of each, in float32. One that does not
/// take part has a score of -inf.
struct HeldEntries {
  Four u[kFewEntries];
  Four z[kFewEntries];

  __device__ __forceinline__ void load(const Pool& p,
                                       const RowStart& start,
                                       int first,
                                       int channel) {
    const float* ape[kFewEntries];
#pragma unroll
    for (int j = 0; j < kFewEntries; ++j) {
      const Entry entry = entry_of<float>(p, first + j, start.index[j]);
      ape[j] = entry.ape;
      u[j].set(0.0f);
      z[j].set(-INFINITY);
      if (entry.z == nullptr) continue;
      u[j].load(entry.u, channel);
      z[j].load(entry.z, channel);
    }
#pragma unroll
    for (int j = 0; j < kFewEntries; ++j) {
      if (ape[j] == nullptr) continue;
      Four added;
      added.load(ape[j], channel);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        z[j].x[i] += added.x[i];
    }
  }

  __device__ __forceinline__ float largest(int i) const {
    float m = -INFINITY;
#pragma unroll
    for (int j = 0; j < kFewEntries; ++j)
      m = fmaxf(m, z[j].x[i]);
    return m;
  }
};

__global__ void __launch_bounds__(kFewThreads) pool_few_entries(const __grid_constant__ Pool p) {
  extern __shared__ float row_memory[];
  let_next_start();
  const RowMemory m(row_memory, p.D);
  p.norm.bring(p.D, m.weights);
  wait_for_previous();
  const RowStart start(p, blockIdx.x, 0);
  if (!start.exists) return;
  const RowOnItsWay<float> angles(start.turn, p.table.R);
  for (int channel = 4 * static_cast<int>(threadIdx.x); channel < p.D; channel += 4 * kFewThreads) {
    HeldEntries entries;
    entries.load(p, start, 0, channel);
    Four x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float largest = entries.largest(i);
      WeightedSum total;
#pragma unroll
      for (int j = 0; j < kFewEntries; ++j)
        total.add(expf(entries.z[j].x[i] - largest), entries.u[j].x[i]);
      x.x[i] = pooled(p, total.weighted, total.sum);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      m.row[channel + i] = x.x[i];
  }
  angles.store(m.angles);
  __syncthreads();
  finish_row(p, m, start.slot);
}

// ---- many entries: a cluster a row, 64 channels a block ----
//
// Sixteen threads have the channels of eight entries, four each. The largest score goes through
// shared memory, then the terms, which are added up in order by a thread for each sum. The first
// block gets all pooled channels and finishes the row.

constexpr int kManyEntries = 128;
constexpr int kManyChannels = 64;  ///< of a block
constexpr int kManyThreads = kManyEntries / kFewEntries * kManyChannels / 4;
constexpr int kManyWarps = kManyThreads / kWarp;
constexpr int kMostCluster = 8;

struct ManyMemory {
  float weights[kManyEntries][kManyChannels];   ///< exp(z - largest)
  float weighted[kManyEntries][kManyChannels];  ///< the same times u
  float largest[kManyWarps][kManyChannels];
  float sums[2][kManyChannels];  ///< of weights, and weighted
};

static_assert(kManyThreads == 256,
              "two sums for each channel need a thread, and a warp two groups");

/// The terms of eight entries of four channels, by the largest score of all entries.
__device__ __forceinline__ void weigh_entries(
    ManyMemory& m, const HeldEntries& entries, int first, int channel, int num_entries) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float largest = entries.largest(i);
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, kWarp / 2));
    if (lane_id() < kWarp / 2) m.largest[warp_id()][channel + i] = largest;
  }
  __syncthreads();
  float largest[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
  for (int w = 0; w < kManyWarps; ++w) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      largest[i] = fmaxf(largest[i], m.largest[w][channel + i]);
  }
#pragma unroll
  for (int j = 0; j < kFewEntries; ++j) {
    if (first + j >= num_entries) break;
    float weight[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      weight[i] = expf(entries.z[j].x[i] - largest[i]);
    const Four& u = entries.u[j];
    *reinterpret_cast<float4*>(&m.weights[first + j][channel]) =
        make_float4(weight[0], weight[1], weight[2], weight[3]);
    *reinterpret_cast<float4*>(&m.weighted[first + j][channel]) =
        make_float4(__fmul_rn(weight[0], u.x[0]), __fmul_rn(weight[1], u.x[1]),
                    __fmul_rn(weight[2], u.x[2]), __fmul_rn(weight[3], u.x[3]));
  }
  __syncthreads();
}

/// Channel `thread` of this block, pooled, in the first 64 threads.
__device__ __forceinline__ float add_terms(const Pool& p, ManyMemory& m) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int channel = thread % kManyChannels;
  if (thread < 2 * kManyChannels) {
    const auto& terms = thread < kManyChannels ? m.weights : m.weighted;
    float sum = 0.0f;
#pragma unroll 16
    for (int e = 0; e < p.E; ++e)
      sum = __fadd_rn(sum, terms[e][channel]);
    m.sums[thread / kManyChannels][channel] = sum;
  }
  __syncthreads();
  return thread < kManyChannels ? pooled(p, m.sums[1][channel], m.sums[0][channel]) : 0.0f;
}

__global__ void __launch_bounds__(kManyThreads)
    pool_many_entries(const __grid_constant__ Pool p, FastDivide blocks_of_row) {
  extern __shared__ __align__(16) unsigned char many_memory[];
  auto& m = *reinterpret_cast<ManyMemory*>(many_memory);
  const RowMemory of_row(reinterpret_cast<float*>(many_memory + sizeof(ManyMemory)), p.D);
  let_next_start();
  const int rank = static_cast<int>(cluster_rank());
  if (rank == 0) p.norm.bring(p.D, of_row.weights);
  wait_for_previous();
  const auto thread = static_cast<int>(threadIdx.x);
  const int first = thread / (kManyChannels / 4) * kFewEntries;
  const int channel = thread % (kManyChannels / 4) * 4;
  const RowStart start(p, blocks_of_row.of(blockIdx.x), first);
  if (!start.exists) return;  // the whole cluster
  cluster_arrive_relaxed();   // the first block may be stored to once it has started
  const RowOnItsWay<float> angles(start.turn, rank == 0 ? p.table.R : 0);
  HeldEntries entries;
  entries.load(p, start, first, rank * kManyChannels + channel);
  angles.store(of_row.angles);
  weigh_entries(m, entries, first, channel, p.E);
  const float x = add_terms(p, m);
  cluster_wait();
  if (thread < kManyChannels) *in_block(of_row.row + rank * kManyChannels + thread, 0) = x;
  cluster_sync();
  if (rank == 0) finish_row(p, of_row, start.slot);
}

// ---- any layout: a block a row, a channel a thread ----

constexpr int kAnyThreads = 256;

/// Shared memory of a block: the entries of its row, then the row.
template <class A>
__global__ void __launch_bounds__(kAnyThreads) pool_any_layout(const __grid_constant__ Pool p) {
  extern __shared__ __align__(16) unsigned char any_memory[];
  auto* entries = reinterpret_cast<Entry*>(any_memory);
  const RowMemory m(reinterpret_cast<float*>(entries + p.E), p.D);
  let_next_start();
  p.norm.bring(p.D, m.weights);
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const int64_t slot = p.slots[row];
  if (!p.cache.has(slot)) return;
  const float* turn = nullptr;
  if (!p.table.find(row, &turn)) return;
  const RowOnItsWay<float> angles(turn, p.table.R);
  for (int e = static_cast<int>(threadIdx.x); e < p.E; e += kAnyThreads)
    entries[e] = entry_of<A>(p, e, p.gather[row][e]);
  angles.store(m.angles);
  __syncthreads();
  const auto score = [](const Entry& entry, int c) {
    if (entry.ape == nullptr) return static_cast<const float*>(entry.z)[c];
    return load(static_cast<const A*>(entry.z) + c) + entry.ape[c];
  };
  for (int c = static_cast<int>(threadIdx.x); c < p.D; c += kAnyThreads) {
    float largest = -INFINITY;
#pragma unroll 4
    for (int e = 0; e < p.E; ++e) {
      if (entries[e].z != nullptr) largest = fmaxf(largest, score(entries[e], c));
    }
    WeightedSum total;
#pragma unroll 4
    for (int e = 0; e < p.E; ++e) {
      const Entry entry = entries[e];
      if (entry.z == nullptr) continue;
      const float u = entry.ape == nullptr ? static_cast<const float*>(entry.u)[c]
                                           : load(static_cast<const A*>(entry.u) + c);
      total.add(expf(score(entry, c) - largest), u);
    }
    m.row[c] = pooled(p, total.weighted, total.sum);
  }
  __syncthreads();
  finish_row(p, m, slot);
}

int64_t row_bytes(const PoolArgs& a) {
  return RowMemory::bytes(a.norm.dim(0), a.table.dim(1));
}

Status run_few_entries(Exec& ex, const PoolArgs& a) {
  return launch_kernel(
      ex, pool_few_entries,
      {.blocks = a.gather.dim(0), .threads = kFewThreads, .shared_bytes = row_bytes(a)},
      pool_of(a));
}

Status run_many_entries(Exec& ex, const PoolArgs& a) {
  const auto blocks_of_row = static_cast<int>(a.norm.dim(0) / kManyChannels);
  return launch_kernel(ex, pool_many_entries,
                       {.blocks = a.gather.dim(0) * blocks_of_row,
                        .threads = kManyThreads,
                        .shared_bytes = static_cast<int64_t>(sizeof(ManyMemory)) + row_bytes(a),
                        .cluster = blocks_of_row},
                       pool_of(a), FastDivide(blocks_of_row));
}

Status run_any_layout(Exec& ex, const PoolArgs& a) {
  const int64_t entries = a.gather.dim(1) * static_cast<int64_t>(sizeof(Entry));
  return with_activation_type(a.u_z.format, [&]<class A>(A) {
    return launch_kernel(
        ex, pool_any_layout<A>,
        {.blocks = a.gather.dim(0), .threads = kAnyThreads, .shared_bytes = entries + row_bytes(a)},
        pool_of(a));
  });
}

/// Four channels at once of the step, the state and ape.
bool is_aligned(const PoolArgs& a) {
  return a.u_z.format == Format::kF32 && takes_vectors(a.u_z) && takes_vectors(a.state_u) &&
         takes_vectors(a.state_z) && takes_vectors(a.ape);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;
static_assert(kManyChannels * kMostCluster == 512, "the limit of many_entries");

}  // namespace

constinit const VariantTable<CompressStateWrite> compress_state_write_cuda{
    {"vectors", sm(90), "W%8==0", kTraits, run_state_write<kVector>, MathUnit::kF32,
     state_write_is_aligned},
    {"elements", sm(90), "", kTraits, run_state_write<1>},
};

constinit const VariantTable<CompressPool> compress_pool_cuda{
    {"few_entries", sm(90), "E<=8, D%4==0, W%4==0, D<=4096", kTraits, run_few_entries,
     MathUnit::kF32, is_aligned},
    {"many_entries", sm(90), "E<=128, D%64==0, D<=512", kTraits, run_many_entries, MathUnit::kF32,
     is_aligned},
    {"any_layout", sm(90), "D<=4096, E<=2048", kTraits, run_any_layout},
};

}  // namespace fathom

#include <type_traits>

#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/rotate.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/rope/mla_rope_quant/mla_rope_quant.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

// Both kernels bring heads [ lat | pe ] to another format: q has N of them a token, the key is one.

/// Rows of heads: [T,N,width], or [T,width] with head stride 0.
struct Heads {
  void* data;
  int64_t token_stride;
  int64_t head_stride;

  template <class T>
  __device__ T* head(int64_t t, int64_t n) const {
    return static_cast<T*>(data) + t * token_stride + n * head_stride;
  }
};

Heads heads_of(const View& v) {
  return {v.data, v.stride(0), v.rank == 3 ? v.stride(1) : 0};
}

/// The distance of a head within a merged output where lat and pe lie side by side.
Heads shifted(Heads heads, int64_t elements, int64_t element_size) {
  heads.data = static_cast<std::byte*>(heads.data) + elements * element_size;
  return heads;
}

/// Slots of pages [M,S,D]; what the host cannot see is checked here: other slots are not written.
struct Pages {
  const int64_t* slots = nullptr;  // null: the key goes to row t of its output
  int64_t page_size = 1;
  int64_t num_slots = 0;
  int64_t page_stride = 0;
  int64_t slot_stride = 0;

  __device__ bool place(int64_t t, int64_t* offset) const {
    const int64_t slot = slots[t];
    if (slot < 0 || slot >= num_slots) return false;
    const RowOfGroup at(slot, page_size);
    *offset = at.group * page_stride + at.row * slot_stride;
    return true;
  }
};

struct Preparation {
  Heads q_lat, q_pe, c, k_pe;
  Heads q_lat_out, q_pe_out, c_out, k_pe_out;
  Pages pages;
  RotaryTable table;
  int num_heads;
  int L;
  float q_scale, kv_scale;
};

/// How a value becomes what is stored.
struct DividedBy {
  Divisor divisor;

  __device__ explicit DividedBy(float scale) : divisor(scale) {}

  __device__ float apply(float x) const { return divisor.of(x); }
};

struct MultipliedBy {
  float scale;

  __device__ explicit MultipliedBy(float factor) : scale(factor) {}

  __device__ float apply(float x) const { return x * scale; }
};

/// Calls f with the scaling of an Out by `scale`: a division by 1, as most are, is none, and only
/// codes of eight bits have a scale.
template <class Out, class Scaling, class F>
__device__ __forceinline__ void with_scaling(float scale, const F& f) {
  if constexpr (sizeof(Out) > 1) {
    f(Unscaled());
  } else {
    if constexpr (std::is_same_v<Scaling, DividedBy>) {
      if (scale == 1.0f) return f(Unscaled());
    }
    f(Scaling(scale));
  }
}

/// Where a part of the key of token t goes: to row t of `out`, or to its slot; null if it has none.
template <class Key>
__device__ Key* key_target(const Preparation& p, const Heads& out, int64_t t) {
  if (p.pages.slots == nullptr) return out.head<Key>(t, 0);
  int64_t offset = 0;
  return p.pages.place(t, &offset) ? static_cast<Key*>(out.data) + offset : nullptr;
}

// ---- vectors: a warp prepares the same part of some heads of a token ----

/// Heads that a thread has under way at once. Of few heads it takes one: between the weights of a
/// decode step the code of a kernel is cold, and waiting for long code costs more than its loads.
constexpr int kHeadsAtOnce = 4;
constexpr int64_t kFewHeads = 2048;
constexpr int kWarpsOfBlock = kFlatThreads / kWarp;

/// Vectors of a head's lat that a lane has under way at once.
template <class In, int kHeads>
inline constexpr int kLatEach = sizeof(In) == 4 || kHeads == 1 ? 1 : 2;

/// The warps of a token, in this order: those of the key's pe, one for the key's lat, those of q's
/// pe (a lane for a unit of a group of heads), and those of q's lat (a group each).
struct WarpRoles {
  FlatItems warps;
  FastDivide units_of_pe;  ///< of one head
  int of_key_pe;
  int of_q_pe;
};

WarpRoles warp_roles(const Preparation& p, int64_t num_tokens, int heads) {
  const int groups = ceil_div(p.num_heads, heads);
  const int pe_units = p.table.R / kVector;
  const int of_key_pe = ceil_div(pe_units, kWarp);
  const int of_q_pe = ceil_div(groups * pe_units, kWarp);
  return {flat_items(num_tokens, of_key_pe + 1 + of_q_pe + groups), FastDivide(pe_units), of_key_pe,
          of_q_pe};
}

/// As many as `most` heads from head n on, of `num_heads`.
template <class T>
__device__ HeadRun<T> heads_from(const Heads& heads, int64_t t, int n, int num_heads, int most) {
  return {heads.head<T>(t, n), heads.head_stride, min(most, num_heads - n)};
}

template <class In, class Out, class Scaling>
__device__ __forceinline__ void store_scaled(Out* out,
                                             const Packed<In>& held,
                                             const Scaling& scaling) {
  if constexpr (std::is_same_v<In, Out> && std::is_same_v<Scaling, Unscaled>) {
    store_packed(out, held);
  } else {
    float values[kVector];
    unpack(held, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      values[i] = scaling.apply(values[i]);
    store8(out, values);
  }
}

// As a unit of pe is rotated: all loads first, then find_target(), then the rest.
template <int kHeads, class In, class FindTarget, class Scaling>
__device__ __forceinline__ void convert_lat(int L,
                                            const HeadRun<const In>& from,
                                            const FindTarget& find_target,
                                            const Scaling& scaling) {
  constexpr int kEach = kLatEach<In, kHeads>;
  const int num_vectors = L / kVector;
#pragma unroll 1
  for (int first = lane_id(); first < num_vectors; first += kEach * kWarp) {
    const auto exists = [&](int h, int v) {
      return h < from.count && first + v * kWarp < num_vectors;
    };
    // held[h][v]: vector first + 32 v of head h
    Packed<In> held[kHeads][kEach];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int v = 0; v < kEach; ++v) {
        if (exists(h, v)) held[h][v] = load_packed(from.head(h) + kVector * (first + v * kWarp));
      }
    }
    const auto to = find_target();
    if (to.first == nullptr) return;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int v = 0; v < kEach; ++v) {
        if (exists(h, v)) {
          store_scaled(to.head(h) + kVector * (first + v * kWarp), held[h][v], scaling);
        }
      }
    }
  }
}

/// Unit number `unit` of those of a run of groups of heads, which a lane takes.
struct PeUnit {
  int group;
  int unit;  ///< within a head

  __device__ PeUnit(const FastDivide& units_of_pe, int number) {
    group = static_cast<int>(units_of_pe.of(static_cast<uint32_t>(number)));
    unit = number - group * static_cast<int>(units_of_pe.divisor);
  }
};

template <int kHeads, class In, class Q, class Scaling>
__device__ __forceinline__ void prepare_queries(const Preparation& p,
                                                const WarpRoles& roles,
                                                int64_t t,
                                                int warp) {
  with_scaling<Q, Scaling>(p.q_scale, [&](const auto& scaling) {
    if (warp < roles.of_q_pe) {
      const PeUnit at(roles.units_of_pe, warp * kWarp + lane_id());
      const int n = at.group * kHeads;
      if (n >= p.num_heads) return;
      rotate_unit<float, float, kHeads>(
          p.table, t, at.unit, heads_from<const In>(p.q_pe, t, n, p.num_heads, kHeads),
          [&] { return heads_from<Q>(p.q_pe_out, t, n, p.num_heads, kHeads); }, scaling);
    } else {
      const int n = (warp - roles.of_q_pe) * kHeads;
      convert_lat<kHeads>(
          p.L, heads_from<const In>(p.q_lat, t, n, p.num_heads, kHeads),
          [&] { return heads_from<Q>(p.q_lat_out, t, n, p.num_heads, kHeads); }, scaling);
    }
  });
}

template <class In, class Key, class Scaling>
__device__ __forceinline__ void prepare_key(const Preparation& p,
                                            const WarpRoles& roles,
                                            int64_t t,
                                            int warp) {
  const auto target = [&](const Heads& out) {
    return HeadRun<Key>{key_target<Key>(p, out, t), 0, 1};
  };
  with_scaling<Key, Scaling>(p.kv_scale, [&](const auto& scaling) {
    if (warp < roles.of_key_pe) {
      const int unit = warp * kWarp + lane_id();
      if (kVector * unit >= p.table.R) return;
      rotate_unit<float, float, 1>(
          p.table, t, unit, heads_from<const In>(p.k_pe, t, 0, 1, 1),
          [&] { return target(p.k_pe_out); }, scaling);
    } else {
      convert_lat<1>(
          p.L, heads_from<const In>(p.c, t, 0, 1, 1), [&] { return target(p.c_out); }, scaling);
    }
  });
}

template <int kHeads, class In, class Q, class Key, class Scaling>
__global__ void __launch_bounds__(kFlatThreads) prepare_vectors(Preparation p, WarpRoles roles) {
  let_next_start();
  wait_for_previous();
  const ItemPlace at = roles.warps.place(int64_t{blockIdx.x} * kWarpsOfBlock + warp_id());
  if (!at.exists) return;
  const int of_key = roles.of_key_pe + 1;
  if (at.item < of_key) {
    prepare_key<In, Key, Scaling>(p, roles, at.row, at.item);
  } else {
    prepare_queries<kHeads, In, Q, Scaling>(p, roles, at.row, at.item - of_key);
  }
}

// ---- few heads: a block prepares one head of a token or its key, a thread a vector of it ----
//
// Between the weights of a decode step the code of a kernel is cold: it comes from memory, a line
// after the other. So this one has no case that such calls do not need: bf16, which has no scale.

/// Where a part of a head, lat or pe, is read and written.
struct Part {
  const Bf16* from;
  int64_t token_stride;
  int64_t head_stride;
  Bf16* to;
  int64_t to_token_stride;
  int64_t to_head_stride;
};

/// parts[2 * key + pe]; a part of a key is written `to` plus the place of its slot.
struct FewHeads {
  Part parts[4];
  const int32_t* positions;
  const float* table;
  int64_t table_stride;
  const int64_t* slots;
  int64_t page_stride;
  int64_t slot_stride;
  uint32_t num_positions;
  uint32_t num_slots;
  FastDivide page_size;
  FastDivide rows_of_token;  ///< its heads and its key
  int lat_vectors;
  int pe_vectors;
};

constexpr int kMostFewHeads = 512;  ///< of all tokens
constexpr int kMostFewThreads = 1024;

/// Eight elements, read past the first cache: it would keep what an earlier kernel may yet change.
template <RopeStyle kStyle>
__device__ __forceinline__ PackedUnit<Bf16> read_unit(const Bf16* a, const Bf16* b) {
  if constexpr (kStyle == RopeStyle::kInterleaved) {
    const uint4 x = __ldcg(reinterpret_cast<const uint4*>(a));
    return {{{x.x, x.y, x.z, x.w}}};
  } else {
    const uint2 x = __ldcg(reinterpret_cast<const uint2*>(a));
    const uint2 y = __ldcg(reinterpret_cast<const uint2*>(b));
    return {{{x.x, x.y, y.x, y.y}}};
  }
}

/// Everything is done twice: the first time while the previous kernel still runs, so that the code
/// is in the caches of instructions when it counts, with whatever is read then, and without a
/// store. All loads that wait for no other come first.
template <RopeStyle kStyle>
__global__ void __launch_bounds__(kMostFewThreads)
    prepare_few_heads(const __grid_constant__ FewHeads p) {
  let_next_start();
  const uint32_t t = p.rows_of_token.of(blockIdx.x);
  const uint32_t n = blockIdx.x - t * p.rows_of_token.divisor;
  const bool is_key = n + 1 == p.rows_of_token.divisor;
  const bool is_pe = static_cast<int>(threadIdx.x) >= p.lat_vectors;
  const int unit = static_cast<int>(threadIdx.x) - (is_pe ? p.lat_vectors : 0);
  if (is_pe && unit >= p.pe_vectors) return;
  const Part& part = p.parts[2 * is_key + is_pe];
  // A unit of split halves is two times four elements; one of lat is taken so too.
  const int R = kVector * p.pe_vectors;
  const bool splits = kStyle == RopeStyle::kHalfSplit && is_pe;
  const int first = splits ? kPairs * unit : kVector * unit;
  const int second = splits ? R / 2 : kPairs;  // from the first
  const Bf16* from = part.from + t * part.token_stride + n * part.head_stride + first;
  Bf16* head = part.to + t * part.to_token_stride + n * part.to_head_stride + first;
#pragma unroll 1
  for (int turn = 0; turn < 2; ++turn) {
    if (turn == 1) wait_for_previous();
    PackedUnit<Bf16> x = read_unit<kStyle>(from, from + second);
    const auto position = static_cast<uint32_t>(__ldcg(p.positions + t));
    bool writes = turn == 1;
    Bf16* to = head;
    if (is_key) {
      const auto slot = static_cast<uint64_t>(__ldcg(p.slots + t));
      writes = writes && slot < p.num_slots;
      const uint32_t page = p.page_size.of(static_cast<uint32_t>(slot));
      const uint32_t row = static_cast<uint32_t>(slot) - page * p.page_size.divisor;
      to += page * p.page_stride + row * p.slot_stride;
    }
    if (is_pe) {
      writes = writes && position < p.num_positions;
      const float* angles = p.table + (position < p.num_positions ? position : 0) * p.table_stride;
      const float4 c = __ldcg(reinterpret_cast<const float4*>(angles + kPairs * unit));
      const float4 s = __ldcg(reinterpret_cast<const float4*>(angles + R / 2 + kPairs * unit));
      Pairs pairs = x.pairs(kStyle);
      Angles{{c.x, c.y, c.z, c.w}, {s.x, s.y, s.z, s.w}}.template rotate<float>(pairs);
      x.take(pairs, kStyle);
    }
    const auto& w = x.words.words;
    if constexpr (kStyle == RopeStyle::kInterleaved) {
      st_global_v4_if(to, w[0], w[1], w[2], w[3], writes);
    } else {
      st_global_v2_if(to, w[0], w[1], writes);
      st_global_v2_if(to + second, w[2], w[3], writes);
    }
  }
}

// ---- heads: any widths and strides ----

/// Where a head is read and written.
template <class In, class Out>
struct HeadPlace {
  const In* lat;
  const In* pe;
  Out* lat_out;
  Out* pe_out;
};

// A block a head, an element or a pair a thread: any widths and strides.
template <class In, class Out, class Scaling>
__device__ void prepare_head(const Preparation& p,
                             const HeadPlace<In, Out>& at,
                             const float* angles,
                             float scale) {
  const Scaling scaling(scale);
  for (int i = static_cast<int>(threadIdx.x); i < p.L; i += static_cast<int>(blockDim.x))
    store(at.lat_out + i, scaling.apply(load(at.lat + i)));
  const int R = p.table.R;
  const RopeStyle style = p.table.style;
  for (int i = static_cast<int>(threadIdx.x); angles != nullptr && i < R / 2;
       i += static_cast<int>(blockDim.x)) {
    float a = load(at.pe + first_of_pair(i, style));
    float b = load(at.pe + second_of_pair(i, R, style));
    rotate_pair<float>(a, b, angles[i], angles[R / 2 + i]);
    store(at.pe_out + first_of_pair(i, style), scaling.apply(a));
    store(at.pe_out + second_of_pair(i, R, style), scaling.apply(b));
  }
}

template <class In, class Q, class Key, class Scaling>
__global__ void __launch_bounds__(kFlatThreads) prepare_heads(Preparation p) {
  let_next_start();
  wait_for_previous();
  const RowOfGroup at(blockIdx.x, p.num_heads + 1);
  const int64_t t = at.group;
  const int64_t n = at.row;
  const float* angles = p.table.row<float>(t);
  if (n < p.num_heads) {
    const HeadPlace<In, Q> head{p.q_lat.head<const In>(t, n), p.q_pe.head<const In>(t, n),
                                p.q_lat_out.head<Q>(t, n), p.q_pe_out.head<Q>(t, n)};
    prepare_head<In, Q, Scaling>(p, head, angles, p.q_scale);
  } else {
    const HeadPlace<In, Key> head{p.c.head<const In>(t, 0), p.k_pe.head<const In>(t, 0),
                                  key_target<Key>(p, p.c_out, t),
                                  key_target<Key>(p, p.k_pe_out, t)};
    if (head.lat_out != nullptr) prepare_head<In, Key, Scaling>(p, head, angles, p.kv_scale);
  }
}

template <class Args>
Preparation preparation_of(const Args& a) {
  return {.q_lat = heads_of(a.q_lat),
          .q_pe = heads_of(a.q_pe),
          .c = heads_of(a.c),
          .k_pe = heads_of(a.k_pe),
          .q_lat_out = {},
          .q_pe_out = {},
          .c_out = {},
          .k_pe_out = {},
          .pages = {},
          .table = rotary_table(a.positions, a.table, a.style),
          .num_heads = static_cast<int>(a.q_lat.dim(1)),
          .L = static_cast<int>(a.c.dim(1)),
          .q_scale = a.q_scale,
          .kv_scale = a.kv_scale};
}

Preparation quant_of(const MlaRopeQuantFp8::Args& a) {
  Preparation p = preparation_of(a);
  p.q_lat_out = heads_of(a.q_lat_out);
  p.q_pe_out = heads_of(a.q_pe_out);
  p.c_out = heads_of(a.c_out);
  p.k_pe_out = heads_of(a.k_pe_out);
  return p;
}

Preparation write_of(const MlaRopeWrite::Args& a) {
  Preparation p = preparation_of(a);
  p.q_lat_out = heads_of(a.q);
  p.q_pe_out = shifted(p.q_lat_out, p.L, element_bytes(a.q.format));
  p.c_out = {a.cache.data, 0, 0};
  p.k_pe_out = shifted(p.c_out, p.L, element_bytes(a.cache.format));
  p.pages = {.slots = a.slots.as<const int64_t>(),
             .page_size = a.cache.dim(1),
             .num_slots = a.cache.dim(0) * a.cache.dim(1),
             .page_stride = a.cache.stride(0),
             .slot_stride = a.cache.stride(1)};
  return p;
}

enum class Form { kVectors, kHeads };

template <int kHeads, class In, class Q, class Key, class Scaling>
Status launch_vectors(Exec& ex, const Preparation& p, int64_t num_tokens) {
  const WarpRoles roles = warp_roles(p, num_tokens, kHeads);
  return launch_kernel(
      ex, prepare_vectors<kHeads, In, Q, Key, Scaling>,
      {.blocks = ceil_div(roles.warps.total, int64_t{kWarpsOfBlock}), .threads = kFlatThreads}, p,
      roles);
}

template <Form kForm, class In, class Q, class Key, class Scaling>
Status launch_form(Exec& ex, const Preparation& p, int64_t num_tokens) {
  if constexpr (kForm == Form::kVectors) {
    if constexpr (std::is_same_v<In, Bf16>) {  // what models have
      if (num_tokens * p.num_heads <= kFewHeads)
        return launch_vectors<1, In, Q, Key, Scaling>(ex, p, num_tokens);
    }
    return launch_vectors<kHeadsAtOnce, In, Q, Key, Scaling>(ex, p, num_tokens);
  } else {
    return launch_kernel(ex, prepare_heads<In, Q, Key, Scaling>,
                         {.blocks = num_tokens * (p.num_heads + 1), .threads = kFlatThreads}, p);
  }
}

template <Form kForm>
Status run_quant(Exec& ex, const MlaRopeQuantFp8::Args& a) {
  const Preparation p = quant_of(a);
  return with_float_type(a.q_pe.format, [&]<class In>(In) {
    if (a.c_out.format == Format::kE4m3) {
      return launch_form<kForm, In, E4m3, E4m3, MultipliedBy>(ex, p, a.q_pe.dim(0));
    }
    return launch_form<kForm, In, E5m2, E5m2, MultipliedBy>(ex, p, a.q_pe.dim(0));
  });
}

template <Form kForm>
Status run_write(Exec& ex, const MlaRopeWrite::Args& a) {
  const Preparation p = write_of(a);
  return with_activation_type(a.q_lat.format, [&]<class In>(In) {
    return with_cache_type(a.q.format, [&]<class Q>(Q) {
      return with_cache_type(a.cache.format, [&]<class Key>(Key) {
        return launch_form<kForm, In, Q, Key, DividedBy>(ex, p, a.q_lat.dim(0));
      });
    });
  });
}

Part part_of(const Heads& from, const Heads& to) {
  return {static_cast<const Bf16*>(from.data), from.token_stride, from.head_stride,
          static_cast<Bf16*>(to.data),         to.token_stride,   to.head_stride};
}

Status run_few_heads(Exec& ex, const MlaRopeWrite::Args& a) {
  const Preparation p = write_of(a);
  const int64_t rows = p.num_heads + 1;
  const FewHeads few{.parts = {part_of(p.q_lat, p.q_lat_out), part_of(p.q_pe, p.q_pe_out),
                               part_of(p.c, p.c_out), part_of(p.k_pe, p.k_pe_out)},
                     .positions = a.positions.as<const int32_t>(),
                     .table = a.table.as<const float>(),
                     .table_stride = p.table.stride,
                     .slots = p.pages.slots,
                     .page_stride = p.pages.page_stride,
                     .slot_stride = p.pages.slot_stride,
                     .num_positions = static_cast<uint32_t>(p.table.num_rows),
                     .num_slots = static_cast<uint32_t>(p.pages.num_slots),
                     .page_size = FastDivide(p.pages.page_size),
                     .rows_of_token = FastDivide(rows),
                     .lat_vectors = p.L / kVector,
                     .pe_vectors = p.table.R / kVector};
  const LaunchShape shape{.blocks = a.q_lat.dim(0) * rows,
                          .threads = align_up(few.lat_vectors + few.pe_vectors, kWarp)};
  return p.table.style == RopeStyle::kInterleaved
             ? launch_kernel(ex, prepare_few_heads<RopeStyle::kInterleaved>, shape, few)
             : launch_kernel(ex, prepare_few_heads<RopeStyle::kHalfSplit>, shape, few);
}

/// Where pe follows lat in one output, it begins at a multiple of eight elements, as L is one.
bool quant_is_aligned(const MlaRopeQuantFp8::Args& a) {
  for (const View* v : {&a.q_pe, &a.k_pe, &a.q_lat, &a.c, &a.table, &a.q_pe_out, &a.k_pe_out,
                        &a.q_lat_out, &a.c_out}) {
    if (!takes_vectors(*v)) return false;
  }
  return true;
}

bool write_is_aligned(const MlaRopeWrite::Args& a) {
  for (const View* v : {&a.q_pe, &a.k_pe, &a.q_lat, &a.c, &a.table, &a.q, &a.cache}) {
    if (!takes_vectors(*v)) return false;
  }
  return true;
}

bool takes_few_heads(const MlaRopeWrite::Args& a) {
  for (const View* v : {&a.q_lat, &a.q, &a.cache}) {
    if (v->format != Format::kBf16) return false;
  }
  return write_is_aligned(a) && a.q_lat.dim(0) * a.q_lat.dim(1) <= kMostFewHeads &&
         a.q.dim(2) > 0 && a.q.dim(2) / kVector <= kMostFewThreads && a.table.dim(0) > 0 &&
         a.table.dim(0) < (int64_t{1} << 31) &&
         a.cache.dim(0) * a.cache.dim(1) < (int64_t{1} << 31);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<MlaRopeQuantFp8> mla_rope_quant_fp8_cuda{
    {"vectors", sm(90), "L%8==0, R%8==0", kTraits, run_quant<Form::kVectors>, MathUnit::kF32,
     quant_is_aligned},
    {"heads", sm(90), "", kTraits, run_quant<Form::kHeads>},
};

constinit const VariantTable<MlaRopeWrite> mla_rope_write_cuda{
    {"few_heads", sm(90), "L%8==0, R%8==0", kTraits | kSomeRowCounts, run_few_heads, MathUnit::kF32,
     takes_few_heads},
    {"vectors", sm(90), "L%8==0, R%8==0", kTraits, run_write<Form::kVectors>, MathUnit::kF32,
     write_is_aligned},
    {"heads", sm(90), "", kTraits, run_write<Form::kHeads>},
};

}  // namespace fathom

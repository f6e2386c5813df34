#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/sparse/index_prepare/index_prepare.h"
#include "fathom/kernels/sparse/index_prepare/index_prepare_rows.h"
#include "fathom/kernels/sparse/index_row.cuh"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

// Positions and slots are values of GPU memory that the host cannot check: a row whose position is
// not in the table, or whose slot is in no page, is not written.

/// Rows [i,j] of an operand with three axes, strides in bytes.
struct ByteRows {
  std::byte* data = nullptr;
  int64_t outer = 0;
  int64_t inner = 0;

  template <class T>
  __device__ T* at(int64_t i, int64_t j) const {
    return reinterpret_cast<T*>(data + i * outer + j * inner);
  }
};

ByteRows byte_rows(const View& v) {
  if (!v.present()) return {};
  const View bytes = bytes_of(v);
  return {bytes.as<std::byte>(), bytes.stride(0), bytes.rank > 2 ? bytes.stride(1) : 0};
}

/// Calls f(Out{}) for what rows of the format become.
template <class F>
Status with_stored_type(Format format, F f) {
  if (format == Format::kE4m3) return f(E4m3{});
  if (format == Format::kU8) return f(E2m1Pairs{});
  return format == Format::kBf16 ? f(Bf16{}) : f(float{});
}

constexpr int kRowWarpsOfBlock = 4;  // of the kernels that take any layout
constexpr int kAnyThreads = kRowWarpsOfBlock * kWarp;

/// The row of this warp, of a grid of kRowWarpsOfBlock rows a block.
__device__ int64_t row_of_warp() {
  return int64_t{blockIdx.x} * kRowWarpsOfBlock + warp_id();
}

LaunchShape warp_each(int64_t rows) {
  return {.blocks = ceil_div<int64_t>(rows, kRowWarpsOfBlock), .threads = kAnyThreads};
}

/// Angles of rows. A table without columns has no memory, yet its rows exist.
template <class Args>
RotaryTable row_angles(const Args& a) {
  RotaryTable table = rotary_table(a.positions, a.table, a.style);
  if (table.R == 0) table.data = a.positions.data;
  return table;
}

// ---- queries ----

struct Queries {
  RowSteps steps;
  RotaryTable table;
  ByteRows q, q_out, q_scales;
  AnyRows w;
  Rows<float> w_out;
  float weight_scale;
  int64_t T;
  int64_t H;
  Format q_format, out_format;

  __device__ void store_weight(int64_t t, int64_t h, float scale) const {
    w_out[t][h] = __fmul_rn(__fmul_rn(w.load(t, h), weight_scale), scale);
  }
};

Queries queries_of(const IndexQuery::Args& a) {
  return {.steps = row_steps(steps_of(a)),
          .table = row_angles(a),
          .q = byte_rows(a.q),
          .q_out = byte_rows(a.q_out),
          .q_scales = byte_rows(a.q_scales),
          .w = any_rows(a.w),
          .w_out = rows_of<float>(a.w_out),
          .weight_scale = a.weight_scale,
          .T = a.q.dim(0),
          .H = a.q.dim(1),
          .q_format = a.q.format,
          .out_format = a.q_out.format};
}

/// An item is a lane of a head of a token.
template <class A, class Out>
__global__ void __launch_bounds__(kFlatThreads)
    prepare_query_lanes(const __grid_constant__ Queries c, FlatItems items) {
  let_next_start();
  wait_for_previous();
  const ItemPlace at = items.mine<1>(0);
  const auto lanes = static_cast<int>(items.per_row.divisor);
  const RowOfGroup row(at.exists ? at.row : 0, c.H);
  const int64_t t = row.group;
  const int64_t h = row.row;
  const bool has_elements = at.exists && at.item < c.steps.num_vectors();
  float x[kVector] = {};
  if (has_elements) load8(c.q.at<const A>(t, h) + kVector * at.item, x);
  const float* angles = at.exists ? c.table.row<float>(t) : nullptr;
  rotate_lanes<A>(c.steps, angles, at.item, x);
  transform_row_lanes<A>(c.steps, x);
  const bool writes = angles != nullptr;
  const float scale = store_lanes<Out>(at.item, lanes, has_elements && writes, x,
                                       c.q_out.at<void>(t, h), c.q_scales.at<Ue8m0>(t, h));
  if (writes && at.item == 0) c.store_weight(t, h, scale);
}

template <class A>
__global__ void __launch_bounds__(kAnyThreads)
    prepare_query_any(const __grid_constant__ Queries c) {
  __shared__ float rows[kRowWarpsOfBlock][kMaxIndexWidth];
  let_next_start();
  wait_for_previous();
  if (row_of_warp() >= c.T * c.H) return;
  const RowOfGroup row(row_of_warp(), c.H);
  const int64_t t = row.group;
  const int64_t h = row.row;
  const float* angles = c.table.row<float>(t);
  if (angles == nullptr) return;
  float* x = rows[warp_id()];
  for (int i = lane_id(); i < c.steps.D; i += 32)
    x[i] = load(c.q.at<const A>(t, h) + i);
  __syncwarp();
  rotate_in_warp<A>(c.steps, angles, x);
  transform_in_warp<A>(c.steps, x);
  const float scale =
      store_in_warp(c.steps, c.out_format, x, c.q_out.at<void>(t, h), c.q_scales.at<Ue8m0>(t, h));
  if (lane_id() == 0) c.store_weight(t, h, scale);
}

Status run_query_lanes(Exec& ex, const IndexQuery::Args& a) {
  const FlatItems items = flat_items(a.q.dim(0) * a.q.dim(1), lanes_of_row(a.q.dim(2)));
  return with_activation_type(a.q.format, [&]<class A>(A) {
    return with_stored_type(a.q_out.format, [&]<class Out>(Out) {
      return launch_kernel(ex, prepare_query_lanes<A, Out>, one_item_each(items), queries_of(a),
                           items);
    });
  });
}

Status run_query_any(Exec& ex, const IndexQuery::Args& a) {
  return with_activation_type(a.q.format, [&]<class A>(A) {
    return launch_kernel(ex, prepare_query_any<A>, warp_each(a.q.dim(0) * a.q.dim(1)),
                         queries_of(a));
  });
}

bool query_fits_lanes(const IndexQuery::Args& a) {
  return fits_lanes(steps_of(a)) && takes_vectors(a.q) && takes_vectors(a.table) &&
         takes_vectors(a.q_out);
}

// ---- keys ----

struct Keys {
  RowSteps steps;
  RotaryTable table;
  ByteRows k;  ///< [T,D]
  const void* norm_w;
  const void* norm_b;
  Format norm_format;
  float eps;
  const int64_t* slots;
  int64_t T;
  int64_t page_size;
  int64_t num_slots;
  ByteRows values, scales;
  Format out_format;
};

Keys keys_of(const IndexKeyWrite::Args& a) {
  return {.steps = row_steps(steps_of(a)),
          .table = row_angles(a),
          .k = byte_rows(a.k),
          .norm_w = a.norm_w.data,
          .norm_b = a.norm_b.data,
          .norm_format = a.norm_w.format,
          .eps = a.eps,
          .slots = a.slots.as<const int64_t>(),
          .T = a.k.dim(0),
          .page_size = a.values.dim(1),
          .num_slots = a.values.dim(0) * a.values.dim(1),
          .values = byte_rows(a.values),
          .scales = byte_rows(a.scales),
          .out_format = a.values.format};
}

/// Where the key of a token goes.
struct KeySlot {
  int64_t page = 0;
  int64_t offset = 0;
  bool exists = false;

  __device__ KeySlot(const Keys& c, int64_t t) {
    const int64_t slot = c.slots[t];
    if (slot < 0 || slot >= c.num_slots) return;
    const RowOfGroup at(slot, c.page_size);
    page = at.group;
    offset = at.row;
    exists = true;
  }
};

/// The mean of a row in shared memory and the inverse of its deviation, from sums in ascending
/// order of channels, in every thread that calls it.
struct RowMoments {
  float mean;
  float inverse;

  __device__ RowMoments(const float* x, int D, float eps) {
    float sum = 0.0f;
#pragma unroll 16
    for (int d = 0; d < D; ++d)
      sum = __fadd_rn(sum, x[d]);
    mean = __fdiv_rn(sum, static_cast<float>(D));
    float squares = 0.0f;
#pragma unroll 16
    for (int d = 0; d < D; ++d) {
      const float off = x[d] - mean;
      squares = __fadd_rn(squares, __fmul_rn(off, off));
    }
    const float variance = __fdiv_rn(squares, static_cast<float>(D));
    inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(variance, eps)));
  }

  __device__ float normed(float x, float w, float b) const {
    return __fadd_rn(__fmul_rn(__fmul_rn(x - mean, inverse), w), b);
  }
};

__device__ __forceinline__ void load_weights(const void* p,
                                             Format format,
                                             int first,
                                             float (&out)[kVector]) {
  if (format == Format::kBf16) {
    load8(static_cast<const Bf16*>(p) + first, out);
  } else {
    load8(static_cast<const float*>(p) + first, out);
  }
}

/// Floats between rows of a block in shared memory: two rows that a warp reads at once lie in other
/// banks.
constexpr int kRowPad = 4;
constexpr int kMostLaneFloats = kFlatThreads * kVector + kFlatThreads / 2 * kRowPad;

/// An item is a lane of a token.
template <class A, class Out>
__global__ void __launch_bounds__(kFlatThreads)
    write_key_lanes(const __grid_constant__ Keys c, FlatItems items) {
  __shared__ __align__(16) float rows[kMostLaneFloats];
  const ItemPlace at = items.mine<1>(0);
  const auto lanes = static_cast<int>(items.per_row.divisor);
  const bool has_elements = at.exists && at.item < c.steps.num_vectors();
  // Weights are constants of the model.
  float w[kVector] = {};
  float b[kVector] = {};
  if (has_elements) {
    load_weights(c.norm_w, c.norm_format, kVector * at.item, w);
    load_weights(c.norm_b, c.norm_format, kVector * at.item, b);
  }
  let_next_start();
  wait_for_previous();
  const int64_t t = at.exists ? at.row : 0;
  float x[kVector] = {};
  if (has_elements) load8(c.k.at<const A>(t, 0) + kVector * at.item, x);
  const float* angles = at.exists ? c.table.row<float>(t) : nullptr;
  float* row = rows + static_cast<int>(threadIdx.x) / lanes * (kVector * lanes + kRowPad);
  store8(row + kVector * at.item, x);
  __syncwarp();
  if (at.exists) {
    const RowMoments moments(row, c.steps.D, c.eps);
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      x[i] = has_elements ? rounded<A>(moments.normed(x[i], w[i], b[i])) : 0.0f;
  }
  rotate_lanes<A>(c.steps, angles, at.item, x);
  transform_row_lanes<A>(c.steps, x);
  bool writes = angles != nullptr;
  int64_t page = 0;
  int64_t offset = 0;
  if (writes) {
    const KeySlot slot(c, t);
    writes = slot.exists;
    page = slot.page;
    offset = slot.offset;
  }
  const float scale =
      store_lanes<Out>(at.item, lanes, has_elements && writes, x, c.values.at<void>(page, offset),
                       c.scales.at<Ue8m0>(page, offset));
  if (std::is_same_v<Out, E4m3> && writes && at.item == 0)
    *c.scales.at<float>(page, offset) = scale;
}

template <class A>
__global__ void __launch_bounds__(kAnyThreads) write_key_any(const __grid_constant__ Keys c) {
  __shared__ float rows[kRowWarpsOfBlock][kMaxIndexWidth];
  let_next_start();
  wait_for_previous();
  const int64_t t = row_of_warp();
  if (t >= c.T) return;
  const float* angles = c.table.row<float>(t);
  const KeySlot slot(c, t);
  if (angles == nullptr || !slot.exists) return;
  float* x = rows[warp_id()];
  for (int i = lane_id(); i < c.steps.D; i += 32)
    x[i] = load(c.k.at<const A>(t, 0) + i);
  __syncwarp();
  const RowMoments moments(x, c.steps.D, c.eps);
  __syncwarp();
  for (int i = lane_id(); i < c.steps.D; i += 32) {
    const float w = load_any(c.norm_w, c.norm_format, i);
    const float b = load_any(c.norm_b, c.norm_format, i);
    x[i] = rounded<A>(moments.normed(x[i], w, b));
  }
  __syncwarp();
  rotate_in_warp<A>(c.steps, angles, x);
  transform_in_warp<A>(c.steps, x);
  const float scale =
      store_in_warp(c.steps, c.out_format, x, c.values.at<void>(slot.page, slot.offset),
                    c.scales.at<Ue8m0>(slot.page, slot.offset));
  if (c.out_format == Format::kE4m3 && lane_id() == 0)
    *c.scales.at<float>(slot.page, slot.offset) = scale;
}

Status run_key_lanes(Exec& ex, const IndexKeyWrite::Args& a) {
  const FlatItems items = flat_items(a.k.dim(0), lanes_of_row(a.k.dim(1)));
  return with_activation_type(a.k.format, [&]<class A>(A) {
    return with_stored_type(a.values.format, [&]<class Out>(Out) {
      return launch_kernel(ex, write_key_lanes<A, Out>, one_item_each(items), keys_of(a), items);
    });
  });
}

Status run_key_any(Exec& ex, const IndexKeyWrite::Args& a) {
  return with_activation_type(a.k.format, [&]<class A>(A) {
    return launch_kernel(ex, write_key_any<A>, warp_each(a.k.dim(0)), keys_of(a));
  });
}

bool key_fits_lanes(const IndexKeyWrite::Args& a) {
  return fits_lanes(steps_of(a)) && takes_vectors(a.k) && takes_vectors(a.norm_w) &&
         takes_vectors(a.norm_b) && takes_vectors(a.table) && takes_vectors(a.values);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<IndexQuery> index_query_cuda{
    {"vectors", sm(90), "", kTraits, run_query_lanes, MathUnit::kF32, query_fits_lanes},
    {"any_layout", sm(90), "", kTraits, run_query_any},
};

constinit const VariantTable<IndexKeyWrite> index_key_write_cuda{
    {"vectors", sm(90), "", kTraits, run_key_lanes, MathUnit::kF32, key_fits_lanes},
    {"any_layout", sm(90), "", kTraits, run_key_any},
};

}  // namespace fathom

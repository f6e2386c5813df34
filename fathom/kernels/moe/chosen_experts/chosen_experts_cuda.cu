// A warp an output at a time. Whole pieces of matrix rows come by bulk copies of the copy engine
// into a ring of shared memory of the warp's own; warps stay, and the pieces of their next rows are
// on their way while they finish one, so memory never waits for the end of a row. The shared expert
// of the first token comes first: it does not depend on the choice, so its copies begin before the
// kernel before is done. Every step of a warp runs the same short code, which lies cold in memory
// when a decode step comes back to it.
//
//   gate_up  a step is a piece of a gate row and the same of its up row
//   down     a step is a piece of one row of one matrix; the matrices of a token follow each other
#include <algorithm>

#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/cuda/tensor_map.cuh"
#include "fathom/kernels/moe/chosen_experts/chosen_experts.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

constexpr int kWarps = 8;  // of a block
constexpr int kBlocksOfSm = 2;
constexpr int kLaneStep = 32 * kVector;    // k that a warp multiplies at once
constexpr int kSlotBytes = 4096;           // of a step
constexpr int kPiece = kSlotBytes / 2;     // bf16 of one row in a step
constexpr int kPieceOfTwo = kPiece / 2;    // of each of two rows
constexpr int kMostSlots = 3;              // of a warp
constexpr int64_t kMostBytes = 112 << 10;  // of shared memory of a block: two have room
constexpr int kRingAt = 256;               // bytes of barriers before it
static_assert(kRingAt >= kWarps * kMostSlots * 8);
static_assert(kRingAt % 128 == 0, "copies to other places were measured slower");

/// The call without formats. Matrices are bf16, x and y too.
struct Call {
  const Bf16* x;
  int64_t x_row;
  const Bf16* experts;
  int64_t matrix;  ///< elements from matrix to matrix
  int64_t row;     ///< elements from row to row
  const int32_t* ids;
  int64_t ids_row;
  const float* weights;  ///< down alone
  int64_t weights_row;
  const Bf16* shared;
  int64_t shared_row;
  Bf16* y;
  int64_t y_row;
  int E;
  int T;
  int K;            ///< chosen experts of a token
  int x_width;      ///< columns of x
  int slots;        ///< of a warp
  int own_outputs;  ///< of an expert. gate_up: I; down: N
  int own_k;        ///< gate_up: H; down: I
  int shared_outputs;
  int shared_k;  ///< 0: there is no shared expert

  __device__ int expert(int t, int k) const {
    const int id = ids[t * ids_row + k];
    return id < E ? id : -1;
  }
};

__device__ __forceinline__ float silu(float g) {
  return g / (1.0f + __expf(-g));
}

/// A step: `count` elements of one row, or of two.
struct Step {
  const Bf16* a = nullptr;  ///< null: of a matrix that nobody chose
  const Bf16* b = nullptr;  ///< null: there is one row
  int count = 0;
};

/// Where a warp is in the outputs of gate_up: tokens, their matrices (-1 is the shared expert, k
/// the k-th chosen), outputs of a matrix. Steps without division.
class GateUpPlace {
 public:
  __device__ GateUpPlace(const Call& call, int warp, int warps)
      : c_(call), warps_(warps), part_(first_part()), i_(warp) {
    settle();
  }

  __device__ __forceinline__ bool more() const { return t_ < c_.T; }

  /// Whether the step depends on nothing that the kernel before writes.
  __device__ __forceinline__ bool is_known() const { return part_ < 0 && t_ == 0; }

  __device__ __forceinline__ int count() const { return min(kPieceOfTwo, c_.own_k - k_); }

  __device__ Step step() const {
    const bool shared = part_ < 0;
    const int e = shared ? 0 : c_.expert(t_, part_);
    if (e < 0) return {};
    const Bf16* first = shared ? c_.shared : c_.experts + e * c_.matrix;
    const int64_t row = shared ? c_.shared_row : c_.row;
    const Bf16* gate = first + i_ * row + k_;
    return {gate, gate + outputs() * row, count()};
  }

  /// Goes a step on; says whether that ends an output.
  __device__ __forceinline__ bool next() {
    k_ += kPieceOfTwo;
    if (k_ < c_.own_k) return false;
    k_ = 0;
    i_ += warps_;
    settle();
    return true;
  }

 protected:
  __device__ __forceinline__ int first_part() const { return c_.shared_k > 0 ? -1 : 0; }

  __device__ __forceinline__ int outputs() const {
    return part_ < 0 ? c_.shared_outputs : c_.own_outputs;
  }

  __device__ __forceinline__ int column() const {
    return (part_ < 0 ? c_.K : part_) * c_.own_outputs + i_;
  }

  __device__ void settle() {
    while (more() && i_ >= outputs()) {
      i_ -= outputs();
      if (++part_ < c_.K) continue;
      part_ = first_part();
      ++t_;
    }
  }

  const Call& c_;
  int warps_;
  int part_;
  int i_;
  int t_ = 0;
  int k_ = 0;
};

/// What the steps of gate_up add up to. `x` is [T, x_width] in shared memory.
class GateUpSums : GateUpPlace {
 public:
  using Place = GateUpPlace;

  __device__ GateUpSums(const Call& call, int warp, int warps, const Bf16* x)
      : GateUpPlace(call, warp, warps), x_(x) {}

  using GateUpPlace::more;

  /// Multiplies the step that lies at `rows`.
  __device__ __forceinline__ void add(const Bf16* rows) {
    const Bf16* x = x_ + t_ * c_.x_width + k_;
    for (int k = lane_id() * kVector; k < count(); k += kLaneStep) {
      const uint4 v = *reinterpret_cast<const uint4*>(x + k);
      gate_ = add_products(*reinterpret_cast<const uint4*>(rows + k), v, gate_);
      up_ = add_products(*reinterpret_cast<const uint4*>(rows + kPieceOfTwo + k), v, up_);
    }
    const int t = t_;
    const int to = column();
    const bool empty = part_ >= 0 && c_.expert(t_, part_) < 0;
    if (!next()) return;
    const float gate = combine_lanes(gate_, Add());
    const float up = combine_lanes(up_, Add());
    if (lane_id() == 0) store(c_.y + t * c_.y_row + to, empty ? 0.0f : silu(gate) * up);
    gate_ = up_ = 0.0f;
  }

 private:
  const Bf16* x_;
  float gate_ = 0.0f;
  float up_ = 0.0f;
};

/// Where a warp is in the outputs of down: tokens, their outputs, the matrices of an output.
class DownPlace {
 public:
  __device__ DownPlace(const Call& call, int warp, int warps)
      : c_(call), warps_(warps), part_(first_part()), n_(warp) {
    settle();
  }

  __device__ __forceinline__ bool more() const { return t_ < c_.T; }

  __device__ __forceinline__ bool is_known() const { return part_ < 0 && t_ == 0; }

  __device__ __forceinline__ int count() const { return min(kPiece, width() - k_); }

  __device__ Step step() const {
    const bool shared = part_ < 0;
    const int e = shared ? 0 : c_.expert(t_, part_);
    if (e < 0) return {};
    const Bf16* row =
        shared ? c_.shared + n_ * c_.shared_row : c_.experts + e * c_.matrix + n_ * c_.row;
    return {row + k_, nullptr, count()};
  }

  /// Goes a step on; says whether that ends a matrix.
  __device__ __forceinline__ bool next() {
    k_ += kPiece;
    if (k_ < width()) return false;
    k_ = 0;
    if (++part_ < c_.K) return true;
    part_ = first_part();
    n_ += warps_;
    settle();
    return true;
  }

 protected:
  __device__ __forceinline__ int first_part() const { return c_.shared_k > 0 ? -1 : 0; }

  __device__ __forceinline__ int width() const { return part_ < 0 ? c_.shared_k : c_.own_k; }

  __device__ void settle() {
    for (; more() && n_ >= c_.own_outputs; ++t_)
      n_ -= c_.own_outputs;
  }

  const Call& c_;
  int warps_;
  int part_;
  int n_;
  int t_ = 0;
  int k_ = 0;
};

/// What the steps of down add up to.
class DownSums : DownPlace {
 public:
  using Place = DownPlace;

  __device__ DownSums(const Call& call, int warp, int warps, const Bf16* x)
      : DownPlace(call, warp, warps), x_(x) {}

  using DownPlace::more;

  __device__ __forceinline__ void add(const Bf16* row) {
    const int part = part_;
    const bool empty = part >= 0 && c_.expert(t_, part) < 0;
    if (!empty) {
      const Bf16* x = x_ + t_ * c_.x_width + (part < 0 ? c_.K : part) * c_.own_k + k_;
      for (int k = lane_id() * kVector; k < count(); k += kLaneStep)
        sum_ = add_products(*reinterpret_cast<const uint4*>(row + k),
                            *reinterpret_cast<const uint4*>(x + k), sum_);
    }
    const int t = t_;
    const int n = n_;
    if (!next()) return;
    if (!empty)
      total_ = fmaf(part < 0 ? 1.0f : c_.weights[t * c_.weights_row + part], sum_, total_);
    sum_ = 0.0f;
    if (part + 1 < c_.K) return;
    const float total = combine_lanes(total_, Add());
    if (lane_id() == 0) store(c_.y + t * c_.y_row + n, total);
    total_ = 0.0f;
  }

 private:
  const Bf16* x_;
  float sum_ = 0.0f;    ///< of the matrix
  float total_ = 0.0f;  ///< of the output
};

/// The ring of a warp: slots of shared memory, a barrier each.
struct Ring {
  uint32_t barriers;
  uint32_t slots;
  uint64_t policy;

  /// Lane 0 asks for a step.
  __device__ __forceinline__ void start(int slot, const Step& s) const {
    if (lane_id() != 0) return;
    const uint32_t full = barriers + static_cast<uint32_t>(slot) * 8;
    const uint32_t to = slots + static_cast<uint32_t>(slot) * kSlotBytes;
    const auto bytes = static_cast<uint32_t>(s.count) * 2;
    barrier_expect(full, s.b != nullptr ? 2 * bytes : bytes);
    if (s.a != nullptr) copy_bytes(to, s.a, bytes, full, policy);
    if (s.b != nullptr) copy_bytes(to + kSlotBytes / 2, s.b, bytes, full, policy);
  }
};

__device__ __forceinline__ void bring_x(const Call& c, uint4* to) {
  const int vectors = c.x_width / kVector;
  for (int i = static_cast<int>(threadIdx.x); i < c.T * vectors; i += kWarps * 32) {
    const int t = i / vectors;
    to[i] = reinterpret_cast<const uint4*>(c.x + t * c.x_row)[i - t * vectors];
  }
  __syncthreads();
}

template <class Sums>
__global__ void __launch_bounds__(kWarps * 32, kBlocksOfSm)
    multiply_rows_of_experts(const __grid_constant__ Call c) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int warp = static_cast<int>(blockIdx.x) * kWarps + warp_id();
  const int warps = static_cast<int>(gridDim.x) * kWarps;
  const int ring_at = kRingAt + warp_id() * c.slots * kSlotBytes;
  const Ring ring{shared_address(shared) + static_cast<uint32_t>(warp_id() * kMostSlots * 8),
                  shared_address(shared + ring_at), weights_policy(c.T == 1)};
  if (lane_id() < c.slots) barrier_init(ring.barriers + static_cast<uint32_t>(lane_id()) * 8, 1);
  fence_barriers();
  __syncwarp();
  let_next_start();
  typename Sums::Place ahead(c, warp, warps);
  bool waits = true;
#pragma unroll 1
  for (int slot = 0; slot < c.slots && ahead.more(); ++slot) {
    if (waits && !ahead.is_known()) {
      wait_for_previous();
      waits = false;
    }
    ring.start(slot, ahead.step());
    ahead.next();
  }
  if (waits) wait_for_previous();
  auto* x = reinterpret_cast<uint4*>(shared + kRingAt + kWarps * c.slots * kSlotBytes);
  bring_x(c, x);
  Sums sums(c, warp, warps, reinterpret_cast<const Bf16*>(x));
  uint32_t parity = 0;
#pragma unroll 1
  for (int slot = 0; sums.more();) {
    barrier_wait(ring.barriers + static_cast<uint32_t>(slot) * 8, parity);
    sums.add(reinterpret_cast<const Bf16*>(shared + ring_at + slot * kSlotBytes));
    __syncwarp();
    if (ahead.more()) {
      ring.start(slot, ahead.step());
      ahead.next();
    }
    if (++slot < c.slots) continue;
    slot = 0;
    parity ^= 1;
  }
}

/// Whether rows are vectors of eight bf16 each.
bool lies_in_vectors(const View& v) {
  return !v.present() || (v.format == Format::kBf16 && takes_vectors(v) &&
                          v.dim(v.rank - 1) % kVector == 0 && v.dim(v.rank - 1) > 0);
}

/// Slots of a warp's ring that fit beside x; with one, a step is asked for when the last is done.
int ring_slots(const View& x) {
  const int64_t room = kMostBytes - kRingAt - x.numel() * element_bytes(x.format);
  return static_cast<int>(std::min<int64_t>(kMostSlots, room / (kWarps * kSlotBytes)));
}

bool fits(const View& x, const View& experts, const View& ids, const View& shared) {
  return lies_in_vectors(x) && lies_in_vectors(experts) && lies_in_vectors(shared) &&
         experts.numel() > 0 && ids.dim(1) > 0 && ring_slots(x) >= 1;
}

template <class Args>
Call call_of(const Args& a) {
  Call c{};
  c.x = a.x.template as<const Bf16>();
  c.x_row = a.x.stride(0);
  c.experts = a.experts.template as<const Bf16>();
  c.matrix = a.experts.stride(0);
  c.row = a.experts.stride(1);
  c.ids = a.ids.template as<const int32_t>();
  c.ids_row = a.ids.stride(0);
  c.y = a.y.template as<Bf16>();
  c.y_row = a.y.stride(0);
  c.E = static_cast<int>(a.experts.dim(0));
  c.T = static_cast<int>(a.x.dim(0));
  c.K = static_cast<int>(a.ids.dim(1));
  c.x_width = static_cast<int>(a.x.dim(1));
  c.own_k = static_cast<int>(a.experts.dim(2));
  c.slots = ring_slots(a.x);
  if (!a.shared.present()) return c;
  c.shared = a.shared.template as<const Bf16>();
  c.shared_row = a.shared.stride(0);
  c.shared_k = static_cast<int>(a.shared.dim(1));
  return c;
}

/// As many blocks as stay at once, or as there is work for.
LaunchShape shape_of(const Exec& ex, int64_t outputs, const View& x) {
  const int64_t blocks = (outputs + kWarps - 1) / kWarps;
  return {.blocks = std::min<int64_t>(blocks, int64_t{kBlocksOfSm} * ex.device->num_sms),
          .threads = kWarps * 32,
          .shared_bytes =
              kRingAt + ring_slots(x) * kWarps * kSlotBytes + x.numel() * element_bytes(x.format)};
}

bool gate_up_fits(const ChosenExpertsGateUp::Args& a) {
  return fits(a.x, a.experts, a.ids, a.shared);
}

Status gate_up_warp_per_row(Exec& ex, const ChosenExpertsGateUp::Args& a) {
  Call c = call_of(a);
  c.own_outputs = static_cast<int>(a.experts.dim(1) / 2);
  c.shared_outputs = a.shared.present() ? static_cast<int>(a.shared.dim(0) / 2) : 0;
  return launch_kernel(ex, multiply_rows_of_experts<GateUpSums>, shape_of(ex, a.y.numel(), a.x), c);
}

bool down_fits(const ChosenExpertsDown::Args& a) {
  return fits(a.x, a.experts, a.ids, a.shared);
}

Status down_warp_per_row(Exec& ex, const ChosenExpertsDown::Args& a) {
  Call c = call_of(a);
  c.weights = a.weights.as<const float>();
  c.weights_row = a.weights.stride(0);
  c.own_outputs = static_cast<int>(a.experts.dim(1));
  return launch_kernel(ex, multiply_rows_of_experts<DownSums>, shape_of(ex, a.y.numel(), a.x), c);
}

// ---- any format and alignment: a warp an output, element by element ----

struct AnyCall {
  AnyRows x, shared, y;
  AnyRows experts;  ///< rows of matrices
  int64_t matrix;   ///< elements from matrix to matrix
  Rows<const int32_t> ids;
  Rows<const float> weights;
  int64_t T, K, E;
  int64_t outputs;  ///< columns of y
  int64_t own;      ///< gate_up: I; down: the width of an expert's part of x
  int64_t H;        ///< gate_up: columns of x; down: those of the shared expert's part

  __device__ int64_t expert(int64_t t, int64_t k) const {
    const int id = ids[t][k];
    return id < E ? id : -1;
  }
};

/// This lane's part of x[t, first ..] times `count` elements of a matrix from element `at` on.
__device__ float lane_products(
    const AnyCall& c, int64_t t, int64_t first, const AnyRows& w, int64_t at, int64_t count) {
  float sum = 0.0f;
  for (int64_t i = lane_id(); i < count; i += 32)
    sum = fmaf(c.x.load(t, first + i), load_any(w.data, w.format, at + i), sum);
  return sum;
}

__device__ float gate_up_output(const AnyCall& c, int64_t t, int64_t column) {
  const bool is_shared = column >= c.K * c.own;
  const int64_t e = is_shared ? 0 : c.expert(t, column / c.own);
  if (e < 0) return 0.0f;
  const AnyRows& w = is_shared ? c.shared : c.experts;
  const int64_t rows = is_shared ? c.outputs - c.K * c.own : c.own;
  const int64_t row = is_shared ? column - c.K * c.own : column % c.own;
  const int64_t at = (is_shared ? 0 : e * c.matrix) + row * w.stride;
  const float gate = combine_lanes(lane_products(c, t, 0, w, at, c.H), Add());
  const float up = combine_lanes(lane_products(c, t, 0, w, at + rows * w.stride, c.H), Add());
  return silu(gate) * up;
}

__device__ float down_output(const AnyCall& c, int64_t t, int64_t n) {
  float total = c.shared.data == nullptr
                    ? 0.0f
                    : lane_products(c, t, c.K * c.own, c.shared, n * c.shared.stride, c.H);
  for (int64_t k = 0; k < c.K; ++k) {
    const int64_t e = c.expert(t, k);
    if (e < 0) continue;
    const int64_t at = e * c.matrix + n * c.experts.stride;
    total = fmaf(c.weights[t][k], lane_products(c, t, k * c.own, c.experts, at, c.own), total);
  }
  return combine_lanes(total, Add());
}

template <auto kOutput>
__global__ void __launch_bounds__(kWarps * 32) each_output(const __grid_constant__ AnyCall c) {
  let_next_start();
  wait_for_previous();
  const int64_t item = int64_t{blockIdx.x} * kWarps + warp_id();
  if (item >= c.T * c.outputs) return;
  const int64_t t = item / c.outputs;
  const int64_t column = item - t * c.outputs;
  const float value = kOutput(c, t, column);
  if (lane_id() == 0) c.y.store(t, column, value);
}

template <class Args>
AnyCall any_call_of(const Args& a) {
  return {.x = any_rows(a.x),
          .shared = any_rows(a.shared),
          .y = any_rows(a.y),
          .experts = {a.experts.data, a.experts.stride(1), a.experts.format},
          .matrix = a.experts.stride(0),
          .ids = rows_of<const int32_t>(a.ids),
          .weights = {},
          .T = a.x.dim(0),
          .K = a.ids.dim(1),
          .E = a.experts.dim(0),
          .outputs = a.y.dim(1),
          .own = 0,
          .H = 0};
}

LaunchShape each_shape(const View& y) {
  return {.blocks = (y.numel() + kWarps - 1) / kWarps, .threads = kWarps * 32};
}

Status gate_up_any_layout(Exec& ex, const ChosenExpertsGateUp::Args& a) {
  AnyCall c = any_call_of(a);
  c.own = a.experts.dim(1) / 2;
  c.H = a.x.dim(1);
  return launch_kernel(ex, each_output<gate_up_output>, each_shape(a.y), c);
}

Status down_any_layout(Exec& ex, const ChosenExpertsDown::Args& a) {
  AnyCall c = any_call_of(a);
  c.weights = rows_of<const float>(a.weights);
  c.own = a.experts.dim(2);
  c.H = a.shared.present() ? a.shared.dim(1) : 0;
  return launch_kernel(ex, each_output<down_output>, each_shape(a.y), c);
}

/// More than a token or two are calls of other kernels.
constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe | kSomeRowCounts;

}  // namespace

constinit const VariantTable<ChosenExpertsGateUp> chosen_experts_gate_up_cuda{
    {"warp_per_row", sm(90), "", kTraits, gate_up_warp_per_row, MathUnit::kF32, gate_up_fits},
    {"any_layout", sm(90), "", kTraits, gate_up_any_layout},
};

constinit const VariantTable<ChosenExpertsDown> chosen_experts_down_cuda{
    {"warp_per_row", sm(90), "", kTraits, down_warp_per_row, MathUnit::kF32, down_fits},
    {"any_layout", sm(90), "", kTraits, down_any_layout},
};

}  // namespace fathom

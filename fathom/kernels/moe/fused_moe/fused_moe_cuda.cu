// The layer of NVFP4 experts on the GPU: the kernels of this family, one after the other, with what
// lies between the two products in a kernel of its own. Activations in NVFP4 become bf16, which
// holds every code times its scale exactly, so that the products are those of weights alone.
#include <utility>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/moe/fused_moe/fused_moe.h"
#include "fathom/kernels/moe/fused_moe/layer_parts.h"
#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_experts.cuh"
#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_group_gemm.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

using Args = FusedMoeNvfp4::Args;

constexpr int kThreads = 256;
constexpr int64_t kChunkTokens = 2048;
constexpr int kGroup = 16;  ///< elements of a thread: a block of NVFP4

/// The memory of a call, cut from its workspace.
struct LayerBuffers {
  View ids, weights, offsets, src_row, dest, x, sums, act, out;
  int64_t bytes = 0;

  LayerBuffers(const Args& a, void* memory) {
    const int64_t tokens = a.logits.dim(0);
    const int64_t chunk = a.rows.present() ? tokens : std::min(tokens, kChunkTokens);
    const int64_t top_k = a.routing.top_k;
    const int64_t rows = chunk * top_k;
    const int64_t inner = a.w_down.cols();
    const Format wide = a.x.format == Format::kF32 ? Format::kF32 : Format::kBf16;
    const auto take = [&](std::initializer_list<int64_t> dims, Format format) {
      View v = make_view(nullptr, dims, format);
      v.data = memory == nullptr ? nullptr : static_cast<std::byte*>(memory) + bytes;
      v.on_device = true;
      bytes += (v.numel() * element_bytes(format) + 255) / 256 * 256;
      return v;
    };
    ids = take({tokens, top_k}, Format::kI32);
    weights = take({tokens, top_k}, Format::kF32);
    offsets = take({a.w_up.values.dim(0) + 1}, Format::kI32);
    src_row = take({rows}, Format::kI32);
    dest = take({chunk, top_k}, Format::kI32);
    x = take({rows, a.x.dim(1)}, wide);
    sums = take({rows, 2 * inner}, Format::kF32);
    act = take({rows, inner}, wide);
    out = take({rows, a.x.dim(1)}, Format::kF32);
  }
};

/// One number an expert, or what stands for it.
struct PerExpert {
  const float* data;
  float absent;

  PerExpert(const View& v, float none)
      : data(v.present() ? v.as<const float>() : nullptr), absent(none) {}

  __device__ float operator[](int e) const { return data == nullptr ? absent : data[e]; }
};

/// A row of bias an expert, or zeros.
struct ExpertBias {
  const void* data;
  Format format;
  int64_t stride;

  explicit ExpertBias(const View& v)
      : data(v.present() ? v.data : nullptr),
        format(v.format),
        stride(v.present() ? v.stride(0) : 0) {}

  __device__ float at(int e, int64_t i) const {
    return data == nullptr ? 0.0f : load_any(data, format, e * stride + i);
  }
};

__device__ int expert_of(const int32_t* offsets, int num_experts, int row) {
  int low = 0;
  int high = num_experts;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (offsets[middle] <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Ids of experts first .. first+count-1 as 0 .. count-1, -1 for all others; for kTopk the logits
/// of the chosen as their weights.
__global__ void __launch_bounds__(kThreads) localise_ids(Rows<int32_t> ids,
                                                         Rows<float> weights,
                                                         AnyRows logits,
                                                         bool take_logits,
                                                         float scaling,
                                                         int top_k,
                                                         int64_t count,
                                                         int64_t first,
                                                         int64_t experts) {
  let_next_start();
  wait_for_previous();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t t = i / top_k;
  const int64_t k = i - t * top_k;
  const int32_t id = ids[t][k];
  if (take_logits) weights[t][k] = logits.load(t, id) * scaling;
  const int64_t local = id - first;
  ids[t][k] = local >= 0 && local < experts ? static_cast<int32_t>(local) : -1;
}

/// Rows of x by expert, sixteen elements a thread; codes as what they stand for.
__global__ void __launch_bounds__(kThreads) gather_rows(AnyRows x,
                                                        Rows<const uint8_t> scales,
                                                        const int32_t* src_row,
                                                        AnyRows out,
                                                        int64_t groups,
                                                        int64_t count) {
  let_next_start();
  wait_for_previous();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t row = i / groups;
  const int64_t group = i - row * groups;
  const int64_t from = src_row[row];
  if (from < 0) return;
  if (x.format != Format::kNvfp4) {
    for (int64_t k = group * kGroup; k < (group + 1) * kGroup; ++k)
      out.store(row, k, x.load(from, k));
    return;
  }
  const float scale = load(reinterpret_cast<const E4m3*>(scales[from] + group));
  const auto* codes = static_cast<const uint8_t*>(x.data) + (from * x.stride + group * kGroup) / 2;
#pragma unroll
  for (int k = 0; k < kGroup; ++k) {
    const uint32_t byte = codes[k / 2];
    const auto code = static_cast<uint8_t>(k % 2 == 0 ? byte & 15u : byte >> 4);
    out.store(row, group * kGroup + k, to_float(E2m1{code}) * scale);
  }
}

/// What an expert does to the sums of its first product (layer_parts.h says it for the CPU).
struct Gated {
  bool geglu;
  bool quantised;
  PerExpert up_scale, gate_scale, alpha, beta, clamp;
  ExpertBias bias;

  __device__ float operator()(int e, float u, float g) const {
    if (geglu) {
      constexpr float kInverseRoot2 = 0.70710678f;
      return 0.5f * g * (1.0f + erff(g * kInverseRoot2)) * u;
    }
    const float limit = clamp[e];
    g = g > limit ? limit : g;  // in this order a NaN stays one
    u = u > limit ? limit : (u < -limit ? -limit : u);
    return __fdiv_rn(g, 1.0f + expf(-alpha[e] * g)) * (u + beta[e]);
  }
};

/// Sixteen values as NVFP4 with global scale 1 would give them back (formats/block/block_fp4.h).
__device__ void round_to_nvfp4(float (&h)[kGroup]) {
  float amax = 0.0f;
#pragma unroll
  for (float value : h)
    amax = fmaxf(amax, fabsf(value));  // drops NaN
  const float scale = rounded<E4m3>(__fmul_rn(amax, 1.0f / kE2m1Max));
  const float factor = scale == 0.0f ? 0.0f : __frcp_rn(scale);
#pragma unroll
  for (float& value : h)
    value = to_float(E2m1{static_cast<uint8_t>(e2m1_code(__fmul_rn(value, factor)))}) * scale;
}

__global__ void __launch_bounds__(kThreads) gate_sums(Gated gated,
                                                      Rows<const float> sums,
                                                      const int32_t* offsets,
                                                      int num_experts,
                                                      AnyRows out,
                                                      int64_t inner,
                                                      int64_t count) {
  let_next_start();
  wait_for_previous();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t groups = inner / kGroup;
  const int64_t row = i / groups;
  const int64_t first = (i - row * groups) * kGroup;
  if (i >= count || row >= offsets[num_experts]) return;
  const int e = expert_of(offsets, num_experts, static_cast<int>(row));
  const float up = gated.up_scale[e];
  const float gate = gated.gate_scale[e];
  float h[kGroup];
#pragma unroll
  for (int k = 0; k < kGroup; ++k) {
    const int64_t at = first + k;
    const float u = __fadd_rn(__fmul_rn(sums[row][at], up), gated.bias.at(e, at));
    const float g = __fadd_rn(__fmul_rn(sums[row][inner + at], gate), gated.bias.at(e, inner + at));
    h[k] = gated(e, u, g);
  }
  if (gated.quantised) round_to_nvfp4(h);
#pragma unroll
  for (int k = 0; k < kGroup; ++k)
    out.store(row, first + k, h[k]);
}

/// rows = rows * scale[e] + bias[e]; where `to` is there, rounded to it, with zeros behind the
/// last.
__global__ void __launch_bounds__(kThreads) finish_sums(PerExpert scale,
                                                        ExpertBias bias,
                                                        Rows<float> rows,
                                                        const int32_t* offsets,
                                                        int num_experts,
                                                        AnyRows to,
                                                        int64_t columns,
                                                        int64_t count) {
  let_next_start();
  wait_for_previous();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t row = i / columns;
  const int64_t column = i - row * columns;
  float value = 0.0f;
  if (row < offsets[num_experts]) {
    const int e = expert_of(offsets, num_experts, static_cast<int>(row));
    value = __fadd_rn(__fmul_rn(rows[row][column], scale[e]), bias.at(e, column));
    rows[row][column] = value;
  }
  if (to.data != nullptr) to.store(row, column, value);
}

__global__ void __launch_bounds__(kThreads) copy_slots(Rows<const int32_t> dest,
                                                       Rows<const float> weights,
                                                       Rows<int32_t> positions,
                                                       Rows<float> out,
                                                       int top_k,
                                                       int64_t count) {
  let_next_start();
  wait_for_previous();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t t = i / top_k;
  const int64_t k = i - t * top_k;
  positions[t][k] = dest[t][k];
  out[t][k] = weights[t][k];
}

LaunchShape shape_for(int64_t items) {
  return {.blocks = (items + kThreads - 1) / kThreads, .threads = kThreads};
}

View first_rows(View v, int64_t rows) {
  v.dims[0] = rows;
  return v;
}

ProductCall product_of_experts(const View& x,
                               const QuantView& w,
                               const View& offsets,
                               const View& y) {
  return product_of(Nvfp4GroupGemm::Args{.x = x, .w = w, .offsets = offsets, .y = y});
}

/// Tokens begin .. begin+count-1 of a call.
class Chunk {
 public:
  Chunk(Exec& ex, const Args& a, const LayerBuffers& m, int64_t begin, int64_t count)
      : ex_(ex), a_(a), m_(m), begin_(begin), tokens_(count), rows_(count * a.routing.top_k) {
    for (View* v : {&m_.src_row, &m_.x, &m_.sums, &m_.act, &m_.out})
      *v = first_rows(*v, rows_);
    m_.dest = first_rows(m_.dest, count);
  }

  Status run() {
    FATHOM_TRY(sort_rows(ex_, part(m_.ids), m_.offsets, m_.src_row, m_.dest));
    FATHOM_TRY(gather());
    FATHOM_TRY(run_nvfp4_experts(ex_, product_of_experts(m_.x, a_.w_up, m_.offsets, m_.sums)));
    FATHOM_TRY(gate());
    FATHOM_TRY(run_nvfp4_experts(ex_, product_of_experts(m_.act, a_.w_down, m_.offsets, m_.out)));
    if (a_.rows.present() || a_.down_scale.present() || a_.bias_down.present())
      FATHOM_TRY(finish());
    if (a_.rows.present()) return copy_routing();
    return sum_rows(ex_, m_.out, m_.dest, part(m_.weights), part(a_.y));
  }

 private:
  View part(const View& v) const { return slice_rows(v, begin_, tokens_); }

  Status gather() {
    const int64_t groups = a_.x.dim(1) / kGroup;
    AnyRows x = any_rows(a_.x);
    Rows<const uint8_t> scales{nullptr, 0};
    if (x.format == Format::kNvfp4) {
      x.data = static_cast<uint8_t*>(x.data) + begin_ * x.stride / 2;
      scales = {a_.x_scales.as<const uint8_t>() + begin_ * a_.x_scales.stride(0),
                a_.x_scales.stride(0)};
    } else {
      x = any_rows(part(a_.x));
    }
    return launch_kernel(ex_, gather_rows, shape_for(rows_ * groups), x, scales,
                         m_.src_row.as<const int32_t>(), any_rows(m_.x), groups, rows_ * groups);
  }

  Status gate() {
    const Gated gated{.geglu = a_.act == GatedActivation::kGeGlu,
                      .quantised = a_.x.format == Format::kNvfp4,
                      .up_scale = {a_.up_scale, 1.0f},
                      .gate_scale = {a_.gate_scale, 1.0f},
                      .alpha = {a_.alpha, 1.0f},
                      .beta = {a_.beta, 0.0f},
                      .clamp = {a_.clamp, INFINITY},
                      .bias = ExpertBias(a_.bias_up)};
    const int64_t inner = a_.w_down.cols();
    const int64_t count = rows_ * (inner / kGroup);
    return launch_kernel(ex_, gate_sums, shape_for(count), gated, rows_of<const float>(m_.sums),
                         m_.offsets.as<const int32_t>(), num_experts(), any_rows(m_.act), inner,
                         count);
  }

  Status finish() {
    const int64_t columns = a_.x.dim(1);
    const AnyRows to = a_.rows.present() ? any_rows(a_.rows) : AnyRows{nullptr, 0, Format::kF32};
    return launch_kernel(ex_, finish_sums, shape_for(rows_ * columns),
                         PerExpert(a_.down_scale, 1.0f), ExpertBias(a_.bias_down),
                         rows_of<float>(m_.out), m_.offsets.as<const int32_t>(), num_experts(), to,
                         columns, rows_ * columns);
  }

  Status copy_routing() {
    return launch_kernel(ex_, copy_slots, shape_for(rows_), rows_of<const int32_t>(m_.dest),
                         rows_of<const float>(m_.weights), rows_of<int32_t>(a_.positions),
                         rows_of<float>(a_.weights), a_.routing.top_k, rows_);
  }

  int num_experts() const { return static_cast<int>(a_.w_up.values.dim(0)); }

  Exec& ex_;
  const Args& a_;
  LayerBuffers m_;
  int64_t begin_;
  int64_t tokens_;
  int64_t rows_;
};

Status run_chunks(Exec& ex, const Args& a, const LayerBuffers& m) {
  MoeRouting routing = a.routing;
  const bool take_logits = routing.method == RoutingMethod::kTopk;
  if (take_logits) routing.method = RoutingMethod::kSoftmaxTopk;
  FATHOM_TRY(route_tokens(ex, a.logits, a.bias, routing, m.ids, m.weights));
  const int64_t slots = m.ids.numel();
  FATHOM_TRY(launch_kernel(ex, localise_ids, shape_for(slots), rows_of<int32_t>(m.ids),
                           rows_of<float>(m.weights), any_rows(a.logits), take_logits,
                           routing.scaling, routing.top_k, slots, routing.first_expert,
                           a.w_up.values.dim(0)));
  const int64_t tokens = a.logits.dim(0);
  const int64_t step = m.dest.dim(0);
  for (int64_t t = 0; t < tokens; t += step)
    FATHOM_TRY(Chunk(ex, a, m, t, std::min(step, tokens - t)).run());
  return {};
}

Status run_composed(Exec& ex, const Args& a) {
  if (a.logits.dim(0) == 0) return {};
  const LayerBuffers m(a, ex.workspace);
  void* const workspace = ex.workspace;
  Recorder* const recorder = std::exchange(ex.recorder, nullptr);  // one record, not ten
  const Pins* const pins = std::exchange(ex.pins, nullptr);
  Status status = run_chunks(ex, a, m);
  ex.recorder = recorder;
  ex.pins = pins;
  ex.workspace = workspace;
  return status;
}

int64_t composed_workspace(const Args& a, const Exec&) {
  return LayerBuffers(a, nullptr).bytes;
}

bool both_have_rows(const Args& a) {
  return has_rows(a.w_up) && has_rows(a.w_down);
}

constexpr uint32_t kTraits = kDeterministic | kGraphSafe;

}  // namespace

constinit const VariantTable<FusedMoeNvfp4> fused_moe_nvfp4_cuda{
    {"composed", sm(90), "El<=1024", kTraits, run_composed, MathUnit::kBf16, both_have_rows,
     composed_workspace},
};

}  // namespace fathom

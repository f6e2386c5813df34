#include "fathom/kernels/moe/fused_moe/fused_layer.h"

#include <algorithm>
#include <cmath>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/block/block_fp8.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/cpu/products/decoded_rows.h"
#include "fathom/kernels/moe/bf16_group_gemm/bf16_group_gemm.h"
#include "fathom/kernels/moe/fp8_group_gemm/fp8_group_gemm.h"
#include "fathom/kernels/moe/gate/gate.h"
#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_group_gemm.h"
#include "fathom/kernels/moe/permute/permute.h"

namespace fathom {
namespace {

/// Tokens at a time: enough that each expert's weights serve many rows, few enough that the rows of
/// a long prefill fit. Never shows in a result.
constexpr int64_t kChunkTokens = 512;

int64_t chunk_tokens(const FusedLayer& l) {
  // Rows that are wanted themselves are in the order of all tokens.
  return l.rows.present() ? l.tokens() : std::min(l.tokens(), kChunkTokens);
}

/// Rows of x or of the activation as they are moved: codes of 4 bits two in a byte.
View as_moved(const View& v) {
  View out = v;
  if (v.format == Format::kFp8Group) out.format = Format::kE4m3;
  if (v.format == Format::kNvfp4) {
    out.format = Format::kU8;
    out.dims[1] /= 2;
    out.strides[0] /= 2;
  }
  return out;
}

/// The memory of a call, cut from its workspace, as views that are null in a dry run.
struct LayerMemory {
  View ids, weights;            // [T,K]
  View offsets, src_row, dest;  // of a chunk
  View x, x_scales;             // its rows by expert
  View sums;                    // [R,2I] f32
  View act, act_scales;         // [R,I]
  View out;                     // [R,H] f32
  View ones;                    // [El] f32
  float* gated = nullptr;       // a row for each thread
  int64_t bytes = 0;

  LayerMemory(const FusedLayer& l, int num_threads, void* memory) {
    WorkspaceCut cut(memory);
    const int64_t K = l.routing.top_k;
    const int64_t C = chunk_tokens(l);
    const int64_t R = C * K;
    const int64_t I = l.intermediate();
    ids = take(cut, l.tokens(), K, Format::kI32);
    weights = take(cut, l.tokens(), K, Format::kF32);
    offsets = make_view(cut.take<int32_t>(l.experts() + 1), {l.experts() + 1}, Format::kI32);
    src_row = make_view(cut.take<int32_t>(R), {R}, Format::kI32);
    dest = take(cut, C, K, Format::kI32);
    x = take(cut, R, l.hidden(), l.x.format);
    sums = take(cut, R, 2 * I, Format::kF32);
    act = take(cut, R, I, l.x.format);
    out = take(cut, R, l.hidden(), Format::kF32);
    ones = make_view(cut.take<float>(l.experts()), {l.experts()}, Format::kF32);
    gated = cut.take<float>(num_threads * align_up<int64_t>(I, 16));
    if (l.x.format == Format::kFp8Group) {
      x_scales = take(cut, R, ceil_div(l.hidden(), kFp8Block), Format::kF32);
      act_scales = take(cut, R, ceil_div(I, kFp8Block), Format::kF32);
    } else if (l.x.format == Format::kNvfp4) {
      x_scales = take(cut, R, l.hidden() / kNvfp4Block, Format::kE4m3);
      act_scales = take(cut, R, I / kNvfp4Block, Format::kE4m3);
    }
    bytes = cut.bytes();
  }

 private:
  static View take(WorkspaceCut& cut, int64_t rows, int64_t cols, Format format) {
    View v = make_view(nullptr, {rows, cols}, format);
    v.data = cut.take<std::byte>(rows * value_bytes_for(format, 1, cols));
    return v;
  }
};

// ---- one product ----

struct Product {
  View x, x_scales;
  const QuantView& w;
  View alphas;  // of nvfp4 x
  View offsets, y;
  int64_t top_k;
};

Bf16GroupGemm::Args bf16_args(const Product& p) {
  return {.x = p.x, .w = p.w, .offsets = p.offsets, .y = p.y, .top_k = p.top_k};
}

Fp8GroupGemm::Args fp8_args(const Product& p) {
  return {
      .x = p.x, .w = p.w, .offsets = p.offsets, .y = p.y, .top_k = p.top_k, .x_scales = p.x_scales};
}

Nvfp4GroupGemm::Args nvfp4_args(const Product& p) {
  return {.x = p.x,
          .w = p.w,
          .offsets = p.offsets,
          .y = p.y,
          .top_k = p.top_k,
          .x_scales = p.x_scales,
          .alphas = p.alphas};
}

Status multiply(Exec& ex, Op op, const Product& p) {
  switch (p.w.format()) {
    case Format::kNvfp4:
      return launch<Nvfp4GroupGemm>(ex, op, nvfp4_args(p));
    case Format::kFp8Block:
    case Format::kFp8BlockUe8m0:
      return launch<Fp8GroupGemm>(ex, op, fp8_args(p));
    default:
      return launch<Bf16GroupGemm>(ex, op, bf16_args(p));
  }
}

int64_t product_scratch(const Product& p, int num_threads) {
  switch (p.w.format()) {
    case Format::kNvfp4:
      return Nvfp4GroupGemm::workspace(nvfp4_args(p), num_threads);
    case Format::kFp8Block:
    case Format::kFp8BlockUe8m0:
      return Fp8GroupGemm::workspace(fp8_args(p), num_threads);
    default:
      return Bf16GroupGemm::workspace(bf16_args(p), num_threads);
  }
}

Product up_product(const FusedLayer& l, const LayerMemory& m) {
  return {.x = m.x,
          .x_scales = m.x_scales,
          .w = l.w_up,
          .alphas = l.x.format == Format::kNvfp4 ? m.ones : View{},
          .offsets = m.offsets,
          .y = m.sums,
          .top_k = l.routing.top_k};
}

Product down_product(const FusedLayer& l, const LayerMemory& m) {
  Product p{.x = m.act,
            .x_scales = m.act_scales,
            .w = l.w_down,
            .alphas = {},
            .offsets = m.offsets,
            .y = m.out,
            .top_k = l.routing.top_k};
  if (l.x.format == Format::kNvfp4) p.alphas = m.ones;
  return p;
}

/// What the products take from the scratch memory, at most.
int64_t nested_bytes(const FusedLayer& l, const LayerMemory& m, int num_threads) {
  return align_up<int64_t>(std::max(product_scratch(up_product(l, m), num_threads),
                                    product_scratch(down_product(l, m), num_threads)),
                           Arena::kAlignment);
}

// ---- a chunk of tokens ----

/// Calls f(e, begin, end) for the rows of [begin, end) of each expert.
template <class F>
void for_experts(const View& offsets, int64_t begin, int64_t end, F&& f) {
  const auto* at = offsets.as<const int32_t>();
  for (int64_t e = 0; e + 1 < offsets.dim(0); ++e) {
    const int64_t first = std::max<int64_t>(begin, at[e]);
    const int64_t past = std::min<int64_t>(end, at[e + 1]);
    if (first < past) f(e, first, past);
  }
}

class Chunk {
 public:
  Chunk(Exec& ex, const FusedLayer& l, const LayerMemory& m, int64_t begin, int64_t tokens)
      : ex_(ex), l_(l), m_(m), begin_(begin), tokens_(tokens) {
    const int64_t R = tokens * l.routing.top_k;
    for (View* v : {&m_.src_row, &m_.x, &m_.x_scales, &m_.sums, &m_.act, &m_.act_scales, &m_.out})
      v->dims[0] = v->present() ? R : 0;
    m_.dest.dims[0] = tokens;
  }

  Status run() {
    FATHOM_TRY(gather());
    FATHOM_TRY(multiply(ex_, "gate_up_proj", up_product(l_, m_)));
    activate();
    FATHOM_TRY(multiply(ex_, "down_proj", down_product(l_, m_)));
    finish();
    return l_.rows.present() ? write_rows() : write_sums();
  }

 private:
  int64_t local_rows() const { return m_.offsets.as<const int32_t>()[l_.experts()]; }

  View of_chunk(const View& v) const { return slice_rows(v, begin_, tokens_); }

  Status gather() {
    FATHOM_TRY(sort_rows(ex_, of_chunk(m_.ids), m_.offsets, m_.src_row, m_.dest));
    FATHOM_TRY(launch<PermuteRows>(
        ex_, "shuffle_rows",
        {.x = of_chunk(as_moved(l_.x)), .src_row = m_.src_row, .y = as_moved(m_.x)}));
    if (l_.x.format == Format::kNvfp4) {
      View scales = l_.x_scales;
      View rows = m_.x_scales;
      scales.format = rows.format = Format::kU8;
      return launch<PermuteRows>(ex_, "shuffle_rows",
                                 {.x = of_chunk(scales), .src_row = m_.src_row, .y = rows});
    }
    if (l_.x.format == Format::kFp8Group) gather_scales();
    return {};
  }

  /// The scales of x may lie block-major, which PermuteRows does not take.
  void gather_scales() {
    const int64_t blocks = m_.x_scales.dim(1);
    const auto* src_row = m_.src_row.as<const int32_t>();
    for_rows(ex_, local_rows(), 8 * blocks, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* from =
            l_.x_scales.as<const float>() + (begin_ + src_row[r]) * l_.x_scales.stride(0);
        for (int64_t b = 0; b < blocks; ++b)
          m_.x_scales.row<float>(r)[b] = from[b * l_.x_scales.stride(1)];
      }
    });
  }

  void activate() {
    GatedRows gated = l_.gated;
    gated.sums = m_.sums;
    gated.out = m_.act;
    gated.scales = m_.act_scales;
    const int64_t I = l_.intermediate();
    for_rows_by_thread(ex_, local_rows(), 32 * I, [&](int thread, int64_t begin, int64_t end) {
      float* row = m_.gated + thread * align_up<int64_t>(I, 16);
      for_experts(m_.offsets, begin, end, [&](int64_t e, int64_t first, int64_t past) {
        gate_rows(gated, e, first, past, row);
      });
    });
  }

  void finish() {
    if (!l_.down_scale.present() && !l_.bias_down.present()) return;
    for_rows(ex_, local_rows(), 8 * l_.hidden(), [&](int64_t begin, int64_t end) {
      for_experts(m_.offsets, begin, end, [&](int64_t e, int64_t first, int64_t past) {
        finish_rows(m_.out, l_.down_scale, l_.bias_down, e, first, past);
      });
    });
  }

  Status write_sums() {
    return sum_rows(ex_, m_.out, m_.dest, of_chunk(m_.weights), of_chunk(l_.y));
  }

  /// Rows by expert, zeros behind them, and where each slot's row is.
  Status write_rows() {
    const int64_t H = l_.hidden();
    const int64_t used = local_rows();
    for_rows(ex_, l_.rows.dim(0), 8 * H, [&](int64_t begin, int64_t end) {
      with_activation_type(l_.rows.format, [&]<class T>(T) {
        for (int64_t r = begin; r < end; ++r) {
          for (int64_t h = 0; h < H; ++h)
            l_.rows.row<T>(r)[h] = from_float<T>(r < used ? m_.out.row<const float>(r)[h] : 0.0f);
        }
      });
    });
    for (int64_t t = 0; t < l_.tokens(); ++t) {
      std::copy_n(m_.dest.row<const int32_t>(t), m_.dest.dim(1), l_.positions.row<int32_t>(t));
      std::copy_n(m_.weights.row<const float>(t), m_.weights.dim(1), l_.weights.row<float>(t));
    }
    return {};
  }

  Exec& ex_;
  const FusedLayer& l_;
  LayerMemory m_;
  int64_t begin_;
  int64_t tokens_;
};

Status run_chunks(Exec& ex, const FusedLayer& l, const LayerMemory& m) {
  FATHOM_TRY(route_tokens(ex, l.logits, l.bias, l.routing, m.ids, m.weights));
  localize_experts(m.ids, l.routing.first_expert, l.experts());
  const int64_t step = chunk_tokens(l);
  for (int64_t t = 0; t < l.tokens(); t += step) {
    FATHOM_TRY(Chunk(ex, l, m, t, std::min(step, l.tokens() - t)).run());
  }
  return {};
}

/// Experts of this rank that some token is expected to choose.
double expected_experts(const FusedLayer& l) {
  const auto all = static_cast<double>(l.logits.dim(1));
  if (all == 0) return 0;
  const double missed = 1.0 - std::min(1.0, l.routing.top_k / all);
  return static_cast<double>(l.experts()) *
         (1.0 - std::pow(missed, static_cast<double>(l.tokens())));
}

}  // namespace

Cost layer_cost(const FusedLayer& l) {
  const double share = l.logits.dim(1) == 0 ? 0
                                            : static_cast<double>(l.experts()) /
                                                  static_cast<double>(l.logits.dim(1));
  const double slots = static_cast<double>(l.tokens()) * l.routing.top_k * share;
  return {.flops = 6.0 * slots * static_cast<double>(l.intermediate()) *
                   static_cast<double>(l.hidden())};
}

void layer_bytes(const FusedLayer& l, Cost& cost) {
  const int64_t expert = bytes_for(l.w_up.format(), l.w_up.rows(), l.w_up.cols()) +
                         bytes_for(l.w_down.format(), l.w_down.rows(), l.w_down.cols());
  cost.bytes_read = operand_bytes(l.logits) + operand_bytes(l.x) +
                    std::llround(expected_experts(l) * static_cast<double>(expert));
  for (const View* v : {&l.y, &l.rows, &l.weights, &l.positions})
    cost.bytes_written += v->present() ? operand_bytes(*v) : 0;
}

int64_t layer_workspace(const FusedLayer& l, int num_threads) {
  const LayerMemory m(l, num_threads, nullptr);
  return align_up<int64_t>(m.bytes, Arena::kAlignment) + nested_bytes(l, m, num_threads);
}

Status check_layer(const FusedLayer& l) {
  const int64_t E = l.logits.dim(1);
  const MoeRouting& r = l.routing;
  if (r.top_k < 1 || r.top_k > E) {
    return invalid_argument(str_cat("top_k is ", r.top_k, ", expected 1 to ", E));
  }
  if (r.first_expert < 0 || r.first_expert + l.experts() > E) {
    return invalid_argument(str_cat("experts ", r.first_expert, " to ",
                                    r.first_expert + l.experts() - 1, " are here, but there are ",
                                    E));
  }
  if (r.method != RoutingMethod::kDeepSeekV3) return {};
  const View ids = make_view(nullptr, {l.tokens(), r.top_k}, Format::kI32);
  return GroupedTopkGate::check({.logits = l.logits,
                                 .weights = ids,
                                 .ids = ids,
                                 .n_group = r.n_group,
                                 .topk_group = r.topk_group});
}

Status run_layer(Exec& ex, const FusedLayer& l) {
  const LayerMemory m(l, ex.num_threads, ex.workspace);
  std::fill_n(m.ones.as<float>(), m.ones.dim(0), 1.0f);
  // The kernels that this one is made of take their scratch memory as always; it is the end of the
  // workspace that launch() has taken for this one.
  const int64_t end = ex.scratch->mark();
  ex.scratch->release(end - nested_bytes(l, m, ex.num_threads));
  void* const workspace = ex.workspace;
  Recorder* const recorder = std::exchange(ex.recorder, nullptr);  // one record, not ten
  Status status = run_chunks(ex, l, m);
  ex.recorder = recorder;
  ex.workspace = workspace;
  return status;
}

}  // namespace fathom

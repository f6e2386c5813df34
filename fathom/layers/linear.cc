#include "fathom/layers/linear.h"

#include <algorithm>
#include <type_traits>

#include "fathom/base/checked_math.h"
#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/block/block_fp8.h"
#include "fathom/formats/layout/scale_layout.h"
#include "fathom/formats/layout/tile_layout.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/gemm/bf16_gemm/bf16_gemm.h"
#include "fathom/kernels/gemm/fp8_gemm/fp8_gemm.h"
#include "fathom/kernels/gemm/int8_gemm/int8_gemm.h"
#include "fathom/kernels/gemm/mxfp8_gemm/mxfp8_gemm.h"
#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_gemm.h"
#include "fathom/kernels/gemm/skinny_gemm/skinny_gemm.h"
#include "fathom/kernels/gemm/w4a8_gemm/w4a8_gemm.h"
#include "fathom/kernels/moe/bf16_group_gemm/bf16_group_gemm.h"
#include "fathom/kernels/moe/fp8_group_gemm/fp8_group_gemm.h"
#include "fathom/kernels/moe/mxfp8_group_gemm/mxfp8_group_gemm.h"
#include "fathom/kernels/moe/nvfp4_fp8_group_gemm/nvfp4_fp8_group_gemm.h"
#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_group_gemm.h"
#include "fathom/kernels/moe/w4a8_group_gemm/w4a8_group_gemm.h"
#include "fathom/kernels/quant/nvfp4_quant/nvfp4_quant.h"
#include "fathom/kernels/quant/token_quant/token_quant.h"
#include "fathom/layers/input_amax.h"

namespace fathom {
namespace {

// A kernel that takes activations as they are.
template <class K>
struct Plain {
  static constexpr const char* kName = K::kInfo.name.data();

  static typename K::Args args(const View& x, const LinearWeight& w, const View& y) {
    return {.x = x, .w = w.w, .y = y};
  }

  static Result<bool> run(
      Exec& ex, Op op, const View& x, const LinearWeight& w, const View& y, SelectionRow row) {
    const auto call = choose_if_taken<K>(ex, op, args(x, w, y), row);
    if (!call) return false;
    FATHOM_TRY(fathom::run(ex, *call));
    return true;
  }

  static std::string why(Exec& ex, Op op, const View& x, const LinearWeight& w, const View& y) {
    return why_not<K>(ex, op, args(x, w, y));
  }
};

// Activations as codes with a scale a token, and what QServe's zero points need besides.
struct TokenCodes {
  View codes;
  View scales;
  View sums;
};

typename Fp8Gemm::Args product_args(const Fp8Gemm*,
                                    const TokenCodes& x,
                                    const LinearWeight& w,
                                    const View& y) {
  return {.x = x.codes, .x_scales = x.scales, .w = w.w, .y = y};
}

typename Int8Gemm::Args product_args(const Int8Gemm*,
                                     const TokenCodes& x,
                                     const LinearWeight& w,
                                     const View& y) {
  return {.x = x.codes, .x_scales = x.scales, .w = w.w, .y = y};
}

typename W4a8GemmChannel::Args product_args(const W4a8GemmChannel*,
                                            const TokenCodes& x,
                                            const LinearWeight& w,
                                            const View& y) {
  return {.x = x.codes,
          .x_scales = x.scales,
          .x_sums = x.sums,
          .w = w.w.values,
          .w_scales = w.w.scales,
          .w_zeros = w.zeros,
          .y = y};
}

typename W4a8GemmGroup::Args product_args(const W4a8GemmGroup*,
                                          const TokenCodes& x,
                                          const LinearWeight& w,
                                          const View& y) {
  return {.x = x.codes,
          .x_scales = x.scales,
          .w = w.w.values,
          .group_scales = w.w.scales,
          .group_zeros = w.zeros,
          .w_scales = w.row_scales,
          .y = y};
}

// A kernel that takes 8-bit activations: they are quantised token by token first.
template <class K, Format kCodes, Format kScales>
struct Quantised {
  static constexpr const char* kName = K::kInfo.name.data();
  static constexpr bool kSums = std::is_same_v<K, W4a8GemmChannel>;

  // The kernel is chosen before anything is quantised.
  static Result<bool> run(
      Exec& ex, Op op, const View& x, const LinearWeight& w, const View& y, SelectionRow row) {
    ArenaScope temporary(*ex.activations);
    const int64_t T = x.dim(0);
    TokenCodes q;
    FATHOM_ASSIGN(q.codes, ex.activations->tensor({T, x.dim(1)}, kCodes, x.axes));
    FATHOM_ASSIGN(q.scales, ex.activations->tensor({T}, kScales, "T"));
    if (kSums) {
      FATHOM_ASSIGN(q.sums, ex.activations->tensor({T}, Format::kF16, "T"));
    }
    const auto call =
        choose_if_taken<K>(ex, op, product_args(static_cast<const K*>(nullptr), q, w, y), row);
    if (!call) return false;
    if constexpr (kCodes == Format::kE4m3) {
      FATHOM_TRY(launch<TokenQuantFp8>(ex, "input_quant", {.x = x, .q = q.codes, .s = q.scales}));
    } else {
      FATHOM_TRY(launch<TokenQuantInt8>(ex, "input_quant",
                                        {.x = x, .q = q.codes, .s = q.scales, .sums = q.sums}));
    }
    FATHOM_TRY(fathom::run(ex, *call));
    return true;
  }

  // Asked without data: of what the kernel would be handed.
  static std::string why(Exec& ex, Op op, const View& x, const LinearWeight& w, const View& y) {
    const int64_t T = x.dim(0);
    const TokenCodes q{.codes = make_view(nullptr, {T, x.dim(1)}, kCodes),
                       .scales = make_view(nullptr, {T}, kScales),
                       .sums = kSums ? make_view(nullptr, {T}, Format::kF16) : View{}};
    return why_not<K>(ex, op, product_args(static_cast<const K*>(nullptr), q, w, y));
  }
};

// The packed codes of nvfp4_quant as products know them.
View nvfp4_rows(const View& codes, const char* axes) {
  View x = codes;
  x.format = Format::kNvfp4;
  x.dims[1] *= 2;
  x.strides[0] *= 2;
  x.axes = axes;
  return x;
}

// Weights in NVFP4: activations as they are or, with input_gs, in NVFP4 too.
struct Nvfp4Product {
  static constexpr const char* kName = Nvfp4Gemm::kInfo.name.data();

  static Nvfp4Gemm::Args args(
      const View& codes, const View& scales, const View& x, const LinearWeight& w, const View& y) {
    return {.x = nvfp4_rows(codes, x.axes),
            .w = w.w,
            .y = y,
            .x_scales = scales,
            .alpha = w.input_scale};
  }

  // The product is chosen before anything is quantised.
  static Result<bool> run(
      Exec& ex, Op op, const View& x, const LinearWeight& w, const View& y, SelectionRow row) {
    if (!w.quantises_input()) return Plain<Nvfp4Gemm>::run(ex, op, x, w, y, row);
    ArenaScope temporary(*ex.activations);
    const int64_t T = x.dim(0);
    const int64_t K = x.dim(1);
    FATHOM_ASSIGN(const View codes, ex.activations->tensor({T, K / 2}, Format::kU8));
    FATHOM_ASSIGN(const View scales,
                  ex.activations->tensor({T, K / kNvfp4Block}, Format::kE4m3, "T,scales"));
    const auto call = choose_if_taken<Nvfp4Gemm>(ex, op, args(codes, scales, x, w, y), row);
    if (!call) return false;
    FATHOM_TRY(launch<Nvfp4Quant>(ex, "input_quant",
                                  {.x = x,
                                   .gs = w.input_gs,
                                   .q = codes,
                                   .scales = scales,
                                   .layout = Nvfp4ScaleLayout::kRowMajor}));
    FATHOM_TRY(fathom::run(ex, *call));
    return true;
  }

  static std::string why(Exec& ex, Op op, const View& x, const LinearWeight& w, const View& y) {
    if (!w.quantises_input()) return Plain<Nvfp4Gemm>::why(ex, op, x, w, y);
    const View codes = make_view(nullptr, {x.dim(0), x.dim(1) / 2}, Format::kU8);
    const View scales = make_view(nullptr, {x.dim(0), x.dim(1) / kNvfp4Block}, Format::kE4m3);
    return why_not<Nvfp4Gemm>(ex, op, args(codes, scales, x, w, y));
  }
};

// The same for experts, whose scales lie swizzled, those of each from a tile on.
Status quantised_group_linear(Exec& ex,
                              Op op,
                              const View& x,
                              const LinearWeight& w,
                              const ExpertRuns& runs,
                              const View& y,
                              int64_t top_k) {
  ArenaScope temporary(*ex.activations);
  Arena& arena = *ex.activations;
  const int64_t R = x.dim(0);
  const int64_t K = x.dim(1);
  const int64_t scale_columns = align_up<int64_t>(K / kNvfp4Block, kSwizzleColumns);
  FATHOM_ASSIGN(const View codes, arena.tensor({R, K / 2}, Format::kU8, "T*K,"));
  FATHOM_ASSIGN(const View scales,
                arena.tensor({swizzled_rows(R, w.w.values.dim(0)), scale_columns}, Format::kE4m3,
                             "slots,scales"));
  FATHOM_TRY(launch<Nvfp4QuantExperts>(ex, "input_quant",
                                       {.x = x,
                                        .gs = w.input_gs,
                                        .offsets = runs.offsets,
                                        .scale_offsets = runs.scale_offsets,
                                        .row_map = {},
                                        .q = codes,
                                        .scales = scales}));
  return launch<Nvfp4GroupGemm>(ex, op,
                                {.x = nvfp4_rows(codes, x.axes),
                                 .w = w.w,
                                 .offsets = runs.offsets,
                                 .y = y,
                                 .top_k = top_k,
                                 .x_scales = scales,
                                 .scale_offsets = runs.scale_offsets,
                                 .alphas = w.input_scale,
                                 .x_scale_layout = BlockScaleLayout::kSwizzled128x4});
}

template <class How>
constexpr LinearRow row(Format format, LinearUse use = LinearUse::kAny) {
  return {.format = format, .use = use, .kernel = How::kName, .run = How::run, .why_not = How::why};
}

constexpr LinearRow kLinearRows[] = {
    row<Plain<LatentDownGemm>>(Format::kBf16, LinearUse::kLatentDown),
    row<Plain<RouterGemm>>(Format::kBf16, LinearUse::kRouter),
    row<Plain<Bf16Gemm>>(Format::kBf16),
    row<Plain<Bf16Gemm>>(Format::kF32),
    row<Plain<Fp8BlockGemm>>(Format::kFp8Block),
    row<Plain<Fp8BlockGemm>>(Format::kFp8BlockUe8m0),
    row<Nvfp4Product>(Format::kNvfp4),
    row<Quantised<Fp8Gemm, Format::kE4m3, Format::kF32>>(Format::kFp8Channel),
    row<Quantised<Int8Gemm, Format::kI8, Format::kF32>>(Format::kInt8Channel),
    row<Quantised<W4a8GemmChannel, Format::kI8, Format::kF16>>(Format::kW4a8Channel),
    row<Quantised<W4a8GemmGroup, Format::kI8, Format::kF16>>(Format::kW4a8Group),
    row<Plain<Nvfp4Gemm>>(Format::kMxfp4),
    row<Plain<Mxfp8Gemm>>(Format::kMxfp8),
};

bool has_head_kernel(Format format) {
  return format == Format::kBf16 || format == Format::kF32 || is_fp8_block(format);
}

// Bytes of `v` from `bytes` on as a view of those dimensions.
View view_at(const View& v, int64_t bytes, std::initializer_list<int64_t> dims) {
  if (!v.present()) return {};
  void* data = v.data == nullptr ? nullptr : static_cast<std::byte*>(v.data) + bytes;
  View out = make_view(data, dims, v.format);
  out.on_device = v.on_device;
  return out;
}

// Group g of n rows of a matrix that stays as it lies. Tiles have their scales by row groups.
LinearWeight rows_of_group(const LinearWeight& w, int64_t g, int64_t n) {
  const Format format = w.w.format();
  const int64_t k = w.w.cols();
  const int64_t row = g * n;
  LinearWeight out = w;
  View& scales = out.w.scales;
  if (w.w.layout == WeightLayout::kRows16) {
    const int64_t tile = row / kTileRows;
    const int64_t tiles = n / kTileRows;
    out.w.values = view_at(w.w.values, tile * rows16_group_bytes(format, k), {n, k});
    const int64_t per_tile = rows16_group_scales(format, k);
    scales = view_at(w.w.scales, tile * per_tile * 4, {tiles, per_tile});
    if (rows16_has_global(format)) out.w.global = view_at(w.w.global, tile * 4, {tiles});
    return out;
  }
  out.w.values = view_at(w.w.values, row * value_bytes_for(format, 1, k), {n, k});
  if (!scales.present()) return out;
  const int64_t per_row = scales.rank == 2 ? scales.dim(1) : 1;
  const int64_t at = row / std::max(format_info(format).block_n, 1);
  const int64_t count = ceil_div<int64_t>(n, std::max(format_info(format).block_n, 1));
  const int64_t bytes = at * per_row * element_bytes(scales.format);
  scales = scales.rank == 2 ? view_at(w.w.scales, bytes, {count, per_row})
                            : view_at(w.w.scales, bytes, {count});
  return out;
}

// A matrix of all groups as one of each.
LinearWeight as_stack(const LinearWeight& w, int64_t groups, const char* axes) {
  LinearWeight out = w;
  const auto part = [&](const View& all) {
    return reshape(all, {groups, all.dim(0) / groups, all.dim(1)}, axes);
  };
  out.w.values = part(w.w.values);
  if (w.w.layout == WeightLayout::kRowMajor && w.w.scales.present())
    out.w.scales = part(w.w.scales);
  return out;
}

Status check_groups(Op op, const LinearWeight& w, int64_t n) {
  const bool tiles = w.w.layout == WeightLayout::kRows16;
  const int64_t step = tiles ? kTileRows : std::max(format_info(w.w.format()).block_n, 1);
  if (n % step == 0) return {};
  return unsupported(str_cat(op.name, ": groups of ", n, " rows of ", describe(w.w.values),
                             ", expected a multiple of ", step, " rows"));
}

// Head g of [T, G, K] as [T, K].
View head_of(const View& v, int64_t g) {
  View out = v;
  out.rank = 2;
  out.dims = {v.dim(0), v.dim(2)};
  out.strides = {v.stride(0), v.stride(2)};
  if (out.data != nullptr)
    out.data = static_cast<std::byte*>(v.data) + g * v.stride(1) * element_bytes(v.format);
  out.axes = nullptr;
  return out;
}

bool serves(const LinearRow& r, Format format, LinearUse use) {
  return r.format == format && (r.use == LinearUse::kAny || r.use == use);
}

// MXFP4 lies in tiles as NVFP4 does, exactly (formats/layout/tile_layout.h).
QuantView as_nvfp4(QuantView w) {
  if (w.layout == WeightLayout::kRows16) w.values.format = Format::kNvfp4;
  return w;
}

Status no_row(Op op, const char* what, const LinearWeight& w, const std::string& reason) {
  return unsupported(str_cat(op.name, ": no ", what, " takes weights ", describe(w.w.values),
                             reason.empty() ? "" : ": ", reason));
}

// A grouped product. With a gate false, and nothing ran, if the variant that takes the product
// alone does not take it.
template <class K>
Result<bool> run_grouped(Exec& ex, Op op, const typename K::Args& args, CallSite site) {
  if (!args.gate.on) {
    FATHOM_TRY(launch<K>(ex, op, args, {}, site));
    return true;
  }
  typename K::Args plain = args;
  plain.gate = {};
  plain.y = make_view(nullptr, {args.y.dim(0), args.w.rows()}, args.y.format);
  const auto gated = choose_if_taken<K>(ex, op, args, {}, site);
  const auto product = choose_if_taken<K>(ex, op, plain);
  if (!gated || !product || product->variant != gated->variant) return false;
  FATHOM_TRY(run(ex, *gated));
  return true;
}

// Those of weights whose products may have a gate: FP4 and FP8 blocks.
Result<bool> run_grouped_codes(Exec& ex,
                               Op op,
                               const View& x,
                               const QuantView& w,
                               const View& offsets,
                               const View& y,
                               int64_t top_k,
                               const View& x_scales,
                               const OutputGate& gate,
                               CallSite site = CallSite::here()) {
  if (is_fp8_block(w.format())) {
    return run_grouped<Fp8GroupGemm>(ex, op,
                                     {.x = x,
                                      .w = w,
                                      .offsets = offsets,
                                      .y = y,
                                      .top_k = top_k,
                                      .gate = gate,
                                      .x_scales = x_scales},
                                     site);
  }
  if (x_scales.present()) {
    return run_grouped<Nvfp4Fp8GroupGemm>(ex, op,
                                          {.x = x,
                                           .w = as_nvfp4(w),
                                           .offsets = offsets,
                                           .y = y,
                                           .top_k = top_k,
                                           .gate = gate,
                                           .x_scales = x_scales},
                                          site);
  }
  return run_grouped<Nvfp4GroupGemm>(
      ex, op, {.x = x, .w = w, .offsets = offsets, .y = y, .top_k = top_k, .gate = gate}, site);
}

}  // namespace

std::span<const LinearRow> linear_rows() {
  return kLinearRows;
}

Status linear(Exec& ex, Op op, const View& x, const LinearWeight& w, const View& y, LinearUse use) {
  if (w.input_amax.present() && !ex.dry()) note_input_amax(x, w.input_amax);
  SelectionRow row{.index = 0};
  for (const LinearRow& r : kLinearRows) {
    if (serves(r, w.w.format(), use)) {
      FATHOM_ASSIGN(const bool taken, r.run(ex, op, x, w, y, row));
      if (taken) return {};
    }
    ++row.index;
  }
  std::string reason;
  for (const LinearRow& r : kLinearRows) {
    if (serves(r, w.w.format(), use)) reason = r.why_not(ex, op, x, w, y);
  }
  return no_row(op, "linear kernel", w, reason);
}

Status linear_rows_of(Exec& ex,
                      Op op,
                      std::span<const Op> part_ops,
                      const View& x,
                      const RowsWeight& w,
                      const View& y,
                      LinearUse use) {
  if (w.num_parts == 1) return linear(ex, op, x, w.parts[0], y, use);
  int64_t column = 0;
  for (int i = 0; i < w.num_parts; ++i) {
    const int64_t rows = w.parts[i].w.rows();
    FATHOM_TRY(linear(ex, part_ops[static_cast<size_t>(i)], x, w.parts[i],
                      slice_cols(y, column, rows), use));
    column += rows;
  }
  return {};
}

LinearWeight shape_only_weight(Format format, int64_t n, int64_t k, Nvfp4Inputs inputs) {
  // As the loader would lay it out: asked of the plan that the loader follows.
  SymbolTable symbols;
  symbols.set("N", n);
  symbols.set("K", k);
  WeightPlan plan(symbols, [=](const WeightSpec&) -> Result<Format> { return format; });
  plan.set_nvfp4_inputs(inputs);
  LinearWeight out;
  const Status planned = plan.matrix("weight", "N,K", WeightRole::kMlp, &out);
  FATHOM_CHECK(planned.ok(), planned.message());
  plan.bind(nullptr);
  return out;
}

std::string explain_linear(Exec& ex,
                           Op op,
                           int64_t num_tokens,
                           const LinearWeight& w,
                           Format activations,
                           Format result,
                           LinearUse use) {
  const View x = make_view(nullptr, {num_tokens, w.w.cols()}, activations);
  const View y = make_view(nullptr, {num_tokens, w.w.rows()}, result);
  std::string out;
  bool chosen = false;
  int index = 0;
  for (const LinearRow& r : kLinearRows) {
    std::string verdict;
    if (r.format != w.w.format()) {
      verdict = str_cat("weights are ", format_name(w.w.format()));
    } else if (!serves(r, w.w.format(), use)) {
      verdict = "for another place in the model";
    } else if (chosen) {
      verdict = "an earlier row fits";
    } else if (verdict = r.why_not(ex, op, x, w, y); verdict.empty()) {
      verdict = "chosen";
      chosen = true;
    }
    str_append(out, str_cat("row ", index++, "  ", format_name(r.format), "  ", r.kernel, ": ",
                            verdict, "\n"));
  }
  return out;
}

bool takes_fp8_rows(Format weights) {
  return is_fp4(weights) || is_fp8_block(weights);
}

Status group_linear(Exec& ex,
                    Op op,
                    const View& x,
                    const LinearWeight& w,
                    const ExpertRuns& runs,
                    const View& y,
                    int64_t top_k,
                    const View& x_scales) {
  const Format format = w.w.format();
  if (x_scales.present() && !takes_fp8_rows(format))
    return no_row(op, "grouped kernel", w, "x is in fp8");
  if (w.input_amax.present() && !x_scales.present() && !ex.dry())
    note_expert_amax(x, runs.offsets, w.input_amax);
  if (w.quantises_input() && !x_scales.present())
    return quantised_group_linear(ex, op, x, w, runs, y, top_k);
  if (takes_fp8_rows(format))
    return run_grouped_codes(ex, op, x, w.w, runs.offsets, y, top_k, x_scales, {}).status();
  if (format == Format::kMxfp8) {
    return launch<Mxfp8GroupGemm>(
        ex, op, {.x = x, .w = w.w, .offsets = runs.offsets, .y = y, .top_k = top_k});
  }
  if (format == Format::kW4Fp8) {
    ArenaScope temporary(*ex.activations);
    FATHOM_ASSIGN(const View codes,
                  ex.activations->tensor({x.dim(0), x.dim(1)}, Format::kE4m3, x.axes));
    FATHOM_TRY(launch<TensorQuantFp8>(ex, "input_quant", {.x = x, .s = w.input_scale, .q = codes}));
    return launch<W4a8GroupGemm>(ex, op,
                                 {.x = codes,
                                  .x_scale = w.input_scale,
                                  .w = w.w,
                                  .offsets = runs.offsets,
                                  .y = y,
                                  .top_k = top_k});
  }
  if (format == Format::kBf16 || format == Format::kF32) {
    return launch<Bf16GroupGemm>(
        ex, op, {.x = x, .w = w.w, .offsets = runs.offsets, .y = y, .top_k = top_k});
  }
  return no_row(op, "grouped kernel", w, "");
}

Status group_linear_rows(Exec& ex,
                         Op op,
                         std::span<const Op> part_ops,
                         const View& x,
                         const RowsWeight& w,
                         const ExpertRuns& runs,
                         const View& y,
                         int64_t top_k,
                         const View& x_scales) {
  if (w.num_parts == 1) return group_linear(ex, op, x, w.parts[0], runs, y, top_k, x_scales);
  int64_t column = 0;
  for (int i = 0; i < w.num_parts; ++i) {
    const int64_t rows = w.parts[i].w.rows();
    FATHOM_TRY(group_linear(ex, part_ops[static_cast<size_t>(i)], x, w.parts[i], runs,
                            slice_cols(y, column, rows, "T*K,I"), top_k, x_scales));
    column += rows;
  }
  return {};
}

Result<bool> gated_group_linear(Exec& ex,
                                Op op,
                                const View& x,
                                const RowsWeight& w,
                                const ExpertRuns& runs,
                                const View& y,
                                int64_t top_k,
                                float limit,
                                const View& x_scales) {
  // On a CPU the pass between two products is short, and there the kernels of products have no
  // gate.
  const bool on_gpu = ex.kernels != nullptr && ex.kernels->backend() == Backend::kCuda;
  if (!on_gpu || w.num_parts != 1 || w.parts[0].quantises_input()) return false;
  const QuantView& weight = w.parts[0].w;
  if (!takes_fp8_rows(weight.format())) return false;
  return run_grouped_codes(ex, op, x, weight, runs.offsets, y, top_k, x_scales,
                           {.on = true, .limit = limit});
}

Status head_linear(Exec& ex, Op op, const View& x, const LinearWeight& w, const View& y) {
  if (is_fp8_block(w.w.format())) return launch<Fp8BlockBmm>(ex, op, {.x = x, .w = w.w, .y = y});
  return launch<Bf16Bmm>(ex, op, {.x = x, .w = w.w, .y = y});
}

Status group_rows_linear(
    Exec& ex, Op op, const View& x, const LinearWeight& w, const char* stack_axes, const View& y) {
  const int64_t groups = x.dim(1);
  const int64_t n = w.w.rows() / groups;
  FATHOM_TRY(check_groups(op, w, n));
  if (has_head_kernel(w.w.format()))
    return head_linear(ex, op, x, as_stack(w, groups, stack_axes), y);
  for (int64_t g = 0; g < groups; ++g)
    FATHOM_TRY(linear(ex, op, head_of(x, g), rows_of_group(w, g, n), head_of(y, g)));
  return {};
}

}  // namespace fathom

#include "fathom/base/checked_math.h"
#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/block/block_fp8.h"
#include "fathom/kernels/gemm/gemm_shape.h"
#include "fathom/kernels/moe/fused_moe/fused_layer.h"
#include "fathom/kernels/moe/fused_moe/fused_moe.h"

namespace fathom {
namespace {

FusedLayer layer_of(const FusedMoeBf16::Args& a) {
  return {.logits = a.logits,
          .bias = a.bias,
          .x = a.x,
          .x_scales = {},
          .w_up = a.w_up,
          .w_down = a.w_down,
          .y = a.y,
          .routing = a.routing,
          .gated = {.act = a.act, .sums = {}, .out = {}}};
}

FusedLayer layer_of(const FusedMoeFp8Block::Args& a) {
  return {.logits = a.logits,
          .bias = a.bias,
          .x = a.x,
          .x_scales = a.x_scales,
          .w_up = a.w_up,
          .w_down = a.w_down,
          .y = a.y,
          .routing = a.routing,
          .gated = {.act = a.act, .sums = {}, .out = {}}};
}

FusedLayer layer_of(const FusedMoeNvfp4::Args& a) {
  return {.logits = a.logits,
          .bias = a.bias,
          .x = a.x,
          .x_scales = a.x_scales,
          .w_up = a.w_up,
          .w_down = a.w_down,
          .y = a.y,
          .routing = a.routing,
          .gated = {.act = a.act,
                    .up_scale = a.up_scale,
                    .gate_scale = a.gate_scale,
                    .bias_up = a.bias_up,
                    .alpha = a.alpha,
                    .beta = a.beta,
                    .clamp = a.clamp,
                    .sums = {},
                    .out = {}},
          .down_scale = a.down_scale,
          .bias_down = a.bias_down,
          .rows = a.rows,
          .weights = a.weights,
          .positions = a.positions};
}

template <class Args>
Status run(Exec& ex, const Args& a) {
  return run_layer(ex, layer_of(a));
}

Status check_x_scales(
    const View& x, const View& scales, Format codes, Format format, int64_t block) {
  if (x.format != codes) {
    if (!scales.present()) return {};
    return invalid_argument(str_cat("x_scales is ", describe(scales), " but x is ",
                                    format_name(x.format), ", which has none"));
  }
  const int64_t blocks = ceil_div(x.dim(1), block);
  if (scales.format == format && scales.rank == 2 && scales.dim(0) == x.dim(0) &&
      scales.dim(1) == blocks)
    return {};
  return invalid_argument(str_cat("x_scales is ", describe(scales), ", expected [", x.dim(0), ", ",
                                  blocks, "] ", format_name(format), " for x of ",
                                  format_name(codes)));
}

/// alpha, beta and clamp, which are no operands of the signature.
Status check_per_expert(std::string_view name, const View& v, int64_t experts) {
  if (!v.present() || (v.format == Format::kF32 && v.numel() == experts && v.contiguous()))
    return {};
  return invalid_argument(
      str_cat(name, " is ", describe(v), ", expected ", experts, " f32, one an expert"));
}

/// Either y, or all of rows, weights and positions.
Status check_results(const FusedMoeNvfp4::Args& a) {
  const bool parts = a.rows.present() && a.weights.present() && a.positions.present();
  const bool none = !a.rows.present() && !a.weights.present() && !a.positions.present();
  if (a.y.present() ? !none : !parts) {
    return invalid_argument("expected y, or rows, weights and positions in its place");
  }
  if (a.y.present()) return {};
  const int64_t slots = a.logits.dim(0) * a.routing.top_k;
  if (a.rows.dim(0) == slots && a.weights.dim(1) == a.routing.top_k) return {};
  return invalid_argument(str_cat("rows is ", describe(a.rows), " and weights ",
                                  describe(a.weights), ", expected ", slots, " rows and top_k ",
                                  a.routing.top_k));
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

Cost FusedMoeBf16::cost(const Args& a) {
  return layer_cost(layer_of(a));
}

void FusedMoeBf16::bytes(const Args& a, Cost& cost) {
  layer_bytes(layer_of(a), cost);
}

int64_t FusedMoeBf16::workspace(const Args& a, int num_threads) {
  return layer_workspace(layer_of(a), num_threads);
}

Status FusedMoeBf16::check(const Args& a) {
  FATHOM_TRY(check_weight(a.w_up));
  FATHOM_TRY(check_weight(a.w_down));
  return check_layer(layer_of(a));
}

Cost FusedMoeFp8Block::cost(const Args& a) {
  return layer_cost(layer_of(a));
}

void FusedMoeFp8Block::bytes(const Args& a, Cost& cost) {
  layer_bytes(layer_of(a), cost);
}

int64_t FusedMoeFp8Block::workspace(const Args& a, int num_threads) {
  return layer_workspace(layer_of(a), num_threads);
}

Status FusedMoeFp8Block::check(const Args& a) {
  FATHOM_TRY(check_weight(a.w_up));
  FATHOM_TRY(check_weight(a.w_down));
  FATHOM_TRY(check_x_scales(a.x, a.x_scales, Format::kFp8Group, Format::kF32, kFp8Block));
  return check_layer(layer_of(a));
}

Cost FusedMoeNvfp4::cost(const Args& a) {
  return layer_cost(layer_of(a));
}

void FusedMoeNvfp4::bytes(const Args& a, Cost& cost) {
  layer_bytes(layer_of(a), cost);
}

int64_t FusedMoeNvfp4::workspace(const Args& a, int num_threads) {
  return layer_workspace(layer_of(a), num_threads);
}

Status FusedMoeNvfp4::check(const Args& a) {
  const bool codes = a.x.format == Format::kNvfp4;
  const auto global = codes ? GlobalScale::kOptional : GlobalScale::kNeeded;
  FATHOM_TRY(check_weight(a.w_up, global));
  FATHOM_TRY(check_weight(a.w_down, global));
  if (a.w_down.cols() % kNvfp4Block != 0 || a.x.dim(1) % kNvfp4Block != 0) {
    return invalid_argument(str_cat("x has ", a.x.dim(1), " columns and w_down ", a.w_down.cols(),
                                    ", expected multiples of 16"));
  }
  FATHOM_TRY(check_x_scales(a.x, a.x_scales, Format::kNvfp4, Format::kE4m3, kNvfp4Block));
  FATHOM_TRY(check_per_expert("alpha", a.alpha, a.w_up.values.dim(0)));
  FATHOM_TRY(check_per_expert("beta", a.beta, a.w_up.values.dim(0)));
  FATHOM_TRY(check_per_expert("clamp", a.clamp, a.w_up.values.dim(0)));
  FATHOM_TRY(check_results(a));
  return check_layer(layer_of(a));
}

// One row each: the parts are picked by their own tables, for this machine and these formats.
constinit const VariantTable<FusedMoeBf16> fused_moe_bf16_cpu{
    {"composed", Isa::kPortable, "", kTraits, run<FusedMoeBf16::Args>, MathUnit::kBf16},
};

constinit const VariantTable<FusedMoeFp8Block> fused_moe_fp8_block_cpu{
    {"composed", Isa::kPortable, "", kTraits, run<FusedMoeFp8Block::Args>, MathUnit::kBf16},
};

constinit const VariantTable<FusedMoeNvfp4> fused_moe_nvfp4_cpu{
    {"composed", Isa::kPortable, "", kTraits, run<FusedMoeNvfp4::Args>, MathUnit::kBf16},
};

}  // namespace fathom

#include "fathom/layers/ffn/moe.h"

#include <cstring>
#include <iterator>

#include "fathom/formats/block/block_fp8.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/moe/chosen_experts/chosen_experts.h"
#include "fathom/kernels/moe/permute/permute.h"
#include "fathom/layers/linear.h"
#include "fathom/trace/scope.h"

namespace fathom {
namespace {

bool has_channel_codes(Format format) {
  return format == Format::kFp8Channel || format == Format::kInt8Channel;
}

std::string_view why_not_fused(const MoeCall& c) {
  if (c.rule == RouterRule::kSqrtSoftplus || c.clamped) {
    return "the fused kernels have neither the router nor the clamp of DeepSeek-V4";
  }
  if (c.rule == RouterRule::kGroupLimitedSoftmax) {
    return "the fused kernels do not choose experts by group-limited softmax";
  }
  if (c.rule == RouterRule::kGroupedSigmoid && !c.renormalize) {
    return "the fused kernels always normalise the weights of a sigmoid router";
  }
  const bool fits = c.experts == Format::kBf16 || c.experts == Format::kF32 ||
                    is_fp8_block(c.experts) || c.experts == Format::kNvfp4;
  return fits ? "" : "the fused kernels take experts in bf16, f32, fp8_block and nvfp4";
}

std::string_view why_not_chosen(const MoeCall& c) {
  // More tokens would read matrices again that several chose.
  constexpr int64_t kMostTokens = 2;
  if (!c.in_rows) return "the chosen matrices are read in rows of eight bf16 and eight";
  if (c.clamped) return "its kernels do not clamp";
  if (c.tokens < 1 || c.tokens > kMostTokens) return "it is for one token or two";
  return c.chosen_fits ? "" : "its kernels have no variant for these matrices";
}

std::string_view why_not_grouped(const MoeCall& c) {
  return has_channel_codes(c.experts) ? "there is no grouped product for scales per channel" : "";
}

std::string_view why_not_sorted(const MoeCall& c) {
  if (c.experts == Format::kMxfp4) return "the gathering product takes no mxfp4";
  if (c.experts == Format::kMxfp8) return "the gathering product takes no mxfp8";
  return c.experts == Format::kW4Fp8 ? "the gathering product takes no w4_fp8" : "";
}

constexpr MoeRow kMoeRows[] = {
    {MoeStrategy::kFused, "fused", MoePin::kMust, why_not_fused},
    {MoeStrategy::kChosen, "chosen", MoePin::kNever, why_not_chosen},
    {MoeStrategy::kGrouped, "grouped", MoePin::kMay, why_not_grouped},
    {MoeStrategy::kSorted, "sorted", MoePin::kMay, why_not_sorted},
};

// Why the experts cannot read FP8; empty if they can.
std::string_view why_not_fp8(const MoeCall& c) {
  if (has_channel_codes(c.experts) || c.experts == Format::kW4Fp8)
    return "their products quantise activations by a rule of their own";
  if (!takes_fp8_rows(c.experts))
    return "products with activations in fp8 are for nvfp4, mxfp4 and fp8_block";
  return c.in_fp8_groups ? "" : "hidden size and width of an expert are not both multiples of 128";
}

// Why the table does not stop at this row; empty if it does.
std::string_view why_not_row(const MoeRow& row, const MoeCall& call, const MoeOptions& options) {
  const bool fp8 = options.activations == MoeActivations::kFp8;
  if (fp8 && row.strategy != MoeStrategy::kGrouped)
    return "activations in fp8 are for grouped products";
  if (const std::string_view why = fp8 ? why_not_fp8(call) : ""; !why.empty()) return why;
  if (call.quantises_input && row.strategy != MoeStrategy::kGrouped)
    return "activations in nvfp4 are for grouped products";
  if (options.strategy && *options.strategy != row.strategy) return "the options ask for another";
  if (!options.strategy && row.pin == MoePin::kMust) return "runs only if asked for";
  return row.why_not(call);
}

}  // namespace

bool widths_fit_fp8_groups(int64_t hidden, int64_t intermediate) {
  return hidden % kFp8Block == 0 && intermediate % kFp8Block == 0;
}

std::span<const MoeRow> moe_rows() {
  return kMoeRows;
}

SelectionRow moe_row(MoeStrategy strategy) {
  SelectionRow row{.index = 0};
  while (kMoeRows[row.index].strategy != strategy)
    ++row.index;
  return row;
}

Result<int> choose_moe(const MoeCall& call, const MoeOptions& options) {
  if (options.activations == MoeActivations::kFp8) {
    if (const std::string_view why = why_not_fp8(call); !why.empty()) {
      return unsupported(str_cat("experts in ", format_name(call.experts),
                                 " do not read activations in fp8: ", why,
                                 "\nhint: use --moe-activations auto"));
    }
  }
  std::string_view reason;
  for (int i = 0; i < static_cast<int>(std::size(kMoeRows)); ++i) {
    const MoeRow& row = kMoeRows[i];
    const std::string_view why = why_not_row(row, call, options);
    if (why.empty()) return i;
    if (!options.strategy || options.strategy == row.strategy) reason = why;
  }
  return unsupported(str_cat("no strategy for experts in ", format_name(call.experts), ": ", reason,
                             options.strategy ? "\nhint: use --moe auto" : ""));
}

std::string explain_moe(const MoeCall& call, const MoeOptions& options) {
  std::string out;
  bool chosen = false;
  int index = 0;
  for (const MoeRow& row : kMoeRows) {
    std::string_view verdict = chosen ? "an earlier row fits" : why_not_row(row, call, options);
    if (verdict.empty()) {
      verdict = "chosen";
      chosen = true;
    }
    str_append(out, str_cat("row ", index++, "  ", row.name, ": ", verdict, "\n"));
  }
  return out;
}

namespace {

bool is_bf16_in_rows(const LinearWeight& w) {
  constexpr int64_t kVector = 8;  // elements that the kernels load at once
  return w.w.format() == Format::kBf16 && w.w.layout == WeightLayout::kRowMajor &&
         w.w.cols() % kVector == 0;
}

bool is_bf16_in_rows(const RowsWeight& gate_up, const LinearWeight& down) {
  return gate_up.num_parts == 1 && is_bf16_in_rows(gate_up.parts[0]) && is_bf16_in_rows(down);
}

// Asked with views that have no data, in whose place the kernels would find it.
bool chosen_fits(Exec& ex, const MoeShape& s, const MoeWeights& w, const View& x) {
  const int64_t T = x.dim(0);
  const bool shared = has_shared_experts(w);
  const int64_t width = s.K * s.I + (shared ? w.shared.down.w.cols() : 0);
  const View ids = make_view(nullptr, {T, s.K}, Format::kI32);
  const View act = make_view(nullptr, {T, width}, x.format);
  return accepts<ChosenExpertsGateUp>(
             ex, "gate_up_proj",
             {.x = x,
              .experts = w.gate_up.parts[0].w.values,
              .ids = ids,
              .shared = shared ? w.shared.gate_up.parts[0].w.values : View{},
              .y = act}) &&
         accepts<ChosenExpertsDown>(ex, "down_proj",
                                    {.x = act,
                                     .experts = w.down.w.values,
                                     .ids = ids,
                                     .weights = make_view(nullptr, {T, s.K}, Format::kF32),
                                     .shared = shared ? w.shared.down.w.values : View{},
                                     .y = make_view(nullptr, {T, x.dim(1)}, x.format)});
}

MoeCall call_of(Exec& ex, const MoeShape& s, const MoeWeights& w, const View& x) {
  MoeCall call{
      .experts = w.down.w.format(),
      .rule = s.rule,
      .renormalize = s.renormalize,
      .clamped = s.limit > 0.0f,
      .tokens = x.dim(0),
      .in_rows = x.format == Format::kBf16 && is_bf16_in_rows(w.gate_up, w.down) &&
                 (!has_shared_experts(w) || is_bf16_in_rows(w.shared.gate_up, w.shared.down)),
      .in_fp8_groups = widths_fit_fp8_groups(x.dim(1), s.I),
      .quantises_input = quantises_input(w)};
  if (call.in_rows && why_not_chosen(call).empty()) call.chosen_fits = chosen_fits(ex, s, w, x);
  return call;
}

// Tokens so few that one kernel is faster than three (MOE_CUDA_NOTES.md), and a matrix it reads.
bool joins_router(const MoeContext& m, const MoeWeights& w, int64_t tokens) {
  constexpr int64_t kMostTokens = 4;
  static_assert(kMostTokens <= Router::kMostTokens);
  const Format format = w.gate.w.format();
  return m.options.join_router && tokens <= kMostTokens &&
         (format == Format::kBf16 || format == Format::kF32);
}

}  // namespace

// In float32, as everything about the choice.
Result<View> router_logits(Exec& ex, const MoeShape& s, const MoeWeights& w, const View& x) {
  FATHOM_ASSIGN(const View logits, ex.activations->tensor({x.dim(0), s.E}, Format::kF32, "T,E"));
  FATHOM_TRY(linear(ex, "gate", x, w.gate, logits, LinearUse::kRouter));
  return logits;
}

Result<View> router_arrivals(WeightStore& store, const MoeOptions& options) {
  if (!options.join_router) return View{};
  return store.constant("arrivals at the router", {1}, Format::kI32, "1",
                        [](std::byte* out) { std::memset(out, 0, sizeof(int32_t)); });
}

Result<RowOrder> row_order(Exec& ex, const MoeShape& s, int64_t tokens) {
  Arena& arena = *ex.activations;
  RowOrder order;
  FATHOM_ASSIGN(order.offsets, arena.tensor({s.E + 1}, Format::kI32, "E+1"));
  FATHOM_ASSIGN(order.src_row, arena.tensor({tokens * s.K}, Format::kI32, "T*K"));
  FATHOM_ASSIGN(order.dest, arena.tensor({tokens, s.K}, Format::kI32, "T,K"));
  return order;
}

// DeepSeek-V3 report, eq. 13 to 16; all of it in float32.
Result<RouterChoice> route_tokens(Exec& ex,
                                  const MoeContext& m,
                                  const MoeWeights& w,
                                  const View& x,
                                  const View& token_ids,
                                  MoeStrategy strategy) {
  const MoeShape& s = m.shape;
  const int64_t T = x.dim(0);
  RouterChoice choice;
  FATHOM_ASSIGN(choice.ids, ex.activations->tensor({T, s.K}, Format::kI32, "T,K"));
  FATHOM_ASSIGN(choice.weights, ex.activations->tensor({T, s.K}, Format::kF32, "T,K"));
  Router::Args router{.x = x,
                      .gate = w.gate.w,
                      .bias = w.bias,
                      .token_ids = w.tid2eid.present() ? token_ids : View{},
                      .tid2eid = w.tid2eid,
                      .arrivals = m.arrivals,
                      .weights = choice.weights,
                      .ids = choice.ids,
                      .rule = s.rule,
                      .n_group = s.n_group,
                      .topk_group = s.topk_group,
                      .renorm = s.renormalize ? Renormalize::kYes : Renormalize::kNo,
                      .scaling = s.scaling};
  if (joins_router(m, w, T)) {
    // It does not count where scales of quantised rows begin.
    if (strategy == MoeStrategy::kGrouped && !quantises_input(w)) {
      FATHOM_ASSIGN(choice.order, row_order(ex, s, T));
      router.offsets = choice.order.offsets;
      router.src_row = choice.order.src_row;
      router.dest = choice.order.dest;
    }
    FATHOM_TRY(launch<Router>(ex, "gate_topk", router));
    return choice;
  }
  ArenaScope arena(*ex.activations);
  FATHOM_ASSIGN(const View logits, router_logits(ex, s, w, x));
  const Op op = w.tid2eid.present() ? Op("hash_route") : Op("topk");
  FATHOM_TRY(with_gate(router, logits, [&]<class K>(const typename K::Args& args) {
    return launch<K>(ex, op, args);
  }));
  return choice;
}

Status shared_experts(
    Exec& ex, const MoeShape& s, const MoeWeights& w, const View& x, const View& y) {
  Scope scope(ex.recorder, "shared_experts");
  return mlp(ex, w.shared, x, y, s.limit);
}

Result<View> shared_half(Exec& ex, const MoeShape& s, const MoeWeights& w, const View& x) {
  const int64_t H = x.dim(1);
  FATHOM_ASSIGN(const View both, ex.activations->tensor({x.dim(0), 2 * H}, Format::kF32, "T,2*H"));
  FATHOM_TRY(shared_experts(ex, s, w, x, slice_cols(both, H, H, "T,H")));
  return both;
}

Status add_halves(Exec& ex, const View& both, const View& y) {
  const View halves = reshape(both, {both.dim(0), 2, both.dim(1) / 2}, "T,2,H");
  return launch<TopkSum>(ex, "add_shared_experts", {.x = halves, .y = y});
}

Status moe(Exec& ex,
           const MoeContext& m,
           const MoeWeights& w,
           const View& x,
           const View& y,
           int layer,
           const Probe* probe,
           const View& token_ids) {
  ArenaScope arena(*ex.activations);
  FATHOM_ASSIGN(const int row, choose_moe(call_of(ex, m.shape, w, x), m.options));
  const MoeStrategy strategy = kMoeRows[row].strategy;
  if (strategy == MoeStrategy::kFused) return moe_fused(ex, m.shape, w, x, y);
  FATHOM_ASSIGN(const RouterChoice choice, route_tokens(ex, m, w, x, token_ids, strategy));
  tap(probe, "router.ids", layer, choice.ids);
  tap(probe, "router.weights", layer, choice.weights);
  if (strategy == MoeStrategy::kChosen) return moe_chosen(ex, m.shape, w, x, choice, y);
  if (strategy == MoeStrategy::kSorted) return moe_sorted(ex, m.shape, w, x, choice, y);
  return moe_grouped(ex, m.shape, w, x, choice, m.options.activations, y);
}

}  // namespace fathom

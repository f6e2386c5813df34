#include <utility>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/gemm/skinny_gemm/skinny_gemm.h"
#include "fathom/kernels/moe/router/router.h"

namespace fathom {
namespace {

View logits_at(void* data, const Router::Args& a) {
  View logits = make_view(data, {a.x.dim(0), a.gate.rows()}, Format::kF32);
  logits.on_device = a.x.on_device;
  return logits;
}

RouterGemm::Args product_of(const Router::Args& a, void* logits) {
  return {.x = a.x, .w = a.gate, .y = logits_at(logits, a)};
}

Status run_parts(Exec& ex, const Router::Args& a, const RouterGemm::Args& product) {
  FATHOM_TRY(launch<RouterGemm>(ex, "gate", product));
  FATHOM_TRY(with_gate(a, product.y, [&]<class K>(const typename K::Args& args) {
    return launch<K>(ex, "topk", args);
  }));
  if (!a.offsets.present()) return {};
  return launch<RouteOffsets>(
      ex, "prepare_moe_input",
      {.ids = a.ids, .offsets = a.offsets, .src_row = a.src_row, .dest = a.dest});
}

int64_t product_bytes(const Router::Args& a, int num_threads) {
  return align_up(RouterGemm::workspace(product_of(a, nullptr), num_threads), Arena::kAlignment);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

int64_t router_logits_bytes(const Router::Args& a) {
  return align_up(a.x.dim(0) * a.gate.rows() * element_bytes(Format::kF32), Arena::kAlignment);
}

Status run_router_parts(Exec& ex, const Router::Args& a) {
  void* const workspace = ex.workspace;
  // What launch() has taken behind the logits is what the product takes again.
  if (ex.backend == Backend::kCpu)
    ex.scratch->release(ex.scratch->mark() - product_bytes(a, ex.num_threads));
  Recorder* const recorder = std::exchange(ex.recorder, nullptr);  // one record, not three
  Status status = run_parts(ex, a, product_of(a, workspace));
  ex.recorder = recorder;
  ex.workspace = workspace;
  return status;
}

void Router::bytes(const Args& a, Cost& cost) {
  for (const View* v : {&a.x, &a.gate.values, &a.bias, &a.token_ids, &a.arrivals})
    if (v->present()) cost.bytes_read += operand_bytes(*v);
  if (a.tid2eid.present()) cost.bytes_read += a.ids.numel() * element_bytes(a.tid2eid.format);
  for (const View* v : {&a.weights, &a.ids, &a.offsets, &a.src_row, &a.dest, &a.arrivals})
    if (v->present()) cost.bytes_written += operand_bytes(*v);
}

Status Router::check(const Args& a) {
  FATHOM_TRY(check_weight(a.gate));
  if (a.offsets.present() != a.src_row.present() || a.offsets.present() != a.dest.present())
    return invalid_argument("of offsets, src_row and dest some are given; give all or none");
  if (a.tid2eid.present()) {
    if (a.rule != RouterRule::kSqrtSoftplus)
      return invalid_argument("tid2eid is given to a rule that chooses by scores");
    if (!a.token_ids.present())
      return invalid_argument("tid2eid is given without token_ids, whose experts it has");
    if (a.tid2eid.dim(1) != a.ids.dim(1)) {
      return invalid_argument(str_cat("tid2eid has ", a.tid2eid.dim(1),
                                      " experts of a token, but ids have ", a.ids.dim(1)));
    }
  }
  return with_gate(a, logits_at(nullptr, a), []<class K>(const typename K::Args& args) -> Status {
    if constexpr (requires { K::check(args); }) return K::check(args);
    return {};
  });
}

int64_t Router::workspace(const Args& a, int num_threads) {
  return router_logits_bytes(a) + product_bytes(a, num_threads);
}

constinit const VariantTable<Router> router_cpu{
    {"composed", Isa::kPortable, "", kTraits, run_router_parts},
};

}  // namespace fathom

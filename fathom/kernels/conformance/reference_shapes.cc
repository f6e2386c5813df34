#include "fathom/kernels/conformance/reference_shapes.h"

#include "fathom/base/str_cat.h"

namespace fathom {
namespace {

constexpr ReferencePoint kPoints[] = {
    {"decode", 1, 1},    {"decode", 8, 1},     {"decode", 16, 1},    {"decode", 32, 1},
    {"decode", 64, 1},   {"decode", 128, 1},   {"prefill", 1, 128},  {"prefill", 1, 256},
    {"prefill", 1, 512}, {"prefill", 1, 1024}, {"prefill", 1, 2048}, {"prefill", 8, 2048},
};

struct Limit {
  std::string_view kernel;
  int64_t most_tokens;     // 0: no limit
  std::string_view phase;  // the only one; empty: both
  std::string_view why;
};

// What the kernels are for. Everything else has rows at every point.
constexpr Limit kLimits[] = {
    {"latent_down_gemm", 16, "", "the contract takes at most 16 tokens; bf16_gemm runs above"},
    {"router_gemm", 16, "", "the contract takes at most 16 tokens; bf16_gemm runs above"},
    {"bf16_gemm", 2048, "", "not of the 23; runs from 17 to 2,048 tokens of the layer"},
    {"fp8_bmm", 0, "decode", "a step of the absorbed form, which prefill does not use"},
    {"concat_absorbed_q", 0, "decode", "a step of the absorbed form, which prefill does not use"},
    {"mla_decode", 0, "decode", "attention of decode; prefill runs ragged_attention"},
    {"mla_decode_multi", 0, "decode", "attention of decode; prefill runs ragged_attention"},
    {"ragged_attention", 0, "prefill", "attention of prefill; decode runs mla_decode"},
    {"nvfp4_quant_experts", 2048, "", "the published benchmark has fewer tokens"},
    {"nvfp4_group_gemm", 2048, "", "the published benchmark has fewer tokens"},
    {"fused_moe_nvfp4", 2048, "", "the published benchmark has fewer tokens"},
    {"kv_write", 2048, "", "not of the 23; the tables of the layer end at 2,048 tokens"},
    {"permute_rows", 2048, "", "not of the 23; the tables of the layer end at 2,048 tokens"},
};

}  // namespace

std::string ReferencePoint::name() const {
  if (phase == "decode") return str_cat("decode_b", batch);
  return str_cat(phase, "_b", batch, "_s", seq);
}

std::span<const ReferencePoint> reference_points() {
  return kPoints;
}

std::string_view reference_limit(std::string_view kernel, const ReferencePoint& point) {
  for (const Limit& limit : kLimits) {
    if (limit.kernel != kernel) continue;
    const bool too_many = limit.most_tokens > 0 && point.tokens() > limit.most_tokens;
    const bool other_phase = !limit.phase.empty() && limit.phase != point.phase;
    const bool too_few = kernel == "bf16_gemm" && point.tokens() <= 16;
    if (too_many || other_phase || too_few) return limit.why;
  }
  return {};
}

std::vector<ReferencePoint> reference_points(std::string_view kernel) {
  std::vector<ReferencePoint> points;
  for (const ReferencePoint& p : kPoints)
    if (reference_limit(kernel, p).empty()) points.push_back(p);
  return points;
}

std::string reference_case_name(std::string_view op, const ReferencePoint& point) {
  return str_cat("reference_", op, "_", point.name());
}

void add_reference_case(CaseList& list,
                        const ReferencePoint& point,
                        const ReferenceCase& names,
                        const std::function<void(CaseList&)>& add) {
  CaseList one;
  add(one);
  for (Case c : one.cases()) {
    c.spec.name = reference_case_name(names.op, point);
    if (!names.suffix.empty()) str_append(c.spec.name, str_cat("_", names.suffix));
    c.spec.op = names.op;
    c.spec.bench = true;
    c.spec.phase = point.phase;
    c.spec.suite = kReferenceSuite;
    c.spec.batch = point.batch;
    c.spec.seq = point.seq;
    // The tables of the benchmark end at 2,048 tokens; beyond, a machine may leave out what it
    // cannot do in reasonable time.
    if (point.tokens() > 2048) c.spec.flops = names.flops;
    list.add_case(std::move(c));
  }
}

}  // namespace fathom

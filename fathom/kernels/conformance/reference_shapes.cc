#include "fathom/kernels/conformance/reference_shapes.h"

#include "fathom/base/str_cat.h"
#include "fathom/kernels/conformance/cases.h"

namespace fathom {
namespace {

constexpr ReferencePoint kPoints[] = {
    {"decode", 1, 1},    {"decode", 8, 1},     {"decode", 16, 1},    {"decode", 32, 1},
    {"decode", 64, 1},   {"decode", 128, 1},   {"prefill", 1, 128},  {"prefill", 1, 256},
    {"prefill", 1, 512}, {"prefill", 1, 1024}, {"prefill", 1, 2048}, {"prefill", 8, 2048},
};

}  // namespace

std::string ReferencePoint::name() const {
  if (phase == "decode") return str_cat("decode_b", batch);
  return str_cat(phase, "_b", batch, "_s", seq);
}

std::span<const ReferencePoint> reference_points() {
  return kPoints;
}

bool ReferenceLimit::leaves_out(const ReferencePoint& point) const {
  const bool too_many = most_tokens > 0 && point.tokens() > most_tokens;
  const bool other_phase = !phase.empty() && phase != point.phase;
  return too_many || other_phase || point.tokens() < least_tokens;
}

std::vector<ReferencePoint> reference_points(CaseList& list,
                                             std::string_view kernel,
                                             const ReferenceLimit& limit) {
  list.set_reference_limit(kernel, limit);
  std::vector<ReferencePoint> points;
  for (const ReferencePoint& p : kPoints)
    if (!limit.leaves_out(p)) points.push_back(p);
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

#include <algorithm>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/moe/route/route.h"
#include "fathom/kernels/moe/sorted_moe/sorted_moe.h"

namespace fathom {
namespace {

enum class Routing { kRandom, kAllOnOne, kSomeMissing };

struct Shape {
  int64_t tokens;
  int64_t top_k;
  int64_t experts;
  int64_t n;
  int64_t k;
  Format weight = Format::kNvfp4;
  WeightLayout layout = WeightLayout::kRows16;
  Format act = Format::kBf16;
  bool second = false;  // one row of x a slot, router weights applied
  int block = 16;
  Routing routing = Routing::kRandom;
};

std::string name_of(const Shape& s) {
  std::string name = str_cat("t", s.tokens, "_k", s.top_k, "_e", s.experts, "_", s.n, "x", s.k,
                             "_block", s.block, "_", format_name(s.weight));
  if (s.layout == WeightLayout::kRowMajor) name += "_row_major";
  if (s.act != Format::kBf16) str_append(name, str_cat("_act_", format_name(s.act)));
  if (s.second) name += "_weighted";
  if (s.routing == Routing::kAllOnOne) name += "_all_on_one";
  if (s.routing == Routing::kSomeMissing) name += "_some_missing";
  return name;
}

/// Slots sorted by expert with lists, and the operands that hold them.
struct SortedSlots {
  std::vector<int64_t> expert;  // of each slot
  Tensor sorted_ids, block_expert, num_padded;

  SortedSlots(CaseBuilder<SortedMoeGemm>& c, const Shape& s) {
    const int64_t slots = s.tokens * s.top_k;
    std::vector<std::vector<int64_t>> buckets(static_cast<size_t>(s.experts) + 1);
    for (int64_t v = 0; v < slots; ++v) {
      int64_t e = c.rng().next_below(static_cast<uint32_t>(s.experts));
      if (s.routing == Routing::kAllOnOne) e = s.experts - 1;
      if (s.routing == Routing::kSomeMissing && v % 3 == 0) e = -1;
      expert.push_back(e);
      buckets[static_cast<size_t>(e + 1)].push_back(v);
    }
    const int64_t capacity = AlignExperts::capacity(slots, s.experts, s.block);
    sorted_ids = c.input({capacity}, Format::kI32);
    block_expert = c.input({capacity / s.block}, Format::kI32);
    num_padded = c.input({1}, Format::kI32);
    sorted_ids.fill([&](int64_t) { return slots; });
    block_expert.fill([&](int64_t) { return -1; });
    int64_t at = 0;
    for (size_t b = 0; b < buckets.size(); ++b) {
      for (size_t i = 0; i < buckets[b].size(); ++i) {
        sorted_ids.set(at + static_cast<int64_t>(i), static_cast<double>(buckets[b][i]));
      }
      for (size_t i = 0; i < buckets[b].size(); i += static_cast<size_t>(s.block)) {
        block_expert.set(at / s.block, static_cast<double>(b) - 1);
        at += s.block;
      }
    }
    num_padded.set(0, static_cast<double>(at));
  }
};

void add(CaseList& list, const Shape& s, bool bench = false, int64_t ring_bytes = 0) {
  const CaseSpec spec{.name = name_of(s),
                      .op = s.second ? "experts_down" : "experts_gate_up",
                      .bench = bench,
                      .phase = bench ? (s.tokens > 128 ? "prefill" : "decode") : "",
                      .columns = str_cat("M=", s.tokens, ";N=", s.n, ";K=", s.k, ";E=", s.experts,
                                         ";topk=", s.top_k),
                      .note = ring_bytes > 0 ? "experts mapped onto a ring" : ""};
  add_case<SortedMoeGemm>(list, spec, [=](CaseBuilder<SortedMoeGemm>& c) {
    const int64_t slots = s.tokens * s.top_k;
    const int64_t x_top_k = s.second ? 1 : s.top_k;
    const SortedSlots routing(c, s);
    const Tensor x = c.input({slots / x_top_k, s.k}, s.act, {}, {.row_gap = 6});
    const WeightSpec w_spec{
        .num_experts = s.experts, .rows = s.n, .cols = s.k, .format = s.weight, .layout = s.layout};
    const Weight w = bench ? c.weight_codes(w_spec, ring_bytes) : c.weight(w_spec);
    Tensor weights;
    if (s.second) weights = c.input({slots}, Format::kF32, {.dist = Dist::kUniform});
    const Tensor y = c.output({slots, s.n}, s.act, {.row_gap = 2});
    c.bind([=](const Binding& at) {
      SortedMoeGemm::Args a{.x = at(x),
                            .w = at(w),
                            .sorted_ids = at(routing.sorted_ids),
                            .block_expert = at(routing.block_expert),
                            .num_padded = at(routing.num_padded),
                            .y = at(y),
                            .block = s.block,
                            .top_k = static_cast<int>(x_top_k)};
      if (weights.present()) a.weights = at(weights);
      return a;
    });
    const auto answer = [=](int64_t v, auto weight_row) {
      const int64_t e = routing.expert[static_cast<size_t>(v)];
      if (e < 0) return 0.0;
      return dot(x.row(v / x_top_k), weight_row(e)) * (s.second ? weights[v] : 1.0);
    };
    c.expect_each(y, gates::gemm(s.act), [=](int64_t v, int64_t n) {
      return answer(v, [&](int64_t e) { return w.row(e * s.n + n); });
    });
    if (bench || slots * s.n < 4096) return;
    c.expect_full_precision(y, gates::full_precision(s.weight), [=](int64_t v, int64_t n) {
      return answer(v, [&](int64_t e) { return w.exact_row(e * s.n + n); });
    });
  });
}

}  // namespace

void add_sorted_moe_cases(CaseList& list) {
  for (int64_t t : {0, 1, 2, 3, 7, 17}) {
    add(list, {t, 2, 4, 32, 64});
    add(list, {t, 2, 4, 32, 64, Format::kBf16});
    add(list, {t, 2, 4, 32, 128, Format::kFp8Block});
  }
  for (Format f : {Format::kNvfp4, Format::kBf16, Format::kFp8Block, Format::kFp8BlockUe8m0}) {
    const Shape first{11, 3, 5, 48, 208, f};
    Shape s = first;
    s.second = true;
    add(list, s);
    s = first;
    s.routing = Routing::kSomeMissing;
    add(list, s);
    s.routing = Routing::kAllOnOne;
    add(list, s);
    s = first;
    s.layout = WeightLayout::kRowMajor;
    s.block = 4;
    add(list, s);
    s = first;
    s.act = Format::kF32;
    s.second = true;
    add(list, s);
    // More rows than a chunk of scratch memory holds, and enough outputs for gate B.
    s = {300, 2, 3, 16, 128, f};
    s.block = 64;
    add(list, s);
  }
  add(list, {5, 2, 3, 33, 100, Format::kF32, WeightLayout::kRowMajor, Format::kF32});
  add(list, {5, 2, 3, 33, 100, Format::kF32, WeightLayout::kRowMajor});
  add(list, {9, 1, 1, 16, 64, Format::kNvfp4, WeightLayout::kRows16, Format::kBf16, false, 1});

  // R1's experts. The bf16 ones are the reference suite's; a host rarely holds 22 GB of them.
  constexpr int64_t kRing = 1 << 30;
  for (int64_t t : {1, 8, 128}) {
    add(list, {t, 8, 256, 4096, 7168}, true, kRing);
    Shape down{t, 8, 256, 7168, 2048};
    down.second = true;
    add(list, down, true, kRing);
  }
  add(list, {1, 8, 256, 4096, 7168, Format::kBf16}, true, kRing);
}

}  // namespace fathom

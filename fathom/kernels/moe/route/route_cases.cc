#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"
#include "fathom/kernels/conformance/reference_shapes.h"
#include "fathom/kernels/moe/route/route.h"
#include "fathom/kernels/moe/route/route_oracle.h"

namespace fathom {
namespace {

enum class Ids { kRandom, kAllOnOne, kSomeMissing, kAllMissing, kUnknown };

std::string name_of(int64_t tokens, int64_t top_k, int experts, Ids kind) {
  std::string name = str_cat("t", tokens, "_k", top_k, "_e", experts);
  switch (kind) {
    case Ids::kRandom:
      break;
    case Ids::kAllOnOne:
      return name + "_all_on_one";
    case Ids::kSomeMissing:
      return name + "_some_missing";
    case Ids::kAllMissing:
      return name + "_all_missing";
    case Ids::kUnknown:
      return name + "_unknown_ids";
  }
  return name;
}

template <class K>
Tensor make_ids(CaseBuilder<K>& c,
                int64_t tokens,
                int64_t top_k,
                int experts,
                Ids kind,
                Format format = Format::kI32) {
  const Tensor ids = c.input({tokens, top_k}, format, {}, {.row_gap = 1});
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const auto random = static_cast<int64_t>(c.rng().next_below(static_cast<uint32_t>(experts)));
    const bool missing =
        kind == Ids::kAllMissing || (kind == Ids::kSomeMissing && c.rng().next_below(3) == 0);
    ids.set(i, static_cast<double>(missing ? -1 : kind == Ids::kAllOnOne ? experts - 1 : random));
    // Beyond both ends, and just beyond.
    const int64_t unknown[] = {-1, -7, experts, experts + 1000};
    if (kind == Ids::kUnknown && i % 3 != 0) ids.set(i, static_cast<double>(unknown[i % 4]));
  }
  return ids;
}

struct RouteShape {
  int64_t tokens;
  int64_t top_k;
  int experts;
  Ids kind = Ids::kRandom;
  bool bench = false;
};

CaseSpec spec_of(const RouteShape& s) {
  return {.name = name_of(s.tokens, s.top_k, s.experts, s.kind) + (s.bench ? "_real" : ""),
          .op = "experts",
          .bench = s.bench,
          .phase = phase_of_case(s.bench, s.tokens),
          .columns = str_cat("M=", s.tokens, ";E=", s.experts, ";topk=", s.top_k)};
}

constexpr int32_t kIntermediate = 2048;
constexpr int32_t kHidden = 7168;

void expect_offsets(CaseData& c, const Tensor& ids, int experts, const Tensor& offsets) {
  c.expect_all(offsets, gates::exact(), [=](std::span<double> out) {
    const std::vector<double> counts = counts_of_experts(ids, experts);
    out[0] = 0;
    for (size_t e = 0; e < counts.size(); ++e)
      out[e + 1] = out[e] + counts[e];
  });
}

/// A row of a table of problem sizes.
using SizesOf = std::function<std::array<double, 3>(double count)>;

void expect_sizes(
    CaseData& c, const Tensor& ids, int experts, const Tensor& sizes, const SizesOf& f) {
  c.expect_all(sizes, gates::exact(), [=](std::span<double> out) {
    const std::vector<double> counts = counts_of_experts(ids, experts);
    for (size_t e = 0; e < counts.size(); ++e)
      std::ranges::copy(f(counts[e]), out.begin() + static_cast<int64_t>(3 * e));
  });
}

void add_offsets_case(CaseList& list, const CaseSpec& spec, const RouteShape& s, bool all_results) {
  add_case<RouteOffsets>(list, spec, [=](CaseBuilder<RouteOffsets>& c) {
    const Tensor ids = make_ids(c, s.tokens, s.top_k, s.experts, s.kind);
    const Tensor offsets = c.output({s.experts + 1}, Format::kI32);
    const Tensor src_row = c.output({s.tokens * s.top_k}, Format::kI32);
    const Tensor dest = c.output({s.tokens, s.top_k}, Format::kI32, {.row_gap = 2});
    Tensor up, down, scale_offsets;
    if (all_results) {
      up = c.output({s.experts, 3}, Format::kI32);
      down = c.output({s.experts, 3}, Format::kI32);
      scale_offsets = c.output({s.experts + 1}, Format::kI32);
    }
    c.bind([=](const Binding& at) {
      return RouteOffsets::Args{
          .ids = at(ids),
          .offsets = at(offsets),
          .src_row = at(src_row),
          .dest = at(dest),
          .sizes_up = at(up),
          .sizes_down = at(down),
          .scale_offsets = at(scale_offsets),
          .n = kIntermediate,
          .k = kHidden,
          .unknown = s.kind == Ids::kUnknown ? UnknownIds::kSkip : UnknownIds::kRefuse};
    });
    expect_offsets(c, ids, s.experts, offsets);
    c.expect_all(dest, gates::exact(), [=](std::span<double> out) {
      std::fill(out.begin(), out.end(), -1.0);
      const std::vector<int64_t> slots = sorted_slots(ids, s.experts);
      for (size_t i = 0; i < slots.size(); ++i)
        out[static_cast<size_t>(slots[i])] = static_cast<double>(i);
    });
    c.expect_all(src_row, gates::exact(), [=](std::span<double> out) {
      std::fill(out.begin(), out.end(), -1.0);
      const std::vector<int64_t> slots = sorted_slots(ids, s.experts);
      for (size_t i = 0; i < slots.size(); ++i)
        out[i] = static_cast<double>(slots[i] / s.top_k);
    });
    if (!all_results) return;
    expect_sizes(c, ids, s.experts, up, [](double count) {
      return std::array<double, 3>{count, 2 * kIntermediate, kHidden};
    });
    expect_sizes(c, ids, s.experts, down, [](double count) {
      return std::array<double, 3>{count, kHidden, kIntermediate};
    });
    c.expect_all(scale_offsets, gates::exact(), [=](std::span<double> out) {
      const std::vector<double> counts = counts_of_experts(ids, s.experts);
      out[0] = 0;
      for (size_t e = 0; e < counts.size(); ++e)
        out[e + 1] = out[e] + 128 * std::ceil(counts[e] / 128);
    });
  });
}

void add_offsets(CaseList& list, const RouteShape& s, bool all_results = false) {
  CaseSpec spec = spec_of(s);
  if (all_results) spec.name += "_sizes";
  add_offsets_case(list, spec, s, all_results);
}

void add_shapes(CaseList& list, const RouteShape& s) {
  add_case<RouteGroupShapes>(list, spec_of(s), [=](CaseBuilder<RouteGroupShapes>& c) {
    const Tensor ids = make_ids(c, s.tokens, s.top_k, s.experts, s.kind);
    const Tensor offsets = c.output({s.experts + 1}, Format::kI32);
    const Tensor up = c.output({s.experts, 3}, Format::kI32, {.row_gap = 1});
    const Tensor down = c.output({s.experts, 3}, Format::kI32);
    c.bind([=](const Binding& at) {
      return RouteGroupShapes::Args{.ids = at(ids),
                                    .offsets = at(offsets),
                                    .sizes_up = at(up),
                                    .sizes_down = at(down),
                                    .n = kIntermediate,
                                    .k = kHidden};
    });
    expect_offsets(c, ids, s.experts, offsets);
    expect_sizes(c, ids, s.experts, up, [](double count) {
      return std::array<double, 3>{2 * kIntermediate, count, kHidden};
    });
    expect_sizes(c, ids, s.experts, down, [](double count) {
      return std::array<double, 3>{kHidden, count, kIntermediate};
    });
  });
}

struct Aligned {
  std::vector<double> sorted, blocks, starts;
  double padded = 0;
};

/// The definition with a list for each bucket.
Aligned align(const Tensor& ids, int experts, int block, int64_t slots, int64_t num_blocks) {
  Aligned out;
  std::vector<std::vector<double>> buckets(static_cast<size_t>(experts) + 1);
  for (int64_t i = 0; i < ids.numel(); ++i)
    buckets[static_cast<size_t>(ids[i] + 1)].push_back(static_cast<double>(i));
  for (int e = -1; e < experts; ++e) {
    out.starts.push_back(static_cast<double>(out.sorted.size()));
    std::vector<double>& bucket = buckets[static_cast<size_t>(e + 1)];
    while (bucket.size() % static_cast<size_t>(block) != 0) {
      bucket.push_back(static_cast<double>(ids.numel()));
    }
    out.sorted.insert(out.sorted.end(), bucket.begin(), bucket.end());
    out.blocks.insert(out.blocks.end(), bucket.size() / static_cast<size_t>(block), e);
  }
  out.padded = static_cast<double>(out.sorted.size());
  out.starts.push_back(out.padded);
  out.sorted.resize(static_cast<size_t>(slots), static_cast<double>(ids.numel()));
  out.blocks.resize(static_cast<size_t>(num_blocks), -1);
  return out;
}

/// In every variation the slots, blocks and counts are the same.
enum class Form {
  kPlain,
  kReference,  ///< ids in int64, starts wanted, padding left to the caller
};

void add_align(CaseList& list, const RouteShape& s, int block, Form form = Form::kPlain) {
  CaseSpec spec = spec_of(s);
  str_append(spec.name, str_cat("_block", block));
  const bool reference = form == Form::kReference;
  if (reference) spec.name += "_reference";
  add_case<AlignExperts>(list, spec, [=](CaseBuilder<AlignExperts>& c) {
    const int64_t slots = AlignExperts::capacity(s.tokens * s.top_k, s.experts, block);
    const Tensor ids =
        make_ids(c, s.tokens, s.top_k, s.experts, s.kind, reference ? Format::kI64 : Format::kI32);
    const Tensor sorted =
        reference ? c.inout({slots}, Format::kI32) : c.output({slots}, Format::kI32);
    if (reference) sorted.fill([&](int64_t) { return s.tokens * s.top_k; });
    const Tensor blocks = c.output({slots / block}, Format::kI32);
    const Tensor padded = c.output({1}, Format::kI32);
    Tensor starts;
    if (reference) starts = c.output({s.experts + 2}, Format::kI32);
    c.bind([=](const Binding& at) {
      return AlignExperts::Args{.ids = at(ids),
                                .sorted_ids = at(sorted),
                                .block_expert = at(blocks),
                                .num_padded = at(padded),
                                .block = block,
                                .num_experts = s.experts,
                                .starts = at(starts),
                                .padding = reference ? PaddedSlots::kLeave : PaddedSlots::kFill};
    });
    const auto expected = [=] { return align(ids, s.experts, block, slots, slots / block); };
    c.expect_all(sorted, gates::exact(),
                 [=](std::span<double> out) { std::ranges::copy(expected().sorted, out.begin()); });
    c.expect_all(blocks, gates::exact(),
                 [=](std::span<double> out) { std::ranges::copy(expected().blocks, out.begin()); });
    c.expect_all(padded, gates::exact(),
                 [=](std::span<double> out) { out[0] = expected().padded; });
    if (!reference) return;
    c.expect_all(starts, gates::exact(),
                 [=](std::span<double> out) { std::ranges::copy(expected().starts, out.begin()); });
  });
}

}  // namespace

void add_route_cases(CaseList& list) {
  for (int64_t t : {0, 1, 2, 3, 7, 31}) {
    add_offsets(list, {t, 8, 256});
    add_offsets(list, {t, 8, 256}, true);
    add_shapes(list, {t, 8, 256});
    add_align(list, {t, 8, 256}, 16);
    add_align(list, {t, 8, 256}, 16, Form::kReference);
  }
  for (Ids kind : {Ids::kAllOnOne, Ids::kSomeMissing, Ids::kAllMissing}) {
    add_offsets(list, {13, 6, 64, kind});
    add_shapes(list, {13, 6, 64, kind});
    add_align(list, {13, 6, 64, kind}, 16);
  }
  add_offsets(list, {13, 6, 64, Ids::kUnknown});
  add_offsets(list, {137, 6, 3, Ids::kUnknown}, true);
  add_shapes(list, {13, 6, 64, Ids::kUnknown});
  add_offsets(list, {5, 1, 1});
  add_offsets(list, {11, 3, 2, Ids::kSomeMissing});
  for (int block : {1, 2, 3, 64, 128})
    add_align(list, {17, 3, 5, Ids::kSomeMissing}, block, Form::kReference);
  add_align(list, {5, 1, 1}, 4);

  // On a GPU: positions that wait in shared memory, no multiple of four; one, two and four slots a
  // lane; more and fewer buckets than half of the threads.
  for (int block : {1, 3, 5})
    add_align(list, {17, 3, 5, Ids::kSomeMissing}, block);
  add_align(list, {37, 7, 600, Ids::kSomeMissing}, 3);
  add_align(list, {83, 7, 511}, 7);
  add_align(list, {83, 7, 512}, 7);
  for (int64_t t : {37, 147}) {
    add_offsets(list, {t, 7, 64, Ids::kSomeMissing});
    add_offsets(list, {t, 7, 513}, true);
    add_align(list, {t, 7, 64, Ids::kSomeMissing}, 5);
  }

  // On a GPU: slots of two blocks of a cluster and of eight, more a lane, more than a cluster
  // holds; more buckets than threads, and as many as there may be.
  add_offsets(list, {717, 7, 256, Ids::kSomeMissing}, true);
  add_offsets(list, {4703, 7, 64});
  add_offsets(list, {17500, 8, 3, Ids::kUnknown}, true);
  add_offsets(list, {1301, 7, 1601});
  add_shapes(list, {17500, 8, 256, Ids::kUnknown});
  add_align(list, {2351, 7, 256}, 16);
  add_align(list, {4703, 7, 5, Ids::kAllOnOne}, 128);
  add_align(list, {17500, 8, 256, Ids::kSomeMissing}, 128, Form::kReference);
  add_align(list, {17500, 8, 3}, 16);
  add_align(list, {1301, 7, 1601, Ids::kSomeMissing}, 16);

  for (int64_t t : {1, 8, 32, 128, 1024, 4096}) {
    const RouteShape real{t, 8, 256, Ids::kRandom, true};
    add_offsets(list, real);
    add_shapes(list, real);
    add_align(list, real, t > 128 ? 128 : 16);
  }
  add_offsets(list, {1024, 8, 256, Ids::kAllOnOne, true});
  for (const ReferencePoint& p : reference_points()) {
    const RouteShape real{p.tokens(), 8, 256, Ids::kRandom, true};
    add_reference_case(list, p, {.op = "prepare_moe_input"},
                       [&](CaseList& one) { add_offsets(one, real); });
    add_reference_case(list, p, {.op = "align_experts"},
                       [&](CaseList& one) { add_align(one, real, p.tokens() > 128 ? 128 : 16); });
  }
  list.serve_calls(
      "route_offsets", [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
        const RouteShape s{call.dim("ids", 0), call.dim("ids", 1),
                           static_cast<int>(call.dim("offsets", 0) - 1), Ids::kRandom, true};
        add_offsets_case(one, spec, s, call.has("sizes_up"));
      });
}

}  // namespace fathom

#include <algorithm>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/moe/route/route.h"

namespace fathom {
namespace {

enum class Ids { kRandom, kAllOnOne, kSomeMissing, kAllMissing };

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
  }
  return name;
}

template <class K>
Tensor make_ids(CaseBuilder<K>& c, int64_t tokens, int64_t top_k, int experts, Ids kind) {
  const Tensor ids = c.input({tokens, top_k}, Format::kI32, {}, {.row_gap = 1});
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const auto random = static_cast<int64_t>(c.rng().next_below(static_cast<uint32_t>(experts)));
    const bool missing =
        kind == Ids::kAllMissing || (kind == Ids::kSomeMissing && c.rng().next_below(3) == 0);
    ids.set(i, static_cast<double>(missing ? -1 : kind == Ids::kAllOnOne ? experts - 1 : random));
  }
  return ids;
}

void add_offsets(
    CaseList& list, int64_t tokens, int64_t top_k, int experts, Ids kind, bool bench = false) {
  const CaseSpec spec{.name = name_of(tokens, top_k, experts, kind) + (bench ? "_real" : ""),
                      .op = "experts",
                      .bench = bench,
                      .phase = bench ? (tokens > 128 ? "prefill" : "decode") : "",
                      .columns = str_cat("M=", tokens, ";E=", experts, ";topk=", top_k)};
  add_case<RouteOffsets>(list, spec, [=](CaseBuilder<RouteOffsets>& c) {
    const Tensor ids = make_ids(c, tokens, top_k, experts, kind);
    const Tensor offsets = c.output({experts + 1}, Format::kI32);
    const Tensor src_row = c.output({tokens * top_k}, Format::kI32);
    const Tensor dest = c.output({tokens, top_k}, Format::kI32, {.row_gap = 2});
    c.bind([=](const Binding& at) {
      return RouteOffsets::Args{
          .ids = at(ids), .offsets = at(offsets), .src_row = at(src_row), .dest = at(dest)};
    });
    // The definition: slots that have an expert, stably sorted by it.
    const auto sorted_slots = [=] {
      std::vector<int64_t> slots;
      for (int64_t i = 0; i < ids.numel(); ++i) {
        if (ids[i] >= 0) slots.push_back(i);
      }
      std::stable_sort(slots.begin(), slots.end(),
                       [&](int64_t i, int64_t j) { return ids[i] < ids[j]; });
      return slots;
    };
    c.expect_each(offsets, gates::exact(), [=](int64_t, int64_t e) {
      int64_t count = 0;
      for (int64_t i = 0; i < ids.numel(); ++i)
        count += ids[i] >= 0 && ids[i] < double(e) ? 1 : 0;
      return static_cast<double>(count);
    });
    c.expect_all(dest, gates::exact(), [=](std::span<double> out) {
      std::fill(out.begin(), out.end(), -1.0);
      const std::vector<int64_t> slots = sorted_slots();
      for (size_t i = 0; i < slots.size(); ++i) {
        out[static_cast<size_t>(slots[i])] = static_cast<double>(i);
      }
    });
    c.expect_all(src_row, gates::exact(), [=](std::span<double> out) {
      std::fill(out.begin(), out.end(), -1.0);
      const std::vector<int64_t> slots = sorted_slots();
      for (size_t i = 0; i < slots.size(); ++i)
        out[i] = static_cast<double>(slots[i] / top_k);
    });
  });
}

struct Aligned {
  std::vector<double> sorted, blocks;
  double padded = 0;
};

/// The definition with a list for each bucket.
Aligned align(const Tensor& ids, int experts, int block, int64_t slots, int64_t num_blocks) {
  Aligned out;
  for (int e = -1; e < experts; ++e) {
    std::vector<double> bucket;
    for (int64_t i = 0; i < ids.numel(); ++i) {
      if (ids[i] == e) bucket.push_back(static_cast<double>(i));
    }
    while (bucket.size() % static_cast<size_t>(block) != 0) {
      bucket.push_back(static_cast<double>(ids.numel()));
    }
    out.sorted.insert(out.sorted.end(), bucket.begin(), bucket.end());
    out.blocks.insert(out.blocks.end(), bucket.size() / static_cast<size_t>(block), e);
  }
  out.padded = static_cast<double>(out.sorted.size());
  out.sorted.resize(static_cast<size_t>(slots), static_cast<double>(ids.numel()));
  out.blocks.resize(static_cast<size_t>(num_blocks), -1);
  return out;
}

void add_align(CaseList& list,
               int64_t tokens,
               int64_t top_k,
               int experts,
               int block,
               Ids kind,
               bool bench = false) {
  const CaseSpec spec{
      .name = str_cat(name_of(tokens, top_k, experts, kind), "_block", block, bench ? "_real" : ""),
      .op = "experts",
      .bench = bench,
      .phase = bench ? (tokens > 128 ? "prefill" : "decode") : "",
      .columns = str_cat("M=", tokens, ";E=", experts, ";topk=", top_k)};
  add_case<AlignExperts>(list, spec, [=](CaseBuilder<AlignExperts>& c) {
    const int64_t slots = AlignExperts::capacity(tokens * top_k, experts, block);
    const Tensor ids = make_ids(c, tokens, top_k, experts, kind);
    const Tensor sorted = c.output({slots}, Format::kI32);
    const Tensor blocks = c.output({slots / block}, Format::kI32);
    const Tensor padded = c.output({1}, Format::kI32);
    c.bind([=](const Binding& at) {
      return AlignExperts::Args{.ids = at(ids),
                                .sorted_ids = at(sorted),
                                .block_expert = at(blocks),
                                .num_padded = at(padded),
                                .block = block,
                                .num_experts = experts};
    });
    const auto expected = [=] { return align(ids, experts, block, slots, slots / block); };
    c.expect_all(sorted, gates::exact(),
                 [=](std::span<double> out) { std::ranges::copy(expected().sorted, out.begin()); });
    c.expect_all(blocks, gates::exact(),
                 [=](std::span<double> out) { std::ranges::copy(expected().blocks, out.begin()); });
    c.expect_all(padded, gates::exact(),
                 [=](std::span<double> out) { out[0] = expected().padded; });
  });
}

}  // namespace

void add_route_cases(CaseList& list) {
  for (int64_t t : {0, 1, 2, 3, 7, 31}) {
    add_offsets(list, t, 8, 256, Ids::kRandom);
    add_align(list, t, 8, 256, 16, Ids::kRandom);
  }
  for (Ids kind : {Ids::kAllOnOne, Ids::kSomeMissing, Ids::kAllMissing}) {
    add_offsets(list, 13, 6, 64, kind);
    add_align(list, 13, 6, 64, 16, kind);
  }
  add_offsets(list, 5, 1, 1, Ids::kRandom);
  add_offsets(list, 11, 3, 2, Ids::kSomeMissing);
  for (int block : {1, 2, 3, 64, 128})
    add_align(list, 17, 3, 5, block, Ids::kSomeMissing);
  add_align(list, 5, 1, 1, 4, Ids::kRandom);

  for (int64_t t : {1, 8, 32, 128, 1024, 4096}) {
    add_offsets(list, t, 8, 256, Ids::kRandom, true);
    add_align(list, t, 8, 256, t > 128 ? 128 : 16, Ids::kRandom, true);
  }
  add_offsets(list, 1024, 8, 256, Ids::kAllOnOne, true);
}

}  // namespace fathom

// What the cases of grouped products with quantised activations share: the rows of each expert, and
// which loads are worth a case.
#pragma once

#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "fathom/kernels/gemm/product_cases.h"

namespace fathom {

/// Rows sorted by expert: `before` of none, those of each expert, `after` of none.
struct ExpertLoad {
  std::vector<int64_t> counts;
  int64_t before = 0;
  int64_t after = 0;

  int64_t experts() const { return static_cast<int64_t>(counts.size()); }

  int64_t routed() const { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

  int64_t rows() const { return before + routed() + after; }

  /// Of row r, or -1.
  int64_t expert_of(int64_t r) const {
    int64_t end = before;
    for (int64_t e = 0; e < experts() && r >= before; ++e) {
      end += counts[static_cast<size_t>(e)];
      if (r < end) return e;
    }
    return -1;
  }

  Tensor offsets(CaseData& c) const {
    const Tensor out = c.input({experts() + 1}, Format::kI32);
    int64_t at = before;
    for (int64_t e = 0; e <= experts(); ++e) {
      out.set(e, static_cast<double>(at));
      if (e < experts()) at += counts[static_cast<size_t>(e)];
    }
    return out;
  }

  std::string text() const {
    std::string out = str_cat("r", rows(), "_e", experts());
    if (experts() <= kMostNamedExperts) {
      for (int64_t count : counts)
        str_append(out, str_cat("_", count));
    }
    if (before + after > 0) str_append(out, str_cat("_gaps_", before, "_", after));
    return out;
  }
};

/// No rows at all; an expert without tokens; all tokens on one; runs around the heights of blocks;
/// more rows than are decoded at once; rows of no expert.
inline std::vector<ExpertLoad> small_loads() {
  return {{.counts = {0, 0, 0}},
          {.counts = {1}},
          {.counts = {2, 0, 3}},
          {.counts = {0, 0, 23, 0}},
          {.counts = {5, 17, 0, 9, 1, 33}},
          {.counts = {2, 0, 9, 4}, .before = 2, .after = 3},
          {.counts = {63, 64, 65, 1, 1, 2}},
          {.counts = {530, 1, 200}}};
}

/// `tokens` tokens that choose top_k of the experts evenly.
inline ExpertLoad even_load(int64_t tokens, int64_t top_k, int64_t experts) {
  ExpertLoad load{.counts = std::vector<int64_t>(static_cast<size_t>(experts), 0)};
  // An odd stride visits every expert before it comes back.
  for (int64_t i = 0; i < tokens * top_k; ++i)
    ++load.counts[static_cast<size_t>(i * 37 % experts)];
  return load;
}

/// The same number of slots, a third of them on two experts and the others falling off: what a
/// skewed schedule is for.
inline ExpertLoad skewed_load(int64_t tokens, int64_t top_k, int64_t experts) {
  ExpertLoad load{.counts = std::vector<int64_t>(static_cast<size_t>(experts), 0)};
  for (int64_t i = 0; i < tokens * top_k; ++i) {
    const int64_t e = i % 3 == 0 ? i / 3 % 2 : i * i % experts * (i % experts) / experts;
    ++load.counts[static_cast<size_t>(e)];
  }
  return load;
}

/// Spec of a case; a real shape where op is not empty.
inline CaseSpec grouped_case_spec(const char* op,
                                  const ExpertLoad& load,
                                  int64_t n,
                                  int64_t k,
                                  int64_t top_k,
                                  std::string_view suffix) {
  const bool bench = *op != '\0';
  const int64_t tokens = load.routed() / top_k;
  return {
      .name = str_cat(op, bench ? "_" : "", load.text(), "_", n, "x", k, "_", suffix),
      .op = op,
      .bench = bench,
      .phase = phase_of_case(bench, tokens),
      .columns = str_cat("M=", tokens, ";N=", n, ";K=", k, ";E=", load.experts(), ";topk=", top_k)};
}

/// SwiGLU behind the product, with a limit that clamps some and without, for every kernel of a GPU:
/// from one row an expert to several tiles of each height; widths of an expert that tensor
/// parallelism makes, odd ones, experts without rows, and rows of none.
template <class K>
void add_gated_cases(CaseList& list, Format weight) {
  const auto add = [&](GroupedShape s) {
    s.weight = weight;
    s.gated = true;
    s.x_gap = 8;
    add_grouped_case<K>(list, s);
    s.limit = 1;
    s.y_gap = s.y_gap == 0 ? 0 : 8;
    add_grouped_case<K>(list, s);
  };
  const std::vector<int64_t> some{0, 1, 3, 0, 0, 11, 8, 0};
  add({.counts = {0, 0, 0}, .n = 32, .k = 128});
  add({.counts = some, .n = 2 * 24, .k = 96, .before = 1, .after = 2, .y_gap = 0});
  add({.counts = some, .n = 2 * 72, .k = 640, .before = 1, .after = 2, .y_gap = 0});
  add({.counts = some, .n = 2 * 288, .k = 1536, .before = 1, .after = 2, .y_gap = 0});
  add({.counts = {1, 9, 2}, .n = 2 * 8, .k = 7680});
  add({.counts = some, .n = 2 * 576, .k = 2048});
  // Tiles of 32, 64, 128 and 256 rows of x.
  add({.counts = {17, 40, 33, 18, 20, 16}, .n = 2 * 288, .k = 320, .y_gap = 0});
  add({.counts = {0, 65, 0, 0, 17, 64, 1, 0}, .n = 2 * 136, .k = 320, .before = 1, .after = 2});
  add({.counts = {0, 129, 200, 0}, .n = 2 * 576, .k = 192});
  add({.counts = {0, 257, 0, 520}, .n = 2 * 104, .k = 320});
  add({.counts = {60, 33, 40}, .n = 2 * 192, .k = 64, .after = 1});
}

/// Gate and up of experts of steps, 256 of them, with the activation behind.
template <class K>
void add_gated_experts(CaseList& list, Format weight, const char* op, GroupedShape s) {
  for (const int64_t tokens : {1, 32, 128, 512}) {
    s.counts = even_load(tokens, s.top_k, 256).counts;
    s.weight = weight;
    s.op = op;
    s.ring_bytes = kExpertRing;
    s.gated = true;
    add_grouped_case<K>(list, s);
  }
}

/// Rows of no expert keep the NaN that outputs start with.
inline double untouched() {
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace fathom

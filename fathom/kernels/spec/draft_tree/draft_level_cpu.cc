#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "fathom/kernels/attn/tree_keys.h"
#include "fathom/kernels/spec/draft_tree/best_in_order.h"
#include "fathom/kernels/spec/draft_tree/draft_tree.h"

namespace fathom {
namespace {

/// Rows of the tree of nodes [first, first + K).
int64_t rows_so_far(const DraftLevel::Args& a, int64_t first) {
  uint64_t seen = 0;
  for (int64_t k = 0; k < a.ids.dim(1); ++k)
    seen |= static_cast<uint64_t>(a.masks.as<const int64_t>()[first + k]);
  return std::bit_width(seen);
}

void write_node(const DraftLevel::Args& a, int64_t at, int32_t token, int64_t parent, float path) {
  const int64_t K = a.ids.dim(1);
  const int64_t row = rows_so_far(a, at - at % K) + at % K;
  a.tokens.as<int32_t>()[at] = token;
  a.rows.as<int32_t>()[at] = static_cast<int32_t>(parent);
  a.next_paths.as<float>()[at] = path;
  a.next_masks.as<int64_t>()[at] =
      a.masks.as<const int64_t>()[parent] | static_cast<int64_t>(uint64_t{1} << row);
}

void write_tree(const DraftLevel::Args& a, int64_t first) {
  const int64_t K = a.ids.dim(1);
  std::array<float, 64> paths;
  std::array<int32_t, 64> guesses;
  size_t count = 0;
  for (int32_t g = 0; g < K * K; ++g) {
    const int64_t t = first + g / K;
    float& path = paths[static_cast<size_t>(g)];
    path = a.paths.as<const float>()[t] + a.logprobs.row<const float>(t)[g % K];
    if (a.ids.row<const int32_t>(t)[g % K] >= 0 && !std::isnan(path)) guesses[count++] = g;
  }
  const size_t chosen = best_in_order(std::span(guesses).first(count), static_cast<size_t>(K),
                                      [&](int32_t g) { return paths[static_cast<size_t>(g)]; });
  for (int64_t j = 0; j < K; ++j) {
    if (j >= static_cast<int64_t>(chosen)) {
      write_node(a, first + j, 0, first, std::numeric_limits<float>::quiet_NaN());
      continue;
    }
    const int32_t g = guesses[static_cast<size_t>(j)];
    const int64_t t = first + g / K;
    write_node(a, first + j, a.ids.row<const int32_t>(t)[g % K], t, paths[static_cast<size_t>(g)]);
  }
}

// Some hundred instructions a tree: less than to wake a thread.
Status draft_level(Exec&, const DraftLevel::Args& a) {
  for (int64_t first = 0; first < a.ids.dim(0); first += a.ids.dim(1))
    write_tree(a, first);
  return {};
}

}  // namespace

Status DraftLevel::check(const Args& a) {
  if (!a.masks.readable()) return {};
  const int64_t K = a.ids.dim(1);
  for (int64_t first = 0; first < a.ids.dim(0); first += K) {
    const int64_t rows = rows_so_far(a, first) + K;
    if (rows <= kMostTreeRows) continue;
    return invalid_argument(str_cat("tree ", first / K, " has ", rows,
                                    " rows with its next level, expected at most ", kMostTreeRows));
  }
  return {};
}

constinit const VariantTable<DraftLevel> draft_level_cpu{
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, draft_level},
};

}  // namespace fathom

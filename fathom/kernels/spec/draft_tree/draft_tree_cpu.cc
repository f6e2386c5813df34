#include <algorithm>

#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/spec/draft_tree/draft_tree.h"

namespace fathom {
namespace {

constexpr int64_t kNone = -1;

int64_t bytes_per_bit_row(int64_t nodes) {
  return nodes <= 8 ? 1 : nodes <= 16 ? 2 : 4;
}

int64_t length_of(const DraftTreeBuild::Args& a, int64_t b) {
  return a.seq_lens.as<const int64_t>()[b];
}

/// Bytes of the mask before request b, and so of the whole mask for b = B.
int64_t mask_offset(const DraftTreeBuild::Args& a, int64_t b) {
  const int64_t nodes = a.next_token.dim(1);
  switch (a.mask_mode) {
    case TreeMask::kFull: {
      int64_t tokens = 0;
      for (int64_t r = 0; r < b; ++r)
        tokens += length_of(a, r);
      return nodes * (tokens + b * nodes);
    }
    case TreeMask::kQueryOnly:
      return b * nodes * nodes;
    case TreeMask::kBits:
      return b * nodes * bytes_per_bit_row(nodes);
  }
  return 0;
}

/// parents[i] for every node; kNone where the parent is not in the tree.
void find_parents(const DraftTreeBuild::Args& a, int64_t b, int64_t* parents) {
  const int64_t nodes = a.next_token.dim(1);
  const auto* selected = a.selected.row<const int64_t>(b);
  const auto* selected_end = selected + nodes - 1;
  parents[0] = kNone;
  for (int64_t i = 1; i < nodes; ++i) {
    const int64_t q = selected[i - 1] / a.topk;
    if (q == 0) {
      parents[i] = 0;
      continue;
    }
    const int64_t wanted = a.parent_list.row<const int64_t>(b)[q];
    const auto* found = std::find(selected, selected_end, wanted);
    parents[i] = found == selected_end ? kNone : found - selected + 1;
  }
}

/// Children in ascending order: each node becomes the first child of its parent, the highest first.
void link_children(const DraftTreeBuild::Args& a, int64_t b, const int64_t* parents) {
  const int64_t nodes = a.next_token.dim(1);
  auto* next_token = a.next_token.row<int64_t>(b);
  auto* next_sibling = a.next_sibling.row<int64_t>(b);
  std::fill_n(next_token, nodes, kNone);
  std::fill_n(next_sibling, nodes, kNone);
  for (int64_t i = nodes - 1; i > 0; --i) {
    if (parents[i] == kNone) continue;
    next_sibling[i] = next_token[parents[i]];
    next_token[parents[i]] = i;
  }
}

/// Calls visit(node) for node i and its ancestors but node 0; returns how many there are.
template <class Visit>
int64_t walk_up(const int64_t* parents, int64_t i, int64_t nodes, Visit visit) {
  int64_t depth = 0;
  for (int64_t node = i; node > 0 && depth < nodes; node = parents[node]) {
    visit(node);
    ++depth;
  }
  return depth;
}

/// Writes the mask row of node i; returns its depth.
int64_t write_mask_row(const DraftTreeBuild::Args& a,
                       int64_t b,
                       int64_t i,
                       const int64_t* parents,
                       uint8_t* mask_of_request) {
  const int64_t nodes = a.next_token.dim(1);
  if (a.mask_mode == TreeMask::kBits) {
    uint32_t bits = 1;
    const int64_t depth =
        walk_up(parents, i, nodes, [&](int64_t node) { bits |= uint32_t{1} << node; });
    const int64_t bytes = bytes_per_bit_row(nodes);
    for (int64_t byte = 0; byte < bytes; ++byte)
      mask_of_request[i * bytes + byte] = static_cast<uint8_t>(bits >> (8 * byte));
    return depth;
  }
  const int64_t prefix = a.mask_mode == TreeMask::kFull ? length_of(a, b) : 0;
  uint8_t* row = mask_of_request + i * (prefix + nodes) + prefix;
  std::fill_n(row, nodes, uint8_t{0});
  row[0] = 1;
  return walk_up(parents, i, nodes, [&](int64_t node) { row[node] = 1; });
}

Status draft_tree_build(Exec& ex, const DraftTreeBuild::Args& a) {
  const int64_t nodes = a.next_token.dim(1);
  auto* workspace = static_cast<int64_t*>(ex.workspace);
  for_rows_by_thread(
      ex, a.selected.dim(0), 64 * nodes, [&](int thread, int64_t begin, int64_t end) {
        int64_t* parents = workspace + thread * nodes;
        uint8_t* mask = a.mask.as<uint8_t>() + mask_offset(a, begin);
        for (int64_t b = begin; b < end; ++b) {
          find_parents(a, b, parents);
          link_children(a, b, parents);
          for (int64_t i = 0; i < nodes; ++i) {
            a.retrieve_index.row<int64_t>(b)[i] = b * nodes + i;
            a.positions.as<int64_t>()[b * nodes + i] =
                length_of(a, b) + write_mask_row(a, b, i, parents, mask);
          }
          const int64_t prefix = a.mask_mode == TreeMask::kFull ? length_of(a, b) : 0;
          mask += a.mask_mode == TreeMask::kBits ? nodes * bytes_per_bit_row(nodes)
                                                 : nodes * (prefix + nodes);
        }
      });
  return {};
}

Status check_mask(const DraftTreeBuild::Args& a) {
  const int64_t nodes = a.next_token.dim(1);
  const Format format = a.mask_mode == TreeMask::kBits ? Format::kU8 : Format::kBool;
  if (a.mask.format != format) {
    return invalid_argument(str_cat("mask is ", format_name(a.mask.format), ", expected ",
                                    format_name(format), " for its mode"));
  }
  if (a.mask_mode == TreeMask::kBits && nodes > 32) {
    return invalid_argument(str_cat("a mask of bits holds up to 32 nodes, the trees have ", nodes));
  }
  return {};
}

Status check_tree(const DraftTreeBuild::Args& a, int64_t b) {
  constexpr int64_t kMaxLength = INT32_MAX;
  if (const int64_t length = length_of(a, b); length < 0 || length > kMaxLength) {
    return invalid_argument(
        str_cat("seq_lens[", b, "] is ", length, ", expected 0 to ", kMaxLength));
  }
  const int64_t reached = std::max<int64_t>(1, a.parent_list.dim(1)) * a.topk;
  for (int64_t i = 0; i < a.selected.dim(1); ++i) {
    const int64_t f = a.selected.row<const int64_t>(b)[i];
    if (f >= 0 && f < reached) continue;
    return invalid_argument(
        str_cat("selected[", b, ",", i, "] is ", f, ", expected 0 to ", reached - 1));
  }
  return {};
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

void DraftTreeBuild::bytes(const Args& a, Cost& cost) {
  const int64_t batch = a.selected.dim(0);
  const int64_t nodes = a.next_token.dim(1);
  const int64_t row = a.mask_mode == TreeMask::kBits ? bytes_per_bit_row(nodes) : nodes;
  cost.bytes_read = 8 * (a.parent_list.numel() + a.selected.numel() + batch);
  cost.bytes_written = batch * nodes * (row + 4 * 8);
}

Status DraftTreeBuild::check(const Args& a) {
  if (a.topk < 1 || a.depth < 1 || a.topk > 4096 || a.depth > 4096) {
    return invalid_argument(
        str_cat("topk is ", a.topk, " and depth is ", a.depth, ", expected 1 to 4096 each"));
  }
  const int64_t width = a.topk * (a.depth - 1) + 1;
  const int64_t found = a.parent_list.dim(1);
  if (found != width && !(found == 0 && a.depth == 1)) {
    return invalid_argument(str_cat("parent_list has ", found, " columns, expected ", width,
                                    " for topk ", a.topk, " and depth ", a.depth));
  }
  FATHOM_TRY(check_mask(a));
  if (!a.seq_lens.readable() || !a.selected.readable()) return {};
  for (int64_t b = 0; b < a.seq_lens.dim(0); ++b)
    FATHOM_TRY(check_tree(a, b));
  const int64_t needed = mask_offset(a, a.seq_lens.dim(0));
  if (a.mask.dim(0) < needed) {
    return invalid_argument(
        str_cat("mask has ", a.mask.dim(0), " elements, expected at least ", needed));
  }
  return {};
}

int64_t DraftTreeBuild::workspace(const Args& a, int num_threads) {
  return num_threads * a.next_token.dim(1) * static_cast<int64_t>(sizeof(int64_t));
}

constinit const VariantTable<DraftTreeBuild> draft_tree_build_cpu{
    {"portable", Isa::kPortable, "", kTraits, draft_tree_build},
};

}  // namespace fathom

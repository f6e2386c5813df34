#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/spec/draft_tree/draft_tree.h"

namespace fathom {
namespace {

// ---- draft_topk ----

enum class Values {
  kUniform,
  kCoarse,     ///< few distinct values, zeros of both signs among them
  kAscending,  ///< every element is the best so far
  kExtremes,   ///< NaN of both signs, infinities
};

struct TopkShape {
  int64_t outer;
  int64_t width;
  int64_t k;
  Format format = Format::kF32;
  int64_t inner = 1;
  Values values = Values::kUniform;
};

double value_of(Values kind, double uniform, int64_t i) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kOdd[] = {NAN, -kInf, kInf, -NAN, 0.25};
  switch (kind) {
    case Values::kUniform:
      return uniform;
    case Values::kCoarse:
      return i % 5 == 0 ? -0.0 : std::floor(uniform * 4);
    case Values::kAscending:
      return static_cast<double>(i);
    case Values::kExtremes:
      return i % 7 < 5 ? kOdd[i % 7] : uniform;
  }
  return uniform;
}

void add_topk(CaseList& list, const TopkShape& s, std::string_view phase = "") {
  constexpr std::string_view kKinds[] = {"", "_coarse", "_ascending", "_extremes"};
  const CaseSpec spec{
      .name = str_cat("t", s.outer, "_v", s.width, s.inner > 1 ? str_cat("_c", s.inner) : "", "_k",
                      s.k, "_", format_name(s.format), kKinds[static_cast<size_t>(s.values)]),
      .op = "draft_topk",
      .bench = !phase.empty(),
      .phase = std::string(phase),
      .columns = str_cat("M=", s.outer, ";N=", s.width, ";topk=", s.k)};
  add_case<DraftTopk>(list, spec, [=](CaseBuilder<DraftTopk>& c) {
    c.set_batch(s.outer);
    const RowPlacement rows{.row_gap = s.inner > 1 ? 3 : 0, .rows_per_batch = 1};
    const Tensor x = c.input({s.outer, s.width, s.inner}, s.format, {.dist = Dist::kUniform}, rows);
    for (int64_t i = 0; s.values != Values::kUniform && i < x.numel(); ++i)
      x.set(i, value_of(s.values, x[i], i / s.inner % s.width));
    const Tensor values = c.output({s.outer, s.k, s.inner}, s.format, rows);
    const Tensor ids = c.output({s.outer, s.k, s.inner}, Format::kI64, rows);
    c.bind([=](const Binding& at) {
      return DraftTopk::Args{.x = at(x), .values = at(values), .ids = at(ids)};
    });
    // Places of line (a, c), best first: a full sort.
    const auto best = [=](int64_t a, int64_t inner) {
      std::vector<int64_t> order(static_cast<size_t>(s.width));
      std::iota(order.begin(), order.end(), int64_t{0});
      std::vector<double> line;
      for (int64_t v = 0; v < s.width; ++v)
        line.push_back(x.at(a, v, inner));
      std::sort(order.begin(), order.end(), [&](int64_t i, int64_t j) {
        const double p = line[static_cast<size_t>(i)];
        const double q = line[static_cast<size_t>(j)];
        if (std::isnan(p) != std::isnan(q)) return std::isnan(p);
        return p > q || (!(p < q) && i < j);
      });
      return order;
    };
    const auto for_lines = [=](auto f) {
      for (int64_t a = 0; a < s.outer; ++a) {
        for (int64_t inner = 0; inner < s.inner; ++inner) {
          const std::vector<int64_t> order = best(a, inner);
          for (int64_t k = 0; k < s.k; ++k)
            f(a, inner, static_cast<size_t>((a * s.k + k) * s.inner + inner),
              order[static_cast<size_t>(k)]);
        }
      }
    };
    c.expect_all(values, gates::exact(), [=](std::span<double> out) {
      for_lines([&](int64_t a, int64_t inner, size_t place, int64_t v) {
        out[place] = x.at(a, v, inner);
      });
    });
    c.expect_all(ids, gates::exact(), [=](std::span<double> out) {
      for_lines(
          [&](int64_t, int64_t, size_t place, int64_t v) { out[place] = static_cast<double>(v); });
    });
  });
}

// ---- draft_tree_build ----

struct TreeShape {
  int64_t batch;
  int64_t topk;
  int64_t depth;
  int64_t nodes;
  TreeMask mode = TreeMask::kFull;
  bool orphans = false;  ///< some candidates are selected without their parents
  int64_t seq_len = -1;  ///< of every request; -1: 0, 1, 5, 17 in turn
};

/// The trees of a case: candidates of each step as drafting would number them.
struct Trees {
  TreeShape shape;
  Tensor parent_list, selected, seq_lens;

  Trees(CaseBuilder<DraftTreeBuild>& c, const TreeShape& s) : shape(s) {
    const RowPlacement rows{.row_gap = 2, .rows_per_batch = 0};
    const int64_t parents = s.depth == 1 ? 0 : s.topk * (s.depth - 1) + 1;
    parent_list = c.input({s.batch, parents}, Format::kI64, {}, rows);
    selected = c.input({s.batch, s.nodes - 1}, Format::kI64, {}, rows);
    seq_lens = c.input({s.batch}, Format::kI64);
    const int64_t lengths[] = {5, 0, 1, 17};
    seq_lens.fill([&](int64_t b) { return s.seq_len < 0 ? lengths[b % 4] : s.seq_len; });
    for (int64_t b = 0; b < s.batch; ++b)
      make_tree(c.rng(), b);
  }

  /// Flat index of the candidate in live slot m of step i.
  int64_t live(int64_t step, int64_t m, Rng& rng) const {
    if (step == 0) return m;
    const int64_t k = shape.topk;
    return k + k * k * (step - 1) + m * k + rng.next_below(static_cast<uint32_t>(k));
  }

  void make_tree(Rng& rng, int64_t b) const {
    const int64_t k = shape.topk;
    const int64_t width = parent_list.dim(1);
    std::vector<int64_t> entries = {-1};  // what parent_list holds: live nodes in order
    for (int64_t step = 0; step + 1 < shape.depth; ++step) {
      for (int64_t m = 0; m < k; ++m)
        entries.push_back(live(step, m, rng));
    }
    for (int64_t i = 0; i < width; ++i)
      parent_list.set(b * width + i, static_cast<double>(entries[static_cast<size_t>(i)]));
    const int64_t candidates = k + (shape.depth - 1) * k * k;
    std::set<int64_t> chosen;
    while (static_cast<int64_t>(chosen.size()) < shape.nodes - 1) {
      const auto f = static_cast<int64_t>(rng.next_below(static_cast<uint32_t>(candidates)));
      const int64_t q = f / k;
      const bool has_parent = q == 0 || chosen.count(entries[static_cast<size_t>(q)]) > 0;
      if (has_parent || shape.orphans) chosen.insert(f);
    }
    int64_t place = b * (shape.nodes - 1);
    for (int64_t f : chosen)
      selected.set(place++, static_cast<double>(f));
  }

  int64_t flat(int64_t b, int64_t i) const { return static_cast<int64_t>(selected.at(b, i - 1)); }

  /// Parent of node i >= 1, -1 if it is not selected: looked up by flat index.
  int64_t parent(int64_t b, int64_t i) const {
    const int64_t q = flat(b, i) / shape.topk;
    if (q == 0) return 0;
    std::map<int64_t, int64_t> node_of;
    for (int64_t j = 1; j < shape.nodes; ++j)
      node_of[flat(b, j)] = j;
    const auto found = node_of.find(static_cast<int64_t>(parent_list.at(b, q)));
    return found == node_of.end() ? -1 : found->second;
  }

  /// Node i and all above it but the root.
  std::vector<int64_t> path(int64_t b, int64_t i) const {
    std::vector<int64_t> nodes;
    for (; i > 0; i = parent(b, i))
      nodes.push_back(i);
    return nodes;
  }

  std::vector<int64_t> children(int64_t b, int64_t of) const {
    std::vector<int64_t> out;
    for (int64_t i = 1; i < shape.nodes; ++i) {
      if (parent(b, i) == of) out.push_back(i);
    }
    return out;
  }

  int64_t prefix(int64_t b) const {
    return shape.mode == TreeMask::kFull ? static_cast<int64_t>(seq_lens[b]) : 0;
  }

  int64_t bits_bytes() const { return shape.nodes <= 8 ? 1 : shape.nodes <= 16 ? 2 : 4; }

  int64_t mask_size() const {
    int64_t size = 0;
    for (int64_t b = 0; b < shape.batch; ++b) {
      size +=
          shape.nodes * (shape.mode == TreeMask::kBits ? bits_bytes() : prefix(b) + shape.nodes);
    }
    return size;
  }

  /// The mask as rows of true and false, then as its mode stores them.
  void fill_mask(std::span<double> out) const {
    size_t at = 0;
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (int64_t i = 0; i < shape.nodes; ++i) {
        std::vector<bool> row(static_cast<size_t>(shape.nodes), false);
        row[0] = true;
        for (int64_t node : path(b, i))
          row[static_cast<size_t>(node)] = true;
        if (shape.mode == TreeMask::kBits) {
          for (int64_t byte = 0; byte < bits_bytes(); ++byte, ++at) {
            out[at] = 0;
            for (size_t j = 0; j < 8; ++j) {
              const size_t column = static_cast<size_t>(byte) * 8 + j;
              if (column < row.size() && row[column]) out[at] += static_cast<double>(1 << j);
            }
          }
          continue;
        }
        for (int64_t p = 0; p < prefix(b); ++p)
          out[at++] = 1;
        for (bool seen : row)
          out[at++] = seen ? 1 : 0;
      }
    }
  }
};

void add_build(CaseList& list, const TreeShape& s, std::string_view phase = "") {
  constexpr std::string_view kModes[] = {"_full", "_query", "_bits"};
  const CaseSpec spec{
      .name = str_cat("b", s.batch, "_k", s.topk, "_s", s.depth, "_n", s.nodes,
                      kModes[static_cast<size_t>(s.mode)], s.orphans ? "_orphans" : ""),
      .op = "draft_tree",
      .bench = !phase.empty(),
      .phase = std::string(phase),
      .columns = str_cat("M=", s.batch, ";N=", s.nodes, ";topk=", s.topk)};
  add_case<DraftTreeBuild>(list, spec, [=](CaseBuilder<DraftTreeBuild>& c) {
    // No batch: retrieve_index holds places in the batch, and requests share a mask without rows.
    const auto trees = std::make_shared<Trees>(c, s);
    const Format format = s.mode == TreeMask::kBits ? Format::kU8 : Format::kBool;
    // Two elements more than needed, which must stay.
    const int64_t size = trees->mask_size();
    const Tensor mask = c.inout({size + 2}, format);
    mask.fill([&](int64_t) { return 1; });
    const Tensor positions = c.output({s.batch * s.nodes}, Format::kI64);
    const RowPlacement rows{.row_gap = 1, .rows_per_batch = 0};
    const Tensor retrieve = c.output({s.batch, s.nodes}, Format::kI64, rows);
    const Tensor next_token = c.output({s.batch, s.nodes}, Format::kI64, rows);
    const Tensor next_sibling = c.output({s.batch, s.nodes}, Format::kI64, rows);
    c.bind([=](const Binding& at) {
      return DraftTreeBuild::Args{.parent_list = at(trees->parent_list),
                                  .selected = at(trees->selected),
                                  .seq_lens = at(trees->seq_lens),
                                  .mask = at(mask),
                                  .positions = at(positions),
                                  .retrieve_index = at(retrieve),
                                  .next_token = at(next_token),
                                  .next_sibling = at(next_sibling),
                                  .topk = s.topk,
                                  .depth = s.depth,
                                  .mask_mode = s.mode};
    });
    c.expect_all(mask, gates::exact(), [=](std::span<double> out) {
      trees->fill_mask(out);
      out[static_cast<size_t>(size)] = out[static_cast<size_t>(size) + 1] = 1;
    });
    c.expect_each(positions, gates::exact(), [=](int64_t, int64_t place) {
      const int64_t b = place / s.nodes;
      const auto depth = static_cast<double>(trees->path(b, place % s.nodes).size());
      return trees->seq_lens[b] + depth;
    });
    c.expect_each(retrieve, gates::exact(),
                  [=](int64_t b, int64_t i) { return static_cast<double>(b * s.nodes + i); });
    c.expect_each(next_token, gates::exact(), [=](int64_t b, int64_t i) {
      const std::vector<int64_t> children = trees->children(b, i);
      return children.empty() ? -1.0 : static_cast<double>(children[0]);
    });
    c.expect_each(next_sibling, gates::exact(), [=](int64_t b, int64_t i) {
      if (i == 0 || trees->parent(b, i) < 0) return -1.0;
      const std::vector<int64_t> siblings = trees->children(b, trees->parent(b, i));
      const auto higher = std::upper_bound(siblings.begin(), siblings.end(), i);
      return higher == siblings.end() ? -1.0 : static_cast<double>(*higher);
    });
  });
}

// ---- draft_level ----

struct Guess {
  double path;
  int64_t row, child;
};

// Of tree b, those that are chosen, in order: the equation by sorting all of them.
std::vector<Guess> chosen_of(
    const Tensor& ids, const Tensor& logprobs, const Tensor& paths, int64_t b, int64_t K) {
  std::vector<Guess> all;
  for (int64_t t = b * K; t < b * K + K; ++t) {
    for (int64_t c = 0; c < K; ++c) {
      const double path = static_cast<float>(paths[t] + logprobs.at(t, c));
      if (ids.at(t, c) >= 0 && !std::isnan(path)) all.push_back({path, t, c});
    }
  }
  std::ranges::stable_sort(all, std::greater(), &Guess::path);
  all.resize(std::min(all.size(), static_cast<size_t>(K)));
  std::ranges::sort(all, {}, [](const Guess& g) { return std::pair(g.row, g.child); });
  return all;
}

void add_level(CaseList& list, int64_t trees, int64_t K, int64_t rows, bool bench = false) {
  const CaseSpec spec{.name = str_cat("level_b", trees, "_k", K, "_r", rows),
                      .op = "draft_level",
                      .bench = bench,
                      .phase = bench ? "decode" : "",
                      .columns = str_cat("M=", trees, ";topk=", K)};
  add_case<DraftLevel>(list, spec, [=](CaseBuilder<DraftLevel>& c) {
    // No batch: rows are places in it. Tree b has coarse values where b % 4 is 1, bad rows where it
    // is 2, and nothing that is finite where it is 3.
    const int64_t T = trees * K;
    const RowPlacement gap{.row_gap = 12, .rows_per_batch = 0};
    const Tensor ids = c.input({T, K}, Format::kI32, {}, gap);
    const Tensor logprobs = c.input({T, K}, Format::kF32, {.scale = 2}, gap);
    const Tensor paths = c.input({T}, Format::kF32, {.scale = 2});
    const Tensor masks = c.input({T}, Format::kI64);
    Rng rng(static_cast<uint64_t>(T + rows));
    for (int64_t t = 0; t < T; ++t) {
      const int64_t kind = t / K % 4;
      const bool bad = kind == 2 && t % K % 2 == 0;
      for (int64_t i = t * K; i < t * K + K; ++i) {
        ids.set(i, bad ? -1 : static_cast<double>(7 * i % 1009));
        if (kind == 1) logprobs.set(i, std::floor(logprobs[i]));
        if (kind == 1 && i % 5 == 0) logprobs.set(i, i % 2 == 0 ? -0.0 : -HUGE_VAL);
        if (bad || kind == 3) logprobs.set(i, NAN);
      }
      if (kind == 1) paths.set(t, 0.0);
      // The level lies in the last K rows, each node behind some rows before it.
      uint64_t mask = uint64_t{1} << (rows - K + t % K);
      for (int64_t row = 0; row < rows - K; ++row)
        mask |= static_cast<uint64_t>(rng.next_below(2)) << row;
      masks.set(t, static_cast<double>(static_cast<int64_t>(mask)));
    }
    const Tensor tokens = c.output({T}, Format::kI32);
    const Tensor parents = c.output({T}, Format::kI32);
    const Tensor next_paths = c.output({T}, Format::kF32);
    const Tensor next_masks = c.output({T}, Format::kI64);
    c.bind([=](const Binding& at) {
      return DraftLevel::Args{.ids = at(ids),
                              .logprobs = at(logprobs),
                              .paths = at(paths),
                              .masks = at(masks),
                              .tokens = at(tokens),
                              .rows = at(parents),
                              .next_paths = at(next_paths),
                              .next_masks = at(next_masks)};
    });
    const auto expect = [&](const Tensor& out, auto value) {
      c.expect_all(out, gates::exact(), [=](std::span<double> o) {
        for (int64_t at = 0; at < T; ++at) {
          const std::vector<Guess> chosen = chosen_of(ids, logprobs, paths, at / K, K);
          const auto j = static_cast<size_t>(at % K);
          const bool is_node = j < chosen.size();
          o[static_cast<size_t>(at)] =
              value(is_node, is_node ? chosen[j] : Guess{NAN, at - at % K, 0}, at % K);
        }
      });
    };
    expect(tokens,
           [=](bool node, const Guess& g, int64_t) { return node ? ids.at(g.row, g.child) : 0.0; });
    expect(parents, [](bool, const Guess& g, int64_t) { return static_cast<double>(g.row); });
    expect(next_paths, [](bool, const Guess& g, int64_t) { return g.path; });
    expect(next_masks, [=](bool, const Guess& g, int64_t j) {
      return masks[g.row] + std::ldexp(1.0, static_cast<int>(rows + j));
    });
  });
}

}  // namespace

void add_draft_tree_cases(CaseList& list) {
  for (int64_t K = 1; K <= 8; ++K)
    add_level(list, K == 5 ? 0 : 9, K, K + 3 * (K % 3));
  add_level(list, 4, 8, 45);  // as many rows as doubles of the oracle tell apart
  add_level(list, 1, 2, 2, true);
  add_level(list, 64, 8, 8, true);

  for (int64_t t : {0, 1, 2, 3, 9})
    add_topk(list, {t, 331, 4});
  for (Format format : {Format::kF32, Format::kBf16, Format::kF16}) {
    for (int64_t v : {1, 2, 3, 15, 16, 17, 63, 64, 65, 1009})
      add_topk(list, {2, v, std::min<int64_t>(v, 5), format, 1, Values::kCoarse});
    add_topk(list, {3, 50, 1, format, 1, Values::kExtremes});
    add_topk(list, {3, 50, 20, format, 1, Values::kExtremes});
    add_topk(list, {2, 1009, 3, format, 1, Values::kExtremes});
    add_topk(list, {2, 1009, 400, format, 1, Values::kExtremes});
    add_topk(list, {2, 40, 3, format, 7, Values::kCoarse});
  }
  add_topk(list, {3, 300, 300});
  add_topk(list, {1, 2000, 8, Format::kF32, 1, Values::kAscending});
  add_topk(list, {2, 40, 40, Format::kF32, 3, Values::kExtremes});
  for (int64_t t : {1, 128})
    add_topk(list, {t, 129280, 4}, "decode");

  for (TreeMask mode : {TreeMask::kFull, TreeMask::kQueryOnly, TreeMask::kBits}) {
    add_build(list, {0, 2, 3, 5, mode});
    add_build(list, {1, 1, 1, 2, mode});  // the draft layer of V3, one step
    add_build(list, {3, 1, 3, 4, mode});  // a chain
    add_build(list, {2, 4, 1, 5, mode});  // one step of several candidates
    add_build(list, {5, 2, 3, 5, mode});
    add_build(list, {3, 4, 4, 8, mode});
    add_build(list, {3, 4, 4, 9, mode});
    add_build(list, {3, 4, 5, 16, mode});
    add_build(list, {3, 4, 5, 17, mode});
    add_build(list, {3, 8, 5, 32, mode});
    add_build(list, {4, 3, 4, 12, mode, true});
  }
  add_build(list, {2, 8, 6, 33, TreeMask::kFull});
  add_build(list, {2, 8, 6, 64, TreeMask::kQueryOnly});
  add_build(list, {2, 2, 2, 1, TreeMask::kFull});  // nothing but the root
  add_build(list, {128, 1, 3, 4, TreeMask::kFull, false, 4096}, "decode");
  add_build(list, {128, 8, 6, 64, TreeMask::kQueryOnly}, "decode");
}

}  // namespace fathom

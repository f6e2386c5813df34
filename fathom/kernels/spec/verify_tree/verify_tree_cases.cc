#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/spec/verify_tree/verify_tree.h"

namespace fathom {
namespace {

constexpr double kUntouched = 77;  // what entries hold that a kernel must leave alone

struct Shape {
  int64_t batch;
  int64_t nodes;
  int64_t most;  ///< width of accept_index
  int64_t vocabulary = 6;
  bool shuffled = false;  ///< retrieve_index is not b * D + i
};

/// Random trees: the parent of a node is any before it, siblings have distinct tokens.
struct Trees {
  Shape shape;
  Tensor candidates, retrieve_index, next_token, next_sibling, predicts, accept_index, accepted;
  std::vector<std::vector<std::vector<int64_t>>> children;  // [request][node]

  template <class K>
  Trees(CaseBuilder<K>& c, const Shape& s) : shape(s) {
    const RowPlacement rows{.row_gap = 2, .rows_per_batch = 0};
    candidates = c.input({s.batch, s.nodes}, Format::kI64, {}, rows);
    retrieve_index = c.input({s.batch, s.nodes}, Format::kI64, {}, rows);
    next_token = c.input({s.batch, s.nodes}, Format::kI64, {}, rows);
    next_sibling = c.input({s.batch, s.nodes}, Format::kI64, {}, rows);
    predicts = c.inout({s.batch * s.nodes}, Format::kI32);
    accept_index = c.inout({s.batch, s.most}, Format::kI32, {}, rows);
    accepted = c.output({s.batch}, Format::kI32);
    predicts.fill([](int64_t) { return kUntouched; });
    accept_index.fill([](int64_t) { return -1; });
    const int64_t flat = s.batch * s.nodes;
    retrieve_index.fill([&](int64_t i) { return s.shuffled ? flat - 1 - i : i; });
    children.resize(static_cast<size_t>(s.batch));
    for (int64_t b = 0; b < s.batch; ++b)
      make_tree(c.rng(), b);
  }

  void make_tree(Rng& rng, int64_t b) {
    auto& lists = children[static_cast<size_t>(b)];
    lists.resize(static_cast<size_t>(shape.nodes));
    const int64_t base = b * shape.nodes;
    candidates.set(base, static_cast<double>(rng.next_below(1000)));  // never looked up
    for (int64_t i = 1; i < shape.nodes; ++i) {
      const uint32_t parent = rng.next_below(static_cast<uint32_t>(i));
      auto& siblings = lists[parent];
      if (static_cast<int64_t>(siblings.size()) < shape.vocabulary) siblings.push_back(i);
      // Distinct among siblings: consecutive tokens from a random first.
      const int64_t first =
          siblings.size() == 1 || siblings.empty()
              ? rng.next_below(static_cast<uint32_t>(shape.vocabulary))
              : static_cast<int64_t>(candidates[base + siblings[siblings.size() - 2]]) + 1;
      candidates.set(base + i, static_cast<double>(first % shape.vocabulary));
    }
    for (int64_t i = 0; i < shape.nodes; ++i) {
      next_token.set(base + i, -1);
      next_sibling.set(base + i, -1);
    }
    for (int64_t i = 0; i < shape.nodes; ++i) {
      const auto& list = lists[static_cast<size_t>(i)];
      if (!list.empty()) next_token.set(base + i, static_cast<double>(list[0]));
      for (size_t j = 0; j + 1 < list.size(); ++j)
        next_sibling.set(base + list[j], static_cast<double>(list[j + 1]));
    }
  }

  int64_t token(int64_t b, int64_t node) const {
    return static_cast<int64_t>(candidates.at(b, node));
  }

  int64_t flat(int64_t b, int64_t node) const {
    return static_cast<int64_t>(retrieve_index.at(b, node));
  }

  /// The path of one request: nodes from the root on; choose(node) gives the accepted child or -1.
  template <class Choose>
  std::vector<int64_t> path(Choose choose) const {
    std::vector<int64_t> nodes = {0};
    while (static_cast<int64_t>(nodes.size()) < shape.most) {
      const int64_t child = choose(nodes.back());
      if (child < 0) break;
      nodes.push_back(child);
    }
    return nodes;
  }

  /// Expects what follows from the path of each request and its bonus token.
  template <class K>
  void expect_paths(CaseBuilder<K>& c,
                    std::function<std::vector<int64_t>(int64_t b)> path_of,
                    std::function<int64_t(int64_t b, const std::vector<int64_t>&)> bonus) const {
    const Trees& self = *this;
    c.expect_all(predicts, gates::exact(), [=, &self](std::span<double> out) {
      std::fill(out.begin(), out.end(), kUntouched);
      for (int64_t b = 0; b < self.shape.batch; ++b) {
        const std::vector<int64_t> nodes = path_of(b);
        for (size_t n = 0; n + 1 < nodes.size(); ++n) {
          out[static_cast<size_t>(self.flat(b, nodes[n]))] =
              static_cast<double>(self.token(b, nodes[n + 1]));
        }
        out[static_cast<size_t>(self.flat(b, nodes.back()))] = static_cast<double>(bonus(b, nodes));
      }
    });
    c.expect_rows(accept_index, gates::exact(), [=, &self](int64_t b, std::span<double> out) {
      const std::vector<int64_t> nodes = path_of(b);
      for (size_t n = 0; n < out.size(); ++n)
        out[n] = n < nodes.size() ? static_cast<double>(self.flat(b, nodes[n])) : -1.0;
    });
    c.expect_all(accepted, gates::exact(), [=, &self](std::span<double> out) {
      for (int64_t b = 0; b < self.shape.batch; ++b)
        out[static_cast<size_t>(b)] = static_cast<double>(path_of(b).size()) - 1;
    });
  }
};

CaseSpec spec_of(const Shape& s, std::string_view suffix, std::string_view phase) {
  return {.name = str_cat("b", s.batch, "_d", s.nodes, "_s", s.most, "_v", s.vocabulary,
                          s.shuffled ? "_shuffled" : "", suffix),
          .op = "verify",
          .bench = !phase.empty(),
          .phase = std::string(phase),
          .columns = str_cat("M=", s.batch, ";N=", s.nodes)};
}

void add_greedy(CaseList& list, const Shape& s, std::string_view phase = "") {
  add_case<TreeVerifyGreedy>(list, spec_of(s, "", phase), [=](CaseBuilder<TreeVerifyGreedy>& c) {
    const auto trees = std::make_shared<Trees>(c, s);
    const Tensor target = c.input({s.batch, s.nodes}, Format::kI64);
    target.fill([&](int64_t) { return c.rng().next_below(static_cast<uint32_t>(s.vocabulary)); });
    c.bind([=](const Binding& at) {
      return TreeVerifyGreedy::Args{.candidates = at(trees->candidates),
                                    .retrieve_index = at(trees->retrieve_index),
                                    .next_token = at(trees->next_token),
                                    .next_sibling = at(trees->next_sibling),
                                    .target_predict = at(target),
                                    .predicts = at(trees->predicts),
                                    .accept_index = at(trees->accept_index),
                                    .accept_token_num = at(trees->accepted)};
    });
    const auto wanted = [=](int64_t b, int64_t node) { return target[trees->flat(b, node)]; };
    trees->expect_paths(
        c,
        [=](int64_t b) {
          return trees->path([&](int64_t node) {
            for (int64_t child :
                 trees->children[static_cast<size_t>(b)][static_cast<size_t>(node)]) {
              if (trees->candidates.at(b, child) == wanted(b, node)) return child;
            }
            return int64_t{-1};
          });
        },
        [=](int64_t b, const std::vector<int64_t>& nodes) {
          return static_cast<int64_t>(wanted(b, nodes.back()));
        });
  });
}

enum class Draft { kAbsent, kZeros, kGiven };

struct Chance {
  float threshold_single = 1.0f;
  float threshold_acc = 1.0f;
  Draft draft = Draft::kAbsent;
};

/// The operands of a walk by chance and what it does, in float64. Probabilities are multiples of
/// 2^-20 and sums of them exact.
struct ChanceOracle {
  std::shared_ptr<Trees> trees;
  Tensor uniform, uniform_final, target, draft;
  Chance chance;

  double pi(int64_t b, int64_t node, int64_t token) const { return target.at(b, node, token); }

  /// The accepted child of a node, or -1; tokens that were tried before go to `rejected`.
  int64_t choose(int64_t b, int64_t node, std::vector<int64_t>* rejected) const {
    double acc = 0;
    for (int64_t child : trees->children[static_cast<size_t>(b)][static_cast<size_t>(node)]) {
      const int64_t token = trees->token(b, child);
      const double p = pi(b, node, token);
      acc += p;
      const double share = acc / std::max(double{chance.threshold_acc}, 1e-9);
      const bool certain = p >= double{chance.threshold_single};
      if (p > 0 && (uniform.at(b, node) < share || certain)) return child;
      if (rejected != nullptr) rejected->push_back(token);
    }
    return -1;
  }

  std::vector<int64_t> path(int64_t b) const {
    return trees->path([&](int64_t node) { return choose(b, node, nullptr); });
  }

  /// Row `node` of the draft after the walk.
  std::vector<double> final_draft(int64_t b, int64_t node) const {
    const int64_t nodes = trees->shape.nodes;
    std::vector<double> row(static_cast<size_t>(target.dim(2)), 0.0);
    if (draft.present()) row = draft.row(b * nodes + node);
    const std::vector<int64_t> visited = path(b);
    // Children of the last node are tried only if another one might have been accepted.
    const auto at = std::find(visited.begin(), visited.end(), node);
    const bool full = static_cast<int64_t>(visited.size()) == trees->shape.most;
    if (at == visited.end() || (full && at + 1 == visited.end())) return row;
    std::vector<int64_t> rejected;
    choose(b, node, &rejected);
    for (int64_t token : rejected)
      row[static_cast<size_t>(token)] = pi(b, node, token);
    return row;
  }

  int64_t bonus(int64_t b, const std::vector<int64_t>& visited) const {
    const int64_t V = target.dim(2);
    std::vector<double> left = target.row(b * trees->shape.nodes + visited.back());
    if (static_cast<int64_t>(visited.size()) < trees->shape.most) {
      const std::vector<double> taken = final_draft(b, visited.back());
      for (size_t v = 0; v < left.size(); ++v)
        left[v] = std::max(0.0, left[v] - taken[v]);
    }
    double mass = 0;
    for (double r : left)
      mass += r;
    double running = 0;
    for (int64_t v = 0; v < V; ++v) {
      running += left[static_cast<size_t>(v)];
      if (left[static_cast<size_t>(v)] > 0 && running > uniform_final[b] * mass) return v;
    }
    return V - 1;
  }
};

void add_sample(CaseList& list,
                const Shape& s,
                const Chance& chance = {},
                std::string_view suffix = "",
                std::string_view phase = "") {
  add_case<TreeVerifySample>(
      list, spec_of(s, suffix, phase), [=](CaseBuilder<TreeVerifySample>& c) {
        const auto o = std::make_shared<ChanceOracle>();
        o->trees = std::make_shared<Trees>(c, s);
        o->chance = chance;
        o->uniform = c.input({s.batch, s.nodes}, Format::kF32, {.dist = Dist::kUniform},
                             {.row_gap = 1, .rows_per_batch = 0});
        o->uniform_final = c.input({s.batch}, Format::kF32, {.dist = Dist::kUniform});
        if (s.batch > 1) o->uniform_final.set(0, 0.0);
        if (s.batch > 2) o->uniform_final.set(1, 1.0 - 0x1p-24);
        // A row of the vocabulary with about the mass of a distribution; every third token is
        // impossible.
        const int64_t V = s.vocabulary;
        o->target = c.input({s.batch, s.nodes, V}, Format::kF32, {.dist = Dist::kUniform},
                            {.row_gap = 3, .rows_per_batch = 0});
        const auto share = [=](double u, int64_t v) {
          return v % 3 == 2 ? 0 : std::floor(3 * u / static_cast<double>(V) * 0x1p20) * 0x1p-20;
        };
        o->target.fill([&](int64_t i) { return share(o->target[i], i % V); });
        if (chance.draft != Draft::kAbsent) {
          o->draft = c.inout({s.batch, s.nodes, V}, Format::kF32, {.dist = Dist::kUniform},
                             {.row_gap = 2, .rows_per_batch = 0});
          const bool given = chance.draft == Draft::kGiven;
          o->draft.fill([&](int64_t i) { return given ? share(o->draft[i], i % V) : 0.0; });
        }
        c.bind([=](const Binding& at) {
          const Trees& t = *o->trees;
          return TreeVerifySample::Args{.candidates = at(t.candidates),
                                        .retrieve_index = at(t.retrieve_index),
                                        .next_token = at(t.next_token),
                                        .next_sibling = at(t.next_sibling),
                                        .uniform = at(o->uniform),
                                        .uniform_final = at(o->uniform_final),
                                        .target_probs = at(o->target),
                                        .draft_probs = at(o->draft),
                                        .predicts = at(t.predicts),
                                        .accept_index = at(t.accept_index),
                                        .accept_token_num = at(t.accepted),
                                        .threshold_single = chance.threshold_single,
                                        .threshold_acc = chance.threshold_acc};
        });
        o->trees->expect_paths(
            c, [=](int64_t b) { return o->path(b); },
            [=](int64_t b, const std::vector<int64_t>& nodes) { return o->bonus(b, nodes); });
        if (!o->draft.present()) return;
        c.expect_rows(o->draft, gates::exact(), [=](int64_t row, std::span<double> out) {
          const std::vector<double> draft = o->final_draft(row / s.nodes, row % s.nodes);
          std::copy(draft.begin(), draft.end(), out.begin());
        });
      });
}

}  // namespace

void add_verify_tree_cases(CaseList& list) {
  for (int64_t b : {0, 1, 2, 3, 17})
    add_greedy(list, {b, 6, 4});
  add_greedy(list, {3, 1, 1});     // nothing but roots
  add_greedy(list, {5, 4, 1});     // nothing may be accepted
  add_greedy(list, {9, 4, 4, 2});  // V3 with its draft layer: chains that mostly match
  add_greedy(list, {7, 64, 8, 4});
  add_greedy(list, {7, 31, 6, 3, true});
  add_greedy(list, {128, 4, 4, 2}, "decode");
  add_greedy(list, {128, 64, 6, 4}, "decode");

  for (int64_t b : {0, 1, 2, 3, 40})
    add_sample(list, {b, 7, 4});
  const Chance zeros{.draft = Draft::kZeros};
  const Chance given{.draft = Draft::kGiven};
  add_sample(list, {3, 1, 1}, zeros, "_zeros");
  add_sample(list, {20, 5, 1}, zeros, "_zeros");
  add_sample(list, {40, 7, 4}, zeros, "_zeros");
  add_sample(list, {40, 7, 4}, given, "_draft");
  add_sample(list, {40, 9, 5}, {.threshold_single = 0.4f, .threshold_acc = 0.5f}, "_thresholds");
  add_sample(list, {40, 9, 5},
             {.threshold_single = 0.0f, .threshold_acc = 0.0f, .draft = Draft::kZeros},
             "_accept_all");
  add_sample(list, {21, 16, 6, 4, true}, given, "_draft");
  for (int64_t v : {1, 2, 3, 15, 16, 17, 513, 1009})
    add_sample(list, {9, 6, 4, v}, given, "_draft");
  add_sample(list, {3, 4, 4, 20011}, {}, "");
  add_sample(list, {128, 4, 4, 129280}, {}, "", "decode");
  add_sample(list, {32, 4, 4, 129280}, zeros, "_zeros", "decode");
}

}  // namespace fathom

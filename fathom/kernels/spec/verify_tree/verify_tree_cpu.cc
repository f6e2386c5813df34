#include <algorithm>

#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/sample/thresholds.h"
#include "fathom/kernels/spec/verify_tree/residual_rows.h"
#include "fathom/kernels/spec/verify_tree/verify_tree.h"

namespace fathom {
namespace {

int64_t entry(const View& v, int64_t b, int64_t i) {
  return v.row<const int64_t>(b)[i];
}

// ---- the walk that both kernels share ----

/// Where a walk through tree b stands.
struct Walk {
  int64_t node = 0;      ///< accepted last
  int64_t last = 0;      ///< its flat index
  int64_t accepted = 0;  ///< nodes behind the root
};

/// Moves from node to child as long as accept(node, last, child) takes one, and writes
/// accept_index, accept_token_num and the tokens of accepted nodes.
template <class Args, class Accept>
Walk walk_tree(const Args& a, int64_t b, Accept accept) {
  const int64_t nodes = a.candidates.dim(1);
  const int64_t most = a.accept_index.dim(1) - 1;
  auto* accept_index = a.accept_index.template row<int32_t>(b);
  Walk walk{.last = entry(a.retrieve_index, b, 0)};
  accept_index[0] = static_cast<int32_t>(walk.last);
  while (walk.accepted < most) {
    int64_t child = entry(a.next_token, b, walk.node);
    int64_t tried = 0;
    while (child >= 0 && tried < nodes && !accept(walk, child)) {
      child = entry(a.next_sibling, b, child);
      ++tried;
    }
    if (child < 0 || tried == nodes) break;
    a.predicts.template as<int32_t>()[walk.last] =
        static_cast<int32_t>(entry(a.candidates, b, child));
    walk.node = child;
    walk.last = entry(a.retrieve_index, b, child);
    accept_index[++walk.accepted] = static_cast<int32_t>(walk.last);
  }
  a.accept_token_num.template as<int32_t>()[b] = static_cast<int32_t>(walk.accepted);
  return walk;
}

template <class Args>
Status check_nodes(const Args& a, int64_t b) {
  const int64_t nodes = a.candidates.dim(1);
  const int64_t flat = a.candidates.dim(0) * nodes;
  const auto wrong = [&](std::string_view name, int64_t i, int64_t found, int64_t least,
                         int64_t end) {
    return invalid_argument(
        str_cat(name, "[", b, ",", i, "] is ", found, ", expected ", least, " to ", end - 1));
  };
  for (int64_t i = 0; i < nodes; ++i) {
    const int64_t index = entry(a.retrieve_index, b, i);
    const int64_t child = entry(a.next_token, b, i);
    const int64_t sibling = entry(a.next_sibling, b, i);
    if (index < 0 || index >= flat) return wrong("retrieve_index", i, index, 0, flat);
    if (child < -1 || child >= nodes) return wrong("next_token", i, child, -1, nodes);
    if (sibling < -1 || sibling >= nodes) return wrong("next_sibling", i, sibling, -1, nodes);
  }
  return {};
}

// ---- greedy ----

Status tree_verify_greedy(Exec& /*ex*/, const TreeVerifyGreedy::Args& a) {
  const auto* target = a.target_predict.as<const int64_t>();
  for (int64_t b = 0; b < a.candidates.dim(0); ++b) {
    const Walk walk = walk_tree(a, b, [&](const Walk& at, int64_t child) {
      return entry(a.candidates, b, child) == target[at.last];
    });
    a.predicts.as<int32_t>()[walk.last] = static_cast<int32_t>(target[walk.last]);
  }
  return {};
}

// ---- by chance ----

constexpr double kLeastThreshold = 1e-9;

const float* probs_of(const View& probs, int64_t b, int64_t node) {
  return probs.row<const float>(b) + node * probs.stride(1);
}

/// Walks tree b; rejected siblings enter draft_probs if it is given.
Walk walk_by_chance(const TreeVerifySample::Args& a, int64_t b) {
  const double divisor = std::max(double{a.threshold_acc}, kLeastThreshold);
  int64_t row = -1;  // the node whose children are tried
  double acc = 0;
  return walk_tree(a, b, [&](const Walk& at, int64_t child) {
    if (row != at.node) {
      row = at.node;
      acc = 0;
    }
    const int64_t token = entry(a.candidates, b, child);
    const float raw = probs_of(a.target_probs, b, row)[token];
    const float pi = usable_probability(raw);
    acc += double{pi};
    const double coin = double{a.uniform.row<const float>(b)[row]};
    if (pi > 0 && (coin < acc / divisor || pi >= a.threshold_single)) return true;
    if (a.draft_probs.present()) {
      (a.draft_probs.row<float>(b) + row * a.draft_probs.stride(1))[token] = raw;
    }
    return false;
  });
}

/// The parts of the final draw in one instruction set.
struct BonusRow {
  ProbabilityScans scans;
  ResidualRow residual;
};

void residual_row(const float* target, const float* draft, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    out[i] = usable_probability(usable_probability(target[i]) - usable_probability(draft[i]));
}

constexpr BonusRow kPortable{kPortableScans, residual_row};
constexpr BonusRow kAvx512{kAvx512Scans, avx512::residual_row};

/// Writes what is left of the target at the node where the walk ended.
template <const BonusRow& kRow>
const float* residual_of(const TreeVerifySample::Args& a,
                         int64_t b,
                         const Walk& walk,
                         float* room) {
  const int64_t V = a.target_probs.dim(2);
  const float* target = probs_of(a.target_probs, b, walk.node);
  if (walk.accepted == a.accept_index.dim(1) - 1) return target;  // no sibling was tried
  if (a.draft_probs.present()) {
    kRow.residual(target, probs_of(a.draft_probs, b, walk.node), room, V);
    return room;
  }
  int64_t child = entry(a.next_token, b, walk.node);
  if (child < 0) return target;
  std::copy_n(target, V, room);
  for (int64_t tried = 0; child >= 0 && tried < a.candidates.dim(1); ++tried) {
    room[entry(a.candidates, b, child)] = 0;  // every child was rejected
    child = entry(a.next_sibling, b, child);
  }
  return room;
}

struct Bonus {
  int64_t last;
  int64_t token;
};

template <const BonusRow& kRow>
Status tree_verify_sample(Exec& ex, const TreeVerifySample::Args& a) {
  const int64_t batch = a.candidates.dim(0);
  const int64_t V = a.target_probs.dim(2);
  auto* rooms = static_cast<float*>(ex.workspace);
  auto* bonuses = reinterpret_cast<Bonus*>(rooms + ex.num_threads * threshold_room(V));
  for_rows_by_thread(ex, batch, 16 * V, [&](int thread, int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const Walk walk = walk_by_chance(a, b);
      const float* p = residual_of<kRow>(a, b, walk, rooms + thread * threshold_room(V));
      const double uniform = double{a.uniform_final.as<const float>()[b]};
      const int64_t token = draw_token(kRow.scans, p, V, 0.0f, uniform);
      bonuses[b] = {walk.last, token < 0 ? V - 1 : token};
    }
  });
  for (int64_t b = 0; b < batch; ++b)
    a.predicts.as<int32_t>()[bonuses[b].last] = static_cast<int32_t>(bonuses[b].token);
  return {};
}

Status check_random(std::string_view name, int64_t place, float value) {
  if (value >= 0 && value < 1) return {};
  return invalid_argument(
      str_cat(name, "[", place, "] is ", value, ", expected a number in [0, 1)"));
}

Status check_chances(const TreeVerifySample::Args& a, int64_t b) {
  const int64_t nodes = a.candidates.dim(1);
  const int64_t V = a.target_probs.dim(2);
  for (int64_t i = 0; i < nodes; ++i) {
    FATHOM_TRY(check_random("uniform", b * nodes + i, a.uniform.row<const float>(b)[i]));
    const int64_t token = entry(a.candidates, b, i);
    if (i == 0 || (token >= 0 && token < V)) continue;  // the root's token is not looked up
    return invalid_argument(
        str_cat("candidates[", b, ",", i, "] is ", token, ", expected 0 to ", V - 1));
  }
  return check_random("uniform_final", b, a.uniform_final.as<const float>()[b]);
}

Status check_threshold(std::string_view name, float value) {
  if (value >= 0 && value <= 1) return {};
  return invalid_argument(str_cat(name, " is ", value, ", expected a number in [0, 1]"));
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

Status TreeVerifyGreedy::check(const Args& a) {
  if (!a.target_predict.contiguous()) {
    return invalid_argument("target_predict is strided, expected contiguous rows");
  }
  for (int64_t b = 0; a.retrieve_index.readable() && b < a.candidates.dim(0); ++b)
    FATHOM_TRY(check_nodes(a, b));
  return {};
}

Status TreeVerifySample::check(const Args& a) {
  FATHOM_TRY(check_threshold("threshold_single", a.threshold_single));
  FATHOM_TRY(check_threshold("threshold_acc", a.threshold_acc));
  for (int64_t b = 0; a.retrieve_index.readable() && b < a.candidates.dim(0); ++b) {
    FATHOM_TRY(check_nodes(a, b));
    FATHOM_TRY(check_chances(a, b));
  }
  return {};
}

void TreeVerifySample::bytes(const Args& a, Cost& cost) {
  const int64_t batch = a.candidates.dim(0);
  const int64_t nodes = batch * a.candidates.dim(1);
  const int64_t rows = a.draft_probs.present() ? 2 : 1;
  cost.bytes_read = 4 * batch * a.target_probs.dim(2) * rows + nodes * (4 * 8 + 4) + 4 * batch;
  cost.bytes_written = 4 * (nodes + a.accept_index.numel() + batch);
}

int64_t TreeVerifySample::workspace(const Args& a, int num_threads) {
  return num_threads * threshold_room(a.target_probs.dim(2)) * static_cast<int64_t>(sizeof(float)) +
         a.candidates.dim(0) * static_cast<int64_t>(sizeof(Bonus));
}

constinit const VariantTable<TreeVerifyGreedy> tree_verify_greedy_cpu{
    {"portable", Isa::kPortable, "", kTraits, tree_verify_greedy},
};

constinit const VariantTable<TreeVerifySample> tree_verify_sample_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, tree_verify_sample<kAvx512>},
    {"portable", Isa::kPortable, "", kTraits, tree_verify_sample<kPortable>},
};

}  // namespace fathom

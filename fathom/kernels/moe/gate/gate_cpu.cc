#include <algorithm>
#include <cmath>
#include <limits>

#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/moe/gate/gate.h"
#include "fathom/kernels/moe/gate/gate_rows.h"

namespace fathom {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// ---- the parts that run over all experts, portable ----

void sigmoid(const float* z, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    out[i] = 1.0f / (1.0f + std::exp(-z[i]));
}

void sqrt_softplus(const float* z, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (z[i] > kSoftplusIsLinear) {
      out[i] = std::sqrt(z[i]);
    } else if (z[i] < kSoftplusIsExponential) {
      out[i] = std::exp(0.5f * z[i]);
    } else {
      out[i] = std::sqrt(std::log1p(std::exp(z[i])));
    }
  }
}

void softmax(const float* z, float* out, int64_t count) {
  float max = kLowest;
  for (int64_t i = 0; i < count; ++i)
    max = z[i] > max ? z[i] : max;
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = std::exp(z[i] - max);
    sum += out[i];
  }
  for (int64_t i = 0; i < count; ++i)
    out[i] /= sum;
}

/// A choice score that may stand anywhere in the order: NaN becomes the lowest.
float orderly(float score) {
  return std::isnan(score) ? kLowest : score;
}

void choice_scores(const float* s, const float* beta, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    out[i] = orderly(s[i] + beta[i]);
}

int64_t argmax(const float* values, int64_t count) {
  int64_t best = -1;
  for (int64_t i = 0; i < count; ++i) {
    if (std::isnan(values[i])) continue;
    if (best < 0 || values[i] > values[best]) best = i;
  }
  return best;
}

constexpr GateRow kPortable{sigmoid, sqrt_softplus, softmax, choice_scores, argmax};
constexpr GateRow kAvx512{avx512::gate_sigmoid, avx512::gate_sqrt_softplus, avx512::gate_softmax,
                          avx512::gate_choice, avx512::gate_argmax};

// ---- the parts that all routers share ----

void load_row(const View& logits, int64_t t, float* z) {
  const int64_t count = logits.dim(1);
  const auto load = [&]<class T>(const T* row) {
    for (int64_t e = 0; e < count; ++e)
      z[e] = to_float(row[e]);
  };
  if (logits.format == Format::kF32) return load(logits.row<const float>(t));
  if (logits.format == Format::kBf16) return load(logits.row<const Bf16>(t));
  load(logits.row<const F16>(t));
}

/// Takes the `count` largest choice scores, largest first. What is taken becomes NaN.
void take_best(const GateRow& row, float* choice, int64_t num_experts, int count, int32_t* ids) {
  for (int k = 0; k < count; ++k) {
    const int64_t e = row.argmax(choice, num_experts);
    ids[k] = static_cast<int32_t>(e);
    choice[e] = kNan;
  }
}

float largest_of(const GateRow& row, const float* choice, int64_t count) {
  return choice[row.argmax(choice, count)];
}

float sum_of_two_largest(const GateRow& row, float* choice, int64_t count) {
  const int64_t first = row.argmax(choice, count);
  const float best = choice[first];
  if (count == 1) return best;
  choice[first] = kNan;
  const float second = choice[row.argmax(choice, count)];
  choice[first] = best;
  return best + second;
}

/// Makes the choice scores of all but the `keep` best groups NaN; score(g) rates group g.
template <class Score>
void keep_best_groups(
    const GateRow& row, float* choice, int64_t num_experts, int num_groups, int keep, Score score) {
  if (keep == num_groups) return;
  const int64_t size = num_experts / num_groups;
  float scores[kMaxExperts];
  bool kept[kMaxExperts] = {};
  for (int g = 0; g < num_groups; ++g)
    scores[g] = orderly(score(choice + g * size, size));
  for (int i = 0; i < keep; ++i) {
    const int64_t g = row.argmax(scores, num_groups);
    kept[g] = true;
    scores[g] = kNan;
  }
  for (int g = 0; g < num_groups; ++g) {
    for (int64_t e = g * size; !kept[g] && e < (g + 1) * size; ++e)
      choice[e] = kNan;
  }
}

/// Weights divided by their sum + epsilon if asked, then scaled.
void scale_weights(
    float* weights, int64_t count, Renormalize renorm, float epsilon, float scaling) {
  float sum = 0;
  for (int64_t k = 0; k < count; ++k)
    sum += weights[k];
  const float divisor = renorm == Renormalize::kYes ? sum + epsilon : 1.0f;
  for (int64_t k = 0; k < count; ++k)
    weights[k] = weights[k] / divisor * scaling;
}

/// weights[k] = score[ids[k]], scaled.
void write_weights(const float* score,
                   const int32_t* ids,
                   int64_t count,
                   Renormalize renorm,
                   float epsilon,
                   float scaling,
                   float* weights) {
  for (int64_t k = 0; k < count; ++k)
    weights[k] = score[ids[k]];
  scale_weights(weights, count, renorm, epsilon, scaling);
}

/// Calls route(t) for every token. A router is bound by its arithmetic, about eight times what
/// reading the logits from the second-level cache takes.
template <class Route>
void for_tokens(Exec& ex, const View& logits, Route route) {
  for_rows(ex, logits.dim(0), 32 * logits.dim(1), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      route(t);
  });
}

Status check_groups(int64_t num_experts, int n_group, int topk_group, int64_t chosen) {
  if (n_group < 1 || num_experts % n_group != 0) {
    return invalid_argument(
        str_cat("n_group is ", n_group, ", which does not divide the ", num_experts, " experts"));
  }
  if (topk_group < 1 || topk_group > n_group) {
    return invalid_argument(str_cat("topk_group is ", topk_group, ", expected 1 to ", n_group));
  }
  const int64_t available = topk_group * (num_experts / n_group);
  if (chosen > available) {
    return invalid_argument(str_cat(chosen, " experts cannot be chosen from ", topk_group,
                                    " groups that hold ", available));
  }
  return {};
}

// ---- the routers ----

template <const GateRow& kRow>
Status topk_softmax(Exec& ex, const TopkSoftmax::Args& a) {
  const int64_t num_experts = a.logits.dim(1);
  const auto count = static_cast<int>(a.ids.dim(1));
  for_tokens(ex, a.logits, [&](int64_t t) {
    float z[kMaxExperts];
    float p[kMaxExperts];
    load_row(a.logits, t, z);
    for (int64_t e = 0; e < num_experts; ++e) {
      if (a.softcap != 0) z[e] = a.softcap * std::tanh(z[e] / a.softcap);
      if (a.bias.present()) z[e] += a.bias.as<const float>()[e];
    }
    kRow.softmax(z, p, num_experts);
    for (int64_t e = 0; e < num_experts; ++e)
      z[e] = orderly(z[e]);
    take_best(kRow, z, num_experts, count, a.ids.row<int32_t>(t));
    write_weights(p, a.ids.row<int32_t>(t), count, a.renorm, 0.0f, a.scaling,
                  a.weights.row<float>(t));
  });
  return {};
}

/// Values as the format holds them.
void round_to(Format format, float* values, int64_t count) {
  with_float_type(format, [&]<class T>(T) {
    for (int64_t i = 0; i < count; ++i)
      values[i] = to_float(from_float<T>(values[i]));
  });
}

/// The bias of all experts in float32.
void load_bias(const View& bias, int64_t num_experts, float* beta) {
  if (!bias.present()) {
    std::fill_n(beta, num_experts, 0.0f);
    return;
  }
  with_float_type(bias.format, [&]<class T>(T) {
    for (int64_t e = 0; e < num_experts; ++e)
      beta[e] = to_float(bias.as<const T>()[e]);
  });
}

/// s = sigmoid(logits), choice = s + bias. The logits are loaded into `choice` on the way. Adding
/// no bias as +0 changes no score: a sigmoid is never -0.
template <const GateRow& kRow>
void score_by_sigmoid(const View& logits,
                      const float* beta,
                      ScorePrecision precision,
                      int64_t t,
                      float* s,
                      float* choice) {
  const int64_t num_experts = logits.dim(1);
  const bool rounds = precision == ScorePrecision::kLogits && logits.format != Format::kF32;
  load_row(logits, t, choice);
  kRow.sigmoid(choice, s, num_experts);
  if (rounds) round_to(logits.format, s, num_experts);
  kRow.choice(s, beta, choice, num_experts);
  if (rounds) round_to(logits.format, choice, num_experts);
}

template <const GateRow& kRow>
Status topk_sigmoid(Exec& ex, const TopkSigmoid::Args& a) {
  const auto count = static_cast<int>(a.ids.dim(1));
  float beta[kMaxExperts];
  load_bias(a.bias, a.logits.dim(1), beta);
  for_tokens(ex, a.logits, [&](int64_t t) {
    float s[kMaxExperts];
    float choice[kMaxExperts];
    score_by_sigmoid<kRow>(a.logits, beta, ScorePrecision::kF32, t, s, choice);
    take_best(kRow, choice, a.logits.dim(1), count, a.ids.row<int32_t>(t));
    write_weights(s, a.ids.row<int32_t>(t), count, a.renorm, 0.0f, a.scaling,
                  a.weights.row<float>(t));
  });
  return {};
}

template <const GateRow& kRow>
Status grouped_topk_gate(Exec& ex, const GroupedTopkGate::Args& a) {
  const int64_t num_experts = a.logits.dim(1);
  const auto routed = static_cast<int>(a.ids.dim(1)) - a.num_shared;
  float beta[kMaxExperts];
  load_bias(a.bias, num_experts, beta);
  for_tokens(ex, a.logits, [&](int64_t t) {
    float s[kMaxExperts];
    float choice[kMaxExperts];
    score_by_sigmoid<kRow>(a.logits, beta, a.precision, t, s, choice);
    keep_best_groups(
        kRow, choice, num_experts, a.n_group, a.topk_group,
        [](float* group, int64_t size) { return sum_of_two_largest(kRow, group, size); });
    int32_t* ids = a.ids.row<int32_t>(t);
    float* weights = a.weights.row<float>(t);
    take_best(kRow, choice, num_experts, routed, ids);
    write_weights(s, ids, routed, a.renorm, 1e-20f, a.scaling, weights);
    for (int i = 0; i < a.num_shared; ++i) {
      ids[routed + i] = static_cast<int32_t>(num_experts) + i;
      weights[routed + i] = a.shared_weight;
    }
  });
  return {};
}

template <const GateRow& kRow>
Status group_limited_softmax_gate(Exec& ex, const GroupLimitedSoftmaxGate::Args& a) {
  const int64_t num_experts = a.logits.dim(1);
  const auto count = static_cast<int>(a.ids.dim(1));
  for_tokens(ex, a.logits, [&](int64_t t) {
    float z[kMaxExperts];
    float p[kMaxExperts];
    load_row(a.logits, t, z);
    kRow.softmax(z, p, num_experts);
    // The exponential keeps the order, so the choice is made among the logits, without rounding.
    for (int64_t e = 0; e < num_experts; ++e)
      z[e] = orderly(z[e]);
    keep_best_groups(kRow, z, num_experts, a.n_group, a.topk_group,
                     [](float* group, int64_t size) { return largest_of(kRow, group, size); });
    take_best(kRow, z, num_experts, count, a.ids.row<int32_t>(t));
    write_weights(p, a.ids.row<int32_t>(t), count, a.renorm, 1e-20f, a.scaling,
                  a.weights.row<float>(t));
  });
  return {};
}

template <const GateRow& kRow>
Status topk_sqrtsoftplus(Exec& ex, const TopkSqrtsoftplus::Args& a) {
  const int64_t num_experts = a.logits.dim(1);
  const auto count = static_cast<int>(a.ids.dim(1));
  float beta[kMaxExperts];
  load_bias(a.bias, num_experts, beta);
  for_tokens(ex, a.logits, [&](int64_t t) {
    float s[kMaxExperts];
    float choice[kMaxExperts];
    load_row(a.logits, t, choice);
    kRow.sqrt_softplus(choice, s, num_experts);
    kRow.choice(s, beta, choice, num_experts);
    take_best(kRow, choice, num_experts, count, a.ids.row<int32_t>(t));
    write_weights(s, a.ids.row<int32_t>(t), count, Renormalize::kYes, 0.0f, a.scaling,
                  a.weights.row<float>(t));
  });
  return {};
}

/// Calls f(T{}) with the type of a table's entries, i32 or i64.
template <class F>
auto with_table_type(Format format, F&& f) {
  return format == Format::kI32 ? f(int32_t{}) : f(int64_t{});
}

template <const GateRow& kRow>
void hash_route_token(const HashRoute::Args& a, int64_t t) {
  const int64_t count = a.ids.dim(1);
  int32_t* ids = a.ids.row<int32_t>(t);
  with_table_type(a.tid2eid.format, [&]<class T>(T) {
    const T* chosen = a.tid2eid.row<const T>(a.token_ids.as<const int32_t>()[t]);
    for (int64_t k = 0; k < count; ++k)
      ids[k] = static_cast<int32_t>(chosen[k]);
  });
  float z[kMaxExperts];
  with_float_type(a.logits.format, [&]<class T>(T) {
    for (int64_t k = 0; k < count; ++k)
      z[k] = to_float(a.logits.row<const T>(t)[ids[k]]);
  });
  float* weights = a.weights.row<float>(t);
  kRow.sqrt_softplus(z, weights, count);
  scale_weights(weights, count, Renormalize::kYes, 0.0f, a.scaling);
}

template <const GateRow& kRow>
Status hash_route(Exec& ex, const HashRoute::Args& a) {
  const int64_t count = a.ids.dim(1);
  for_rows(ex, a.logits.dim(0), 32 * count, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      hash_route_token<kRow>(a, t);
  });
  return {};
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

void HashRoute::bytes(const Args& a, Cost& cost) {
  const int64_t per_choice = element_bytes(a.logits.format) + element_bytes(a.tid2eid.format);
  cost.bytes_read = operand_bytes(a.token_ids) + a.ids.numel() * per_choice;
  cost.bytes_written = operand_bytes(a.weights) + operand_bytes(a.ids);
}

Status HashRoute::check(const Args& a) {
  if (!a.token_ids.readable() || !a.tid2eid.readable()) return {};
  const int64_t num_tokens = a.tid2eid.dim(0);
  const int64_t num_experts = a.logits.dim(1);
  for (int64_t t = 0; t < a.token_ids.dim(0); ++t) {
    const int32_t id = a.token_ids.as<const int32_t>()[t];
    if (id < 0 || id >= num_tokens) {
      return invalid_argument(str_cat("token_ids[", t, "] is ", id, ", expected 0 to ",
                                      num_tokens - 1, ": tid2eid has V = ", num_tokens, " rows"));
    }
    for (int64_t k = 0; k < a.tid2eid.dim(1); ++k) {
      const int64_t expert = with_table_type(a.tid2eid.format, [&]<class T>(T) {
        return static_cast<int64_t>(a.tid2eid.row<const T>(id)[k]);
      });
      if (expert < 0 || expert >= num_experts) {
        return invalid_argument(
            str_cat("tid2eid[", id, ",", k, "] is ", expert, ", expected 0 to ", num_experts - 1));
      }
    }
  }
  return {};
}

Status GroupedTopkGate::check(const Args& a) {
  if (a.num_shared < 0 || a.num_shared >= a.ids.dim(1)) {
    return invalid_argument(str_cat("num_shared is ", a.num_shared, ", expected 0 to ",
                                    a.ids.dim(1) - 1, ", one less than the ", a.ids.dim(1),
                                    " experts of a token"));
  }
  return check_groups(a.logits.dim(1), a.n_group, a.topk_group, a.ids.dim(1) - a.num_shared);
}

Status GroupLimitedSoftmaxGate::check(const Args& a) {
  return check_groups(a.logits.dim(1), a.n_group, a.topk_group, a.ids.dim(1));
}

constinit const VariantTable<TopkSoftmax> topk_softmax_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, topk_softmax<kAvx512>},
    {"portable", Isa::kPortable, "", kTraits, topk_softmax<kPortable>},
};

constinit const VariantTable<TopkSigmoid> topk_sigmoid_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, topk_sigmoid<kAvx512>},
    {"portable", Isa::kPortable, "", kTraits, topk_sigmoid<kPortable>},
};

constinit const VariantTable<TopkSqrtsoftplus> topk_sqrtsoftplus_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, topk_sqrtsoftplus<kAvx512>},
    {"portable", Isa::kPortable, "", kTraits, topk_sqrtsoftplus<kPortable>},
};

constinit const VariantTable<HashRoute> hash_route_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, hash_route<kAvx512>},
    {"portable", Isa::kPortable, "", kTraits, hash_route<kPortable>},
};

constinit const VariantTable<GroupedTopkGate> grouped_topk_gate_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, grouped_topk_gate<kAvx512>},
    {"portable", Isa::kPortable, "", kTraits, grouped_topk_gate<kPortable>},
};

constinit const VariantTable<GroupLimitedSoftmaxGate> group_limited_softmax_gate_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, group_limited_softmax_gate<kAvx512>},
    {"portable", Isa::kPortable, "", kTraits, group_limited_softmax_gate<kPortable>},
};

}  // namespace fathom

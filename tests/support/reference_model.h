// The forward pass of V1 to V3 in float64 with the obvious loops: the oracle of model tests. It
// shares with the engine the reader of config.json and the decoders of number formats, and nothing
// else.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/reference_weights.h"

namespace fathom::oracle {

/// |a - b| / |b|, over all numbers.
inline double relative_difference(const std::vector<float>& a, const std::vector<double>& b) {
  FATHOM_CHECK(a.size() == b.size() && !a.empty());
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    error += d * d;
    size += b[i] * b[i];
  }
  return std::sqrt(error / size);
}

class ReferenceModel : public ReferenceWeights {
 public:
  using ReferenceWeights::ReferenceWeights;

  /// States after the final norm, [T, H].
  Matrix hidden(const std::vector<int32_t>& tokens) {
    Matrix h = embed(tokens, kEmbedding);
    for (int l = 0; l < config_.num_hidden_layers; ++l)
      layer(l, h);
    return norm(h, "model.norm.weight");
  }

  // The head of the file; the embedding where there is none.
  Matrix logits(const Matrix& hidden) {
    const char* head = "lm_head.weight";
    return linear(hidden, checkpoint_.find(head) != nullptr ? head : kEmbedding);
  }

  /// The draft layer's normed state of next tokens and states, [T, H].
  Matrix draft(const std::vector<int32_t>& next, const Matrix& hidden) {
    const auto index = static_cast<int>(config_.num_hidden_layers);
    const std::string p = str_cat("model.layers.", index, ".");
    const Matrix e = norm(embed(next, kEmbedding), p + "enorm.weight");
    const Matrix s = norm(hidden, p + "hnorm.weight");
    Matrix both(e.rows, 2 * e.cols);
    for (int64_t t = 0; t < e.rows; ++t) {
      for (int64_t i = 0; i < e.cols; ++i) {
        both.at(t, i) = e.at(t, i);
        both.at(t, e.cols + i) = s.at(t, i);
      }
    }
    Matrix h = linear(both, p + "eh_proj.weight");
    layer(index, h);
    return norm(h, p + "shared_head.norm.weight");
  }

 private:
  static constexpr const char* kEmbedding = "model.embed_tokens.weight";

  // The norms of latents have an epsilon of their own in the reference.
  Matrix latent_norm(const Matrix& x, const std::string& name) { return norm(x, name, 1e-6); }

  void layer(int index, Matrix& h) {
    const std::string p = str_cat("model.layers.", index, ".");
    const Matrix normed = norm(h, p + "input_layernorm.weight");
    add(h, config_.is_v1() ? head_attention(normed, p + "self_attn.")
                           : attention(normed, p + "self_attn."));
    const Matrix x = norm(h, p + "post_attention_layernorm.weight");
    add(h, config_.is_moe_layer(index) ? experts(x, p + "mlp.") : mlp(x, p + "mlp."));
  }

  // Rotates columns [begin, begin + Dr) of every row in pairs (2i, 2i+1); row t is position t.
  void rotate(Matrix& x, int64_t begin) const {
    const RopeScaling& s = config_.rope_scaling;
    const auto dim = static_cast<double>(config_.qk_rope_head_dim);
    const auto corner = [&](double turns) {
      return dim *
             std::log(static_cast<double>(s.original_max_position_embeddings) /
                      (turns * 2 * std::numbers::pi)) /
             (2 * std::log(config_.rope_theta));
    };
    const double low = s.yarn ? std::max(std::floor(corner(s.beta_fast)), 0.0) : 0;
    const double high = s.yarn ? std::min(std::ceil(corner(s.beta_slow)), dim - 1) : 1;
    for (int64_t i = 0; i < config_.qk_rope_head_dim / 2; ++i) {
      double w = std::pow(config_.rope_theta, -2.0 * static_cast<double>(i) / dim);
      if (s.yarn) {
        const double width = low == high ? 0.001 : high - low;
        const double ramp = std::clamp((static_cast<double>(i) - low) / width, 0.0, 1.0);
        w = w * (1 - ramp) + w / s.factor * ramp;
      }
      for (int64_t t = 0; t < x.rows; ++t) {
        const double c = std::cos(static_cast<double>(t) * w) * config_.rope_attention_factor();
        const double n = std::sin(static_cast<double>(t) * w) * config_.rope_attention_factor();
        double& a = x.at(t, begin + 2 * i);
        double& b = x.at(t, begin + 2 * i + 1);
        const double rotated = a * c - b * n;
        b = a * n + b * c;
        a = rotated;
      }
    }
  }

  Matrix attention(const Matrix& x, const std::string& p) {
    const int64_t Dn = config_.qk_nope_head_dim;
    const int64_t Dr = config_.qk_rope_head_dim;
    const int64_t Dv = config_.v_head_dim;
    const int64_t Dq = Dn + Dr;
    Matrix q =
        config_.q_lora_rank > 0
            ? linear(latent_norm(linear(x, p + "q_a_proj.weight"), p + "q_a_layernorm.weight"),
                     p + "q_b_proj.weight")
            : linear(x, p + "q_proj.weight");
    const Matrix u = linear(x, p + "kv_a_proj_with_mqa.weight");
    const Matrix c = latent_norm(columns(u, 0, config_.kv_lora_rank), p + "kv_a_layernorm.weight");
    Matrix k_pe = columns(u, config_.kv_lora_rank, Dr);
    const Matrix kv = linear(c, p + "kv_b_proj.weight");
    rotate(k_pe, 0);
    Matrix o(x.rows, config_.num_attention_heads * Dv);
    for (int64_t h = 0; h < config_.num_attention_heads; ++h) {
      rotate(q, h * Dq + Dn);
      for (int64_t t = 0; t < x.rows; ++t) {
        std::vector<double> weights;
        for (int64_t j = 0; j <= t; ++j) {
          double score = 0;
          for (int64_t d = 0; d < Dn; ++d)
            score += q.at(t, h * Dq + d) * kv.at(j, h * (Dn + Dv) + d);
          for (int64_t d = 0; d < Dr; ++d)
            score += q.at(t, h * Dq + Dn + d) * k_pe.at(j, d);
          weights.push_back(score * config_.softmax_scale());
        }
        softmax(weights);
        for (int64_t j = 0; j <= t; ++j) {
          for (int64_t d = 0; d < Dv; ++d) {
            o.at(t, h * Dv + d) +=
                weights[static_cast<size_t>(j)] * kv.at(j, h * (Dn + Dv) + Dn + d);
          }
        }
      }
    }
    return linear(o, p + "o_proj.weight");
  }

  // apply_rotary_pos_emb of the published modeling_deepseek.py on columns [begin, begin + D): with
  // angles t theta^(-2i/D) in both halves, x cos + rotate_half(x) sin, rotate_half(x) = [-x2, x1].
  // Linear scaling divides t by its factor, which is 1 without.
  void rotate_halves(Matrix& x, int64_t begin, int64_t D) const {
    for (int64_t t = 0; t < x.rows; ++t) {
      std::vector<double> turned;
      for (int64_t i = 0; i < D; ++i) {
        const double w = std::pow(config_.rope_theta,
                                  -2.0 * static_cast<double>(i % (D / 2)) / static_cast<double>(D));
        const double angle = static_cast<double>(t) / config_.rope_scaling.factor * w;
        const double half = i < D / 2 ? -x.at(t, begin + i + D / 2) : x.at(t, begin + i - D / 2);
        turned.push_back(x.at(t, begin + i) * std::cos(angle) + half * std::sin(angle));
      }
      std::copy(turned.begin(), turned.end(), x.v.begin() + t * x.cols + begin);
    }
  }

  // DeepseekAttention: keys and values repeated for the heads of their group (repeat_kv).
  Matrix head_attention(const Matrix& x, const std::string& p) {
    const int64_t D = config_.hidden_size / config_.num_attention_heads;
    const int64_t group = config_.num_attention_heads / config_.num_key_value_heads;
    Matrix q = linear(x, p + "q_proj.weight");
    Matrix k = linear(x, p + "k_proj.weight");
    const Matrix v = linear(x, p + "v_proj.weight");
    for (int64_t h = 0; h < config_.num_attention_heads; ++h)
      rotate_halves(q, h * D, D);
    for (int64_t h = 0; h < config_.num_key_value_heads; ++h)
      rotate_halves(k, h * D, D);
    Matrix o(x.rows, config_.num_attention_heads * D);
    for (int64_t h = 0; h < config_.num_attention_heads; ++h) {
      const int64_t of_head = h / group * D;
      for (int64_t t = 0; t < x.rows; ++t) {
        std::vector<double> weights;
        for (int64_t j = 0; j <= t; ++j) {
          double score = 0;
          for (int64_t d = 0; d < D; ++d)
            score += q.at(t, h * D + d) * k.at(j, of_head + d);
          weights.push_back(score / std::sqrt(static_cast<double>(D)));
        }
        softmax(weights);
        for (int64_t j = 0; j <= t; ++j) {
          for (int64_t d = 0; d < D; ++d)
            o.at(t, h * D + d) += weights[static_cast<size_t>(j)] * v.at(j, of_head + d);
        }
      }
    }
    return linear(o, p + "o_proj.weight");
  }

  Matrix mlp(const Matrix& x, const std::string& p) {
    Matrix gate = linear(x, p + "gate_proj.weight");
    const Matrix up = linear(x, p + "up_proj.weight");
    for (size_t i = 0; i < gate.v.size(); ++i) {
      gate.v[i] = gate.v[i] / (1 + std::exp(-gate.v[i])) * up.v[i];
    }
    return linear(gate, p + "down_proj.weight");
  }

  // The experts of one token and their weights.
  std::vector<std::pair<int64_t, double>> choose(std::vector<double> z, const std::string& p) {
    const bool v3 = config_.topk_method == TopkMethod::kNoauxTc;
    std::vector<double> score = z;
    if (v3) {
      for (double& s : score)
        s = 1 / (1 + std::exp(-s));
    } else {
      softmax(score);
    }
    std::vector<double> choice = score;
    if (v3) {
      const Matrix& bias = weight(p + "gate.e_score_correction_bias");
      for (size_t e = 0; e < choice.size(); ++e)
        choice[e] += bias.v[e];
    }
    if (config_.topk_method != TopkMethod::kGreedy) keep_groups(choice, v3);
    std::vector<int64_t> order(choice.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return choice[static_cast<size_t>(a)] > choice[static_cast<size_t>(b)];
    });
    std::vector<std::pair<int64_t, double>> out;
    double sum = 0;
    for (int64_t k = 0; k < config_.num_experts_per_tok; ++k) {
      const int64_t e = order[static_cast<size_t>(k)];
      out.emplace_back(e, score[static_cast<size_t>(e)]);
      sum += score[static_cast<size_t>(e)];
    }
    // V2's code: if top_k > 1 and norm_topk_prob, divide by the sum; else multiply by the factor.
    const bool divide = config_.norm_topk_prob && (v3 || config_.num_experts_per_tok > 1);
    for (auto& [e, w] : out) {
      if (divide) w /= sum + 1e-20;
      if (v3 || !divide) w *= config_.routed_scaling_factor;
    }
    return out;
  }

  void keep_groups(std::vector<double>& choice, bool sum_of_two) const {
    const auto size = static_cast<size_t>(config_.n_routed_experts / config_.n_group);
    std::vector<std::pair<double, int64_t>> groups;
    for (int64_t g = 0; g < config_.n_group; ++g) {
      std::vector<double> members(choice.begin() + g * static_cast<int64_t>(size),
                                  choice.begin() + (g + 1) * static_cast<int64_t>(size));
      std::sort(members.rbegin(), members.rend());
      groups.emplace_back(-(members[0] + (sum_of_two && size > 1 ? members[1] : 0)), g);
    }
    std::sort(groups.begin(), groups.end());
    for (size_t i = static_cast<size_t>(config_.topk_group); i < groups.size(); ++i) {
      for (size_t e = 0; e < size; ++e) {
        choice[static_cast<size_t>(groups[i].second) * size + e] = -HUGE_VAL;
      }
    }
  }

  Matrix experts(const Matrix& x, const std::string& p) {
    const Matrix z = linear(x, p + "gate.weight");
    Matrix y(x.rows, x.cols);
    if (config_.n_shared_experts > 0) y = mlp(x, p + "shared_experts.");
    for (int64_t t = 0; t < x.rows; ++t) {
      Matrix row(1, x.cols);
      std::copy_n(x.v.begin() + t * x.cols, x.cols, row.v.begin());
      const std::vector<double> scores(z.v.begin() + t * z.cols, z.v.begin() + (t + 1) * z.cols);
      for (const auto& [e, w] : choose(scores, p)) {
        const Matrix out = mlp(row, str_cat(p, "experts.", e, "."));
        for (int64_t i = 0; i < x.cols; ++i)
          y.at(t, i) += w * out.at(0, i);
      }
    }
    return y;
  }
};

}  // namespace fathom::oracle

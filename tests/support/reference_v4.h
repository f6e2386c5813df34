// The forward pass of DeepSeek-V4 and of its draft layer in float64 with the obvious loops: the
// oracle of model tests. Nothing is rounded or quantised on the way. It shares with the engine the
// reader of config.json and the decoders of number formats, and nothing else.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/reference_weights.h"

namespace fathom::oracle {

class ReferenceV4 : public ReferenceWeights {
 public:
  using ReferenceWeights::ReferenceWeights;

  /// The streams behind the last layer, [T, n*H].
  Matrix streams(const std::vector<int32_t>& tokens) {
    const Matrix e = embed(tokens, "embed.weight");
    Matrix x(e.rows, config_.hc_mult * e.cols);
    for (int64_t t = 0; t < x.rows; ++t) {
      for (int64_t i = 0; i < x.cols; ++i)
        x.at(t, i) = e.at(t, i % e.cols);
    }
    for (int l = 0; l < config_.num_hidden_layers; ++l) {
      layer(x, str_cat("layers.", l, "."), static_cast<int64_t>(config_.compress_ratio(l)),
            l < config_.num_hash_layers, tokens);
    }
    return x;
  }

  Matrix logits(const Matrix& x) {
    return linear(norm(read(x, "hc_head_"), "norm.weight"), "head.weight");
  }

  /// The draft layer's streams, of those of tokens 0, 1, ... and of the tokens behind them.
  Matrix draft_streams(const std::vector<int32_t>& next, const Matrix& x) {
    const int64_t H = config_.hidden_size;
    const Matrix e =
        linear(norm(embed(next, "embed.weight"), "mtp.0.enorm.weight"), "mtp.0.e_proj.weight");
    Matrix out(x.rows, x.cols);
    for (int64_t j = 0; j < config_.hc_mult; ++j) {
      const Matrix s =
          linear(norm(columns(x, j * H, H), "mtp.0.hnorm.weight"), "mtp.0.h_proj.weight");
      for (int64_t t = 0; t < x.rows; ++t) {
        for (int64_t i = 0; i < H; ++i)
          out.at(t, j * H + i) = e.at(t, i) + s.at(t, i);
      }
    }
    layer(out, "mtp.0.", 0, false, next);
    return out;
  }

  Matrix draft_logits(const Matrix& x) {
    return linear(norm(read(x, "mtp.0.hc_head_"), "mtp.0.norm.weight"), "head.weight");
  }

 private:
  Matrix norm(const Matrix& x, const std::string& name) {
    return ReferenceWeights::norm(x, name, config_.rms_norm_eps);
  }

  static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

  // ---- Streams.

  // What the numbers of a token's mixing are made of: m = rho (F v), scaled and shifted.
  std::vector<double> mixing(const Matrix& x, int64_t t, const std::string& p, bool head) {
    const int64_t n = config_.hc_mult;
    const Matrix& fn = weight(p + "fn");
    const Matrix& base = weight(p + "base");
    const Matrix& scale = weight(p + "scale");
    double squares = 0;
    for (int64_t i = 0; i < x.cols; ++i)
      squares += x.at(t, i) * x.at(t, i);
    const double rho = 1 / std::sqrt(squares / static_cast<double>(x.cols) + config_.rms_norm_eps);
    std::vector<double> m;
    for (int64_t q = 0; q < (head ? n : 2 * n + n * n); ++q) {
      double sum = 0;
      for (int64_t i = 0; i < x.cols; ++i)
        sum += fn.at(q, i) * x.at(t, i);
      const int64_t kind = q < n ? 0 : q < 2 * n ? 1 : 2;
      m.push_back(rho * sum * scale.v[static_cast<size_t>(kind)] + base.v[static_cast<size_t>(q)]);
    }
    return m;
  }

  // Sum over streams of (sigmoid(m_j) + eps) X_j.
  void weighted_sum(const Matrix& x, int64_t t, const std::vector<double>& m, Matrix& out) {
    for (int64_t j = 0; j < config_.hc_mult; ++j) {
      const double pre = sigmoid(m[static_cast<size_t>(j)]) + config_.hc_eps;
      for (int64_t i = 0; i < out.cols; ++i)
        out.at(t, i) += pre * x.at(t, j * out.cols + i);
    }
  }

  Matrix read(const Matrix& x, const std::string& p) {
    Matrix out(x.rows, config_.hidden_size);
    for (int64_t t = 0; t < x.rows; ++t)
      weighted_sum(x, t, mixing(x, t, p, true), out);
    return out;
  }

  // Softmax of the rows, columns, then pairs of rows and columns.
  Matrix sinkhorn(const std::vector<double>& m) const {
    const int64_t n = config_.hc_mult;
    const double eps = config_.hc_eps;
    Matrix c(n, n);
    for (int64_t j = 0; j < n; ++j) {
      std::vector<double> row(m.begin() + 2 * n + j * n, m.begin() + 2 * n + (j + 1) * n);
      softmax(row);
      for (int64_t k = 0; k < n; ++k)
        c.at(j, k) = row[static_cast<size_t>(k)] + eps;
    }
    const auto divide = [&](bool rows) {
      for (int64_t a = 0; a < n; ++a) {
        double sum = eps;
        for (int64_t b = 0; b < n; ++b)
          sum += rows ? c.at(a, b) : c.at(b, a);
        for (int64_t b = 0; b < n; ++b)
          (rows ? c.at(a, b) : c.at(b, a)) /= sum;
      }
    };
    divide(false);
    for (int64_t i = 1; i < config_.hc_sinkhorn_iters; ++i) {
      divide(true);
      divide(false);
    }
    return c;
  }

  // X = post y + comb^T X, with y = sublayer(pre X).
  template <class F>
  void sublayer(Matrix& x, const std::string& p, F f) {
    const int64_t n = config_.hc_mult;
    const int64_t H = config_.hidden_size;
    Matrix in(x.rows, H);
    std::vector<std::vector<double>> m;
    for (int64_t t = 0; t < x.rows; ++t) {
      m.push_back(mixing(x, t, p, false));
      weighted_sum(x, t, m.back(), in);
    }
    const Matrix y = f(in);
    const Matrix old = x;
    for (int64_t t = 0; t < x.rows; ++t) {
      const std::vector<double>& of_token = m[static_cast<size_t>(t)];
      const Matrix c = sinkhorn(of_token);
      for (int64_t k = 0; k < n; ++k) {
        const double post = 2 * sigmoid(of_token[static_cast<size_t>(n + k)]);
        for (int64_t i = 0; i < H; ++i) {
          double sum = post * y.at(t, i);
          for (int64_t j = 0; j < n; ++j)
            sum += c.at(j, k) * old.at(t, j * H + i);
          x.at(t, k * H + i) = sum;
        }
      }
    }
  }

  void layer(Matrix& x,
             const std::string& p,
             int64_t ratio,
             bool by_token,
             const std::vector<int32_t>& tokens) {
    sublayer(x, p + "hc_attn_", [&](const Matrix& in) {
      return attention(norm(in, p + "attn_norm.weight"), p + "attn.", ratio);
    });
    sublayer(x, p + "hc_ffn_", [&](const Matrix& in) {
      return experts(norm(in, p + "ffn_norm.weight"), p + "ffn.", by_token, tokens);
    });
  }

  // ---- Attention.

  // Rotates channels [begin, begin + Dr) of row t, in adjacent pairs, by position * direction.
  void rotate(Matrix& x, int64_t t, int64_t begin, int64_t position, int64_t ratio, int direction) {
    const RopeScaling& s = config_.rope_scaling;
    const double theta = ratio == 0 ? config_.rope_theta : config_.compress_rope_theta;
    const auto dim = static_cast<double>(config_.qk_rope_head_dim);
    const auto corner = [&](double turns) {
      return dim *
             std::log(static_cast<double>(s.original_max_position_embeddings) /
                      (turns * 2 * std::numbers::pi)) /
             (2 * std::log(theta));
    };
    for (int64_t i = 0; i < config_.qk_rope_head_dim / 2; ++i) {
      double f = std::pow(theta, -2.0 * static_cast<double>(i) / dim);
      if (ratio != 0) {
        const double low = std::max(std::floor(corner(s.beta_fast)), 0.0);
        const double high = std::min(std::ceil(corner(s.beta_slow)), dim - 1);
        const double width = high == low ? 0.001 : high - low;
        const double ramp = std::clamp((static_cast<double>(i) - low) / width, 0.0, 1.0);
        f = f * (1 - ramp) + f / s.factor * ramp;
      }
      const double c = std::cos(static_cast<double>(position) * f);
      const double n = std::sin(static_cast<double>(position) * f) * direction;
      double& a = x.at(t, begin + 2 * i);
      double& b = x.at(t, begin + 2 * i + 1);
      const double rotated = a * c - b * n;
      b = a * n + b * c;
      a = rotated;
    }
  }

  // The rows of `ratio` tokens that T tokens make, [T / ratio, width].
  Matrix compressed(const Matrix& x, const std::string& p, int64_t ratio, int64_t width) {
    const Matrix u = linear(x, p + "wkv.weight");
    const Matrix z = linear(x, p + "wgate.weight");
    const Matrix& ape = weight(p + "ape");
    const bool overlap = ratio == 4;
    Matrix out(x.rows / ratio, width);
    for (int64_t i = 0; i < out.rows; ++i) {
      for (int64_t ch = 0; ch < width; ++ch) {
        std::vector<double> scores;
        std::vector<double> values;
        // With overlap, the block before gives its first half of the channels, this one its second.
        for (int64_t t = std::max<int64_t>(0, ratio * (overlap ? i - 1 : i)); t < ratio * (i + 1);
             ++t) {
          const int64_t at = overlap && t >= ratio * i ? width + ch : ch;
          scores.push_back(z.at(t, at) + ape.at(t % ratio, at));
          values.push_back(u.at(t, at));
        }
        softmax(scores);
        out.at(i, ch) = std::inner_product(scores.begin(), scores.end(), values.begin(), 0.0);
      }
    }
    out = norm(out, p + "norm.weight");
    for (int64_t i = 0; i < out.rows; ++i)
      rotate(out, i, width - config_.qk_rope_head_dim, ratio * i, ratio, 1);
    return out;
  }

  // For each token the rows of 4 tokens that its indexer chooses.
  std::vector<std::vector<int64_t>> chosen_rows(const Matrix& x,
                                                const Matrix& c,
                                                const std::string& p) {
    const int64_t Hi = config_.index_n_heads;
    const int64_t Di = config_.index_head_dim;
    const Matrix keys = compressed(x, p + "compressor.", 4, Di);
    Matrix q = linear(c, p + "wq_b.weight");
    const Matrix w = linear(x, p + "weights_proj.weight");
    std::vector<std::vector<int64_t>> out;
    for (int64_t t = 0; t < x.rows; ++t) {
      std::vector<std::pair<double, int64_t>> scores;
      for (int64_t h = 0; h < Hi; ++h)
        rotate(q, t, (h + 1) * Di - config_.qk_rope_head_dim, t, 4, 1);
      for (int64_t i = 0; i < (t + 1) / 4; ++i) {
        double score = 0;
        for (int64_t h = 0; h < Hi; ++h) {
          double dot = 0;
          for (int64_t d = 0; d < Di; ++d)
            dot += q.at(t, h * Di + d) * keys.at(i, d);
          score += w.at(t, h) * std::max(0.0, dot);
        }
        scores.emplace_back(-score, i);
      }
      std::sort(scores.begin(), scores.end());
      std::vector<int64_t> rows;
      for (size_t i = 0; i < scores.size() && static_cast<int64_t>(i) < config_.index_topk; ++i)
        rows.push_back(scores[i].second);
      out.push_back(std::move(rows));
    }
    return out;
  }

  Matrix attention(const Matrix& x, const std::string& p, int64_t ratio) {
    const int64_t Nh = config_.num_attention_heads;
    const int64_t D = config_.head_dim;
    const int64_t rotated = D - config_.qk_rope_head_dim;
    const Matrix c = norm(linear(x, p + "wq_a.weight"), p + "q_norm.weight");
    Matrix q = linear(c, p + "wq_b.weight");
    Matrix kv = norm(linear(x, p + "wkv.weight"), p + "kv_norm.weight");
    Matrix rows;
    std::vector<std::vector<int64_t>> chosen;
    if (ratio > 0) rows = compressed(x, p + "compressor.", ratio, D);
    if (ratio == 4) chosen = chosen_rows(x, c, p + "indexer.");
    Matrix o(x.rows, Nh * D);
    for (int64_t t = 0; t < x.rows; ++t) {
      rotate(kv, t, rotated, t, ratio, 1);
      std::vector<const double*> keys;
      for (int64_t j = std::max<int64_t>(0, t - config_.sliding_window + 1); j <= t; ++j)
        keys.push_back(&kv.at(j, 0));
      if (ratio == 4) {
        for (const int64_t i : chosen[static_cast<size_t>(t)])
          keys.push_back(&rows.at(i, 0));
      } else if (ratio > 0) {
        for (int64_t i = 0; i < (t + 1) / ratio; ++i)
          keys.push_back(&rows.at(i, 0));
      }
      for (int64_t h = 0; h < Nh; ++h)
        attend(q, t, h, keys, weight(p + "attn_sink").v[static_cast<size_t>(h)], ratio, o);
    }
    return linear(grouped(o, p + "wo_a.weight"), p + "wo_b.weight");
  }

  // One head of one token: norm and rotation of its query, softmax with a sink, rotation back.
  void attend(Matrix& q,
              int64_t t,
              int64_t h,
              const std::vector<const double*>& keys,
              double sink,
              int64_t ratio,
              Matrix& o) {
    const int64_t D = config_.head_dim;
    const int64_t rotated = h * D + D - config_.qk_rope_head_dim;
    double squares = 0;
    for (int64_t d = 0; d < D; ++d)
      squares += q.at(t, h * D + d) * q.at(t, h * D + d);
    for (int64_t d = 0; d < D; ++d)
      q.at(t, h * D + d) /= std::sqrt(squares / static_cast<double>(D) + config_.rms_norm_eps);
    rotate(q, t, rotated, t, ratio, 1);
    std::vector<double> weights;
    for (const double* key : keys) {
      double dot = 0;
      for (int64_t d = 0; d < D; ++d)
        dot += q.at(t, h * D + d) * key[d];
      weights.push_back(dot / std::sqrt(static_cast<double>(D)));
    }
    weights.push_back(sink);
    softmax(weights);
    for (size_t j = 0; j < keys.size(); ++j) {
      for (int64_t d = 0; d < D; ++d)
        o.at(t, h * D + d) += weights[j] * keys[j][d];
    }
    rotate(o, t, rotated, t, ratio, -1);
  }

  Matrix grouped(const Matrix& o, const std::string& name) {
    const Matrix& w = weight(name);
    const int64_t width = o.cols / config_.o_groups;
    Matrix out(o.rows, w.rows);
    for (int64_t t = 0; t < o.rows; ++t) {
      for (int64_t r = 0; r < w.rows; ++r) {
        for (int64_t k = 0; k < width; ++k)
          out.at(t, r) += w.at(r, k) * o.at(t, r / config_.o_lora_rank * width + k);
      }
    }
    return out;
  }

  // ---- Experts.

  Matrix mlp(const Matrix& x, const std::string& p) {
    Matrix a = linear(x, p + "w1.weight");
    const Matrix b = linear(x, p + "w3.weight");
    const double limit = config_.swiglu_limit;
    for (size_t i = 0; i < a.v.size(); ++i) {
      const double gate = std::min(a.v[i], limit);
      a.v[i] = gate * sigmoid(gate) * std::clamp(b.v[i], -limit, limit);
    }
    return linear(a, p + "w2.weight");
  }

  std::vector<int64_t> experts_of_token(const std::string& name, int32_t token) {
    const TensorRef* ref = checkpoint_.find(name);
    std::vector<int64_t> table(static_cast<size_t>(ref->entry.bytes()) / sizeof(int64_t));
    FATHOM_CHECK(checkpoint_.read(*ref, std::as_writable_bytes(std::span(table))).ok());
    const auto begin = table.begin() + token * config_.num_experts_per_tok;
    return {begin, begin + config_.num_experts_per_tok};
  }

  std::vector<int64_t> best_experts(const std::vector<double>& score, const Matrix& bias) const {
    std::vector<std::pair<double, int64_t>> order;
    for (size_t e = 0; e < score.size(); ++e)
      order.emplace_back(-(score[e] + bias.v[e]), static_cast<int64_t>(e));
    std::sort(order.begin(), order.end());
    std::vector<int64_t> out;
    for (int64_t k = 0; k < config_.num_experts_per_tok; ++k)
      out.push_back(order[static_cast<size_t>(k)].second);
    return out;
  }

  Matrix experts(const Matrix& x,
                 const std::string& p,
                 bool by_token,
                 const std::vector<int32_t>& tokens) {
    const Matrix z = linear(x, p + "gate.weight");
    Matrix y = mlp(x, p + "shared_experts.");
    for (int64_t t = 0; t < x.rows; ++t) {
      std::vector<double> score;
      for (int64_t e = 0; e < z.cols; ++e)
        score.push_back(std::sqrt(std::log1p(std::exp(z.at(t, e)))));
      const std::vector<int64_t> chosen =
          by_token ? experts_of_token(p + "gate.tid2eid", tokens[static_cast<size_t>(t)])
                   : best_experts(score, weight(p + "gate.bias"));
      double sum = 0;
      for (const int64_t e : chosen)
        sum += score[static_cast<size_t>(e)];
      Matrix row(1, x.cols);
      std::copy_n(x.v.begin() + t * x.cols, x.cols, row.v.begin());
      for (const int64_t e : chosen) {
        const double w = score[static_cast<size_t>(e)] / sum * config_.routed_scaling_factor;
        const Matrix out = mlp(row, str_cat(p, "experts.", e, "."));
        for (int64_t i = 0; i < x.cols; ++i)
          y.at(t, i) += w * out.at(0, i);
      }
    }
    return y;
  }
};

}  // namespace fathom::oracle

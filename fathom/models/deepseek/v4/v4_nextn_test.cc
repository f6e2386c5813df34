// The draft layer of V4 against its equations in float64. Outputs of the reference implementation
// do not have it: transformers leaves it out.
#include <cmath>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <numeric>

#include "fathom/base/rng.h"
#include "fathom/formats/minifloat.h"
#include "fathom/weights/checkpoint/checkpoint.h"
#include "fathom/weights/loader.h"
#include "tests/support/model_runner.h"
#include "tests/support/temp_dir.h"

namespace fathom {
namespace {

using Vector = std::vector<double>;

// Sizes of micro-v4; the clamp is drawn in until it acts.
constexpr int64_t H = 64, n = 4, Nh = 4, D = 32, Dr = 16, Lq = 32, Go = 2, Lo = 32, E = 8, K = 3,
                  I = 32, W = 32, V = 4096;
constexpr double kLimit = 0.15, kScaling = 1.5, kEps = 1e-6, kTheta = 10000;
constexpr int kSinkhorn = 20;

// micro-v4 with a draft layer of random weights.
class DraftV4 : public testing::Test {
 protected:
  DraftV4() {
    const std::string source = FATHOM_SOURCE_DIR "/tests/golden/micro-v4";
    auto config = read_model_text(source, "config.json").value();
    replace(config, "\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": 1");
    replace(config, "    4,\n    128\n  ]", "    4,\n    128,\n    0\n  ]");
    replace(config, "\"swiglu_limit\": 10.0", "\"swiglu_limit\": 0.15");
    std::ofstream(dir_.file("config.json")) << config;
    const Checkpoint checkpoint = Checkpoint::open(source).value();
    for (const TensorRef& ref : checkpoint.tensors()) {
      std::string bytes(static_cast<size_t>(ref.entry.bytes()), ' ');
      FATHOM_CHECK(
          checkpoint.read(ref, std::as_writable_bytes(std::span(bytes.data(), bytes.size()))).ok());
      entries_.push_back({ref.entry.name, ref.entry.dtype, ref.entry.shape, 0, 0});
      data_[ref.entry.name] = bytes;
      if (ref.entry.name == "embed.weight" || ref.entry.name == "head.weight")
        keep(ref.entry.name, ref.entry.dtype, bytes);
    }
    add_layer();
    write();
  }

  static void replace(std::string& text, const std::string& from, const std::string& to) {
    FATHOM_CHECK(text.find(from) != std::string::npos, from);
    text.replace(text.find(from), from.size(), to);
  }

  void keep(const std::string& name, Format dtype, const std::string& bytes) {
    Vector& out = weights_[name];
    for (size_t i = 0; i < bytes.size(); i += dtype == Format::kF32 ? 4 : 2) {
      Bf16 half;
      float single = 0;
      if (dtype == Format::kF32) {
        std::memcpy(&single, &bytes[i], 4);
      } else {
        std::memcpy(&half, &bytes[i], 2);
        single = to_float(half);
      }
      out.push_back(single);
    }
  }

  void add(const std::string& name,
           std::vector<int64_t> shape,
           float mean,
           float deviation,
           Format dtype = Format::kBf16) {
    Rng rng(entries_.size());
    const int64_t count =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    std::string bytes;
    for (int64_t i = 0; i < count; ++i) {
      const float value = mean + deviation * rng.next_normal();
      const Bf16 half = bf16_from_float(value);
      if (dtype == Format::kF32) {
        bytes.append(reinterpret_cast<const char*>(&value), 4);
      } else {
        bytes.append(reinterpret_cast<const char*>(&half), 2);
      }
    }
    entries_.push_back({"mtp.0." + name, dtype, std::move(shape), 0, 0});
    keep(name, dtype, bytes);
    data_["mtp.0." + name] = bytes;
  }

  void add_layer() {
    constexpr Format kF32 = Format::kF32;
    for (const char* norm : {"enorm", "hnorm", "norm", "attn_norm", "ffn_norm"})
      add(str_cat(norm, ".weight"), {H}, 1, 0.1f);
    add("e_proj.weight", {H, H}, 0, 0.12f);
    add("h_proj.weight", {H, H}, 0, 0.12f);
    for (const char* site : {"hc_attn_", "hc_ffn_"}) {
      add(str_cat(site, "fn"), {2 * n + n * n, n * H}, 0, 0.12f, kF32);
      add(str_cat(site, "base"), {2 * n + n * n}, 0, 0.5f, kF32);
      add(str_cat(site, "scale"), {3}, 1, 0.1f, kF32);
    }
    add("hc_head_fn", {n, n * H}, 0, 0.12f, kF32);
    add("hc_head_base", {n}, 0, 0.5f, kF32);
    add("hc_head_scale", {1}, 1, 0.1f, kF32);
    add("attn.wq_a.weight", {Lq, H}, 0, 0.12f);
    add("attn.q_norm.weight", {Lq}, 1, 0.1f);
    add("attn.wq_b.weight", {Nh * D, Lq}, 0, 0.12f);
    add("attn.wkv.weight", {D, H}, 0, 0.12f);
    add("attn.kv_norm.weight", {D}, 1, 0.1f);
    add("attn.attn_sink", {Nh}, 0, 1, kF32);
    add("attn.wo_a.weight", {Go * Lo, Nh / Go * D}, 0, 0.12f);
    add("attn.wo_b.weight", {H, Go * Lo}, 0, 0.12f);
    add("ffn.gate.weight", {E, H}, 0, 0.12f);
    add("ffn.gate.bias", {E}, 0, 0.1f, kF32);
    for (int64_t e = 0; e <= E; ++e) {
      const std::string p = e < E ? str_cat("ffn.experts.", e, ".") : "ffn.shared_experts.";
      add(p + "w1.weight", {I, H}, 0, 0.12f);
      add(p + "w3.weight", {I, H}, 0, 0.12f);
      add(p + "w2.weight", {H, I}, 0, 0.12f);
    }
  }

  void write() {
    std::ofstream out(dir_.file("model.safetensors"), std::ios::binary);
    out << format_safetensors_header(entries_, {});
    for (const TensorEntry& e : entries_)
      out << data_.at(e.name);
  }

  // ---- The equations (deepseek-v4 notes, section 2; DeepSeek-V4, inference/model.py)

  const Vector& w(const std::string& name) const { return weights_.at(name); }

  // Rows first .. first + rows of a matrix times x.
  static Vector times(const Vector& matrix,
                      std::span<const double> x,
                      size_t rows,
                      size_t first = 0) {
    Vector y(rows);
    for (size_t i = 0; i < rows; ++i)
      y[i] = std::inner_product(x.begin(), x.end(),
                                matrix.begin() + static_cast<int64_t>((first + i) * x.size()), 0.0);
    return y;
  }

  static Vector rms(std::span<const double> x, const Vector& weight = {}) {
    double squares = 0;
    for (const double v : x)
      squares += v * v;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + kEps);
    Vector y(x.begin(), x.end());
    for (size_t i = 0; i < y.size(); ++i)
      y[i] *= scale * (weight.empty() ? 1 : weight[i]);
    return y;
  }

  static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

  // Turns the last Dr channels, adjacent pairs, by sign * position.
  static void rope(double* x, double position, double sign) {
    for (int64_t i = 0; i < Dr / 2; ++i) {
      const double angle = sign * position * std::pow(kTheta, -2.0 * static_cast<double>(i) / Dr);
      double& a = x[D - Dr + 2 * i];
      double& b = x[D - Dr + 2 * i + 1];
      const double turned = a * std::cos(angle) - b * std::sin(angle);
      b = a * std::sin(angle) + b * std::cos(angle);
      a = turned;
    }
  }

  struct Mix {
    Vector x, post, comb;
  };

  Mix read_streams(const Vector& streams, const std::string& site) const {
    const Vector m = times(w(site + "fn"), rms(streams), 2 * n + n * n);
    const Vector& base = w(site + "base");
    const Vector& scale = w(site + "scale");
    Mix out{Vector(H), Vector(n), Vector(n * n)};
    for (size_t j = 0; j < n; ++j) {
      const double pre = sigmoid(m[j] * scale[0] + base[j]) + kEps;
      for (size_t d = 0; d < H; ++d)
        out.x[d] += pre * streams[j * H + d];
      out.post[j] = 2 * sigmoid(m[n + j] * scale[1] + base[n + j]);
    }
    Vector& c = out.comb;
    const auto divide = [&](bool columns) {
      for (size_t a = 0; a < n; ++a) {
        double sum = kEps;
        for (size_t b = 0; b < n; ++b)
          sum += c[columns ? b * n + a : a * n + b];
        for (size_t b = 0; b < n; ++b)
          c[columns ? b * n + a : a * n + b] /= sum;
      }
    };
    for (size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (size_t k = 0; k < n; ++k) {
        const size_t at = 2 * n + j * n + k;
        c[j * n + k] = std::exp(m[at] * scale[2] + base[at]);
        sum += c[j * n + k];
      }
      for (size_t k = 0; k < n; ++k)
        c[j * n + k] = c[j * n + k] / sum + kEps;
    }
    divide(true);
    for (int i = 1; i < kSinkhorn; ++i) {
      divide(false);
      divide(true);
    }
    return out;
  }

  static void write_streams(const Mix& mix, const Vector& y, Vector& streams) {
    Vector out(n * H);
    for (size_t k = 0; k < n; ++k) {
      for (size_t d = 0; d < H; ++d) {
        out[k * H + d] = mix.post[k] * y[d];
        for (size_t j = 0; j < n; ++j)
          out[k * H + d] += mix.comb[j * n + k] * streams[j * H + d];
      }
    }
    streams = out;
  }

  // Attention of the last of the tokens, whose inputs are `xs`.
  Vector attention(const std::vector<Vector>& xs) const {
    const auto position = static_cast<int64_t>(xs.size()) - 1;
    const Vector c = rms(times(w("attn.wq_a.weight"), xs.back(), Lq), w("attn.q_norm.weight"));
    const Vector q_all = times(w("attn.wq_b.weight"), c, Nh * D);
    std::vector<Vector> rows;
    for (int64_t p = std::max<int64_t>(0, position - W + 1); p <= position; ++p) {
      rows.push_back(rms(times(w("attn.wkv.weight"), xs[static_cast<size_t>(p)], D),
                         w("attn.kv_norm.weight")));
      rope(rows.back().data(), static_cast<double>(p), 1);
    }
    Vector o(Nh * D);
    for (size_t h = 0; h < Nh; ++h) {
      Vector q = rms(std::span(q_all).subspan(h * D, D));
      rope(q.data(), static_cast<double>(position), 1);
      double sum = std::exp(w("attn.attn_sink")[h]);
      for (const Vector& row : rows) {
        const double weight = std::exp(std::inner_product(q.begin(), q.end(), row.begin(), 0.0) /
                                       std::sqrt(static_cast<double>(D)));
        sum += weight;
        for (size_t d = 0; d < D; ++d)
          o[h * D + d] += weight * row[d];
      }
      for (size_t d = 0; d < D; ++d)
        o[h * D + d] /= sum;
      rope(&o[h * D], static_cast<double>(position), -1);
    }
    Vector grouped;
    constexpr size_t kWidth = Nh / Go * D;
    for (size_t g = 0; g < Go; ++g) {
      const Vector part =
          times(w("attn.wo_a.weight"), std::span(o).subspan(g * kWidth, kWidth), Lo, g * Lo);
      grouped.insert(grouped.end(), part.begin(), part.end());
    }
    return times(w("attn.wo_b.weight"), grouped, H);
  }

  Vector expert(const std::string& p, const Vector& x) const {
    const Vector gate = times(w(p + "w1.weight"), x, I);
    const Vector up = times(w(p + "w3.weight"), x, I);
    Vector act(I);
    for (size_t i = 0; i < I; ++i) {
      const double g = std::min(gate[i], kLimit);
      act[i] = g * sigmoid(g) * std::clamp(up[i], -kLimit, kLimit);
    }
    return times(w(p + "w2.weight"), act, H);
  }

  Vector experts(const Vector& x) const {
    Vector score = times(w("ffn.gate.weight"), x, E);
    for (double& s : score)
      s = std::sqrt(std::log1p(std::exp(s)));
    std::vector<size_t> order(E);
    std::iota(order.begin(), order.end(), size_t{0});
    const Vector& bias = w("ffn.gate.bias");
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return score[a] + bias[a] > score[b] + bias[b]; });
    double sum = 0;
    for (size_t k = 0; k < K; ++k)
      sum += score[order[k]];
    Vector y = expert("ffn.shared_experts.", x);
    for (size_t k = 0; k < K; ++k) {
      const Vector part = expert(str_cat("ffn.experts.", order[k], "."), x);
      for (size_t d = 0; d < H; ++d)
        y[d] += kScaling * score[order[k]] / sum * part[d];
    }
    return y;
  }

  struct Drafted {
    std::vector<double> streams, logits;
  };

  // Position by position; hidden are the main model's streams.
  Drafted draft(const std::vector<int32_t>& next, const std::vector<float>& hidden) const {
    Drafted out;
    std::vector<Vector> attended;
    for (size_t t = 0; t < next.size(); ++t) {
      const Vector e =
          times(w("e_proj.weight"),
                rms(std::span(w("embed.weight")).subspan(static_cast<size_t>(next[t]) * H, H),
                    w("enorm.weight")),
                H);
      Vector X(n * H);
      for (size_t j = 0; j < n; ++j) {
        const auto from = hidden.begin() + static_cast<int64_t>((t * n + j) * H);
        const Vector h =
            times(w("h_proj.weight"), rms(Vector(from, from + H), w("hnorm.weight")), H);
        for (size_t d = 0; d < H; ++d)
          X[j * H + d] = e[d] + h[d];
      }
      const Mix before = read_streams(X, "hc_attn_");
      attended.push_back(rms(before.x, w("attn_norm.weight")));
      write_streams(before, attention(attended), X);
      const Mix between = read_streams(X, "hc_ffn_");
      write_streams(between, experts(rms(between.x, w("ffn_norm.weight"))), X);
      out.streams.insert(out.streams.end(), X.begin(), X.end());

      const Vector m = times(w("hc_head_fn"), rms(X), n);
      Vector h(H);
      for (size_t j = 0; j < n; ++j) {
        const double pre = sigmoid(m[j] * w("hc_head_scale")[0] + w("hc_head_base")[j]) + kEps;
        for (size_t d = 0; d < H; ++d)
          h[d] += pre * X[j * H + d];
      }
      const Vector logits = times(w("head.weight"), rms(h, w("norm.weight")), V);
      out.logits.insert(out.logits.end(), logits.begin(), logits.end());
    }
    return out;
  }

  static ModelOptions f32_options() {
    ModelOptions o;
    o.activations = Format::kF32;
    o.indexer_format = Format::kF32;
    return o;
  }

  static std::vector<int32_t> some_tokens(int64_t count) {
    Rng rng(11);
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < count; ++i)
      tokens.push_back(static_cast<int32_t>(rng.next_below(V)));
    return tokens;
  }

  static std::vector<float> as_floats(const std::vector<std::byte>& bytes) {
    std::vector<float> out(bytes.size() / 4);
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }

  TempDir dir_;
  std::vector<TensorEntry> entries_;
  std::map<std::string, std::string> data_;
  std::map<std::string, Vector> weights_;  // of the draft layer, embedding and head
};

double largest_difference(const std::vector<float>& a, const std::vector<double>& b) {
  FATHOM_CHECK(a.size() == b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]));
  return worst;
}

// 50 tokens: more than the window has.
TEST_F(DraftV4, StreamsAndLogitsAreThoseOfTheEquations) {
  ModelRunner runner(dir_.path(), f32_options());
  ASSERT_TRUE(runner.model().has_draft());
  const auto tokens = some_tokens(50);
  const std::vector<int32_t> next(tokens.begin() + 1, tokens.end());
  StepResult main = runner.prefill(tokens);
  const View hidden =
      make_view(main.hidden.data(), {static_cast<int64_t>(next.size()), n * H}, Format::kF32);
  const auto pages = ModelRunner::page_list(0, 4);

  const StepResult found =
      runner.step({{.tokens = next, .pages = pages, .slot = 0, .logits = LogitRows::kAll}}, {},
                  nullptr, &hidden);

  const Drafted expected = draft(next, as_floats(main.hidden));
  EXPECT_LE(largest_difference(as_floats(found.hidden), expected.streams), 2e-5);
  EXPECT_LE(largest_difference(found.logits, expected.logits), 2e-5);
}

TEST_F(DraftV4, TokenByTokenGivesWhatOnePassGives) {
  ModelRunner runner(dir_.path(), f32_options());
  const auto tokens = some_tokens(50);
  const std::vector<int32_t> next(tokens.begin() + 1, tokens.end());
  StepResult main = runner.prefill(tokens);
  const auto pages = ModelRunner::page_list(0, 4);
  const auto rows = static_cast<int64_t>(next.size());
  const View hidden = make_view(main.hidden.data(), {rows, n * H}, Format::kF32);
  const StepResult whole =
      runner.step({{.tokens = next, .pages = pages, .slot = 0, .logits = LogitRows::kAll}}, {},
                  nullptr, &hidden);
  runner.poison_pages();
  for (int64_t i = 0; i < rows; ++i) {
    const View one = slice_rows(hidden, i, 1);
    const StepResult step =
        runner.step({},
                    {{.tokens = std::span(next).subspan(static_cast<size_t>(i), 1),
                      .cached = i,
                      .pages = pages,
                      .slot = 0}},
                    nullptr, &one);
    const auto expected = whole.row(i);
    EXPECT_LE(largest_difference(step.row(0), {expected.begin(), expected.end()}), 1e-5) << i;
  }
}

TEST_F(DraftV4, ACheckpointWithoutItRunsWithoutIt) {
  std::erase_if(entries_, [](const TensorEntry& e) { return e.name.starts_with("mtp."); });
  write();
  ModelRunner runner(dir_.path(), f32_options());
  EXPECT_FALSE(runner.model().has_draft());
  EXPECT_FALSE(runner.prefill(some_tokens(3)).logits.empty());
}

TEST_F(DraftV4, APartOfItIsRefusedByName) {
  std::erase_if(entries_, [](const TensorEntry& e) {
    return e.name == "mtp.0.hc_head_base" || e.name == "mtp.0.attn.wkv.weight";
  });
  write();
  OpenOptions open;
  open.model = f32_options();
  const auto model = open_model(ModelSource::open(dir_.path()).value(), {}, open);
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.status().message().find("mtp.0."), std::string::npos) << model.status().message();
}

}  // namespace
}  // namespace fathom

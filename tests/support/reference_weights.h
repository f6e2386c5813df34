// What the oracles of model tests share: stored weights as float64, and the plainest layers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/layout/tile_layout.h"
#include "fathom/models/config/config.h"
#include "fathom/weights/checkpoint/checkpoint.h"
#include "fathom/weights/checkpoint/linear_format.h"
#include "fathom/weights/loader.h"

namespace fathom::oracle {

/// [rows, columns], row-major.
struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<double> v;

  Matrix() = default;

  Matrix(int64_t r, int64_t c) : rows(r), cols(c), v(static_cast<size_t>(r * c)) {}

  double& at(int64_t r, int64_t c) { return v[static_cast<size_t>(r * cols + c)]; }

  double at(int64_t r, int64_t c) const { return v[static_cast<size_t>(r * cols + c)]; }
};

class ReferenceWeights {
 public:
  explicit ReferenceWeights(const std::string& directory)
      : checkpoint_(Checkpoint::open(directory).value()),
        config_(parse_config(read_model_text(directory, "config.json").value()).value()) {}

  const ModelConfig& config() const { return config_; }

  /// From here on weights in NVFP4 read rows rounded to NVFP4, by the largest input_scale of those
  /// that share an input.
  void round_nvfp4_inputs() { round_inputs_ = true; }

 protected:
  const Matrix& weight(const std::string& name) {
    const auto known = weights_.find(name);
    if (known != weights_.end()) return known->second;
    const StoredLinear s = describe_linear(checkpoint_, name).value();
    const auto read = [&](const TensorRef* ref) {
      std::vector<std::byte> bytes(ref == nullptr ? 0 : static_cast<size_t>(ref->entry.bytes()));
      if (ref != nullptr) FATHOM_CHECK(checkpoint_.read(*ref, bytes).ok());
      return bytes;
    };
    const auto values = read(s.weight);
    const auto scales = read(s.scale);
    const auto global = read(s.global_scale);
    const bool vector = s.weight->entry.shape.size() == 1;
    RowMajorMatrix m{.format = s.format,
                     .n = vector ? 1 : s.n,
                     .k = vector ? s.n : s.k,
                     .values = values.data(),
                     .scales = scales.data()};
    if (!global.empty()) std::memcpy(&m.global, global.data(), 4);
    Matrix out(m.n, m.k);
    std::vector<float> row(static_cast<size_t>(m.k));
    for (int64_t r = 0; r < m.n; ++r) {
      decode_row_major_row(m, r, row);
      std::copy(row.begin(), row.end(), out.v.begin() + r * m.k);
    }
    return weights_.emplace(name, std::move(out)).first->second;
  }

  Matrix embed(const std::vector<int32_t>& tokens, const std::string& name) {
    const Matrix& table = weight(name);
    Matrix out(static_cast<int64_t>(tokens.size()), table.cols);
    for (int64_t t = 0; t < out.rows; ++t) {
      for (int64_t i = 0; i < out.cols; ++i) {
        out.at(t, i) = table.at(tokens[static_cast<size_t>(t)], i);
      }
    }
    return out;
  }

  Matrix norm(const Matrix& x, const std::string& name) {
    return norm(x, name, config_.rms_norm_eps);
  }

  Matrix norm(const Matrix& x, const std::string& name, double epsilon) {
    const Matrix& w = weight(name);
    Matrix out(x.rows, x.cols);
    for (int64_t t = 0; t < x.rows; ++t) {
      double sum = 0;
      for (int64_t i = 0; i < x.cols; ++i)
        sum += x.at(t, i) * x.at(t, i);
      const double r = 1.0 / std::sqrt(sum / static_cast<double>(x.cols) + epsilon);
      for (int64_t i = 0; i < x.cols; ++i)
        out.at(t, i) = x.at(t, i) * r * w.at(0, i);
    }
    return out;
  }

  Matrix linear(const Matrix& exact, const std::string& name) {
    const Matrix& w = weight(name);
    const Matrix x = round_inputs_ ? rounded(exact, name) : exact;
    FATHOM_CHECK(w.cols == x.cols, name);
    Matrix out(x.rows, w.rows);
    for (int64_t t = 0; t < x.rows; ++t) {
      for (int64_t n = 0; n < w.rows; ++n) {
        double sum = 0;
        for (int64_t k = 0; k < x.cols; ++k)
          sum += x.at(t, k) * w.at(n, k);
        out.at(t, n) = sum;
      }
    }
    return out;
  }

  static Matrix columns(const Matrix& x, int64_t begin, int64_t count) {
    Matrix out(x.rows, count);
    for (int64_t t = 0; t < x.rows; ++t) {
      for (int64_t i = 0; i < count; ++i)
        out.at(t, i) = x.at(t, begin + i);
    }
    return out;
  }

  static void add(Matrix& h, const Matrix& y) {
    for (size_t i = 0; i < h.v.size(); ++i)
      h.v[i] += y.v[i];
  }

  static void softmax(std::vector<double>& v) {
    const double top = *std::max_element(v.begin(), v.end());
    double sum = 0;
    for (double& x : v)
      sum += x = std::exp(x - top);
    for (double& x : v)
      x /= sum;
  }

  Checkpoint checkpoint_;
  ModelConfig config_;

 private:
  float input_scale(const std::string& weight) const {
    const TensorRef* scale = checkpoint_.find(weight.substr(0, weight.size() - 6) + "input_scale");
    return scale == nullptr ? 0.0f : read_tensor_scale(checkpoint_, *scale).value();
  }

  Matrix rounded(const Matrix& x, const std::string& name) const {
    float global = input_scale(name);
    if (global == 0.0f) return x;
    constexpr std::pair<const char*, const char*> kShared[] = {{"gate_proj", "up_proj"},
                                                               {"up_proj", "gate_proj"},
                                                               {"q_a_proj", "kv_a_proj_with_mqa"},
                                                               {"kv_a_proj_with_mqa", "q_a_proj"}};
    for (const auto& [one, other] : kShared) {
      const size_t at = name.find(str_cat(".", one, "."));
      if (at == std::string::npos) continue;
      global = std::max(
          global, input_scale(std::string(name).replace(at + 1, std::string(one).size(), other)));
      break;
    }
    const std::vector<float> values(x.v.begin(), x.v.end());
    std::vector<uint8_t> codes(values.size() / 2);
    std::vector<E4m3> scales(values.size() / 16);
    std::vector<float> out(values.size());
    nvfp4_quantize_activations(values.data(), x.rows, x.cols, 1.0f / global, codes.data(),
                               scales.data());
    nvfp4_dequantize(codes.data(), scales.data(), global, x.rows, x.cols, out.data());
    Matrix y(x.rows, x.cols);
    y.v.assign(out.begin(), out.end());
    return y;
  }

  bool round_inputs_ = false;
  std::map<std::string, Matrix> weights_;
};

}  // namespace fathom::oracle

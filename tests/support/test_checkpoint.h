// A checkpoint made by a test, tensor by tensor.
#pragma once

#include <cmath>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/formats/minifloat.h"
#include "fathom/weights/checkpoint/checkpoint.h"
#include "fathom/weights/export/quantize_tensor.h"
#include "fathom/weights/weight_store.h"
#include "tests/support/temp_dir.h"

namespace fathom {

/// A checkpoint under construction: tensors in the order they are added.
class TestCheckpoint {
 public:
  // A random matrix, stored in that format.
  void matrix(const std::string& name, int64_t n, int64_t k, Format format, float size = 1.0f) {
    Rng rng(tensors_.size() + 1);
    std::vector<float> w(static_cast<size_t>(n * k));
    for (float& x : w)
      x = size * rng.next_normal();
    QuantizedMatrix q = quantize_matrix(w, n, k, format, name).value();
    for (StoredTensor& t : q.tensors)
      tensors_.push_back(std::move(t));
  }

  // A matrix in any format that a checkpoint may have, also those that nobody here writes: random
  // codes with random scales of about `size`.
  void stored(const std::string& name, int64_t n, int64_t k, Format format, float size = 1.0f) {
    const bool fp8 = format == Format::kFp8BlockUe8m0 || format == Format::kFp8Channel ||
                     format == Format::kFp8Tensor;
    if (!fp8 && format != Format::kW4Fp8) return matrix(name, n, k, format, size);
    Rng rng(tensors_.size() + 1);
    std::vector<uint8_t> bytes(static_cast<size_t>(fp8 ? n * k : n * k / 2));
    for (uint8_t& b : bytes)  // of E4M3 none that is not finite
      b = static_cast<uint8_t>(rng.next_below(256)) & (fp8 ? 0xBFu : 0xFFu);
    codes(name, fp8 ? Format::kE4m3 : Format::kI8, {n, fp8 ? k : k / 2}, bytes);
    const auto floats = [&](int64_t count) {
      std::vector<float> scales(static_cast<size_t>(count));
      for (float& x : scales)
        x = size * (0.5f + std::abs(rng.next_normal()));
      return scales;
    };
    if (format == Format::kFp8Tensor) {
      scalar(name + "_scale", floats(1)[0]);
    } else if (format == Format::kFp8Channel) {
      vector(name + "_scale", floats(n), Format::kF32);
    } else if (format == Format::kW4Fp8) {
      vector(name + "_scale_inv", floats(n * (k / 128)), Format::kBf16);
      tensors_.back().shape = {n, k / 128};
    } else {
      const int64_t rows = (n + 127) / 128;
      const int64_t columns = (k + 127) / 128;
      std::vector<uint8_t> exponents(static_cast<size_t>(rows * columns));
      for (uint8_t& b : exponents)
        b = static_cast<uint8_t>(120 + rng.next_below(8));
      codes(name + "_scale_inv", Format::kUe8m0, {rows, columns}, exponents);
    }
  }

  void vector(const std::string& name, std::vector<float> values, Format format) {
    StoredTensor t{
        .name = name, .dtype = format, .shape = {static_cast<int64_t>(values.size())}, .bytes = {}};
    for (float x : values) {
      const Bf16 rounded = bf16_from_float(x);
      const auto* bytes = format == Format::kF32 ? reinterpret_cast<const std::byte*>(&x)
                                                 : reinterpret_cast<const std::byte*>(&rounded);
      t.bytes.insert(t.bytes.end(), bytes, bytes + element_bytes(format));
    }
    tensors_.push_back(std::move(t));
  }

  // Bytes as they are.
  void codes(const std::string& name,
             Format dtype,
             std::vector<int64_t> shape,
             const std::vector<uint8_t>& bytes) {
    StoredTensor t{.name = name, .dtype = dtype, .shape = std::move(shape), .bytes = {}};
    for (const uint8_t b : bytes)
      t.bytes.push_back(static_cast<std::byte>(b));
    tensors_.push_back(std::move(t));
  }

  void scalar(const std::string& name, float value) {
    vector(name, {value}, Format::kF32);
    tensors_.back().shape.clear();
  }

  StoredTensor& tensor(const std::string& name) {
    for (StoredTensor& t : tensors_) {
      if (t.name == name) return t;
    }
    FATHOM_CHECK(false, name);
    return tensors_[0];
  }

  Checkpoint open() const {
    std::vector<TensorEntry> entries;
    std::string data;
    for (const StoredTensor& t : tensors_) {
      entries.push_back({t.name, t.dtype, t.shape, 0, 0});
      data.append(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size());
    }
    std::ofstream(dir_.file("model.safetensors"), std::ios::binary)
        << format_safetensors_header(entries, {}) << data;
    return Checkpoint::open(dir_.path()).value();
  }

 private:
  std::vector<StoredTensor> tensors_;
  TempDir dir_;
};

inline SymbolTable symbols(std::initializer_list<std::pair<const char*, int64_t>> list) {
  SymbolTable s;
  for (const auto& [name, value] : list)
    s.set(name, value);
  return s;
}

}  // namespace fathom

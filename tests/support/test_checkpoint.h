// A checkpoint made by a test, tensor by tensor.
#pragma once

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/formats/minifloat.h"
#include "fathom/weights/checkpoint.h"
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

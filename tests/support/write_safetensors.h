// Small safetensors files for tests.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "fathom/weights/checkpoint/safetensors.h"

namespace fathom {

/// A tensor whose data is `fill`, repeated.
struct TestTensor {
  std::string name;
  Format dtype = Format::kU8;
  std::vector<int64_t> shape;
  char fill = 'x';
};

inline void write_bytes(const std::string& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// The bytes of a file that holds these tensors, in this order.
inline std::string safetensors_bytes(const std::vector<TestTensor>& tensors) {
  std::vector<TensorEntry> entries;
  std::string data;
  for (const TestTensor& tensor : tensors) {
    entries.push_back({tensor.name, tensor.dtype, tensor.shape, 0, 0});
    data.append(static_cast<size_t>(*tensor_bytes(tensor.dtype, tensor.shape)), tensor.fill);
  }
  return format_safetensors_header(entries, {{"format", "pt"}}) + data;
}

inline void write_safetensors(const std::string& path, const std::vector<TestTensor>& tensors) {
  write_bytes(path, safetensors_bytes(tensors));
}

}  // namespace fathom

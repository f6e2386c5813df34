// A fixture written again in another layout: other names, other number formats, and as the values
// that those formats stand for.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/block/block_fp8.h"
#include "fathom/os/file.h"
#include "fathom/weights/checkpoint/checkpoint.h"
#include "fathom/weights/export/quantize_tensor.h"

namespace fathom {

/// What becomes of a tensor: its name, and its format if it is to be quantised.
struct NewTensor {
  std::string name;
  Format format = Format::kNone;
};

using Layout = std::function<NewTensor(const std::string& name)>;

/// The values of stored floats.
inline std::vector<float> float_values(const Checkpoint& checkpoint, const TensorRef& tensor) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.entry.bytes()));
  FATHOM_CHECK(checkpoint.read(tensor, bytes).ok(), tensor.entry.name);
  std::vector<float> out(bytes.size() / static_cast<size_t>(element_bytes(tensor.entry.dtype)));
  for (size_t i = 0; i < out.size(); ++i) {
    if (tensor.entry.dtype == Format::kF32) {
      std::memcpy(&out[i], bytes.data() + 4 * i, 4);
    } else {
      Bf16 value{};
      std::memcpy(&value, bytes.data() + 2 * i, 2);
      out[i] = to_float(value);
    }
  }
  return out;
}

/// What the tensors of a quantised matrix [n, k] stand for, by the loops of fathom/formats.
inline std::vector<float> values_of(const QuantizedMatrix& q, Format format, int64_t n, int64_t k) {
  std::vector<float> out(static_cast<size_t>(n * k));
  const auto* codes = reinterpret_cast<const uint8_t*>(q.tensors[0].bytes.data());
  const std::byte* scales = q.tensors[1].bytes.data();
  if (format == Format::kNvfp4) {
    float global = 0;
    std::memcpy(&global, q.tensors[2].bytes.data(), 4);
    nvfp4_dequantize(codes, reinterpret_cast<const E4m3*>(scales), global, n, k, out.data());
  } else if (format == Format::kMxfp4) {
    mxfp4_dequantize(codes, reinterpret_cast<const Ue8m0*>(scales), n, k, out.data());
  } else if (format == Format::kFp8BlockUe8m0) {
    fp8_dequantize_blocks(reinterpret_cast<const E4m3*>(codes),
                          reinterpret_cast<const Ue8m0*>(scales), n, k, out.data());
  } else {
    FATHOM_CHECK(format == Format::kFp8Block, std::string(format_name(format)));
    std::vector<float> aligned(q.tensors[1].bytes.size() / 4);
    std::memcpy(aligned.data(), scales, q.tensors[1].bytes.size());
    fp8_dequantize_blocks(reinterpret_cast<const E4m3*>(codes), aligned.data(), n, k, out.data());
  }
  return out;
}

inline StoredTensor f32_tensor(std::string name,
                               std::vector<int64_t> shape,
                               const std::vector<float>& values) {
  StoredTensor t{std::move(name), Format::kF32, std::move(shape), {}};
  t.bytes.resize(values.size() * 4);
  std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
  return t;
}

inline void write_tensors(const std::string& path, const std::vector<StoredTensor>& tensors) {
  std::vector<TensorEntry> entries;
  std::string data;
  for (const StoredTensor& t : tensors) {
    entries.push_back({t.name, t.dtype, t.shape, 0, 0});
    data.append(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size());
  }
  std::ofstream(path, std::ios::binary) << format_safetensors_header(entries, {}) << data;
}

/// Writes the fixture twice: to `target` in the layout, with `quantization_config` (JSON text) in
/// its config.json; and to `plain` with the same names, each quantised matrix as the float32 values
/// it stands for. NVFP4 matrices get an input_scale, which changes no weight; those with one input
/// have different ones.
inline void write_in_layout(const std::string& fixture,
                            const Layout& layout,
                            const std::string& quantization_config,
                            const std::string& target,
                            const std::string& plain) {
  const Checkpoint source = Checkpoint::open(fixture).value();
  std::vector<StoredTensor> stored;
  std::vector<StoredTensor> values;
  for (const TensorRef& t : source.tensors()) {
    const NewTensor to = layout(t.entry.name);
    if (to.format == Format::kNone) {
      StoredTensor copy{to.name, t.entry.dtype, t.entry.shape, {}};
      copy.bytes.resize(static_cast<size_t>(t.entry.bytes()));
      FATHOM_CHECK(source.read(t, copy.bytes).ok(), to.name);
      stored.push_back(copy);
      values.push_back(std::move(copy));
      continue;
    }
    const int64_t n = t.entry.shape[0];
    const int64_t k = t.entry.shape[1];
    const QuantizedMatrix q =
        quantize_matrix(float_values(source, t), n, k, to.format, to.name).value();
    values.push_back(f32_tensor(to.name, {n, k}, values_of(q, to.format, n, k)));
    stored.insert(stored.end(), q.tensors.begin(), q.tensors.end());
    if (to.format != Format::kNvfp4) continue;
    const std::string stem = to.name.substr(0, to.name.rfind(".weight"));
    const bool second = stem.ends_with("up_proj") || stem.ends_with("kv_a_proj_with_mqa");
    stored.push_back(f32_tensor(stem + ".input_scale", {}, {second ? 0.0025f : 0.0015f}));
  }
  std::string config = read_file(fixture + "/config.json", 1 << 20).value();
  std::filesystem::create_directories(target);
  std::filesystem::create_directories(plain);
  std::ofstream(plain + "/config.json") << config;
  const std::string declared =
      quantization_config.empty() ? "" : ", \"quantization_config\": " + quantization_config;
  std::ofstream(target + "/config.json") << config.insert(config.rfind('}'), declared);
  write_tensors(target + "/model.safetensors", stored);
  write_tensors(plain + "/model.safetensors", values);
}

}  // namespace fathom

// A small checkpoint with a draft layer.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/base/str_cat.h"
#include "fathom/formats/minifloat.h"
#include "fathom/weights/checkpoint/checkpoint.h"
#include "fathom/weights/checkpoint/safetensors.h"
#include "fathom/weights/loader.h"
#include "tests/support/temp_dir.h"

namespace fathom {

/// micro-v3 or micro-v32 with a draft layer: the weights of its last layer, and new ones for the
/// rest. `tree` is the one with the fixtures.
class DraftCheckpoint {
 public:
  explicit DraftCheckpoint(const char* model = "micro-v3",
                           const std::string& tree = FATHOM_SOURCE_DIR) {
    const std::string source = str_cat(tree, "/tests/golden/", model);
    auto config = read_model_text(source, "config.json").value();
    const std::string key = "\"num_nextn_predict_layers\": 0";
    FATHOM_CHECK(config.find(key) != std::string::npos);
    config.replace(config.find(key), key.size(), "\"num_nextn_predict_layers\": 1");
    std::ofstream(dir_.file("config.json")) << config;
    const Checkpoint checkpoint = Checkpoint::open(source).value();
    for (const TensorRef& ref : checkpoint.tensors()) {
      std::string bytes(static_cast<size_t>(ref.entry.bytes()), ' ');
      FATHOM_CHECK(
          checkpoint.read(ref, std::as_writable_bytes(std::span(bytes.data(), bytes.size()))).ok());
      add(ref.entry.name, ref.entry.dtype, ref.entry.shape, bytes);
      const std::string last = "model.layers.2.";
      if (!ref.entry.name.starts_with(last)) continue;
      add("model.layers.3." + ref.entry.name.substr(last.size()), ref.entry.dtype, ref.entry.shape,
          bytes);
    }
    add_random("enorm.weight", {64}, 1.0f);
    add_random("hnorm.weight", {64}, 1.0f);
    add_random("shared_head.norm.weight", {64}, 1.0f);
    add_random("eh_proj.weight", {64, 128}, 0.0f);
    for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json"})
      std::filesystem::copy_file(str_cat(source, "/", name), dir_.file(name));
    std::ofstream(dir_.file("model.safetensors"), std::ios::binary)
        << format_safetensors_header(entries_, {}) << data_;
  }

  std::string path() const { return dir_.path(); }

 protected:
  TempDir dir_;

 private:
  void add(const std::string& name, Format dtype, std::vector<int64_t> shape, std::string bytes) {
    entries_.push_back({name, dtype, std::move(shape), 0, 0});
    data_ += bytes;
  }

  void add_random(const std::string& name, std::vector<int64_t> shape, float mean) {
    Rng rng(entries_.size());
    int64_t count = 1;
    for (int64_t d : shape)
      count *= d;
    std::string bytes;
    for (int64_t i = 0; i < count; ++i) {
      const Bf16 value = bf16_from_float(mean + 0.1f * rng.next_normal());
      bytes.append(reinterpret_cast<const char*>(&value), 2);
    }
    add("model.layers.3." + name, Format::kBf16, std::move(shape), bytes);
  }

  std::vector<TensorEntry> entries_;
  std::string data_;
};

}  // namespace fathom

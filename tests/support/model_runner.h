// A model with pages and arenas, for tests that run forward passes without the engine.
#pragma once

#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "fathom/base/checked_math.h"
#include "fathom/models/registry.h"
#include "fathom/text/json.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {

/// Copies of the results of one step.
struct StepResult {
  std::vector<float> logits;  ///< [R, V]
  std::vector<std::byte> hidden;
  int64_t vocab = 0;

  std::vector<float> row(int64_t r) const {
    const auto begin = logits.begin() + r * vocab;
    return {begin, begin + vocab};
  }
};

/// The numbers of float32 bytes, as in StepResult::hidden of a model that runs in it.
inline std::vector<float> as_floats(const std::vector<std::byte>& bytes) {
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

class ModelRunner {
 public:
  static constexpr int64_t kPages = 64;
  static constexpr int64_t kSlots = 4;  ///< of rings and states, in models that have them
  static constexpr int64_t kArenaBytes = 512ll << 20;  // reserved, not touched

  explicit ModelRunner(const std::string& directory, ModelOptions options = {}, int threads = 2)
      : pool_(threads, PinThreads::kNo) {
    OpenOptions open;
    open.model = options;
    open.pool = &pool_;
    auto model = open_model(ModelSource::open(directory).value(), {}, open);
    FATHOM_CHECK(model.ok(), model.ok() ? "" : model.status().message());
    model_ = std::move(model).value();
    const CacheLayout layout = model_->cache_layout();
    buffer_ = std::make_unique<BatchBuffer>(layout);
    cache_memory_.resize(static_cast<size_t>(cache_bytes(layout, kPages, kSlots).value()));
    cache_ = cache_views(layout, cache_memory_.data(), kPages, kSlots, false);
    poison_pages();
    activations_ = Arena(Buffer::allocate(DeviceKind::kCpu, kArenaBytes, "test").value());
    scratch_ = Arena(Buffer::allocate(DeviceKind::kCpu, kArenaBytes, "test").value());
  }

  const Model& model() const { return *model_; }

  /// NaN in every page: what is read without having been written shows.
  void poison_pages() { std::memset(cache_memory_.data(), 0xFF, cache_memory_.size()); }

  /// Pages first .. first + count - 1.
  static std::vector<int32_t> page_list(int32_t first, int32_t count) {
    std::vector<int32_t> pages(static_cast<size_t>(count));
    std::iota(pages.begin(), pages.end(), first);
    return pages;
  }

  StepResult step(std::vector<SequenceStep> prefill,
                  std::vector<SequenceStep> decode,
                  const Probe* probe = nullptr,
                  const View* draft_hidden = nullptr) {
    activations_.reset();
    scratch_.reset();
    auto built = buffer_->build(prefill, decode);
    FATHOM_CHECK(built.ok(), built.ok() ? "" : built.status().message());
    Batch batch = std::move(built).value();
    batch.cache = cache_;
    batch.probe = probe;
    Exec ex;
    ex.kernels = &cpu_kernels();
    ex.pool = &pool_;
    ex.num_threads = pool_.size();
    ex.activations = &activations_;
    ex.scratch = &scratch_;
    ForwardOut out;
    const Status status = draft_hidden == nullptr ? model_->forward(ex, batch, out)
                                                  : model_->draft(ex, batch, *draft_hidden, out);
    FATHOM_CHECK(status.ok(), status.message());
    StepResult result;
    result.vocab = out.logits.dim(1);
    result.logits.assign(out.logits.as<float>(), out.logits.as<float>() + out.logits.numel());
    const auto* hidden = static_cast<const std::byte*>(out.hidden.data);
    result.hidden.assign(hidden, hidden + out.hidden.numel() * element_bytes(out.hidden.format));
    return result;
  }

  /// A whole prompt in one prefill; logits of every position.
  StepResult prefill(const std::vector<int32_t>& tokens,
                     int64_t cached = 0,
                     const Probe* probe = nullptr) {
    const auto pages = page_list(0, kPages);
    return step({{.tokens = std::span(tokens).subspan(static_cast<size_t>(cached)),
                  .cached = cached,
                  .pages = pages,
                  .slot = 0,
                  .logits = LogitRows::kAll}},
                {}, probe);
  }

  /// One token after `cached` others.
  StepResult decode(int32_t token, int64_t cached) {
    const auto pages = page_list(0, kPages);
    return step({}, {{.tokens = {&token, 1}, .cached = cached, .pages = pages, .slot = 0}});
  }

 private:
  ThreadPool pool_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<BatchBuffer> buffer_;
  std::vector<std::byte> cache_memory_;
  std::vector<GroupRows> cache_;
  Arena activations_;
  Arena scratch_;
};

/// Tensors of a golden file. Read without the library's reader, which has no float64.
class Golden {
 public:
  explicit Golden(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    FATHOM_CHECK(in.good(), path);
    uint64_t header_bytes = 0;
    in.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
    std::string header(header_bytes, ' ');
    in.read(header.data(), static_cast<std::streamsize>(header_bytes));
    data_.assign(std::istreambuf_iterator<char>(in), {});
    header_ = parse_json(header, {}, path).value();
  }

  bool has(const std::string& name) const { return header_.find(name) != nullptr; }

  template <class T>
  std::vector<T> get(const std::string& name) const {
    const Json* entry = header_.find(name);
    FATHOM_CHECK(entry != nullptr, name);
    const auto& offsets = entry->find("data_offsets")->items();
    const auto begin = static_cast<size_t>(offsets[0].as_int());
    const auto end = static_cast<size_t>(offsets[1].as_int());
    std::vector<T> values((end - begin) / sizeof(T));
    std::memcpy(values.data(), data_.data() + begin, end - begin);
    return values;
  }

  std::vector<float> floats(const std::string& name) const { return get<float>(name); }

  std::vector<int32_t> ints(const std::string& name) const { return get<int32_t>(name); }

 private:
  Json header_;
  std::string data_;
};

}  // namespace fathom

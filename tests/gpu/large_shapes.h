// What tests of large shapes share: both backends, and memory of the GPU that is filled there.
#pragma once

#include <gtest/gtest.h>
#include <memory>
#include <span>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/device/upload.h"
#include "fathom/formats/minifloat.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/runtime/gpu/gpu.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {

inline constexpr int64_t kBorder = int64_t{1} << 31;  // elements

inline constexpr int kNanByte = 0xFF;    // NaN in each format of floating point
inline constexpr int kSmallByte = 0x3C;  // again and again: 0.0115 in bf16 and in float32

inline std::vector<Bf16> random_bf16(int64_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<Bf16> out(static_cast<size_t>(count));
  for (Bf16& x : out)
    x = bf16_from_float(rng.next_normal());
  return out;
}

inline std::vector<float> random_f32(int64_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> out(static_cast<size_t>(count));
  for (float& x : out)
    x = rng.next_normal();
  return out;
}

/// Codes of normal values of size 100.
inline std::vector<uint8_t> random_e4m3(int64_t count, uint64_t seed) {
  std::vector<uint8_t> out;
  for (const float x : random_f32(count, seed))
    out.push_back(e4m3_from_float(100 * x).bits);
  return out;
}

/// A field of rows of bytes [pages, 64, bytes of a row].
inline View field(const View& rows, int64_t at, int64_t width, Format format) {
  View v =
      make_view(static_cast<std::byte*>(rows.data) + at, {rows.dim(0), rows.dim(1), width}, format);
  const int64_t each = element_bytes(format);
  v.strides = {rows.stride(0) / each, rows.stride(1) / each, 1};
  v.on_device = rows.on_device;
  return v;
}

template <class T>
View host_view(std::vector<T>& values, std::initializer_list<int64_t> dims, Format format) {
  return make_view(values.data(), dims, format);
}

/// Both backends with memory of their own.
class LargeShapes : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Gpu>> opened = Gpu::open();
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    gpu_ = std::move(opened).value();
    ASSERT_TRUE(make_exec(DeviceKind::kCuda, gpu_scratch_, on_gpu_));
    on_gpu_.backend = Backend::kCuda;
    on_gpu_.kernels = &gpu_->kernels();
    on_gpu_.stream = &gpu_->stream();
    on_gpu_.device = &gpu_->info();
    ASSERT_TRUE(make_exec(DeviceKind::kCpu, cpu_scratch_, on_cpu_));
    on_cpu_.kernels = &cpu_kernels();
    on_cpu_.pool = &pool_;
    on_cpu_.num_threads = pool_.size();
  }

  bool make_exec(DeviceKind kind, Arena& scratch, Exec& exec) {
    Result<Buffer> memory = Buffer::allocate(kind, int64_t{2} << 30, "scratch");
    if (!memory.ok()) return false;
    scratch = Arena(std::move(memory).value());
    exec.scratch = &scratch;
    return true;
  }

  /// GPU memory whose bytes are all `byte`; freed at the end of the test.
  View on_gpu(std::initializer_list<int64_t> dims, Format format, int byte) {
    View view = make_view(nullptr, dims, format);
    const int64_t bytes = view.numel() * element_bytes(format);
    Result<Buffer> memory = Buffer::allocate(DeviceKind::kCuda, bytes, "operand of a test");
    EXPECT_TRUE(memory.ok()) << memory.status().message();
    if (!memory.ok()) return view;
    buffers_.push_back(std::move(memory).value());
    view.data = buffers_.back().data();
    view.on_device = true;
    EXPECT_TRUE(gpu_->stream().fill(view.data, byte, bytes).ok());
    EXPECT_TRUE(gpu_->stream().synchronize().ok());
    return view;
  }

  template <class T>
  View upload(const std::vector<T>& values, std::initializer_list<int64_t> dims, Format format) {
    const View view = on_gpu(dims, format, 0);
    send(view, 0, std::span<const T>(values));
    return view;
  }

  /// Writes `values` from element `at` on.
  template <class T>
  void send(const View& view, int64_t at, std::span<const T> values) {
    auto* to = static_cast<std::byte*>(view.data) + at * static_cast<int64_t>(sizeof(T));
    EXPECT_TRUE(copy_to_gpu(to, std::as_bytes(values)).ok());
  }

  template <class T>
  std::vector<T> fetch(const View& view, int64_t at, int64_t count) {
    std::vector<T> out(static_cast<size_t>(count));
    const auto* from = static_cast<const T*>(view.data) + at;
    const auto bytes = count * static_cast<int64_t>(sizeof(T));
    EXPECT_TRUE(gpu_->stream().copy(out.data(), from, bytes).ok());
    const Status done = gpu_->stream().synchronize();
    EXPECT_TRUE(done.ok()) << done.message();
    return out;
  }

  ThreadPool pool_{4, PinThreads::kNo};
  std::unique_ptr<Gpu> gpu_;
  std::vector<Buffer> buffers_;
  Arena gpu_scratch_, cpu_scratch_;
  Exec on_gpu_, on_cpu_;
};

}  // namespace fathom

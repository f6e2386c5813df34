// For the tests of kernels: an Exec with its own threads and scratch memory, tensors with values,
// and the names of a kernel's variants. Included by _test.cc files only.
#pragma once

#include <cstring>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/launch.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {

/// An Exec on the CPU with the kernels of this machine.
class TestExec {
 public:
  explicit TestExec(int num_threads = 2) : pool_(num_threads, PinThreads::kNo) {
    auto buffer = Buffer::allocate(DeviceKind::kCpu, int64_t{256} << 20, "scratch of a test");
    scratch_ = Arena(std::move(buffer).value());
    exec_.kernels = &cpu_kernels();
    exec_.pool = &pool_;
    exec_.scratch = &scratch_;
    exec_.num_threads = num_threads;
  }

  /// The Exec, which runs this variant of a kernel from now on.
  Exec& with(std::string_view kernel, std::string_view variant) {
    pins_ = {{std::string(kernel), std::string(variant)}};
    exec_.pins = &pins_;
    return exec_;
  }

  Exec& operator*() { return exec_; }

 private:
  ThreadPool pool_;
  Arena scratch_;
  Pins pins_;
  Exec exec_;
};

/// Names of the variants of kernel K that this machine runs.
template <Contract K>
std::vector<std::string> variants_of() {
  std::vector<std::string> names;
  for (const Variant<K>& v : cpu_kernels().table<K>())
    names.emplace_back(v.name);
  return names;
}

/// The variant that a Hopper would run for a call, of these figures if they are given; empty in a
/// build without the CUDA backend.
template <Contract K>
std::string gpu_variant_for(const typename K::Args& args, const DeviceInfo* gpu = nullptr) {
  static const KernelSet kernels = KernelSet::for_cuda(90);
  Exec exec;
  exec.kernels = &kernels;
  exec.device = gpu;
  const auto call = choose_if_taken<K>(exec, "op", args);
  return call ? std::string(call->variant->name) : "";
}

/// Owns the memory of a contiguous view and reads and writes it as float.
class TestTensor {
 public:
  /// All elements are `value`.
  TestTensor(std::vector<int64_t> dims, Format format, float value = 0.0f) : format_(format) {
    int64_t n = 1;
    for (int64_t d : dims)
      n *= d;
    bytes_.resize(static_cast<size_t>(n * element_bytes(format)));
    view_ = make_view(bytes_.data(), {n}, format);
    for (int64_t i = 0; i < n; ++i)
      set(i, value);
    switch (dims.size()) {
      case 1:
        break;
      case 2:
        view_ = make_view(bytes_.data(), {dims[0], dims[1]}, format);
        break;
      case 3:
        view_ = make_view(bytes_.data(), {dims[0], dims[1], dims[2]}, format);
        break;
      default:
        view_ = make_view(bytes_.data(), {dims[0], dims[1], dims[2], dims[3]}, format);
    }
  }

  TestTensor(std::vector<int64_t> dims, Format format, const std::vector<float>& values)
      : TestTensor(std::move(dims), format) {
    for (size_t i = 0; i < values.size(); ++i)
      set(static_cast<int64_t>(i), values[i]);
  }

  TestTensor(const TestTensor&) = delete;
  TestTensor& operator=(const TestTensor&) = delete;

  const View& view() const { return view_; }

  int64_t size() const { return view_.numel(); }

  float operator[](int64_t i) const {
    switch (format_) {
      case Format::kI32:
        return static_cast<float>(at<int32_t>(i));
      case Format::kI64:
        return static_cast<float>(at<int64_t>(i));
      case Format::kBf16:
        return to_float(at<Bf16>(i));
      case Format::kF16:
        return to_float(at<F16>(i));
      case Format::kE4m3:
        return to_float(at<E4m3>(i));
      case Format::kE5m2:
        return to_float(at<E5m2>(i));
      case Format::kI8:
        return static_cast<float>(at<int8_t>(i));
      case Format::kU8:
        return static_cast<float>(at<uint8_t>(i));
      default:
        return at<float>(i);
    }
  }

  /// Rounds to the format.
  void set(int64_t i, float value) {
    switch (format_) {
      case Format::kI32:
        at<int32_t>(i) = static_cast<int32_t>(value);
        break;
      case Format::kI64:
        at<int64_t>(i) = static_cast<int64_t>(value);
        break;
      case Format::kBf16:
        at<Bf16>(i) = bf16_from_float(value);
        break;
      case Format::kF16:
        at<F16>(i) = f16_from_float(value);
        break;
      case Format::kE4m3:
        at<E4m3>(i) = e4m3_from_float(value);
        break;
      case Format::kE5m2:
        at<E5m2>(i) = e5m2_from_float(value);
        break;
      case Format::kI8:
        at<int8_t>(i) = static_cast<int8_t>(value);
        break;
      case Format::kU8:
        at<uint8_t>(i) = static_cast<uint8_t>(value);
        break;
      default:
        at<float>(i) = value;
    }
  }

  /// Random normal values, scaled.
  void randomise(Rng& rng, float scale = 1.0f) {
    for (int64_t i = 0; i < size(); ++i)
      set(i, scale * rng.next_normal());
  }

  std::vector<float> values() const {
    std::vector<float> out;
    for (int64_t i = 0; i < size(); ++i)
      out.push_back((*this)[i]);
    return out;
  }

  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  template <class T>
  T& at(int64_t i) {
    return reinterpret_cast<T*>(bytes_.data())[i];
  }

  template <class T>
  const T& at(int64_t i) const {
    return reinterpret_cast<const T*>(bytes_.data())[i];
  }

  Format format_;
  std::vector<std::byte> bytes_;
  View view_;
};

/// Expects values within `tolerance`, one by one.
inline void expect_near(const std::vector<float>& found,
                        const std::vector<double>& expected,
                        double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(double{found[i]}, expected[i], tolerance) << "element " << i;
  }
}

}  // namespace fathom

/// The Status in `expression` is a success; else its message is the failure.
#define FATHOM_EXPECT_OK(...)                               \
  do {                                                      \
    const ::fathom::Status test_status = (__VA_ARGS__);     \
    EXPECT_TRUE(test_status.ok()) << test_status.message(); \
  } while (false)

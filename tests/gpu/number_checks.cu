#include <cstring>
#include <functional>

#include "fathom/kernels/conformance/gpu_timing.h"
#include "fathom/kernels/cuda/elements.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/memory_rates.h"
#include "tests/gpu/number_checks.h"

namespace fathom {
namespace {

using cuda::kVector;

/// Float bits around every place where a format can change its mind: all signs, exponents and upper
/// mantissa bits, with lower bits that make ties, just below and just above them.
constexpr uint32_t kLowBits[] = {0x0000, 0x0001, 0x07FF, 0x0800, 0x0801, 0x0FFF,
                                 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
constexpr int kNumLow = sizeof(kLowBits) / sizeof(kLowBits[0]);
constexpr int64_t kNumValues = int64_t{65536} * kNumLow;

float value_at(int64_t i) {
  return float_from_bits(static_cast<uint32_t>(i / kNumLow) << 16 | kLowBits[i % kNumLow]);
}

template <class T>
__global__ void decode_codes(const T* codes, float* one, float* eight, int64_t count) {
  const int64_t at = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kVector;
  if (at >= count) return;
  float values[kVector];
  cuda::load8(codes + at, values);
  cuda::store8(eight + at, values);
  for (int i = 0; i < kVector; ++i)
    one[at + i] = cuda::load(codes + at + i);
}

template <class T>
__global__ void encode_values(const float* values, T* one, T* eight, int64_t count) {
  const int64_t at = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kVector;
  if (at >= count) return;
  float held[kVector];
  cuda::load8(values + at, held);
  cuda::store8(eight + at, held);
  for (int i = 0; i < kVector; ++i)
    cuda::store(one + at + i, held[i]);
}

__global__ void nothing() {}

/// Memory of the GPU for `count` elements.
template <class T>
struct GpuArray {
  explicit GpuArray(int64_t count)
      : buffer(Buffer::allocate(DeviceKind::kCuda, count * int64_t{sizeof(T)}, "numbers").value()) {
  }

  T* data() const { return reinterpret_cast<T*>(buffer.data()); }

  void write(const std::vector<T>& from) {
    cudaMemcpy(data(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice);
  }

  std::vector<T> read(int64_t count) const {
    std::vector<T> out(static_cast<size_t>(count));
    cudaMemcpy(out.data(), data(), out.size() * sizeof(T), cudaMemcpyDeviceToHost);
    return out;
  }

  Buffer buffer;
};

bool same_number(float a, float b) {
  return (a != a && b != b) || float_bits(a) == float_bits(b);
}

unsigned blocks_for(int64_t count) {
  return static_cast<unsigned>((count / kVector + 255) / 256);
}

template <class T>
void check_format(std::string_view name, T (*encode)(float), std::vector<std::string>& problems) {
  const int64_t num_codes = sizeof(T) == 1 ? 256 : 65536;
  std::vector<T> codes(static_cast<size_t>(num_codes));
  for (int64_t i = 0; i < num_codes; ++i)
    codes[static_cast<size_t>(i)].bits = static_cast<decltype(T::bits)>(i);
  GpuArray<T> on_gpu(num_codes);
  GpuArray<float> one(num_codes);
  GpuArray<float> eight(num_codes);
  on_gpu.write(codes);
  decode_codes<<<blocks_for(num_codes), 256>>>(on_gpu.data(), one.data(), eight.data(), num_codes);
  const std::vector<float> ones = one.read(num_codes);
  const std::vector<float> eights = eight.read(num_codes);
  for (size_t i = 0; i < codes.size(); ++i) {
    const float expected = to_float(codes[i]);
    if (same_number(ones[i], expected) && same_number(eights[i], expected)) continue;
    problems.push_back(str_cat(name, " code ", i, " decodes to ", ones[i], " alone and ", eights[i],
                               " in a vector, expected ", expected));
    break;
  }
  std::vector<float> values(static_cast<size_t>(kNumValues));
  for (int64_t i = 0; i < kNumValues; ++i)
    values[static_cast<size_t>(i)] = value_at(i);
  GpuArray<float> in(kNumValues);
  GpuArray<T> alone(kNumValues);
  GpuArray<T> vectors(kNumValues);
  in.write(values);
  encode_values<<<blocks_for(kNumValues), 256>>>(in.data(), alone.data(), vectors.data(),
                                                 kNumValues);
  const std::vector<T> found_alone = alone.read(kNumValues);
  const std::vector<T> found_vectors = vectors.read(kNumValues);
  for (size_t i = 0; i < values.size(); ++i) {
    const float expected = to_float(encode(values[i]));
    if (same_number(to_float(found_alone[i]), expected) &&
        same_number(to_float(found_vectors[i]), expected)) {
      continue;
    }
    problems.push_back(str_cat(name, " of ", values[i], " (bits ", float_bits(values[i]), ") is ",
                               to_float(found_alone[i]), " alone and ", to_float(found_vectors[i]),
                               " in a vector, expected ", expected));
    break;
  }
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) {
    problems.push_back(str_cat(name, ": ", cudaGetErrorString(error)));
  }
}

}  // namespace

std::vector<std::string> check_number_formats() {
  std::vector<std::string> problems;
  check_format<Bf16>("bf16", bf16_from_float, problems);
  check_format<F16>("f16", f16_from_float, problems);
  check_format<E4m3>("e4m3", e4m3_from_float, problems);
  check_format<E5m2>("e5m2", e5m2_from_float, problems);
  return problems;
}

std::vector<std::string> measure_ceilings(const DeviceInfo& device) {
  std::vector<std::string> lines;
  Stream stream = Stream::create().value();
  GpuTimer timer = GpuTimer::create(device).value();
  Exec ex;
  ex.backend = Backend::kCuda;
  ex.stream = &stream;
  const auto empty = timer.time(stream, 256, {}, [&]() -> Status {
    for (int i = 0; i < 256; ++i)
      FATHOM_TRY(launch_kernel(ex, nothing, {.blocks = 1, .threads = 32}));
    return {};
  });
  if (empty.ok()) lines.push_back(str_cat("empty kernel in a graph: ", empty->median(), " us"));
  const int64_t bytes = int64_t{1} << 30;
  const Buffer from = Buffer::allocate(DeviceKind::kCuda, bytes, "copy").value();
  const Buffer to = Buffer::allocate(DeviceKind::kCuda, bytes + 16, "copy").value();
  const auto rate = [&](std::string_view name, int64_t moved, const std::function<Status()>& once) {
    const auto timing = timer.time(stream, 4, {}, [&]() -> Status {
      for (int i = 0; i < 4; ++i)
        FATHOM_TRY(once());
      return {};
    });
    if (!timing.ok()) return lines.push_back(str_cat(name, ": ", timing.status().message()));
    lines.push_back(str_cat(name, " of 1 GiB: ", timing->median(), " us, ",
                            static_cast<double>(moved) / timing->median() * 1e-3, " GB/s"));
  };
  rate("copy by a kernel", 2 * bytes,
       [&] { return copy_by_kernel(stream, to.data(), from.data(), bytes); });
  rate("reading", bytes,
       [&] { return read_by_kernel(stream, from.data(), bytes, to.data() + bytes); });
  rate("copy by the copy engine", 2 * bytes,
       [&] { return stream.copy(to.data(), from.data(), bytes); });
  return lines;
}

}  // namespace fathom

#include "fathom/bench/machine/gpu_machine.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <utility>

#include "fathom/base/hint.h"
#include "fathom/bench/child_process.h"
#include "fathom/kernels/cuda/memory_rates.h"

namespace fathom {
namespace {

constexpr int kPasses = 8;
constexpr int64_t kMostBytes = int64_t{2} << 30;

/// Microseconds of what `work` gives to the stream.
template <class Work>
Result<double> time_us(Stream& stream, Event& begin, Event& end, const Work& work) {
  FATHOM_TRY(begin.record(stream));
  FATHOM_TRY(work());
  FATHOM_TRY(end.record(stream));
  FATHOM_TRY(end.synchronize());
  return end.us_since(begin);
}

/// The name of the data sheet that a GPU's name contains; empty if none does.
std::string sheet_of(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::string found;
  for (const std::string& known : nominal_peak_names()) {
    if (name.find(known) != std::string::npos && known.size() > found.size()) found = known;
  }
  return found;
}

/// The data sheet of a GPU with memory rates of its own.
Result<Peaks> peaks_of(const std::string& name, double read_gbps, double copy_gbps) {
  const std::string sheet = sheet_of(name);
  FATHOM_ASSIGN(Peaks peaks, nominal_peaks(sheet.empty() ? "h200" : sheet));
  peaks.source =
      str_cat("measured memory, arithmetic of the ", sheet.empty() ? "h200" : sheet, " data sheet");
  peaks.device = name;
  peaks.read_gbps = read_gbps;
  peaks.copy_gbps = copy_gbps;
  return peaks;
}

/// What a child finds, without the strings.
struct Found {
  int ordinal, sm, num_sms, clock_mhz;
  int64_t total_bytes, l2_bytes, shared_bytes, shared_sm_bytes;
  double read_gbps, copy_gbps;
};

constexpr char kName = 'n';
constexpr char kFigures = 'f';
constexpr char kNone = 'u';

}  // namespace

Result<Peaks> measure_gpu_peaks(const DeviceInfo& device, Stream& stream) {
  FATHOM_ASSIGN(const int64_t free_bytes, cuda_free_bytes());
  const int64_t bytes = std::min(kMostBytes, free_bytes / 4) / 256 * 256;
  FATHOM_ASSIGN(const Buffer from, Buffer::allocate(DeviceKind::kCuda, bytes, "memory rates"));
  FATHOM_ASSIGN(const Buffer to, Buffer::allocate(DeviceKind::kCuda, bytes, "memory rates"));
  FATHOM_ASSIGN(Event begin, Event::create());
  FATHOM_ASSIGN(Event end, Event::create());
  double read_us = 0;
  double copy_us = 0;
  for (int i = 0; i < kPasses; ++i) {
    FATHOM_ASSIGN(const double read, time_us(stream, begin, end, [&] {
                    return read_by_kernel(stream, from.data(), bytes, to.data());
                  }));
    FATHOM_ASSIGN(const double copy, time_us(stream, begin, end, [&] {
                    return copy_by_kernel(stream, to.data(), from.data(), bytes);
                  }));
    read_us = i == 0 ? read : std::min(read_us, read);
    copy_us = i == 0 ? copy : std::min(copy_us, copy);
  }
  return peaks_of(device.name, static_cast<double>(bytes) / read_us * 1e-3,
                  2 * static_cast<double>(bytes) / copy_us * 1e-3);
}

Result<GpuMachine> measure_gpu_in_child(int ordinal) {
  const auto measure = [&]() -> Result<GpuMachine> {
    FATHOM_ASSIGN(DeviceInfo device, use_cuda_device(ordinal));
    FATHOM_ASSIGN(Stream stream, Stream::create());
    FATHOM_ASSIGN(Peaks peaks, measure_gpu_peaks(device, stream));
    return GpuMachine{std::move(device), std::move(peaks)};
  };
  std::string name;
  std::string why = "the process that looked for a GPU died";
  Found found{};
  const auto work = [&](const SendMessage& send) {
    const Result<GpuMachine> machine = measure();
    if (!machine.ok()) return send(kNone, in_one_line(machine.status().message()));
    const DeviceInfo& d = machine->device;
    const Found figures{d.ordinal,
                        d.sm,
                        d.num_sms,
                        d.clock_mhz,
                        d.total_bytes,
                        d.l2_bytes,
                        d.shared_bytes,
                        d.shared_sm_bytes,
                        machine->peaks.read_gbps,
                        machine->peaks.copy_gbps};
    send(kName, d.name);
    send(kFigures, {reinterpret_cast<const char*>(&figures), sizeof figures});
  };
  FATHOM_ASSIGN(const ChildEnd ended, run_in_child(work, [&](char kind, std::string_view bytes) {
                  if (kind == kName) name = bytes;
                  if (kind == kNone) why = bytes;
                  if (kind == kFigures) std::memcpy(&found, bytes.data(), sizeof found);
                }));
  if (ended.crashed() || name.empty()) return unavailable(why);
  GpuMachine machine;
  machine.device.name = name;
  machine.device.ordinal = found.ordinal;
  machine.device.sm = found.sm;
  machine.device.num_sms = found.num_sms;
  machine.device.clock_mhz = found.clock_mhz;
  machine.device.total_bytes = found.total_bytes;
  machine.device.l2_bytes = found.l2_bytes;
  machine.device.shared_bytes = found.shared_bytes;
  machine.device.shared_sm_bytes = found.shared_sm_bytes;
  FATHOM_ASSIGN(machine.peaks, peaks_of(name, found.read_gbps, found.copy_gbps));
  return machine;
}

}  // namespace fathom

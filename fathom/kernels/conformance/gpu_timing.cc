#include "fathom/kernels/conformance/gpu_timing.h"

#include <algorithm>
#include <cmath>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/cuda/memory_rates.h"

namespace fathom {
namespace {

constexpr int64_t kMostCopies = 256;
constexpr int64_t kHostBytes = int64_t{2} << 30;  // of all copies: the host makes them

}  // namespace

double GpuTiming::quantile(double q) const {
  const double at = q * static_cast<double>(us.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, us.size() - 1);
  return us[below] + (us[above] - us[below]) * (at - std::floor(at));
}

Result<GpuTimer> GpuTimer::create(const DeviceInfo& device) {
  const int64_t l2 = std::max<int64_t>(device.l2_bytes, int64_t{32} << 20);
  FATHOM_ASSIGN(Buffer flush,
                Buffer::allocate(DeviceKind::kCuda, 4 * l2, "memory between replays"));
  FATHOM_ASSIGN(Event begin, Event::create());
  FATHOM_ASSIGN(Event end, Event::create());
  return GpuTimer(std::move(flush), l2, std::move(begin), std::move(end));
}

/// Copies after which a launch finds nothing of its operands in the last cache.
int GpuTimer::copies_for(CaseInstance& instance, const CaseRunner& runner) const {
  const int64_t touched = std::max<int64_t>(1, instance.cost().bytes());
  const int64_t each = std::max<int64_t>(1, instance.bytes_per_copy());
  const int64_t wanted = ceil_div(2 * l2_bytes_, touched) + 1;
  // Blocks lie at multiples of 64 bytes; half of the memory is room enough for several copies. A
  // weight on a ring takes all of its bytes there.
  int64_t on_gpu = 1;
  for (int64_t bytes : instance.gpu_layout())
    on_gpu += bytes;
  const int64_t affordable = std::min(kHostBytes / each, runner.operand_bytes() / 2 / on_gpu);
  return static_cast<int>(
      std::clamp<int64_t>(wanted, 1, std::clamp<int64_t>(affordable, 1, kMostCopies)));
}

Result<double> GpuTimer::time_once(Stream& stream, Graph& graph) {
  FATHOM_TRY(read_by_kernel(stream, flush_.data(), flush_.size() - 16,
                            flush_.data() + flush_.size() - 16));
  FATHOM_TRY(begin_.record(stream));
  FATHOM_TRY(graph.replay(stream));
  FATHOM_TRY(end_.record(stream));
  FATHOM_TRY(end_.synchronize());
  return end_.us_since(begin_);
}

Result<GpuTiming> GpuTimer::time(Stream& stream,
                                 int64_t launches,
                                 const GpuTimerOptions& options,
                                 const std::function<Status()>& record) {
  FATHOM_ASSIGN(Graph graph, Graph::capture(stream, record));
  for (double warm_us = 0; warm_us < options.warm_up_s * 1e6;) {
    FATHOM_ASSIGN(const double us, time_once(stream, graph));
    warm_us += std::max(us, 100.0);
  }
  GpuTiming timing;
  timing.launches = launches;
  double spent_us = 0;
  const auto enough = [&] {
    const auto samples = static_cast<int64_t>(timing.us.size());
    if (samples >= 3 && spent_us >= options.max_time_s * 1e6) return true;
    return samples >= options.min_replays && spent_us >= options.min_time_s * 1e6;
  };
  while (!enough()) {
    FATHOM_ASSIGN(const double us, time_once(stream, graph));
    spent_us += std::max(us, 100.0);  // the flush and the wait count as well
    timing.us.push_back(us / static_cast<double>(launches));
  }
  std::sort(timing.us.begin(), timing.us.end());
  return timing;
}

Result<GpuTiming> GpuTimer::time(CaseRunner& runner,
                                 CaseInstance& instance,
                                 const GpuTimerOptions& options) {
  const int copies = options.cold ? copies_for(instance, runner) : 1;
  FATHOM_TRY(instance.make_copies(copies));
  FATHOM_TRY(runner.load(instance));
  FATHOM_TRY(runner.prepare(instance));
  Stream& stream = *runner.exec().stream;
  const auto launch_all = [&](int64_t launches) -> Status {
    for (int64_t i = 0; i < launches; ++i)
      FATHOM_TRY(instance.run(runner.exec(), static_cast<int>(i % copies)));
    return {};
  };
  // A launch that takes longer than all samples may is the only one: a kernel without a fast
  // variant would take minutes otherwise.
  FATHOM_ASSIGN(Graph alone, Graph::capture(stream, [&] { return launch_all(1); }));
  FATHOM_ASSIGN(const double alone_us, time_once(stream, alone));
  if (alone_us > options.max_time_s * 1e6)
    return GpuTiming{.us = {alone_us}, .launches = 1, .copies = copies};
  // A first look at how long a launch takes says how many make a graph.
  FATHOM_ASSIGN(Graph few, Graph::capture(stream, [&] { return launch_all(4); }));
  FATHOM_TRY(time_once(stream, few).status());
  FATHOM_ASSIGN(const double few_us, time_once(stream, few));
  const double one_us = std::max(few_us / 4, 0.5);
  const auto launches = static_cast<int64_t>(
      std::clamp(options.graph_us / one_us, 1.0, static_cast<double>(options.max_launches)));
  FATHOM_ASSIGN(GpuTiming timing,
                time(stream, launches, options, [&] { return launch_all(launches); }));
  timing.copies = copies;
  return timing;
}

}  // namespace fathom

#include "fathom/kernels/conformance/case_runner.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fathom/base/check.h"
#include "fathom/base/checked_math.h"
#include "fathom/base/fail_point.h"
#include "fathom/device/graph.h"
#include "fathom/kernels/conformance/operands/operands.h"
#include "fathom/kernels/core/kernel_set/kernel_set.h"

namespace fathom {
namespace {

constexpr int64_t kGuardBytes = 4096;  // after the workspace; FF as everywhere
constexpr int kPoison = 0xFF;

CheckReport failed(std::string why) {
  CheckReport report;
  report.passed = false;
  report.why = std::move(why);
  return report;
}

// Launches on a fresh copy 0 and returns the bytes of its outputs.
Result<std::vector<std::byte>> bits_of(CaseRunner& runner, CaseInstance& instance) {
  FATHOM_TRY(runner.launch(instance, 0));
  return instance.output_bytes(0);
}

std::string check_repeats(CaseRunner& runner, CaseInstance& instance, int repeats) {
  Result<std::vector<std::byte>> first = bits_of(runner, instance);
  if (!first.ok()) return first.status().message();
  for (int i = 1; i < repeats; ++i) {
    Result<std::vector<std::byte>> again = bits_of(runner, instance);
    if (!again.ok()) return again.status().message();
    if (*again != *first) return str_cat("launch ", i + 1, " on equal input gave other bits");
  }
  return {};
}

std::string check_threads(const KernelSet& kernels,
                          CaseInstance& instance,
                          std::string_view kernel,
                          std::string_view variant) {
  std::vector<std::byte> one;
  for (int threads : {1, 2, 3}) {
    CaseRunner runner(kernels, threads);
    runner.pin(kernel, variant);
    Result<std::vector<std::byte>> bits = bits_of(runner, instance);
    if (!bits.ok()) return bits.status().message();
    if (threads == 1) {
      one = std::move(bits).value();
    } else if (*bits != one) {
      return str_cat(threads, " threads give other bits than one");
    }
  }
  return {};
}

// True for a piece that the pinned variant is not for, and another one is. What the kernel takes in
// no variant is an error of the case, which the launch reports.
bool another_variant_takes(CaseRunner& runner,
                           CaseInstance& instance,
                           int64_t begin,
                           int64_t count) {
  if (instance.why_not_rows(runner.exec(), 1, begin, count).empty()) return false;
  Exec unpinned = runner.exec();
  unpinned.pins = nullptr;
  return instance.why_not_rows(unpinned, 1, begin, count).empty();
}

std::string check_rows(CaseRunner& runner, CaseInstance& instance) {
  const int64_t rows = instance.batch_rows();
  if (rows < 2) return {};
  if (Status s = instance.make_copies(2); !s.ok()) return s.message();
  if (Status s = runner.load(instance); !s.ok()) return s.message();
  if (Result<std::vector<std::byte>> full = bits_of(runner, instance); !full.ok()) {
    return full.status().message();
  }
  // First alone, last alone, a middle piece, all but the first.
  const std::pair<int64_t, int64_t> pieces[] = {
      {0, 1}, {rows - 1, 1}, {rows / 3, std::max<int64_t>(1, rows / 2)}, {1, rows - 1}};
  for (const auto& [begin, wanted] : pieces) {
    const int64_t count = std::min(wanted, rows - begin);
    if (another_variant_takes(runner, instance, begin, count)) continue;
    // The workspace of a part may be cut differently, but is never larger.
    if (Status s = runner.launch_rows(instance, 1, begin, count); !s.ok()) {
      return str_cat("rows ", begin, "..", begin + count - 1, " alone: ", s.message());
    }
    if (std::string why = instance.compare_rows(0, 1, begin, count); !why.empty()) return why;
  }
  return {};
}

}  // namespace

CaseRunner::CaseRunner(const KernelSet& kernels, int num_threads, PinThreads pin)
    : CaseRunner(kernels, std::make_unique<ThreadPool>(num_threads, pin)) {}

CaseRunner::CaseRunner(const KernelSet& kernels, std::unique_ptr<ThreadPool> pool)
    : pool_(std::move(pool)) {
  exec_.backend = kernels.backend();
  exec_.kernels = &kernels;
  exec_.pool = pool_.get();
  exec_.scratch = &scratch_;
  exec_.num_threads = pool_->size();
}

Result<std::unique_ptr<CaseRunner>> CaseRunner::create(const KernelSet& kernels,
                                                       int num_threads,
                                                       PinThreads pin) {
  FATHOM_ASSIGN(std::unique_ptr<ThreadPool> pool, ThreadPool::create(num_threads, pin));
  return std::unique_ptr<CaseRunner>(new CaseRunner(kernels, std::move(pool)));
}

void CaseRunner::pin(std::string_view kernel, std::string_view variant) {
  pins_.clear();
  if (!variant.empty()) pins_.emplace_back(kernel, variant);
  exec_.pins = pins_.empty() ? nullptr : &pins_;
}

Result<std::unique_ptr<CaseRunner>> CaseRunner::on_gpu(const KernelSet& kernels,
                                                       const DeviceInfo& device,
                                                       int64_t operand_bytes) {
  auto runner = std::make_unique<CaseRunner>(kernels, 1);
  FATHOM_ASSIGN(runner->stream_, Stream::create());
  FATHOM_ASSIGN(Buffer buffer,
                Buffer::allocate(DeviceKind::kCuda, operand_bytes, "operands of cases"));
  runner->operands_ = Arena(std::move(buffer));
  runner->device_ = device;
  runner->exec_.stream = &*runner->stream_;
  runner->exec_.device = &runner->device_;
  return runner;
}

Status CaseRunner::load(CaseInstance& instance) {
  if (!is_gpu()) return {};
  operands_.reset();
  FATHOM_TRY(instance.place_on_gpu(operands_, *stream_));
  return stream_->synchronize();
}

Status CaseRunner::fill_scratch(int64_t offset, int64_t bytes) {
  if (is_gpu()) return stream_->fill(scratch_data_ + offset, kPoison, bytes);
  std::memset(scratch_data_ + offset, kPoison, static_cast<size_t>(bytes));
  return {};
}

Status CaseRunner::prepare(CaseInstance& instance) {
  const int64_t bytes = instance.workspace_bytes(exec_);
  if (scratch_data_ == nullptr || bytes > scratch_bytes_) {
    const DeviceKind kind = is_gpu() ? DeviceKind::kCuda : DeviceKind::kCpu;
    FATHOM_ASSIGN(Buffer buffer,
                  Buffer::allocate(kind, bytes + kGuardBytes, "scratch memory of a case"));
    scratch_data_ = buffer.data();
    scratch_bytes_ = bytes;
    scratch_ = Arena(std::move(buffer));
    FATHOM_TRY(fill_scratch(bytes, kGuardBytes));
  }
  // A kernel must not count on what it finds there.
  return fill_scratch(0, bytes);
}

std::string CaseRunner::workspace_damage() {
  std::byte guard[kGuardBytes];
  if (!is_gpu()) {
    std::memcpy(guard, scratch_data_ + scratch_bytes_, kGuardBytes);
  } else {
    Status s = stream_->copy(guard, scratch_data_ + scratch_bytes_, kGuardBytes);
    if (s.ok()) s = stream_->synchronize();
    if (!s.ok()) return s.message();
  }
  for (int64_t i = 0; i < kGuardBytes; ++i) {
    if (guard[i] != std::byte{kPoison}) {
      return str_cat("byte ", i, " after a workspace of ", scratch_bytes_, " bytes was written");
    }
  }
  return {};
}

template <class Launch>
Status CaseRunner::reset_and_launch(CaseInstance& instance, int copy, Launch launch) {
  FATHOM_TRY(prepare(instance));
  instance.reset(copy);
  if (!is_gpu()) return launch();
  FATHOM_TRY(instance.upload(copy, Upload::kWritten, *stream_));
  FATHOM_TRY(launch());
  FATHOM_TRY(instance.download(copy, *stream_));
  return stream_->synchronize();
}

Status CaseRunner::launch(CaseInstance& instance, int copy) {
  return reset_and_launch(instance, copy, [&] { return instance.run(exec_, copy); });
}

Status CaseRunner::launch_rows(CaseInstance& instance, int copy, int64_t begin, int64_t count) {
  return reset_and_launch(instance, copy,
                          [&] { return instance.run_rows(exec_, copy, begin, count); });
}

CheckReport CaseRunner::run_checked(CaseInstance& instance) {
  if (Status s = load(instance); !s.ok()) return failed(s.message());
  if (Status s = launch(instance, 0); !s.ok()) return failed(s.message());
  if (FATHOM_FAIL_POINT("case_runner.result")) instance.reset(0);  // as if nothing had been written
  CheckReport report = instance.check();
  for (std::string damage : {instance.check_guards(0), workspace_damage()}) {
    if (damage.empty() || !report.passed) continue;
    report.passed = false;
    report.why = std::move(damage);
  }
  return report;
}

std::string check_traits(const KernelSet& kernels,
                         CaseInstance& instance,
                         std::string_view kernel,
                         std::string_view variant,
                         uint32_t traits,
                         const TraitChecks& checks) {
  CaseRunner runner(kernels, 2);
  runner.pin(kernel, variant);
  if ((traits & kDeterministic) != 0) {
    if (std::string why = check_repeats(runner, instance, checks.repeats); !why.empty()) return why;
  }
  if ((traits & kBatchInvariant) == 0) return {};
  if (std::string why = check_threads(kernels, instance, kernel, variant); !why.empty()) return why;
  return check_rows(runner, instance);
}

namespace {

/// Replays a captured launch on what is at its addresses now, and waits.
Status replay_and_fetch(CaseRunner& runner, Graph& graph, CaseInstance& instance) {
  Stream& stream = *runner.exec().stream;
  FATHOM_TRY(runner.prepare(instance));
  instance.reset(0);
  FATHOM_TRY(instance.upload(0, Upload::kWritten, stream));
  FATHOM_TRY(graph.replay(stream));
  FATHOM_TRY(instance.download(0, stream));
  return stream.synchronize();
}

std::string check_graph(CaseRunner& runner, CaseInstance& instance, CaseInstance* changed) {
  if (Status s = runner.load(instance); !s.ok()) return s.message();
  Result<std::vector<std::byte>> direct = bits_of(runner, instance);
  if (!direct.ok()) return direct.status().message();
  Result<Graph> graph =
      Graph::capture(*runner.exec().stream, [&] { return instance.run(runner.exec(), 0); });
  if (!graph.ok()) return str_cat("capture: ", graph.status().message());
  for (int i = 0; i < 2; ++i) {
    if (Status s = replay_and_fetch(runner, *graph, instance); !s.ok()) return s.message();
    if (instance.output_bytes(0) != *direct) return "a replayed graph gives other bits";
  }
  if (changed == nullptr || changed->gpu_layout() != instance.gpu_layout()) return {};
  if (Status s = runner.load(*changed); !s.ok()) return s.message();
  Status s = replay_and_fetch(runner, *graph, *changed);
  const CheckReport report = s.ok() ? changed->check() : failed(s.message());
  if (s = runner.load(instance); !s.ok()) return s.message();
  return report.passed ? "" : str_cat("a graph replayed on changed input: ", report.why);
}

}  // namespace

std::string check_gpu_traits(CaseRunner& runner,
                             CaseInstance& instance,
                             CaseInstance* changed,
                             uint32_t traits,
                             const TraitChecks& checks) {
  if ((traits & kDeterministic) != 0) {
    if (std::string why = check_repeats(runner, instance, checks.repeats); !why.empty()) return why;
  }
  if ((traits & kBatchInvariant) != 0) {
    if (std::string why = check_rows(runner, instance); !why.empty()) return why;
  }
  if ((traits & kGraphSafe) == 0) return {};
  return check_graph(runner, instance, changed);
}

}  // namespace fathom

#include "fathom/kernels/conformance/case_runner.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fathom/base/check.h"
#include "fathom/base/checked_math.h"
#include "fathom/kernels/core/variants.h"

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
  FATHOM_TRY(runner.prepare(instance));
  instance.reset(0);
  FATHOM_TRY(instance.run(runner.exec(), 0));
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

std::string check_threads(CaseInstance& instance,
                          std::string_view kernel,
                          std::string_view variant) {
  std::vector<std::byte> one;
  for (int threads : {1, 2, 3}) {
    CaseRunner runner(threads);
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

std::string check_rows(CaseRunner& runner, CaseInstance& instance) {
  const int64_t rows = instance.batch_rows();
  if (rows < 2) return {};
  if (Status s = instance.make_copies(2); !s.ok()) return s.message();
  if (Result<std::vector<std::byte>> full = bits_of(runner, instance); !full.ok()) {
    return full.status().message();
  }
  // First alone, last alone, a middle piece, all but the first.
  const std::pair<int64_t, int64_t> pieces[] = {
      {0, 1}, {rows - 1, 1}, {rows / 3, std::max<int64_t>(1, rows / 2)}, {1, rows - 1}};
  for (const auto& [begin, wanted] : pieces) {
    const int64_t count = std::min(wanted, rows - begin);
    instance.reset(1);
    // The workspace of a part may be cut differently, but is never larger.
    if (Status s = runner.prepare(instance); !s.ok()) return s.message();
    if (Status s = instance.run_rows(runner.exec(), 1, begin, count); !s.ok()) {
      return str_cat("rows ", begin, "..", begin + count - 1, " alone: ", s.message());
    }
    if (std::string why = instance.compare_rows(0, 1, begin, count); !why.empty()) return why;
  }
  return {};
}

}  // namespace

CaseRunner::CaseRunner(int num_threads, PinThreads pin) : pool_(num_threads, pin) {
  exec_.backend = Backend::kCpu;
  exec_.pool = &pool_;
  exec_.scratch = &scratch_;
  exec_.num_threads = num_threads;
}

void CaseRunner::pin(std::string_view kernel, std::string_view variant) {
  pins_.clear();
  if (!variant.empty()) pins_.emplace_back(kernel, variant);
  exec_.pins = pins_.empty() ? nullptr : &pins_;
}

Status CaseRunner::prepare(CaseInstance& instance) {
  const int64_t bytes = instance.workspace_bytes(pool_.size());
  if (scratch_data_ == nullptr || bytes > scratch_bytes_) {
    FATHOM_ASSIGN(Buffer buffer, Buffer::allocate(DeviceKind::kCpu, bytes + kGuardBytes,
                                                  "scratch memory of a case"));
    scratch_data_ = buffer.data();
    scratch_bytes_ = bytes;
    scratch_ = Arena(std::move(buffer));
    std::memset(scratch_data_ + bytes, kPoison, kGuardBytes);
  }
  // A kernel must not count on what it finds there.
  std::memset(scratch_data_, kPoison, static_cast<size_t>(bytes));
  return {};
}

std::string CaseRunner::workspace_damage() const {
  const std::byte* guard = scratch_data_ + scratch_bytes_;
  for (int64_t i = 0; i < kGuardBytes; ++i) {
    if (guard[i] != std::byte{kPoison}) {
      return str_cat("byte ", i, " after a workspace of ", scratch_bytes_, " bytes was written");
    }
  }
  return {};
}

CheckReport CaseRunner::run_checked(CaseInstance& instance) {
  if (Status s = prepare(instance); !s.ok()) return failed(s.message());
  instance.reset(0);
  if (Status s = instance.run(exec_, 0); !s.ok()) return failed(s.message());
  CheckReport report = instance.check();
  for (std::string damage : {instance.check_guards(0), workspace_damage()}) {
    if (damage.empty() || !report.passed) continue;
    report.passed = false;
    report.why = std::move(damage);
  }
  return report;
}

std::string check_traits(CaseInstance& instance,
                         std::string_view kernel,
                         std::string_view variant,
                         uint32_t traits,
                         const TraitChecks& checks) {
  CaseRunner runner(2);
  runner.pin(kernel, variant);
  if ((traits & kDeterministic) != 0) {
    if (std::string why = check_repeats(runner, instance, checks.repeats); !why.empty()) return why;
  }
  if ((traits & kBatchInvariant) == 0) return {};
  if (std::string why = check_threads(instance, kernel, variant); !why.empty()) return why;
  return check_rows(runner, instance);
}

}  // namespace fathom

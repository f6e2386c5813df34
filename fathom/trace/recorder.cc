#include "fathom/trace/recorder.h"

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "fathom/base/check.h"

namespace fathom {
namespace {

std::atomic<const Recorder*> g_crash_recorder{nullptr};

void print_newest_records() {
  const Recorder* recorder = g_crash_recorder.load();
  if (recorder == nullptr) return;
  const auto records = recorder->records();
  const size_t first = records.size() > 16 ? records.size() - 16 : 0;
  std::fprintf(stderr, "fathom: newest of %lld recorded ops:\n",
               static_cast<long long>(recorder->total()));
  for (size_t i = first; i < records.size(); ++i) {
    std::fprintf(stderr, "  %s: %s (%s)\n", records[i].op.name, records[i].kernel,
                 records[i].variant ? records[i].variant : "dry");
  }
}

}  // namespace

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kNone:
      return "none";
    case Phase::kPrefill:
      return "prefill";
    case Phase::kDecode:
      return "decode";
    case Phase::kDraft:
      return "draft";
    case Phase::kVerify:
      return "verify";
  }
  return "none";
}

const char* backend_name(Backend backend) {
  switch (backend) {
    case Backend::kDry:
      return "dry";
    case Backend::kCpu:
      return "cpu";
    case Backend::kCuda:
      return "cuda";
  }
  return "dry";
}

Recorder::Recorder(RecordLevel level, int64_t capacity)
    : level_(level), ring_(static_cast<size_t>(std::max<int64_t>(capacity, 1))) {}

Recorder::~Recorder() {
  const Recorder* self = this;
  g_crash_recorder.compare_exchange_strong(self, nullptr);
}

OpRecord& Recorder::next() {
  OpRecord& record = ring_[static_cast<size_t>(total_) % ring_.size()];
  ++total_;
  record.phase = phase_;
  record.scopes = scopes_;
  record.scope_depth = static_cast<uint8_t>(std::min(scope_depth_, kMaxScopeDepth));
  record.selection_row = -1;
  record.start_ns = record.end_ns = 0;
  record.variant = nullptr;
  record.statistics = -1;
  return record;
}

std::vector<OpRecord> Recorder::records() const {
  const auto capacity = static_cast<int64_t>(ring_.size());
  const int64_t kept = std::min(total_, capacity);
  std::vector<OpRecord> out;
  out.reserve(static_cast<size_t>(kept));
  for (int64_t i = total_ - kept; i < total_; ++i) {
    out.push_back(ring_[static_cast<size_t>(i % capacity)]);
  }
  return out;
}

int64_t Recorder::dropped() const {
  return std::max<int64_t>(0, total_ - static_cast<int64_t>(ring_.size()));
}

void Recorder::clear() {
  total_ = 0;
  statistics_.clear();
}

void Recorder::push_scope(ScopeName scope) {
  if (scope_depth_ < kMaxScopeDepth) scopes_[static_cast<size_t>(scope_depth_)] = scope;
  ++scope_depth_;
}

void Recorder::pop_scope() {
  FATHOM_CHECK(scope_depth_ > 0, "scope popped twice");
  --scope_depth_;
}

void Recorder::dump_on_crash() {
  static std::atomic<bool> registered{false};
  if (!registered.exchange(true)) add_crash_hook(print_newest_records);
  g_crash_recorder.store(this);
}

}  // namespace fathom

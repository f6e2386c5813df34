#include "fathom/weights/load/fill.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "fathom/base/checked_math.h"
#include "fathom/weights/load/absorb.h"

namespace fathom {
namespace {

// What one fill is given at most where it needs no staging: progress is seen between two.
constexpr int64_t kDirectBytes = 4 << 20;

/// Runs jobs and counts what they fill.
class Filler {
 public:
  Filler(StoreSink& sink, ThreadPool& pool, const LoadOptions& options, int64_t total)
      : sink_(sink),
        pool_(pool),
        options_(options),
        total_(total),
        staging_(static_cast<size_t>(pool.size())),
        statuses_(static_cast<size_t>(pool.size())) {}

  Status run(const FillJob& job) {
    int64_t unit_bytes = 0;
    for (const JobPart& part : job.parts)
      unit_bytes += part.unit_bytes;
    const bool repeated = job.period > 0 && sink_.repeats() && job.period < job.parts[0].bytes;
    const int64_t units = repeated ? job.period / job.parts[0].unit_bytes : job.units;
    const int64_t per_slice = std::max<int64_t>(sink_.piece_bytes() / unit_bytes, 1);
    for (int64_t begin = 0; begin < units; begin += per_slice) {
      FATHOM_TRY(fill_slice(job, unit_bytes, begin, std::min(units - begin, per_slice)));
    }
    if (!repeated) return {};
    return sink_.repeat({job.parts[0].offset, job.parts[0].bytes}, job.period);
  }

  // Padding and what was repeated count with their item.
  void finish_item(const WeightItem& item) {
    done_ += item.bytes - of_item_.exchange(0);
    report();
  }

 private:
  Status fill_slice(const FillJob& job, int64_t unit_bytes, int64_t begin, int64_t count) {
    std::vector<StoreRange> ranges;
    for (const JobPart& part : job.parts) {
      const int64_t from = begin * part.unit_bytes;
      ranges.push_back(
          {part.offset + from, std::min((begin + count) * part.unit_bytes, part.bytes) - from});
    }
    FATHOM_ASSIGN(const std::vector<std::byte*> memory, sink_.open(ranges));
    const int64_t piece = std::max<int64_t>(
        job.staged_bytes > 0 ? options_.staging_bytes / pool_.size() / job.staged_bytes
                             : kDirectBytes / unit_bytes,
        1);
    const auto fill = [&](int thread, int64_t first, int64_t last) -> Status {
      for (int64_t at = first; at < last; at += piece) {
        FATHOM_TRY(job.fill(call_of(job, ranges, memory, begin, at, std::min(at + piece, last),
                                    staging_[static_cast<size_t>(thread)])));
        filled((std::min(at + piece, last) - at) * unit_bytes);
        if (thread == 0) report();
      }
      return {};
    };
    FATHOM_TRY(on_all(count, fill));
    return sink_.close();
  }

  // Units [at, end) of a slice that begins with unit `begin` of the job.
  static FillCall call_of(const FillJob& job,
                          const std::vector<StoreRange>& ranges,
                          const std::vector<std::byte*>& memory,
                          int64_t begin,
                          int64_t at,
                          int64_t end,
                          Staging& staging) {
    FillCall call{.begin = begin + at, .end = begin + end, .parts = {}, .staging = &staging};
    for (size_t i = 0; i < job.parts.size(); ++i) {
      const int64_t from = at * job.parts[i].unit_bytes;
      const int64_t to = std::min(end * job.parts[i].unit_bytes, ranges[i].bytes);
      call.parts.emplace_back(memory[i] + from, static_cast<size_t>(to - from));
    }
    return call;
  }

  // Calls f(thread, begin, end) on every thread with its part of n; the first error wins.
  template <class F>
  Status on_all(int64_t n, F&& f) {
    if (n == 1) return f(0, int64_t{0}, n);
    pool_.run([&](int thread, int num_threads) {
      const RowRange range = static_partition(n, thread, num_threads);
      statuses_[static_cast<size_t>(thread)] =
          range.begin < range.end ? f(thread, range.begin, range.end) : Status{};
    });
    for (Status& status : statuses_) {
      if (!status.ok()) return std::move(status);
    }
    return {};
  }

  void filled(int64_t bytes) {
    of_item_.fetch_add(bytes, std::memory_order_relaxed);
    done_.fetch_add(bytes, std::memory_order_relaxed);
  }

  void report() {
    constexpr int64_t kStep = 64ll << 20;
    const int64_t done = done_.load(std::memory_order_relaxed);
    if (!options_.progress || (done < reported_ + kStep && done != total_)) return;
    reported_ = done;
    options_.progress(done, total_);
  }

  StoreSink& sink_;
  ThreadPool& pool_;
  const LoadOptions& options_;
  int64_t total_;
  std::vector<Staging> staging_;  // one a thread
  std::vector<Status> statuses_;  // one a thread
  std::atomic<int64_t> done_{0};
  std::atomic<int64_t> of_item_{0};
  int64_t reported_ = 0;
};

/// A kv_b where the host can read it: in the store, or filled once more into memory of its own.
class ReadableKvB {
 public:
  ReadableKvB(const WeightPlan& plan, const JobSource& source, const StoreSink& sink)
      : plan_(plan), source_(source), store_(sink.readable()) {}

  Result<HostMatrix> get(size_t index, ThreadPool& pool, const LoadOptions& options) {
    const WeightItem& kv_b = plan_.items()[index];
    if (store_ != nullptr) return HostMatrix{&kv_b, store_ + kv_b.values_offset};
    if (index_ != index) {
      block_.assign(static_cast<size_t>(kv_b.bytes), std::byte{0});
      HostSink sink(block_.data(), kv_b.values_offset);
      const LoadOptions quietly{.staging_bytes = options.staging_bytes};
      Filler filler(sink, pool, quietly, kv_b.bytes);
      FATHOM_ASSIGN(const std::vector<FillJob> jobs, source_(kv_b, index));
      for (const FillJob& job : jobs)
        FATHOM_TRY(filler.run(job));
      index_ = index;
    }
    return HostMatrix{&kv_b, block_.data()};
  }

 private:
  const WeightPlan& plan_;
  const JobSource& source_;
  const std::byte* store_;
  std::vector<std::byte> block_;
  size_t index_ = std::numeric_limits<size_t>::max();  // of the kv_b in the block; none yet
};

}  // namespace

std::array<std::span<std::byte>, 3> Staging::take(const std::array<int64_t, 3>& bytes) {
  constexpr int64_t kLine = 64;
  int64_t total = 0;
  for (const int64_t size : bytes)
    total += align_up(size, kLine);
  if (static_cast<int64_t>(memory_.size()) < total) memory_.resize(static_cast<size_t>(total));
  std::array<std::span<std::byte>, 3> out;
  int64_t at = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    out[i] = std::span(memory_).subspan(static_cast<size_t>(at), static_cast<size_t>(bytes[i]));
    at += align_up(bytes[i], kLine);
  }
  return out;
}

Status fill_store(const WeightPlan& plan,
                  const JobSource& source,
                  StoreSink& sink,
                  ThreadPool& pool,
                  const LoadOptions& options) {
  Filler filler(sink, pool, options, plan.total_bytes());
  ReadableKvB readable(plan, source, sink);
  for (size_t i = 0; i < plan.items().size(); ++i) {
    const WeightItem& item = plan.items()[i];
    if (item.sources.empty()) {
      FATHOM_ASSIGN(const HostMatrix kv_b, readable.get(item.derived_from, pool, options));
      FATHOM_TRY(filler.run(absorb_job(kv_b, item)));
    } else {
      FATHOM_ASSIGN(const std::vector<FillJob> jobs, source(item, i));
      for (const FillJob& job : jobs)
        FATHOM_TRY(filler.run(job));
    }
    filler.finish_item(item);
  }
  return sink.finish();
}

}  // namespace fathom

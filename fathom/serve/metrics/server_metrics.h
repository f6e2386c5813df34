// What /metrics tells, as Prometheus text 0.0.4. Three sources:
//
//   facts    of the start: build, cache, memory, kernels; set once
//   events   of the engine thread (ServiceObserver) and of routes: counters and histograms
//   figures  of now: gauges, and counters that the engine keeps itself; read when scraped
//
// Label values come from the operator and from closed lists, never from a request, and the number
// of series is fixed at the start, below 600 (kMostSeries). catalogue.h lists the families.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/grammar/grammar.h"
#include "fathom/serve/service/service_observer.h"
#include "fathom/tokenizer/answer/answer_parser.h"

namespace fathom::serve {

/// What metrics know of the start.
struct MetricsFacts {
  struct Memory {
    std::string device;  ///< "cpu", "cuda:0"
    std::string kind;    ///< "weights", "kv_cache", "activations", "scratch"
    int64_t bytes = 0;
  };

  struct Fallback {
    std::string op;
    std::string wanted;
    std::string used;
    std::string reason;
  };

  struct Phase {
    std::string name;  ///< "read", "upload"
    double seconds = 0;
  };

  std::string model_name;    ///< the canonical served name
  std::string engine = "0";  ///< rank of data parallelism
  std::string version;
  std::string commit;
  std::string arch;  ///< "x86-64/avx512", "sm_90a"
  int64_t block_size = 0;
  int64_t num_gpu_blocks = 0;
  int64_t num_cpu_blocks = 0;
  std::string cache_dtype;
  int64_t max_model_len = 0;  ///< buckets of sizes go up to it
  std::vector<Memory> memory;
  std::vector<Fallback> fallbacks;
  std::vector<Phase> startup;
  double flops_per_token = 0;  ///< of the model, for a token computed
  double bytes_per_step = 0;   ///< of weights that a step reads whatever it computes
  double bytes_per_token = 0;  ///< of cache and experts, for a token computed
};

/// What is read at the moment of a scrape.
struct MetricsFigures {
  ServiceStats service{};
  bool healthy = true;  ///< the engine goes forward
  int64_t now_ns = 0;   ///< monotonic, the clock of ServiceStats
  int64_t connections = 0;
  GrammarStats grammar{};
  int64_t kv_batches_published = 0;
  int64_t kv_batches_dropped = 0;
};

/// Thread-safe. The calls of an observer take no lock that a scrape holds for long: under 1 us.
class ServerMetrics final : public ServiceObserver {
 public:
  /// Series at most, buckets counted one by one. Rows of facts beyond it are summed up in one.
  static constexpr int64_t kMostSeries = 600;

  /// `prefix` is of --metrics-prefix. Errors: InvalidArgument if it is no name: letters, digits and
  /// _, no digit first.
  static Result<std::unique_ptr<ServerMetrics>> create(std::string prefix);
  ~ServerMetrics() override;

  /// The model is loaded. Once; what is counted before is lost, and the page is empty. Errors:
  /// Internal.
  Status open(MetricsFacts facts);

  void on_step(const StepRecord& step) override;
  void on_token(double seconds_since_last) override;
  void on_first_token(double seconds_since_submit) override;
  void on_end(const RequestRecord& request) override;

  /// An answer was asked for, of this many choices.
  void on_answer(int64_t num_choices);

  /// A client was told an error, in a reply or in a stream. By ApiError::code.
  void on_error(std::string_view code);

  /// What the parser of an answer put right.
  void on_repairs(const AnswerRepairs& repairs);

  /// The page, of content type kContentType.
  std::string text(const MetricsFigures& now) const;

  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  struct State;
  explicit ServerMetrics(std::string prefix);

  State* state() const { return opened_.load(std::memory_order_acquire); }

  const std::string prefix_;
  std::unique_ptr<State> state_;
  std::atomic<State*> opened_{nullptr};  // state_, once it is complete
};

}  // namespace fathom::serve

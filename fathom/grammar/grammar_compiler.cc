#if FATHOM_WITH_GRAMMAR

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <xgrammar/compiler.h>
#include <xgrammar/config.h>

#include "fathom/base/log.h"
#include "fathom/base/str_cat.h"
#include "fathom/grammar/grammar.h"
#include "fathom/grammar/grammar_state.h"
#include "fathom/grammar/library_compile.h"
#include "fathom/grammar/spec_format.h"
#include "fathom/grammar/vocabulary_masks.h"
#include "fathom/os/sha256.h"
#include "fathom/text/json_writer.h"

namespace fathom {
namespace {

using Clock = std::chrono::steady_clock;

// What may run beyond its time, as the library cannot be stopped.
constexpr int kMaxOverrunning = 2;
// How deep the library may call itself; a compile has the stack of a thread.
constexpr int kMaxRecursion = 600;
constexpr int kMaxThreads = 4;
// How long the end of a program waits for compiles that are not done.
constexpr auto kFarewell = std::chrono::seconds{10};

class Compiled final : public CompiledGrammar {
 public:
  explicit Compiled(std::shared_ptr<const GrammarPlan> plan) : plan_(std::move(plan)) {}

  std::unique_ptr<TokenConstraint> start() const override {
    return std::make_unique<GrammarState>(plan_);
  }

 private:
  std::shared_ptr<const GrammarPlan> plan_;
};

using Grammar = std::shared_ptr<const CompiledGrammar>;

// One compile and those who wait for it.
struct Flight {
  Clock::time_point deadline;
  bool is_done = false;
  Grammar grammar;      // null: refused
  std::string refusal;  // the message
};

struct CacheEntry {
  Sha256Digest key;
  Grammar grammar;
  int64_t bytes;
};

// What the threads of compiles share with the compiler; it lives as long as the last of them.
struct Shared {
  explicit Shared(std::shared_ptr<const VocabularyMasks> masks, const GrammarLimits& with)
      : vocabulary(std::move(masks)),
        limits(with),
        library(vocabulary->library(),
                std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads),
                /*cache_enabled=*/false) {}

  const std::shared_ptr<const VocabularyMasks> vocabulary;
  const GrammarLimits limits;
  xgrammar::GrammarCompiler library;  // thread-safe

  std::mutex mutex;
  std::condition_variable news;
  std::map<Sha256Digest, std::shared_ptr<Flight>> flights;
  std::list<CacheEntry> cache;  // the last used first
  std::map<Sha256Digest, std::list<CacheEntry>::iterator> cached;
  GrammarStats stats;
};

// Keeps a grammar; the mutex is held.
void keep(Shared& shared, const Sha256Digest& key, const Grammar& grammar, int64_t bytes) {
  shared.cache.push_front({key, grammar, bytes});
  shared.cached[key] = shared.cache.begin();
  shared.stats.cached_bytes += bytes;
  while (shared.stats.cached_bytes > shared.limits.cache_bytes && !shared.cache.empty()) {
    shared.stats.cached_bytes -= shared.cache.back().bytes;
    shared.cached.erase(shared.cache.back().key);
    shared.cache.pop_back();
  }
}

// Runs on a thread of its own.
void fly(const std::shared_ptr<Shared>& shared,
         const std::shared_ptr<Flight>& flight,
         const Sha256Digest& key,
         const std::string& format,
         GrammarPlan plan) {
  auto library = compile_format(shared->library, format, shared->limits.max_states);
  Grammar grammar;
  int64_t bytes = static_cast<int64_t>(format.size());
  if (library.ok()) {
    bytes += static_cast<int64_t>(library->MemorySizeBytes());
    plan.library = *std::move(library);
    grammar = std::make_shared<Compiled>(std::make_shared<const GrammarPlan>(std::move(plan)));
  }
  const std::lock_guard lock{shared->mutex};
  if (grammar != nullptr) {
    ++shared->stats.compiled;
    keep(*shared, key, grammar, bytes);
    flight->grammar = std::move(grammar);
  } else {
    flight->refusal = library.status().message();
  }
  flight->is_done = true;
  shared->flights.erase(key);
  shared->news.notify_all();
}

class CachingCompiler final : public GrammarCompiler {
 public:
  explicit CachingCompiler(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  ~CachingCompiler() override {
    std::unique_lock lock{shared_->mutex};
    shared_->news.wait_for(lock, kFarewell, [&] { return shared_->flights.empty(); });
  }

  Result<Grammar> compile(const GrammarSpec& spec) override {
    Sha256 hash;
    const Sha256Digest key = hash.update(spec_key(spec)).finish();
    if (Grammar found = find(key)) return found;
    auto format = spec_format(spec, shared_->vocabulary->markers(), shared_->limits);
    if (!format.ok()) return refused(std::move(format).status().message());
    return compile(spec, key, *format);
  }

  GrammarStats stats() const override {
    const std::lock_guard lock{shared_->mutex};
    return shared_->stats;
  }

 private:
  Grammar find(const Sha256Digest& key) {
    const std::lock_guard lock{shared_->mutex};
    const auto found = shared_->cached.find(key);
    if (found == shared_->cached.end()) return nullptr;
    ++shared_->stats.hits;
    shared_->cache.splice(shared_->cache.begin(), shared_->cache, found->second);
    return found->second->grammar;
  }

  Status refused(std::string message) {
    const std::lock_guard lock{shared_->mutex};
    ++shared_->stats.refused;
    return invalid_argument(std::move(message));
  }

  Result<Grammar> compile(const GrammarSpec& spec, const Sha256Digest& key, const Json& format) {
    std::unique_lock lock{shared_->mutex};
    std::shared_ptr<Flight> flight;
    if (const auto found = shared_->flights.find(key); found != shared_->flights.end()) {
      flight = found->second;
      ++shared_->stats.hits;
    } else {
      const auto now = Clock::now();
      const auto overrunning =
          std::count_if(shared_->flights.begin(), shared_->flights.end(),
                        [&](const auto& one) { return one.second->deadline <= now; });
      if (overrunning >= kMaxOverrunning) {
        lock.unlock();
        return refused("grammar_too_complex: grammars before this one still compile; try later");
      }
      flight = std::make_shared<Flight>();
      flight->deadline = now + std::chrono::duration_cast<Clock::duration>(
                                   std::chrono::duration<double>{shared_->limits.compile_seconds});
      shared_->flights[key] = flight;
      if (!begin(spec, key, format, flight)) {
        shared_->flights.erase(key);
        lock.unlock();
        return overloaded("no thread for a grammar could be started");
      }
    }
    shared_->news.wait_until(lock, flight->deadline, [&] { return flight->is_done; });
    if (flight->grammar != nullptr) return flight->grammar;
    std::string why = flight->is_done ? flight->refusal
                                      : str_cat("grammar_too_complex: the grammar takes more than ",
                                                shared_->limits.compile_seconds, " s to compile");
    lock.unlock();
    return refused(std::move(why));
  }

  bool begin(const GrammarSpec& spec,
             const Sha256Digest& key,
             const Json& format,
             const std::shared_ptr<Flight>& flight) {
    const bool is_shape = spec.kind != GrammarSpec::Kind::kTools;
    GrammarPlan plan{
        .library = xgrammar::CompiledGrammar{xgrammar::NullObj{}},
        .vocabulary = shared_->vocabulary,
        .free_until = spec.free_until,
        .calls = spec.has_calls() ? spec.answer.tool_calls : AnswerGrammar::ToolCalls::kNone,
        .has_free_content = !is_shape && !spec.must_call,
        .calls_or_content = is_shape && spec.has_calls()};
    try {
      std::thread{fly, shared_, flight, key, dump_json(format), std::move(plan)}.detach();
    } catch (const std::exception& error) {
      log_warn("no thread for a grammar: ", error.what());
      return false;
    }
    return true;
  }

  std::shared_ptr<Shared> shared_;
};

}  // namespace

bool grammar_available() {
  return true;
}

Result<std::unique_ptr<GrammarCompiler>> GrammarCompiler::create(const Tokenizer& tokenizer,
                                                                 int64_t vocab_width,
                                                                 std::vector<int32_t> end_ids,
                                                                 const GrammarLimits& limits) {
  auto masks = VocabularyMasks::create(tokenizer, vocab_width, std::move(end_ids));
  if (!masks.ok()) return std::move(masks).status();
  try {
    xgrammar::SetMaxRecursionDepth(kMaxRecursion);
    auto vocabulary = std::make_shared<const VocabularyMasks>(*std::move(masks));
    return std::unique_ptr<GrammarCompiler>(
        std::make_unique<CachingCompiler>(std::make_shared<Shared>(std::move(vocabulary), limits)));
  } catch (const std::exception& error) {
    return internal_error(str_cat("the grammar library does not start: ", error.what()));
  }
}

}  // namespace fathom

#endif

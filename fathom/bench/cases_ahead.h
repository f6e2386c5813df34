// Makes cases on threads of their own while others are checked and timed on a GPU: operands and the
// float64 answers of a case take a processor longer than the GPU takes for all the rest.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "fathom/kernels/conformance/cases.h"

namespace fathom {

class CasesAhead {
 public:
  /// Makes case `index`; called on any thread, once an index.
  using Make = std::function<std::unique_ptr<CaseInstance>(size_t index)>;

  /// Of cases [begin, end), `num_threads` threads make those that are taken next, no more than that
  /// many ahead and none while less than half of the memory is free, of which each that is being
  /// made counts for a sixteenth. Without threads, or where the system refuses them, take() makes
  /// each case itself.
  CasesAhead(size_t begin, size_t end, int num_threads, Make make);
  ~CasesAhead();
  CasesAhead(const CasesAhead&) = delete;
  CasesAhead& operator=(const CasesAhead&) = delete;

  /// What was made of a case, waiting for it; throws what making it threw. Indices grow from call
  /// to call; those left out are dropped.
  std::unique_ptr<CaseInstance> take(size_t index);

 private:
  enum class Step { kUnclaimed, kClaimed, kMade };

  struct Slot {
    Step step = Step::kUnclaimed;
    std::unique_ptr<CaseInstance> instance;
    std::exception_ptr failure;
  };

  void work();
  size_t next_to_make() const;

  const size_t begin_;
  const size_t ahead_;
  const Make make_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;  // of cases from begin_ on
  size_t wanted_ = 0;        // first slot that may still be taken
  int64_t being_made_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace fathom

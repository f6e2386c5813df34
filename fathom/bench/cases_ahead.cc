#include "fathom/bench/cases_ahead.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "fathom/os/memory.h"

namespace fathom {
namespace {

bool memory_is_short() {
  const HostMemory memory = host_memory();
  return memory.available_bytes < memory.total_bytes / 2;
}

}  // namespace

CasesAhead::CasesAhead(size_t begin, size_t end, int num_threads, Make make)
    : begin_(begin),
      ahead_(static_cast<size_t>(std::max(num_threads, 0))),
      make_(std::move(make)),
      slots_(end - begin) {
  const size_t count = std::min(ahead_, slots_.size());
  try {
    for (size_t i = 0; i < count; ++i)
      threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    // Those that there are do the work, or take() does.
  }
}

CasesAhead::~CasesAhead() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_)
    thread.join();
}

/// The slot to make next; slots_.size() if there is none for now.
size_t CasesAhead::next_to_make() const {
  const size_t end = std::min(slots_.size(), wanted_ + ahead_);
  for (size_t i = wanted_; i < end; ++i) {
    if (slots_[i].step != Step::kUnclaimed) continue;
    // The first one is waited for, whatever the memory.
    return i == wanted_ || !memory_is_short() ? i : slots_.size();
  }
  return slots_.size();
}

void CasesAhead::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    size_t i = slots_.size();
    changed_.wait(lock, [&] {
      i = next_to_make();
      return stopping_ || i < slots_.size();
    });
    if (stopping_) return;
    slots_[i].step = Step::kClaimed;
    lock.unlock();
    std::unique_ptr<CaseInstance> made = make_(begin_ + i);
    lock.lock();
    slots_[i].step = Step::kMade;
    if (i >= wanted_) slots_[i].instance = std::move(made);
    changed_.notify_all();
    if (made == nullptr) continue;
    lock.unlock();  // a case that nobody takes any more: its memory goes outside of the lock
    made.reset();
    lock.lock();
  }
}

std::unique_ptr<CaseInstance> CasesAhead::take(size_t index) {
  const size_t i = index - begin_;
  std::vector<std::unique_ptr<CaseInstance>> dropped;
  std::unique_lock lock(mutex_);
  for (; wanted_ < i; ++wanted_)
    dropped.push_back(std::move(slots_[wanted_].instance));
  changed_.notify_all();
  if (slots_[i].step == Step::kUnclaimed) {
    slots_[i].step = Step::kClaimed;
    lock.unlock();
    std::unique_ptr<CaseInstance> made = make_(index);
    lock.lock();
    wanted_ = i + 1;
    changed_.notify_all();
    return made;
  }
  changed_.wait(lock, [&] { return slots_[i].step == Step::kMade; });
  wanted_ = i + 1;
  changed_.notify_all();
  return std::move(slots_[i].instance);
}

}  // namespace fathom

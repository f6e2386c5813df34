#include "fathom/bench/cases_ahead.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "fathom/os/memory.h"

namespace fathom {
namespace {

// What a case that is being made has not taken yet counts for a sixteenth of the memory.
bool memory_is_short(int64_t being_made) {
  const HostMemory memory = host_memory();
  const int64_t left = memory.available_bytes - being_made * (memory.total_bytes / 16);
  return left < memory.total_bytes / 2;
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
    return i == wanted_ || !memory_is_short(being_made_) ? i : slots_.size();
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
    ++being_made_;
    lock.unlock();
    std::unique_ptr<CaseInstance> made;
    std::exception_ptr failure;
    try {
      made = make_(begin_ + i);
    } catch (...) {  // no memory: whoever takes the case hears of it
      failure = std::current_exception();
    }
    lock.lock();
    --being_made_;
    slots_[i].step = Step::kMade;
    slots_[i].failure = failure;
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
  if (slots_[i].failure != nullptr) std::rethrow_exception(slots_[i].failure);
  return std::move(slots_[i].instance);
}

}  // namespace fathom

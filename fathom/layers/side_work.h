// Work beside other work of a layer, on the second stream of a device that has one.
#pragma once

#include <utility>

#include "fathom/base/status.h"
#include "fathom/device/stream.h"
#include "fathom/kernels/core/side.h"

namespace fathom {

/// Runs one piece of work on the second stream, where there is one, until join(); everything called
/// in between runs beside it. What the work takes from the arenas stays taken until the end of this
/// object's life. Where there is no second stream, or it is not wanted, the work runs at once; a
/// dry run for a device that has one takes the memory that it would.
class SideWork {
 public:
  explicit SideWork(Exec& ex, bool wanted = true)
      : ex_(ex),
        beside_(wanted && has_side(ex)),
        activations_(ex.activations->mark()),
        scratch_(ex.scratch->mark()) {}

  ~SideWork() {
    if (!beside_) return;
    ex_.activations->release(activations_);
    ex_.scratch->release(scratch_);
  }

  SideWork(const SideWork&) = delete;
  SideWork& operator=(const SideWork&) = delete;

  /// `work` is called with the Exec that it gives its kernels to. Errors: those of work.
  template <class Work>
  Status run(Work&& work) {
    if (!beside_) return work(ex_);
    hold(true);
    Status status = ex_.side == nullptr ? work(ex_) : run_aside(std::forward<Work>(work));
    hold(false);
    return status;
  }

  /// What is called from now on waits for the work.
  Status join() {
    if (!forked_) return {};
    forked_ = false;
    return ex_.stream->wait(ex_.side->join);
  }

 private:
  template <class Work>
  Status run_aside(Work&& work) {
    FATHOM_TRY(ex_.side->fork.record(*ex_.stream));
    FATHOM_TRY(ex_.side->stream.wait(ex_.side->fork));
    forked_ = true;
    Exec side = ex_;
    side.stream = &ex_.side->stream;
    side.side = nullptr;
    FATHOM_TRY(work(side));
    return ex_.side->join.record(ex_.side->stream);
  }

  void hold(bool held) {
    ex_.activations->hold(held);
    ex_.scratch->hold(held);
  }

  Exec& ex_;
  bool beside_;
  bool forked_ = false;
  int64_t activations_;
  int64_t scratch_;
};

}  // namespace fathom

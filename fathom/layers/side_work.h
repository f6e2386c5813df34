// Work beside other work of a layer, on one of the further streams of a device that has them.
#pragma once

#include <utility>

#include "fathom/base/status.h"
#include "fathom/kernels/core/side.h"

namespace fathom {

/// Runs work on a stream of its own, where there is one, until join(); everything called in between
/// runs beside it. Each piece waits for what was called before it, and for the piece before. What
/// the work takes from the arenas stays taken until the end of this object's life. Where there are
/// no such streams, or they are not wanted, the work runs at once; a dry run for a device that has
/// them takes the memory that it would. Several may live at a time, each on its own side; the work
/// of one starts no other.
class SideWork {
 public:
  explicit SideWork(Exec& ex, SideNumber side, bool wanted = true)
      : ex_(ex),
        side_(side),
        beside_(wanted && has_side(ex)),
        activations_(ex.activations->mark()),
        scratch_(ex.scratch->mark()) {}

  ~SideWork() {
    if (!beside_) return;
    // Only behind an error: what comes later must not reuse memory that the work still reads.
    if (forked_ && stream_of(ex_, side_).join.record(stream_of(ex_, side_).stream).ok())
      (void)join();
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
    Status status = ex_.sides == nullptr ? work(ex_) : run_aside(std::forward<Work>(work));
    hold(false);
    return status;
  }

  /// What is called from now on waits for the work.
  Status join() {
    if (!forked_) return {};
    forked_ = false;
    return ex_.stream->wait(stream_of(ex_, side_).join);
  }

 private:
  template <class Work>
  Status run_aside(Work&& work) {
    SideStream& own = stream_of(ex_, side_);
    FATHOM_TRY(own.fork.record(*ex_.stream));
    forked_ = true;
    FATHOM_TRY(own.stream.wait(own.fork));
    Exec side = ex_;
    side.stream = &own.stream;
    side.sides = nullptr;
    FATHOM_TRY(work(side));
    return own.join.record(own.stream);
  }

  void hold(bool held) {
    ex_.activations->hold(held);
    ex_.scratch->hold(held);
  }

  Exec& ex_;
  SideNumber side_;
  bool beside_;
  bool forked_ = false;
  int64_t activations_;
  int64_t scratch_;
};

}  // namespace fathom

#include "fathom/runtime/draft/draft_balance.h"

#include <algorithm>
#include <cmath>

namespace fathom {
namespace {

constexpr double kKept = 0.99;        // of what is known, with each step
constexpr double kNewest = 1.0 / 16;  // weight of the newest number of a mean

void add_to(double& mean, double value, int64_t count) {
  mean += (value - mean) * std::max(kNewest, 1.0 / static_cast<double>(count));
}

}  // namespace

void DraftBalance::add_step(int64_t tokens, int64_t ns) {
  const auto x = static_cast<double>(tokens);
  const auto y = static_cast<double>(ns);
  for (double* sum : {&weight_, &x_, &y_, &xx_, &xy_})
    *sum *= kKept;
  weight_ += 1;
  x_ += x;
  y_ += y;
  xx_ += x * x;
  xy_ += x * y;
}

void DraftBalance::count_step(bool plain) {
  if (plain) ++num_plain_;
  since_plain_ = plain ? 0 : since_plain_ + 1;
}

void DraftBalance::add_guessing(int64_t sequences, int64_t ns) {
  const double each =
      static_cast<double>(ns) / static_cast<double>(std::max<int64_t>(sequences, 1));
  guess_ns_ += (each - guess_ns_) * (guess_ns_ == 0 ? 1.0 : kNewest);
}

// Nothing as long as all steps had about as many tokens, or took no time.
std::optional<DraftBalance::Line> DraftBalance::line() const {
  const double spread = weight_ * xx_ - x_ * x_;
  if (weight_ < 2 || y_ <= 0 || spread < 1e-3 * weight_ * weight_) return std::nullopt;
  // More tokens never take less; a step is never shorter than its tokens.
  const double slope = std::clamp((weight_ * xy_ - x_ * y_) / spread, 0.0, y_ / x_);
  return Line{.base = (y_ - slope * x_) / weight_, .slope = slope};
}

bool DraftBalance::gains(double accepted, double drafted, int64_t batch) const {
  const std::optional<Line> step = line();
  if (!step) return true;
  const auto b = static_cast<double>(batch);
  return accepted * (step->base + step->slope * b) > b * (step->slope * drafted + guess_ns_);
}

std::optional<int64_t> DraftBalance::largest_batch(double accepted, double drafted) const {
  const std::optional<Line> step = line();
  if (!step) return std::nullopt;
  const double loss = step->slope * (drafted - accepted) + guess_ns_;  // a sequence more
  if (loss <= 0) return std::nullopt;
  constexpr double kMost = 1e9;
  return static_cast<int64_t>(std::min(std::ceil(accepted * step->base / loss) - 1, kMost));
}

void DraftGain::add(int64_t drafted, int64_t accepted) {
  ++num_steps_;
  add_to(drafted_, static_cast<double>(drafted), num_steps_);
  add_to(accepted_, static_cast<double>(accepted), num_steps_);
}

}  // namespace fathom

// DraftBalance: whether drafts gain time, from measured times and counts.
//
//   step(n) = a + b n          a step in which only decoding sequences take part, n tokens in all:
//                              least squares over the last hundreds of steps
//
// Of B sequences one has k drafts a step, of which g come out; guessing takes it d nanoseconds.
// With them a step gives B + g tokens and takes b k + d longer, so drafts gain if
//
//   g (a + b B) > B (b k + d)
//
// The more sequences there are the less a token costs without drafts, so beyond some B nothing
// gains (largest_batch).
#pragma once

#include <cstdint>
#include <optional>

namespace fathom {

class DraftBalance {
 public:
  /// A step of decoding sequences alone took so long.
  void add_step(int64_t tokens, int64_t ns);

  /// Guessing for so many sequences took so long.
  void add_guessing(int64_t sequences, int64_t ns);

  /// Whether a sequence among `batch` that decode gains by drafts. True while nothing is known.
  bool gains(double accepted, double drafted, int64_t batch) const;

  /// The most sequences beside which such drafts gain; nothing: any number, or not known.
  std::optional<int64_t> largest_batch(double accepted, double drafted) const;

  /// Whether the next step should go without drafts, so that both kinds are known.
  bool wants_plain_step() const { return num_plain_ < kFirstPlain || since_plain_ >= kPlainEvery; }

  /// A step with or without drafts was measured.
  void count_step(bool plain);

 private:
  static constexpr int64_t kFirstPlain = 2;
  static constexpr int64_t kPlainEvery = 64;

  struct Line {
    double base = 0;   // ns of a step
    double slope = 0;  // ns of a token in it
  };

  std::optional<Line> line() const;

  // Weighted sums over steps: of 1, x, y, xx, xy.
  double weight_ = 0;
  double x_ = 0;
  double y_ = 0;
  double xx_ = 0;
  double xy_ = 0;
  double guess_ns_ = 0;  // of a sequence, exponential mean
  int64_t num_plain_ = 0;
  int64_t since_plain_ = 0;
};

/// Drafts of a request, or of all of them: exponential means of what a step drafted and of what of
/// it came out.
class DraftGain {
 public:
  static constexpr int64_t kFirst = 8;  ///< steps before the means say anything

  void add(int64_t drafted, int64_t accepted);

  bool is_known() const { return num_steps_ >= kFirst; }

  double drafted() const { return drafted_; }

  double accepted() const { return accepted_; }

  void start_again() { *this = {}; }

 private:
  int64_t num_steps_ = 0;
  double drafted_ = 0;
  double accepted_ = 0;
};

}  // namespace fathom

// The memory of a case: operands between guard bytes, in one or more copies, and the handles by
// which a case author reads and writes them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/checked_math.h"
#include "fathom/device/arena.h"
#include "fathom/device/memory.h"
#include "fathom/device/stream.h"
#include "fathom/formats/minifloat.h"
#include "fathom/kernels/conformance/operands/compare.h"
#include "fathom/kernels/conformance/operands/generate.h"
#include "fathom/tensor/quant_view.h"

namespace fathom {

class CaseData;

/// A block of bytes between two guards. Under AddressSanitizer the guards are poisoned, so that a
/// stray read of them ends the test; without it, they hold a pattern that is checked, and that
/// reads as NaN.
class GuardedBlock {
 public:
  static constexpr int64_t kGuardBytes = 256;

  GuardedBlock() = default;
  explicit GuardedBlock(int64_t bytes);
  ~GuardedBlock();
  GuardedBlock(GuardedBlock&& other) noexcept;
  GuardedBlock& operator=(GuardedBlock&& other) noexcept;

  /// 64-byte aligned.
  std::byte* data() const { return data_; }

  int64_t size() const { return size_; }

  bool guards_intact() const;

  /// The block with both guards: what a copy of it on a GPU holds.
  std::byte* base() const { return data_ - kGuardBytes; }

  int64_t total() const { return align_up<int64_t>(size_, 64) + 2 * kGuardBytes; }

 private:
  void set_guards_readable(bool readable) const;

  struct Free {
    void operator()(std::byte* p) const;
  };

  void release();

  std::unique_ptr<std::byte, Free> small_;
  Buffer large_;
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

/// A dense operand of a case. A cheap handle, valid as long as its case instance.
class Tensor {
 public:
  Tensor() = default;

  int64_t dim(int i) const;
  int rank() const;
  int64_t numel() const;
  Format format() const;

  bool present() const { return data_ != nullptr; }

  /// Element by its place in row-major order of the logical shape, as an exact number. While
  /// building, and in oracles, this is the input as the kernel will find it.
  double operator[](int64_t place) const;

  double at(int64_t i, int64_t j) const { return (*this)[i * dim(1) + j]; }

  double at(int64_t i, int64_t j, int64_t k) const {
    return (*this)[(i * dim(1) + j) * dim(2) + k];
  }

  /// Row of the last axis; `row` counts through all other axes.
  std::vector<double> row(int64_t row) const;

  void set(int64_t place, double value) const;

  /// Calls set(place, f(place)) for every element.
  template <class F>
  void fill(F&& f) const {
    for (int64_t i = 0; i < numel(); ++i)
      set(i, static_cast<double>(f(i)));
  }

 private:
  friend class CaseData;
  friend class Binding;

  Tensor(CaseData* data, int id) : data_(data), id_(id) {}

  CaseData* data_ = nullptr;
  int id_ = -1;
};

/// A weight operand of a case.
class Weight {
 public:
  Weight() = default;

  const CaseWeightSpec& spec() const;

  /// Row as stored, counted through the stack: e * rows + n.
  std::span<const float> row(int64_t row) const;

  /// Row before quantisation. Only of weights made by CaseData::weight.
  std::span<const float> exact_row(int64_t row) const;

  /// What multiplies a whole matrix; of NVFP4.
  float global(int64_t row) const;

 private:
  friend class CaseData;
  friend class Binding;

  Weight(CaseData* data, int id) : data_(data), id_(id) {}

  CaseData* data_ = nullptr;
  int id_ = -1;
};

/// How a dense operand lies in memory and what it has to do with the batch.
struct RowPlacement {
  int64_t row_gap = 0;         ///< poisoned elements after every row of the last axis
  int64_t rows_per_batch = 0;  ///< of the first axis, for one row of the batch; 0: not cut
  /// Random rows of which nobody sets an element: a large one of a case that runs on a GPU is a
  /// ring on the host, and whole in the memory of the GPU.
  bool may_repeat = false;
};

/// Which memory the views of a launch lie in.
enum class Side : uint8_t { kHost, kGpu };

/// What an upload brings to a GPU.
enum class Upload : uint8_t {
  kAll,
  kWritten,  ///< what kernels write; the rest is there and unchanged
};

/// Turns handles into views on one copy, or on some rows of the batch in it.
class Binding {
 public:
  /// An absent view for a default-made handle.
  View operator()(const Tensor& t) const;
  QuantView operator()(const Weight& w) const;

  /// Rows of the batch in this launch, for arguments that depend on their number.
  int64_t batch_rows() const { return count_; }

 private:
  friend class CaseData;

  Binding(const CaseData& data, Side side, int copy, int64_t begin, int64_t count)
      : data_(data), side_(side), copy_(copy), begin_(begin), count_(count) {}

  const CaseData& data_;
  Side side_;
  int copy_;
  int64_t begin_;
  int64_t count_;
};

/// Exact answers for one output, and the gate they are for.
struct Expectation {
  Tensor output;
  Gate gate;
  char letter = 'A';
  std::function<double(int64_t row, int64_t col)> each{};
  int64_t sampled_rows = 16;  // of `each`
  std::function<void(int64_t row, std::span<double> out)> rows{};
  std::function<void(std::span<double> out)> all{};
  std::function<void(int64_t row, std::span<double> expected)> settle{};
  std::vector<int64_t> places{};   // filled by prepare(): what is compared
  std::vector<double> expected{};  // at these places
};

/// Frees a ring.
struct RingUnmap {
  int64_t bytes = 0;       // of the mapping
  int64_t ring_bytes = 0;  // of the memory behind it
  void operator()(std::byte* p) const;
};

class CaseData {
 public:
  /// Of a case that runs on a GPU weights lie as a loader puts them there, and rows that lie apart
  /// begin at multiples of sixteen bytes, as the rows of a model do.
  explicit CaseData(uint64_t seed, Side runs_on = Side::kHost)
      : seed_(seed), runs_on_(runs_on), rng_(seed, 1) {}

  CaseData(const CaseData&) = delete;
  CaseData& operator=(const CaseData&) = delete;

  Rng& rng() { return rng_; }

  uint64_t seed() const { return seed_; }

  /// A read operand with random values; integers start as zeros.
  Tensor input(std::vector<int64_t> dims,
               Format format,
               Fill fill = {},
               RowPlacement placement = {});

  /// A written operand: poison until a kernel writes it.
  Tensor output(std::vector<int64_t> dims, Format format, RowPlacement placement = {});

  /// A read operand that the kernel updates in place.
  Tensor inout(std::vector<int64_t> dims,
               Format format,
               Fill fill = {},
               RowPlacement placement = {});

  /// A quantised random weight; its exact values are kept for gate B. A stack whose matrices are no
  /// whole tiles of rows lies row-major where kRows16 is asked for.
  Weight weight(const CaseWeightSpec& spec);

  /// A weight of random codes, for large shapes. `ring_bytes` > 0 maps the values onto a ring of
  /// about so many bytes, or of four times the last cache where that is less: the stack then takes
  /// no more memory than that (say so in CaseSpec::note).
  /// Errors of the system (no memory) end the program, as in every other function here.
  Weight weight_codes(const CaseWeightSpec& spec, int64_t ring_bytes = 0);

  /// Gives an NVFP4 weight other block scales: f(row, block), row counted through the stack. It has
  /// no exact values from then on.
  void set_block_scales(const Weight& w, const std::function<E4m3(int64_t row, int64_t block)>& f);

  /// Exact answers, element by element: f(row, col), col in the last axis, row through all others.
  /// Large outputs are sampled: edges of tiles and random places, at least 4,096 in `sampled_rows`
  /// rows; few rows where each costs a second.
  void expect_each(const Tensor& output,
                   const Gate& gate,
                   std::function<double(int64_t row, int64_t col)> f,
                   int64_t sampled_rows = 16);

  /// Row by row of the last axis. Large outputs are sampled by rows.
  ///
  /// `settle` is for rows that have more than one right answer (a choice between scores that differ
  /// by less than float32 rounds): it runs after the launch, reads what was found through the
  /// output's handle, and replaces the expected row by what is right for that choice, if it is one
  /// of the right ones; otherwise it leaves the row alone.
  void expect_rows(const Tensor& output,
                   const Gate& gate,
                   std::function<void(int64_t row, std::span<double> out)> f,
                   std::function<void(int64_t row, std::span<double> expected)> settle = nullptr);

  /// The whole output at once, never sampled.
  void expect_all(const Tensor& output,
                  const Gate& gate,
                  std::function<void(std::span<double> out)> f);

  /// Gate B: against unquantised operands. At least 4,096 outputs.
  void expect_full_precision(const Tensor& output,
                             const Gate& gate,
                             std::function<double(int64_t row, int64_t col)> f);

  /// A check that no gate expresses (near ties of a router): returns what is wrong, or nothing.
  /// It reads outputs through `found`, which is copy 0 after the launch.
  void expect_that(std::function<std::string()> f) { checks_.push_back(std::move(f)); }

  /// Rows that a batch-invariance test may cut; the operands say how many of theirs belong to one.
  void set_batch(int64_t rows) { batch_rows_ = rows; }

  int64_t batch_rows() const { return batch_rows_; }

 protected:
  friend class Tensor;
  friend class Weight;
  friend class Binding;

  enum class Role { kInput, kOutput, kInOut, kWeight };

  struct StoredWeight {
    GuardedBlock values;
    GuardedBlock scales;
    GuardedBlock global;
  };

  /// Where the parts of an operand lie on a GPU; null for parts that are not there. A dense operand
  /// has values only.
  struct GpuPlaces {
    std::byte* values = nullptr;
    std::byte* scales = nullptr;
    std::byte* global = nullptr;
  };

  struct Operand {
    Role role = Role::kInput;
    View shape;  // dims and strides of a copy; data is null
    RowPlacement placement;
    int64_t bytes = 0;                 // of the dense block, gaps included
    std::vector<GuardedBlock> copies;  // of a dense operand
    std::vector<std::byte> first;      // of kInOut: the bytes before any launch
    uint64_t first_hash = 0;           // of what is only read, 0 where it is too large to check
    std::string name;                  // as the signature has it
    std::unique_ptr<std::byte, RingUnmap> ring;  // the values of all copies, in place of blocks
    bool filled_on_gpu = false;  // an output so large that its poison is written there alone
    // Of a weight:
    CaseWeightSpec weight;
    std::vector<StoredWeight> stored;  // one a copy
    std::vector<float> exact;
    std::vector<float> decoded;  // the row asked for last
    int64_t decoded_row = -1;
    std::vector<GpuPlaces> on_gpu;  // one a copy, once it has places
  };

  Tensor add_dense(Role role,
                   std::vector<int64_t> dims,
                   Format format,
                   const Fill& fill,
                   RowPlacement placement);
  void allocate_dense(Operand& o);
  void fill_dense(Operand& o, const Fill& fill);

  /// On the host, of a dense operand.
  static std::byte* dense_data(const Operand& o, int copy) {
    return o.ring ? o.ring.get() : o.copies[static_cast<size_t>(copy)].data();
  }

  /// Row of the last axis, of copy 0.
  const std::byte* row_data(const Operand& o, int64_t row) const;
  WeightParts parts_of(const Operand& o, int copy, Side side = Side::kHost) const;
  View view_of(const Operand& o, int copy, Side side) const;

  Binding binding(Side side, int copy) const { return Binding(*this, side, copy, 0, batch_rows_); }

  Binding rows_binding(Side side, int copy, int64_t begin, int64_t count) const {
    return Binding(*this, side, copy, begin, count);
  }

  // ---- on a GPU (gpu_copies.cc) ----

  /// Gives the parts of a copy, guards included, places in memory of a GPU, always in one order:
  /// two cases of one layout get the same places in an empty arena. Errors: OutOfMemory.
  Status place_on_gpu(int copy, Arena& memory);
  /// Brings the bytes of a copy there, or back. What is only read and too large to be compared
  /// comes back as its guards alone.
  Status upload(int copy, Upload what, Stream& stream) const;
  Status download(int copy, Stream& stream) const;
  /// Bytes of every part, in the order of places.
  std::vector<int64_t> gpu_layout() const;
  template <class F>
  static void for_parts(const Operand& o, int copy, F&& f);
  Status fill_output(const GuardedBlock& block, Format format, std::byte* at, Stream& stream) const;
  Status fetch_places(const Operand& o, int copy, Stream& stream) const;
  static int64_t ringed_bytes(const Operand& o);
  /// Whether only the rows that are compared come back from the GPU.
  bool comes_back_in_part(const Operand& o) const;

  /// Computes the exact answers and keeps what check_guards compares with. Called once, after the
  /// author's function.
  void prepare();

  Status make_copies(int count);
  void reset(int copy);
  int64_t bytes_per_copy() const;
  std::vector<std::byte> output_bytes(int copy) const;
  std::string compare_rows(int a, int b, int64_t begin, int64_t count) const;
  std::string check_guards(int copy) const;

  struct Judged {
    bool passed = true;
    Measures first;
    std::string budget;
    std::string checked;  ///< CheckReport::checked
    std::string why;
  };

  Judged judge_outputs() const;

  void choose_places(Expectation& e);
  void evaluate(Expectation& e) const;
  std::string unexpected_outside(const Expectation& e, std::span<const double> expected) const;
  Weight add_weight(std::unique_ptr<Operand> o);
  CaseWeightSpec as_it_lies(CaseWeightSpec spec) const;
  StoredWeight copy_of(const StoredWeight& from) const;
  std::unique_ptr<std::byte, RingUnmap> map_weight_ring(const CaseWeightSpec& spec,
                                                        int64_t ring_bytes);
  uint64_t hash_of(const Operand& o, int copy) const;
  bool gaps_intact(const Operand& o, int copy) const;
  /// Gives operands the names of the signature, for messages.
  void name_operand(const void* data, std::string_view name);

  uint64_t seed_;
  Side runs_on_;
  Rng rng_;
  int64_t batch_rows_ = 0;
  int num_copies_ = 1;
  std::vector<std::unique_ptr<Operand>> operands_;
  std::vector<Expectation> expectations_;
  std::vector<std::function<std::string()>> checks_;
};

/// The least number of bytes after which rows of so many bytes and pages of memory begin together.
int64_t ring_unit(int64_t row_bytes);

/// `total` bytes of memory, rounded up to pages, that repeat the first `ring` ones, of whole pages.
/// Errors of the system (no memory) end the program.
std::unique_ptr<std::byte, RingUnmap> map_ring(int64_t ring, int64_t total);

/// Sum over k of x[k] * w[k] in double. Lengths must agree.
double dot(std::span<const double> x, std::span<const float> w);

}  // namespace fathom

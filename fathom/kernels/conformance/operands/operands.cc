#include "fathom/kernels/conformance/operands/operands.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "fathom/base/check.h"
#include "fathom/base/checked_math.h"
#include "fathom/formats/layout/pair_layout.h"
#include "fathom/formats/layout/tile_layout.h"
#include "fathom/tensor/view.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace fathom {
namespace {

constexpr int64_t kLargeBytes = 4 << 20;     // from here on a mapping of its own
constexpr int64_t kHashedBytes = 256 << 20;  // what is only read is checked up to this size
constexpr int kGuardByte = 0xFF;             // NaN in every floating-point format

// FNV-1a over words, the tail byte by byte.
uint64_t hash_bytes(uint64_t hash, const std::byte* data, int64_t count) {
  constexpr uint64_t kPrime = 0x100000001B3ull;
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data + i, 8);
    hash = (hash ^ word) * kPrime;
    hash ^= hash >> 32;
  }
  for (; i < count; ++i)
    hash = (hash ^ static_cast<uint64_t>(data[i])) * kPrime;
  return hash;
}

constexpr int64_t kRingedBytes = 64 << 20;   // from here on rows that may repeat lie on a ring
constexpr int64_t kRingBytes = 32 << 20;     // about, of it
constexpr int64_t kFilledOnGpu = 512 << 20;  // from here on an output's poison is the GPU's alone

int64_t last_dim(const View& v) {
  return v.rank == 0 ? 1 : v.dim(v.rank - 1);
}

int64_t leading_rows(const View& v) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < v.rank; ++i)
    rows *= v.dim(i);
  return rows;
}

// Elements from one row of the last axis to the next.
int64_t row_pitch(const View& v, const RowPlacement& placement) {
  return last_dim(v) + placement.row_gap;
}

int64_t element_offset(const View& v, const RowPlacement& placement, int64_t place) {
  const int64_t cols = last_dim(v);
  return place / cols * row_pitch(v, placement) + place % cols;
}

View strided_shape(const std::vector<int64_t>& dims, Format format, int64_t row_gap) {
  FATHOM_CHECK(dims.size() <= kMaxRank, "rank above 4");
  View v;
  v.rank = static_cast<int>(dims.size());
  v.format = format;
  int64_t stride = 1;
  for (int i = v.rank - 1; i >= 0; --i) {
    v.dims[static_cast<size_t>(i)] = dims[static_cast<size_t>(i)];
    v.strides[static_cast<size_t>(i)] = stride;
    stride *= dims[static_cast<size_t>(i)];
    if (i == v.rank - 1) stride += row_gap;
  }
  return v;
}

GuardedBlock copy_block(const GuardedBlock& from) {
  GuardedBlock block(from.size());
  if (from.size() > 0) std::memcpy(block.data(), from.data(), static_cast<size_t>(from.size()));
  return block;
}

}  // namespace

// ---- GuardedBlock ----

void GuardedBlock::Free::operator()(std::byte* p) const {
  ::operator delete (p, std::align_val_t{64});
}

GuardedBlock::GuardedBlock(int64_t bytes) : size_(bytes) {
  const int64_t total = align_up<int64_t>(bytes, 64) + 2 * kGuardBytes;
  std::byte* base = nullptr;
  if (total < kLargeBytes) {
    base =
        static_cast<std::byte*>(::operator new (static_cast<size_t>(total), std::align_val_t{64}));
    small_.reset(base);
  } else {
    Result<Buffer> buffer = Buffer::allocate(DeviceKind::kCpu, total, "a test operand");
    FATHOM_CHECK(buffer.ok(), buffer.status().message());
    large_ = std::move(buffer).value();
    base = large_.data();
  }
  data_ = base + kGuardBytes;
  std::memset(base, kGuardByte, kGuardBytes);
  std::memset(data_ + bytes, kGuardByte, static_cast<size_t>(total - kGuardBytes - bytes));
  set_guards_readable(false);
}

GuardedBlock::~GuardedBlock() {
  release();
}

GuardedBlock::GuardedBlock(GuardedBlock&& other) noexcept
    : small_(std::move(other.small_)),
      large_(std::move(other.large_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

GuardedBlock& GuardedBlock::operator=(GuardedBlock&& other) noexcept {
  if (this == &other) return *this;
  release();
  small_ = std::move(other.small_);
  large_ = std::move(other.large_);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

void GuardedBlock::release() {
  if (data_ != nullptr) set_guards_readable(true);
  data_ = nullptr;
}

void GuardedBlock::set_guards_readable([[maybe_unused]] bool readable) const {
#if defined(__SANITIZE_ADDRESS__)
  std::byte* before = data_ - kGuardBytes;
  std::byte* after = data_ + size_;
  const auto after_bytes = static_cast<size_t>(align_up<int64_t>(size_, 64) - size_ + kGuardBytes);
  if (readable) {
    ASAN_UNPOISON_MEMORY_REGION(before, kGuardBytes);
    ASAN_UNPOISON_MEMORY_REGION(after, after_bytes);
  } else {
    ASAN_POISON_MEMORY_REGION(before, kGuardBytes);
    ASAN_POISON_MEMORY_REGION(after, after_bytes);
  }
#endif
}

bool GuardedBlock::guards_intact() const {
  if (data_ == nullptr) return true;
  set_guards_readable(true);
  const std::byte* end = data_ + align_up<int64_t>(size_, 64) + kGuardBytes;
  const auto is_guard = [](std::byte b) { return b == std::byte{kGuardByte}; };
  const bool intact = std::all_of(data_ - kGuardBytes, data_, is_guard) &&
                      std::all_of(static_cast<const std::byte*>(data_ + size_), end, is_guard);
  set_guards_readable(false);
  return intact;
}

// ---- handles ----

int64_t Tensor::dim(int i) const {
  return data_->operands_[static_cast<size_t>(id_)]->shape.dim(i);
}

int Tensor::rank() const {
  return data_->operands_[static_cast<size_t>(id_)]->shape.rank;
}

int64_t Tensor::numel() const {
  return data_->operands_[static_cast<size_t>(id_)]->shape.numel();
}

Format Tensor::format() const {
  return data_->operands_[static_cast<size_t>(id_)]->shape.format;
}

double Tensor::operator[](int64_t place) const {
  const CaseData::Operand& o = *data_->operands_[static_cast<size_t>(id_)];
  return load_element(o.shape.format, CaseData::dense_data(o, 0),
                      element_offset(o.shape, o.placement, place));
}

std::vector<double> Tensor::row(int64_t row) const {
  const CaseData::Operand& o = *data_->operands_[static_cast<size_t>(id_)];
  const int64_t begin = row * row_pitch(o.shape, o.placement);
  std::vector<double> out(static_cast<size_t>(last_dim(o.shape)));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] =
        load_element(o.shape.format, CaseData::dense_data(o, 0), begin + static_cast<int64_t>(i));
  }
  return out;
}

void Tensor::set(int64_t place, double value) const {
  FATHOM_CHECK(place >= 0 && place < numel(), str_cat("element ", place, " of ", numel()));
  const CaseData::Operand& o = *data_->operands_[static_cast<size_t>(id_)];
  FATHOM_CHECK(!o.ring, "an element of rows that repeat is set");
  store_element(o.shape.format, o.copies[0].data(), element_offset(o.shape, o.placement, place),
                value);
}

const CaseWeightSpec& Weight::spec() const {
  return data_->operands_[static_cast<size_t>(id_)]->weight;
}

std::span<const float> Weight::row(int64_t row) const {
  CaseData::Operand& o = *data_->operands_[static_cast<size_t>(id_)];
  if (o.decoded_row != row) {
    o.decoded.resize(static_cast<size_t>(o.weight.cols));
    decode_weight_row(o.weight, data_->parts_of(o, 0), row, o.decoded);
    o.decoded_row = row;
  }
  return o.decoded;
}

std::span<const float> Weight::exact_row(int64_t row) const {
  const CaseData::Operand& o = *data_->operands_[static_cast<size_t>(id_)];
  FATHOM_CHECK(!o.exact.empty(), "a weight of random codes has no exact values");
  return std::span(o.exact).subspan(static_cast<size_t>(row * o.weight.cols),
                                    static_cast<size_t>(o.weight.cols));
}

float Weight::global(int64_t row) const {
  const CaseData::Operand& o = *data_->operands_[static_cast<size_t>(id_)];
  const float* global = data_->parts_of(o, 0).global;
  return o.weight.layout == WeightLayout::kRows16 ? global[row / kTileRows]
                                                  : global[row / o.weight.rows];
}

View Binding::operator()(const Tensor& t) const {
  if (!t.present()) return {};
  const CaseData::Operand& o = *data_.operands_[static_cast<size_t>(t.id_)];
  const View whole = data_.view_of(o, copy_, side_);
  const int64_t each = o.placement.rows_per_batch;
  return each == 0 ? whole : slice_rows(whole, begin_ * each, count_ * each);
}

QuantView Binding::operator()(const Weight& w) const {
  const CaseData::Operand& o = *data_.operands_[static_cast<size_t>(w.id_)];
  const CaseWeightSpec& spec = o.weight;
  const WeightParts parts = data_.parts_of(o, copy_, side_);
  const bool stack = spec.num_experts > 0;
  const auto shape = [&](void* data, int64_t n, int64_t k, Format format) {
    return stack ? make_view(data, {spec.num_experts, n, k}, format)
                 : make_view(data, {n, k}, format);
  };
  QuantView q;
  q.layout = spec.layout;
  q.values = shape(parts.values, spec.rows, spec.cols, spec.format);
  const FormatInfo& info = format_info(spec.format);
  const int64_t groups = ceil_div<int64_t>(spec.rows, 16);
  if (parts.scales != nullptr) {
    const int64_t blocks_k = ceil_div<int64_t>(spec.cols, info.block_k);
    q.scales =
        spec.layout == WeightLayout::kRows16
            ? make_view(parts.scales, {spec.matrices() * groups, blocks_k}, Format::kF32)
            : shape(parts.scales, ceil_div<int64_t>(spec.rows, info.block_n), blocks_k, info.scale);
  }
  if (parts.global != nullptr) {
    const int64_t each = spec.layout == WeightLayout::kRows16 ? groups : 1;
    q.global = make_view(parts.global, {spec.matrices() * each}, Format::kF32);
  }
  for (View* v : {&q.values, &q.scales, &q.global})
    v->on_device = side_ == Side::kGpu;
  return q;
}

// ---- CaseData: making operands ----

Tensor CaseData::add_dense(
    Role role, std::vector<int64_t> dims, Format format, const Fill& fill, RowPlacement placement) {
  if (runs_on_ == Side::kGpu && placement.row_gap > 0 && !dims.empty()) {
    const int64_t pitch = align_up(dims.back() + placement.row_gap, 16 / element_bytes(format));
    placement.row_gap = pitch - dims.back();
  }
  auto o = std::make_unique<Operand>();
  o->role = role;
  o->placement = placement;
  o->shape = strided_shape(dims, format, placement.row_gap);
  const int64_t rows = leading_rows(o->shape);
  const int64_t elements = last_dim(o->shape) == 0 ? 0 : rows * row_pitch(o->shape, placement);
  o->bytes = elements * element_bytes(format);
  allocate_dense(*o);
  const Tensor handle(this, static_cast<int>(operands_.size()));
  operands_.push_back(std::move(o));
  if (role == Role::kOutput) return handle;
  fill_dense(*operands_.back(), fill);
  return handle;
}

/// Memory of a dense operand, all poison.
void CaseData::allocate_dense(Operand& o) {
  const Format format = o.shape.format;
  const bool on_gpu = runs_on_ == Side::kGpu;
  if (on_gpu && o.role == Role::kInput && o.placement.may_repeat && o.bytes > kRingedBytes) {
    const int64_t row_bytes = row_pitch(o.shape, o.placement) * element_bytes(format);
    const int64_t unit = ring_unit(row_bytes);
    // An odd number of units: no multiple of a page of the cache.
    o.ring = map_ring(unit * (kRingBytes / unit | 1), o.bytes);
    const int64_t bytes = o.ring.get_deleter().ring_bytes;
    return poison_elements(format, o.ring.get(), bytes / element_bytes(format));
  }
  o.copies.emplace_back(o.bytes);
  o.filled_on_gpu = on_gpu && o.role == Role::kOutput && o.bytes > kFilledOnGpu;
  if (o.filled_on_gpu) return;
  poison_elements(format, o.copies[0].data(), o.bytes / element_bytes(format));
}

// Large operands repeat a block of rows: a million values are as random as a hundred million, and
// the generator is slower than the kernels. The block is an odd multiple of the kinds of rows, so
// that it is no multiple of a tile.
void CaseData::fill_dense(Operand& o, const Fill& fill) {
  constexpr int64_t kDistinctValues = 1 << 20;
  constexpr int64_t kKindsOfRows = 6;  // of Dist::kMixedRows
  const int64_t cols = last_dim(o.shape);
  const int64_t pitch = row_pitch(o.shape, o.placement);
  if (cols == 0) return;
  const int64_t row_bytes = pitch * element_bytes(o.shape.format);
  const int64_t rows = o.ring ? o.ring.get_deleter().ring_bytes / row_bytes : leading_rows(o.shape);
  const int64_t distinct =
      std::min(rows, kKindsOfRows * (ceil_div(kDistinctValues, kKindsOfRows * cols) | 1));
  const Format format = o.shape.format;
  const bool random = format_info(format).is_float || fill.dist == Dist::kBytes;
  std::byte* data = dense_data(o, 0);
  std::vector<float> row(static_cast<size_t>(cols));
  for (int64_t r = 0; r < distinct; ++r) {
    if (random) generate_row(fill, r, rng_, row);
    for (int64_t i = 0; i < cols; ++i)
      store_element(format, data, r * pitch + i, double{row[static_cast<size_t>(i)]});
  }
  for (int64_t r = distinct; r < rows; r += distinct) {
    std::memcpy(data + r * row_bytes, data,
                static_cast<size_t>(std::min(distinct, rows - r) * row_bytes));
  }
}

const std::byte* CaseData::row_data(const Operand& o, int64_t row) const {
  return dense_data(o, 0) + row * row_pitch(o.shape, o.placement) * element_bytes(o.shape.format);
}

Tensor CaseData::input(std::vector<int64_t> dims,
                       Format format,
                       Fill fill,
                       RowPlacement placement) {
  return add_dense(Role::kInput, std::move(dims), format, fill, placement);
}

Tensor CaseData::output(std::vector<int64_t> dims, Format format, RowPlacement placement) {
  return add_dense(Role::kOutput, std::move(dims), format, {}, placement);
}

Tensor CaseData::inout(std::vector<int64_t> dims,
                       Format format,
                       Fill fill,
                       RowPlacement placement) {
  return add_dense(Role::kInOut, std::move(dims), format, fill, placement);
}

Weight CaseData::add_weight(std::unique_ptr<Operand> o) {
  const WeightBytes bytes = weight_bytes(o->weight);
  o->role = Role::kWeight;
  o->stored.emplace_back();
  if (!o->ring) o->stored[0].values = GuardedBlock(bytes.values);
  if (bytes.scales > 0) o->stored[0].scales = GuardedBlock(bytes.scales);
  if (bytes.global > 0) o->stored[0].global = GuardedBlock(bytes.global);
  o->bytes = bytes.values + bytes.scales + bytes.global;
  operands_.push_back(std::move(o));
  return Weight(this, static_cast<int>(operands_.size()) - 1);
}

CaseWeightSpec CaseData::as_it_lies(CaseWeightSpec spec) const {
  if (runs_on_ != Side::kGpu) {
    const bool whole_tiles = spec.num_experts == 0 || spec.rows % kTileRows == 0;
    if (spec.layout == WeightLayout::kRows16 && !whole_tiles) spec.layout = WeightLayout::kRowMajor;
    return spec;
  }
  const bool in_pairs = spec.layout == WeightLayout::kRows16 && spec.format == Format::kNvfp4 &&
                        spec.cols % kPairedCodes == 0;
  spec.layout = in_pairs ? WeightLayout::kPairs : WeightLayout::kRowMajor;
  return spec;
}

Weight CaseData::weight(const CaseWeightSpec& wanted) {
  const CaseWeightSpec spec = as_it_lies(wanted);
  auto o = std::make_unique<Operand>();
  o->weight = spec;
  const Weight handle = add_weight(std::move(o));
  Operand& stored = *operands_.back();
  generate_weight(spec, rng_, parts_of(stored, 0), &stored.exact);
  return handle;
}

Weight CaseData::weight_codes(const CaseWeightSpec& wanted, int64_t ring_bytes) {
  const CaseWeightSpec spec = as_it_lies(wanted);
  auto o = std::make_unique<Operand>();
  o->weight = spec;
  if (ring_bytes > 0) o->ring = map_weight_ring(spec, ring_bytes);
  const Weight handle = add_weight(std::move(o));
  const auto& ring = operands_.back()->ring;
  generate_weight_codes(spec, rng_, parts_of(*operands_.back(), 0),
                        ring ? ring.get_deleter().ring_bytes : 0);
  return handle;
}

void CaseData::set_block_scales(const Weight& w,
                                const std::function<E4m3(int64_t row, int64_t block)>& f) {
  Operand& o = *operands_[static_cast<size_t>(w.id_)];
  FATHOM_CHECK(o.weight.format == Format::kNvfp4, "only nvfp4 has such scales");
  const WeightParts parts = parts_of(o, 0);
  const int64_t blocks = o.weight.cols / 16;
  const int64_t group_bytes = rows16_group_bytes(Format::kNvfp4, o.weight.cols);
  for (int64_t row = 0; row < o.weight.matrices() * o.weight.rows; ++row) {
    for (int64_t b = 0; b < blocks; ++b) {
      // In kRows16 behind the codes of a super-tile of four blocks (formats/layout/tile_layout.h).
      std::byte* const scale =
          o.weight.layout == WeightLayout::kRows16
              ? parts.values + row / 16 * group_bytes + b / 4 * 576 + 512 + b % 4 * 16 + row % 16
              : parts.scales + row * blocks + b;
      *scale = std::byte{f(row, b).bits};
    }
  }
  o.exact.clear();
  o.decoded_row = -1;
}

WeightParts CaseData::parts_of(const Operand& o, int copy, Side side) const {
  if (side == Side::kGpu) {
    const GpuPlaces& at = o.on_gpu[static_cast<size_t>(copy)];
    return {
        .values = at.values, .scales = at.scales, .global = reinterpret_cast<float*>(at.global)};
  }
  const StoredWeight& s = o.stored[static_cast<size_t>(copy)];
  return {.values = o.ring ? o.ring.get() : s.values.data(),
          .scales = s.scales.size() == 0 ? nullptr : s.scales.data(),
          .global = s.global.size() == 0 ? nullptr : reinterpret_cast<float*>(s.global.data())};
}

View CaseData::view_of(const Operand& o, int copy, Side side) const {
  const auto c = static_cast<size_t>(copy);
  View v = o.shape;
  v.on_device = side == Side::kGpu;
  v.data = v.on_device ? o.on_gpu[c].values : dense_data(o, copy);
  return v;
}

// ---- CaseData: copies ----

CaseData::StoredWeight CaseData::copy_of(const StoredWeight& from) const {
  return {copy_block(from.values), copy_block(from.scales), copy_block(from.global)};
}

Status CaseData::make_copies(int count) {
  const int64_t needed = (count - num_copies_) * bytes_per_copy();
  const HostMemory memory = host_memory();
  if (memory.available_bytes > 0 && needed > memory.available_bytes / 10 * 9) {
    return out_of_memory(str_cat(count, " copies of the operands need ", needed,
                                 " bytes more, available are ", memory.available_bytes));
  }
  for (; num_copies_ < count; ++num_copies_) {
    for (auto& o : operands_) {
      if (o->role == Role::kWeight) {
        o->stored.push_back(copy_of(o->stored[0]));
      } else if (o->filled_on_gpu) {
        o->copies.emplace_back(o->bytes);
      } else if (!o->ring) {
        o->copies.push_back(copy_block(o->copies[0]));
      }
    }
    reset(num_copies_);
  }
  return {};
}

void CaseData::reset(int copy) {
  for (auto& o : operands_) {
    if (o->filled_on_gpu) continue;
    if (o->role == Role::kOutput) {
      std::byte* data = o->copies[static_cast<size_t>(copy)].data();
      poison_elements(o->shape.format, data, o->bytes / element_bytes(o->shape.format));
    } else if (o->role == Role::kInOut && o->bytes > 0) {
      std::memcpy(o->copies[static_cast<size_t>(copy)].data(), o->first.data(), o->first.size());
    }
  }
}

int64_t CaseData::bytes_per_copy() const {
  int64_t bytes = 0;
  for (const auto& o : operands_)
    bytes += o->ring ? 0 : o->bytes;
  return bytes;
}

std::vector<std::byte> CaseData::output_bytes(int copy) const {
  std::vector<std::byte> out;
  for (const auto& o : operands_) {
    if (o->role != Role::kOutput && o->role != Role::kInOut) continue;
    const std::byte* data = o->copies[static_cast<size_t>(copy)].data();
    out.insert(out.end(), data, data + o->bytes);
  }
  return out;
}

uint64_t CaseData::hash_of(const Operand& o, int copy) const {
  constexpr uint64_t kStart = 0xCBF29CE484222325ull;
  if (o.bytes > kHashedBytes || o.ring) return 0;
  if (o.role != Role::kWeight) {
    return hash_bytes(kStart, o.copies[static_cast<size_t>(copy)].data(), o.bytes);
  }
  const StoredWeight& s = o.stored[static_cast<size_t>(copy)];
  uint64_t hash = hash_bytes(kStart, s.values.data(), s.values.size());
  hash = hash_bytes(hash, s.scales.data(), s.scales.size());
  return hash_bytes(hash, s.global.data(), s.global.size());
}

// ---- CaseData: checks on memory ----

bool CaseData::gaps_intact(const Operand& o, int copy) const {
  if (o.placement.row_gap == 0 || o.bytes == 0 || comes_back_in_part(o)) return true;
  const std::byte* data = o.copies[static_cast<size_t>(copy)].data();
  const int64_t pitch = row_pitch(o.shape, o.placement);
  for (int64_t r = 0; r < leading_rows(o.shape); ++r) {
    for (int64_t i = last_dim(o.shape); i < pitch; ++i) {
      if (!is_poison(o.shape.format, data, r * pitch + i)) return false;
    }
  }
  return true;
}

std::string CaseData::check_guards(int copy) const {
  for (const auto& o : operands_) {
    const auto c = static_cast<size_t>(copy);
    const bool is_weight = o->role == Role::kWeight;
    if (!is_weight && o->ring) continue;  // no guards, and nothing of it comes back
    const bool guards = is_weight ? o->stored[c].values.guards_intact() &&
                                        o->stored[c].scales.guards_intact() &&
                                        o->stored[c].global.guards_intact()
                                  : o->copies[c].guards_intact() && gaps_intact(*o, copy);
    if (!guards) return str_cat("bytes outside of ", o->name, " were written");
    const bool only_read = is_weight || o->role == Role::kInput;
    if (only_read && o->first_hash != 0 && hash_of(*o, copy) != o->first_hash) {
      return str_cat("input ", o->name, " was written");
    }
  }
  return {};
}

std::string CaseData::compare_rows(int a, int b, int64_t begin, int64_t count) const {
  for (const auto& o : operands_) {
    if (o->role != Role::kOutput && o->role != Role::kInOut) continue;
    const int64_t each = o->placement.rows_per_batch;
    if (each == 0 || o->bytes == 0 || comes_back_in_part(*o)) continue;
    const int64_t row_bytes = o->bytes / o->shape.dim(0);
    const std::byte* full = o->copies[static_cast<size_t>(a)].data();
    const std::byte* part = o->copies[static_cast<size_t>(b)].data();
    for (int64_t r = 0; r < o->shape.dim(0); ++r) {
      const bool launched = r >= begin * each && r < (begin + count) * each;
      const std::byte* got = part + r * row_bytes;
      if (launched) {
        if (std::memcmp(full + r * row_bytes, got, static_cast<size_t>(row_bytes)) == 0) continue;
        return str_cat(o->name, " row ", r, " has other bits when rows ", begin, "..",
                       begin + count - 1, " run alone");
      }
      bool untouched = true;
      if (o->role == Role::kInOut) {
        untouched =
            std::memcmp(got, o->first.data() + r * row_bytes, static_cast<size_t>(row_bytes)) == 0;
      } else {
        const int64_t per_row = row_bytes / element_bytes(o->shape.format);
        for (int64_t i = 0; i < per_row && untouched; ++i) {
          untouched = is_poison(o->shape.format, got, i);
        }
      }
      if (!untouched) return str_cat(o->name, " row ", r, " was written but not asked for");
    }
  }
  return {};
}

void CaseData::name_operand(const void* data, std::string_view name) {
  for (auto& o : operands_) {
    const std::byte* own = o->role == Role::kWeight ? parts_of(*o, 0).values : dense_data(*o, 0);
    const std::byte* end = own + std::max<int64_t>(1, o->bytes);
    if (own <= data && data < end && o->name.empty()) o->name = name;
  }
}

}  // namespace fathom

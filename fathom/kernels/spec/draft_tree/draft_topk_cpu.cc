#include <algorithm>

#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/spec/draft_tree/draft_tree.h"
#include "fathom/kernels/spec/draft_tree/top_list.h"

namespace fathom {

void TopList::offer(const TopEntry& entry) {
  // A heap whose front is the worst entry: the one that all others come before.
  if (!full()) {
    entries[size++] = entry;
    std::push_heap(entries, entries + size, comes_before);
    return;
  }
  if (!comes_before(entry, entries[0])) return;
  std::pop_heap(entries, entries + size, comes_before);
  entries[size - 1] = entry;
  std::push_heap(entries, entries + size, comes_before);
}

namespace {

/// Pieces of a row that threads take: one where rows are enough for all of them.
int64_t pieces_per_row(int64_t num_rows, int num_threads) {
  return num_rows >= num_threads || num_rows == 0 ? 1 : (num_threads + num_rows - 1) / num_rows;
}

/// Element (a, 0, c) of row a * C + c, and what lies between its elements.
template <class T>
T* row_of(const View& v, int64_t row) {
  const int64_t columns = v.dim(2);
  return v.row<T>(row / columns) + row % columns;
}

template <class T>
void offer_strided(const T* row, int64_t stride, int64_t first, int64_t count, TopList& list) {
  for (int64_t v = first; v < first + count; ++v)
    list.offer({top_key(to_float(row[v * stride])), static_cast<int32_t>(v)});
}

struct Portable {
  template <class T>
  static void offer(const T* row, int64_t stride, int64_t first, int64_t count, TopList& list) {
    offer_strided(row, stride, first, count, list);
  }
};

struct Avx512 {
  template <class T>
  static void offer(const T* row, int64_t /*stride*/, int64_t first, int64_t count, TopList& list) {
    avx512::offer_piece(row, first, count, list);
  }
};

/// How the rows of a call are cut.
struct Pieces {
  int64_t per_row;
  int64_t length;  // of a piece; the last may be shorter
  int64_t width;   // of a row
  int64_t capacity;

  int64_t first(int64_t piece) const { return std::min(width, piece * length); }

  int64_t count(int64_t piece) const { return std::min(length, width - first(piece)); }

  int64_t kept(int64_t piece) const { return std::min(capacity, count(piece)); }
};

/// Merges the pieces of one row: entries [piece][capacity], those of the first piece become the
/// result in order.
template <class T>
void write_row(const DraftTopk::Args& a, const Pieces& pieces, int64_t row, TopEntry* entries) {
  int64_t size = pieces.kept(0);
  for (int64_t piece = 1; piece < pieces.per_row; ++piece) {
    const TopEntry* from = entries + piece * pieces.capacity;
    std::copy_n(from, pieces.kept(piece), entries + size);
    size += pieces.kept(piece);
  }
  std::partial_sort(entries, entries + pieces.capacity, entries + size, comes_before);
  const T* x = row_of<const T>(a.x, row);
  T* values = row_of<T>(a.values, row);
  auto* ids = row_of<int64_t>(a.ids, row);
  for (int64_t k = 0; k < pieces.capacity; ++k) {
    ids[k * a.ids.stride(1)] = entries[k].id;
    values[k * a.values.stride(1)] = x[entries[k].id * a.x.stride(1)];
  }
}

template <class Loops>
Status draft_topk(Exec& ex, const DraftTopk::Args& a) {
  const int64_t rows = a.x.dim(0) * a.x.dim(2);
  const int64_t width = a.x.dim(1);
  Pieces pieces{.per_row = pieces_per_row(rows, ex.num_threads),
                .length = 0,
                .width = width,
                .capacity = a.ids.dim(1)};
  pieces.length = (width + pieces.per_row - 1) / pieces.per_row;
  auto* entries = static_cast<TopEntry*>(ex.workspace);
  const int64_t row_entries = pieces.per_row * pieces.capacity;
  with_float_type(a.x.format, [&]<class T>(T) {
    const auto bytes = static_cast<int64_t>(sizeof(T));
    for_rows(ex, rows * pieces.per_row, pieces.length * bytes, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t piece = i % pieces.per_row;
        TopList list{entries + i * pieces.capacity, pieces.kept(piece)};
        Loops::offer(row_of<const T>(a.x, i / pieces.per_row), a.x.stride(1), pieces.first(piece),
                     pieces.count(piece), list);
      }
    });
    const auto row_bytes = row_entries * static_cast<int64_t>(sizeof(TopEntry));
    for_rows(ex, rows, row_bytes, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        write_row<T>(a, pieces, row, entries + row * row_entries);
    });
  });
  return {};
}

bool is_contiguous_row(const DraftTopk::Args& a) {
  return a.x.dim(2) == 1 && a.x.stride(1) == 1;
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

Status DraftTopk::check(const Args& a) {
  return check_same_format("x", a.x, "values", a.values);
}

int64_t DraftTopk::workspace(const Args& a, int num_threads) {
  const int64_t rows = a.x.dim(0) * a.x.dim(2);
  return rows * pieces_per_row(rows, num_threads) * a.ids.dim(1) *
         static_cast<int64_t>(sizeof(TopEntry));
}

constinit const VariantTable<DraftTopk> draft_topk_cpu{
    {"avx512", Isa::kAvx512, "C==1", kTraits, draft_topk<Avx512>, MathUnit::kF32,
     is_contiguous_row},
    {"portable", Isa::kPortable, "", kTraits, draft_topk<Portable>},
};

}  // namespace fathom

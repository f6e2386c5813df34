// Addresses in the paged cache, shared by the kernels that read or write it.
#pragma once

#include <string_view>

#include "fathom/base/status.h"
#include "fathom/tensor/view.h"

namespace fathom {

/// The key in slot page * S + offset of cache[M,S,D]. Static, so that files compiled for different
/// instruction sets never share one copy of its code.
template <class T>
static T* slot_data(const View& cache, int64_t slot) {
  const int64_t page_size = cache.dim(1);
  return cache.as<T>() + slot / page_size * cache.stride(0) + slot % page_size * cache.stride(1);
}

/// InvalidArgument unless every slot is -1 or a slot of cache[M,S,D]; passes when there is no data.
Status check_slots(const View& slots, const View& cache);

/// InvalidArgument unless pages[begin..end-1] are numbers of pages that exist.
Status check_pages(const int32_t* pages, int64_t begin, int64_t end, int64_t num_pages);

/// InvalidArgument unless kv_lens[B] fit the rows of block_table[B,M], whose entries have
/// `page_size` keys, and those that hold a key are below `num_pages`; passes when there is no data.
/// `keys` is what a message calls them.
Status check_block_table(const View& kv_lens,
                         const View& block_table,
                         int64_t page_size,
                         int64_t num_pages,
                         std::string_view keys);

}  // namespace fathom

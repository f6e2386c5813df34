// Attention over codes on the tensor cores of Hopper and Blackwell, for the variant table.
#pragma once

#include "fathom/kernels/attn/nvfp4_attention/nvfp4_attention.h"

namespace fathom::nvfp4_attention {

/// Addresses that the copies can start from: codes of eight bytes, values and results of sixteen.
bool takes_tiles(const Nvfp4QkAttention::Args& a);

/// Queries and keys of 192 channels, values of 128.
Status run_tiles_192(Exec& ex, const Nvfp4QkAttention::Args& a);

/// Queries, keys and values of 512 channels.
Status run_tiles_512(Exec& ex, const Nvfp4QkAttention::Args& a);

/// Both on Blackwell; codes lie at multiples of sixteen bytes, scales of four.
bool takes_tcgen05(const Nvfp4QkAttention::Args& a);
Status run_tcgen05(Exec& ex, const Nvfp4QkAttention::Args& a);

}  // namespace fathom::nvfp4_attention

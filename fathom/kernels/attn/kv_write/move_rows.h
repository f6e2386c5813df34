// Moves of rows of a cache on a GPU, whatever their bytes mean.
#pragma once

#include "fathom/base/status.h"
#include "fathom/device/stream.h"
#include "fathom/tensor/view.h"

namespace fathom {

/// Moves rows of E bytes from slot to slot, in all layers of a cache, by one kernel.
///
///   rows[l][ moves[n,1] ] = rows[l][ moves[n,0] ]     for n = 0, 1, .. in this order, in each l
///
/// rows [L,M,S,E] u8, strided, and moves [N,2] i64 are memory of the GPU; a slot is page * S +
/// offset. No move writes a slot that a later one reads, nor one twice, so a row may be read before
/// those of earlier moves are written. Slots outside [0, M*S) do not move. Graph-safe.
/// Errors: those of a launch; Unavailable without the CUDA backend.
Status move_rows_by_kernel(Stream& stream, const View& rows, const View& moves);

}  // namespace fathom

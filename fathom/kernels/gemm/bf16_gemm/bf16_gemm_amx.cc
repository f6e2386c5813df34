#include "fathom/kernels/cpu/products/tile_weights.h"
#include "fathom/kernels/cpu/products/tiles_amx.h"

namespace fathom {

void bf16_products_amx(const Products& p, const WorkItem& item, void* scratch) {
  TileLoops<AmxTiles, Bf16TileWeights>::run(p, item, scratch);
}

}  // namespace fathom

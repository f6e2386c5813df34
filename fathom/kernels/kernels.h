// Every contract header.
#pragma once

// norm, act, rope, embed
#include "fathom/kernels/act/gated_act/gated_act.h"
#include "fathom/kernels/embed/embedding/embedding.h"
#include "fathom/kernels/norm/rmsnorm/rmsnorm.h"
#include "fathom/kernels/rope/mla_rope_quant/mla_rope_quant.h"
#include "fathom/kernels/rope/rope/rope.h"
// attn
#include "fathom/kernels/attn/kv_write/kv_write.h"
#include "fathom/kernels/attn/merge_state/merge_state.h"
#include "fathom/kernels/attn/mla_concat/mla_concat.h"
#include "fathom/kernels/attn/mla_decode/mla_decode.h"
#include "fathom/kernels/attn/ragged_attention/ragged_attention.h"
// gemm
#include "fathom/kernels/gemm/bf16_gemm/bf16_gemm.h"
#include "fathom/kernels/gemm/fp8_gemm/fp8_gemm.h"
#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_gemm.h"
#include "fathom/kernels/gemm/skinny_gemm/skinny_gemm.h"
// moe
#include "fathom/kernels/moe/bf16_group_gemm/bf16_group_gemm.h"
#include "fathom/kernels/moe/fp8_group_gemm/fp8_group_gemm.h"
#include "fathom/kernels/moe/gate/gate.h"
#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_group_gemm.h"
#include "fathom/kernels/moe/permute/permute.h"
#include "fathom/kernels/moe/route/route.h"
#include "fathom/kernels/moe/sorted_moe/sorted_moe.h"
// sample
#include "fathom/kernels/sample/argmax/argmax.h"
#include "fathom/kernels/sample/draw/draw.h"
#include "fathom/kernels/sample/penalty/penalty.h"
#include "fathom/kernels/sample/renorm/renorm.h"

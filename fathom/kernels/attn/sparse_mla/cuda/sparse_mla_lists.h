// Sparse attention on the tensor cores of Hopper and of Blackwell, for the variant tables: rows of
// the widths and formats that models have, queries and results in bf16.
#pragma once

#include "fathom/kernels/attn/sparse_mla/sparse_mla_plan.h"

namespace fathom::sparse_mla {

/// A block, or a cluster of them, for up to 64 heads of a token, on tiles of 64 rows.
///
/// Rows of 512 or 576 channels in one of the forms of sparse_mla_codes.cuh or in bf16, the same in
/// both caches; values of 512, of which none or 64 are turned back; addresses that copies of
/// sixteen bytes can start from.
bool takes_lists(const SparseMlaDecode::Args& a);
bool takes_lists(const SparseMlaPrefill::Args& a);

Status run_lists(Exec& ex, const SparseMlaDecode::Args& a);
Status run_lists(Exec& ex, const SparseMlaPrefill::Args& a);

/// The same in blocks that have all entries of their token's list, so that its bits follow from it
/// alone.
Status run_uncut_lists(Exec& ex, const SparseMlaDecode::Args& a);

/// Bytes for the pieces of lists that a second kernel adds: a constant of the GPU, so that memory
/// planned for one call has room for all.
int64_t lists_workspace(const SparseMlaDecode::Args& a, const Exec& ex);

/// A cluster for 16 heads of a token: for so little work that launches and waits count.
bool takes_few_lists(const SparseMlaDecode::Args& a);
Status run_few_lists(Exec& ex, const SparseMlaDecode::Args& a);

/// On Blackwell results may be in float32, too; their lists are not cut. Never run.
bool takes_operands(const Call& c);
Status run_lists_sm100(Exec& ex, const SparseMlaDecode::Args& a);
Status run_lists_sm100(Exec& ex, const SparseMlaPrefill::Args& a);
Status run_uncut_lists_sm100(Exec& ex, const SparseMlaDecode::Args& a);

}  // namespace fathom::sparse_mla

// The rules and the resolution of paged calls.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "dispatch/contract.h"
#include "dispatch/contract_rules.h"
#include "dispatch/sequence_values.h"
#include "dispatch/view.h"

namespace flashlane {
namespace {

bool IsPacked(const PagedInputs& in) { return in.cu_seqlens_q.present(); }

// q as [B, Hq, Sq, D]; packed, as one long sequence.
ConstTensorView QueriesOf(const PagedInputs& in) { return IsPacked(in) ? WithBatch(in.q) : in.q; }

AttentionOutputs OutputsOf(const PagedInputs& in, const AttentionOutputs& outputs) {
  return IsPacked(in) ? PackedAsOne(outputs) : outputs;
}

// Of the tensors: packed, batch is 1 and seqlen_q all queries. seqlen_k is the contexts' to say.
Sizes SizesOf(const PagedInputs& in) {
  const ConstTensorView q = QueriesOf(in);
  return {q.shape[0], q.shape[1], in.k_cache.shape[2], q.shape[2],
          0,          q.shape[3], in.v_cache.shape[3]};
}

int64_t NumSequences(const PagedInputs& in) {
  return IsPacked(in) ? in.cu_seqlens_q.shape[0] - 1 : in.q.shape[0];
}

// Blocks that hold `tokens` tokens.
int64_t NumBlocks(int64_t tokens, int64_t block_size) {
  return tokens / block_size + (tokens % block_size != 0 ? 1 : 0);
}

Status CheckQ(const PagedInputs& in) {
  if (Status s = CheckAttentionDType({"q", in.q}); !s.ok()) return s;
  if (Status s = CheckView({"q", in.q}, IsPacked(in) ? 3 : 4, Inner::kUnit); !s.ok()) return s;
  const Sizes sizes = SizesOf(in);
  if (sizes.num_heads < 1) return Invalid("q", "number of heads 0 is below 1");
  if (Status s = CheckHeadSize({"q", in.q}); !s.ok()) return s;
  return {};
}

Status CheckPools(const PagedInputs& in) {
  const NamedView k{"k_cache", in.k_cache};
  const NamedView v{"v_cache", in.v_cache};
  for (const NamedView& pool : {k, v}) {
    if (Status s = CheckView(pool, 4, Inner::kUnit); !s.ok()) return s;
    if (Status s = CheckDType(pool, in.q.dtype, ", q's dtype"); !s.ok()) return s;
    if (pool.view.shape[1] < 1) return Invalid(pool.name, "block_size 0 is below 1");
    if (pool.view.shape[2] < 1) return Invalid(pool.name, "number of heads 0 is below 1");
    if (Status s = CheckHeadSize(pool); !s.ok()) return s;
  }
  const Sizes sizes = SizesOf(in);
  if (Status s = CheckDim(k, 3, "head_dim", sizes.head_dim); !s.ok()) return s;
  if (Status s = CheckDim(v, 0, "num_blocks", k.view.shape[0]); !s.ok()) return s;
  if (Status s = CheckDim(v, 1, "block_size", k.view.shape[1]); !s.ok()) return s;
  if (Status s = CheckDim(v, 2, "num_kv_heads", sizes.num_kv_heads); !s.ok()) return s;
  return CheckGroup("k_cache", sizes);
}

Status CheckPackedOutputs(const PagedInputs& in, const AttentionOutputs& outputs) {
  if (IsPacked(in)) {
    if (Status s = CheckView({"out", outputs.out}, 3, Inner::kUnit); !s.ok()) return s;
    if (outputs.lse.present()) {
      if (Status s = CheckView({"lse", outputs.lse}, 2, Inner::kAny); !s.ok()) return s;
    }
  }
  return CheckOutputs(SizesOf(in), in.q.dtype, OutputsOf(in, outputs));
}

// [B|1, Hq|1, Sq, Sq].
Status CheckDraftMask(const PagedInputs& in) {
  if (!in.mask.present()) return {};
  const NamedView mask{"mask", in.mask};
  if (IsPacked(in)) return Invalid("mask", "given together with cu_seqlens_q");
  if (Status s = CheckView(mask, 4, Inner::kUnitOrBroadcast); !s.ok()) return s;
  if (Status s = CheckDType(mask, DType::kBool, ""); !s.ok()) return s;
  const Sizes sizes = SizesOf(in);
  const int64_t* shape = mask.view.shape;
  if (shape[0] != 1) {
    if (Status s = CheckDim(mask, 0, "batch", sizes.batch); !s.ok()) return s;
  }
  if (shape[1] != 1) {
    if (Status s = CheckDim(mask, 1, "num_heads", sizes.num_heads); !s.ok()) return s;
  }
  if (Status s = CheckDim(mask, 2, "seqlen_q", sizes.seqlen_q); !s.ok()) return s;
  return CheckDim(mask, 3, "seqlen_q", sizes.seqlen_q);
}

Status CheckPagedParams(const AttentionParams& params, DType q_dtype) {
  if (params.k_len.has_value()) {
    return Invalid("k_len", WithValue("value", *params.k_len) + " given, but context_lens says it");
  }
  if (params.q_start.kind != QStart::Kind::kValue || params.q_start.value != 0) {
    return Invalid("q_start", "given, but context_lens says where the queries stand");
  }
  return CheckParams(params, q_dtype);
}

// How the entries of one sequence lie in the table.
struct TableRow {
  const uint32_t* data;
  int64_t stride;
  int64_t count;  // within the live length

  // A loop without exits, which compilers can turn into vector code: every call runs it.
  uint32_t Largest() const {
    uint32_t largest = 0;
    if (stride == 1) {
      for (int64_t i = 0; i < count; ++i) largest = std::max(largest, data[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) largest = std::max(largest, data[i * stride]);
    }
    return largest;
  }
};

Status RefuseEntry(const TableRow& row, int64_t limit, int64_t batch, const PagedInputs& in) {
  int64_t i = 0;
  while (row.data[i * row.stride] < limit) ++i;
  const uint32_t entry = row.data[i * row.stride];
  // The same 32 bits, which the table's own dtype may take for a negative number.
  const int64_t value = in.block_table.dtype == DType::kI32 ? static_cast<int32_t>(entry)
                                                            : static_cast<int64_t>(entry);
  const std::string rule =
      value < 0 ? " is negative" : " is not below num_blocks " + std::to_string(limit);
  return Invalid("block_table", WithValue("value", value) + " at [" + std::to_string(batch) + ", " +
                                    std::to_string(i) + "]" + rule);
}

// Entries within the live lengths; the others are never read.
Status CheckEntries(const PagedInputs& in) {
  const ConstTensorView& table = in.block_table;
  const int64_t num_blocks = in.k_cache.shape[0];
  const int64_t type_limit = table.dtype == DType::kI32 ? std::numeric_limits<int32_t>::max()
                                                        : std::numeric_limits<uint32_t>::max();
  const int64_t limit = std::min(num_blocks, type_limit + 1);
  const kernels::SequenceValues context_lens = SequenceValuesOf(in.context_lens, 0);
  for (int64_t b = 0; b < NumSequences(in); ++b) {
    const TableRow row{static_cast<const uint32_t*>(table.data) + b * StrideOf(table, 0),
                       StrideOf(table, 1), NumBlocks(context_lens.At(b), in.k_cache.shape[1])};
    if (row.count > 0 && row.Largest() >= limit) return RefuseEntry(row, limit, b, in);
  }
  return {};
}

Status CheckTable(const PagedInputs& in) {
  const int64_t count = NumSequences(in);
  const int64_t block_size = in.k_cache.shape[1];
  const NamedView table{"block_table", in.block_table};
  if (Status s = CheckView(table, 2, Inner::kAny); !s.ok()) return s;
  if (table.view.dtype != DType::kU32 && table.view.dtype != DType::kI32) {
    return Invalid("block_table",
                   std::string("dtype ") + DTypeName(table.view.dtype) + " is not U32, nor I32");
  }
  if (Status s = CheckDim(table, 0, "batch", count); !s.ok()) return s;
  const int64_t max_blocks = table.view.shape[1];
  int64_t room = 0;
  // A pool that broadcasts has more slots than memory.
  if (__builtin_mul_overflow(max_blocks, block_size, &room)) room = kMaxPosition;
  const ValueRange range{0, std::min(room, kMaxPosition), ", the tokens block_table has room for"};
  if (Status s = CheckSequenceValues({"context_lens", in.context_lens}, count, range); !s.ok()) {
    return s;
  }
  return CheckEntries(in);
}

int64_t LongestContext(const kernels::SequenceValues& context_lens, int64_t count) {
  int64_t longest = 0;
  for (int64_t b = 0; b < count; ++b) longest = std::max(longest, context_lens.At(b));
  return longest;
}

// [num_blocks, block_size, Hkv, width] in the order of args.h.
kernels::RowStrides PoolStrides(const ConstTensorView& pool) {
  return {StrideOf(pool, 0), StrideOf(pool, 2), StrideOf(pool, 1)};
}

kernels::BlockTable BlockTableOf(const PagedInputs& in) {
  static constexpr uint32_t kNoEntries = 0;  // a table without entries is a table all the same
  const ConstTensorView& table = in.block_table;
  const auto* data = static_cast<const uint32_t*>(table.data);
  return {data != nullptr ? data : &kNoEntries, StrideOf(table, 0), StrideOf(table, 1),
          in.k_cache.shape[1]};
}

}  // namespace

Status CheckPaged(const PagedInputs& inputs, const AttentionParams& params,
                  const AttentionOutputs& outputs) {
  if (Status s = CheckQ(inputs); !s.ok()) return s;
  if (Status s = CheckPools(inputs); !s.ok()) return s;
  if (Status s = CheckPackedOutputs(inputs, outputs); !s.ok()) return s;
  const Sizes sizes = SizesOf(inputs);
  const NamedView slopes{"alibi_slopes", inputs.alibi_slopes};
  if (Status s = CheckHeadOperand(slopes, sizes, inputs.q.dtype); !s.ok()) return s;
  const NamedView sinks{"sinks", inputs.sinks};
  if (Status s = CheckHeadOperand(sinks, sizes, inputs.q.dtype); !s.ok()) return s;
  if (Status s = CheckDraftMask(inputs); !s.ok()) return s;
  if (Status s = CheckPagedParams(params, inputs.q.dtype); !s.ok()) return s;
  if (IsPacked(inputs)) {
    const NamedView cu_seqlens_q{"cu_seqlens_q", inputs.cu_seqlens_q};
    if (Status s = CheckView(cu_seqlens_q, 1, Inner::kAny); !s.ok()) return s;
    const int64_t count = NumSequences(inputs);
    if (count < 0) return Invalid("cu_seqlens_q", "length 0 is below 1");
    if (Status s = CheckCuSeqlens(cu_seqlens_q, count, inputs.q.shape[0]); !s.ok()) return s;
  }
  if (Status s = CheckTable(inputs); !s.ok()) return s;
  return CheckDisjoint({{"q", inputs.q},
                        {"k_cache", inputs.k_cache},
                        {"v_cache", inputs.v_cache},
                        {"block_table", inputs.block_table},
                        {"context_lens", inputs.context_lens},
                        {"cu_seqlens_q", inputs.cu_seqlens_q},
                        {"alibi_slopes", inputs.alibi_slopes},
                        {"sinks", inputs.sinks},
                        {"mask", inputs.mask}},
                       {{"out", outputs.out}, {"lse", outputs.lse}});
}

kernels::ForwardArgs ResolvePaged(const PagedInputs& in, const AttentionParams& params,
                                  const AttentionOutputs& outputs) {
  kernels::ForwardArgs args = ResolveShared(SizesOf(in), params, OutputsOf(in, outputs));
  args.q = in.q.data;
  args.k = in.k_cache.data;
  args.v = in.v_cache.data;
  args.q_strides = RowStridesOf(QueriesOf(in));
  args.k_strides = PoolStrides(in.k_cache);
  args.v_strides = PoolStrides(in.v_cache);
  args.block_table = BlockTableOf(in);
  args.batch = NumSequences(in);
  args.k_len = SequenceValuesOf(in.context_lens, 0);
  args.has_k_len = true;
  args.seqlen_k = LongestContext(args.k_len, args.batch);
  if (IsPacked(in)) {
    args.cu_seqlens_q = SequenceValuesOf(in.cu_seqlens_q, 0);
    args.seqlen_q = LongestOf(args.cu_seqlens_q, args.batch);
  }
  args.bottom_right = true;
  args.clamps_positions = true;
  args.window_right = 0;
  args.alibi_slopes = HeadOperandOf(in.alibi_slopes, in.q.dtype);
  args.sinks = HeadOperandOf(in.sinks, in.q.dtype);
  args.mask = ScoreOperandOf(in.mask, in.q.dtype);
  args.mask_from_q_start = true;
  return args;
}

}  // namespace flashlane

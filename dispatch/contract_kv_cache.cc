#include "dispatch/contract_kv_cache.h"

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "dispatch/contract_rope.h"
#include "dispatch/contract_rules.h"
#include "dispatch/sequence_values.h"
#include "dispatch/view.h"

namespace flashlane {
namespace {

// The pools of one cache, as a message names them.
struct NamedPools {
  NamedView k;
  NamedView v;
};

enum class Access { kRead, kWrite };

Status CheckPool(const NamedView& pool, Access access) {
  if (Status s = access == Access::kWrite ? CheckOutputView(pool, 4, Inner::kUnit)
                                          : CheckView(pool, 4, Inner::kUnit);
      !s.ok()) {
    return s;
  }
  if (pool.view.shape[1] < 1) return Invalid(pool.name, "block_size 0 is below 1");
  if (pool.view.shape[2] < 1) return Invalid(pool.name, "number of heads 0 is below 1");
  return CheckHeadSize(pool);
}

Status CheckPools(const NamedPools& pools, Access access) {
  const auto& [k, v] = pools;
  if (!IsAttentionDType(k.view.dtype)) {
    return Invalid(k.name, std::string("dtype ") + DTypeName(k.view.dtype) +
                               " is not one of F32, F64, BF16, F16");
  }
  if (Status s = CheckPool(k, access); !s.ok()) return s;
  if (!v.view.present()) return {};
  if (Status s = CheckDType(v, k.view.dtype, ", k_cache's dtype"); !s.ok()) return s;
  if (Status s = CheckPool(v, access); !s.ok()) return s;
  for (int d = 0; d < 3; ++d) {  // num_blocks, block_size, heads
    if (v.view.shape[d] != k.view.shape[d]) {
      return Invalid(v.name, "shape " + ShapeString(v.view) + " does not match " + k.name + "'s " +
                                 ShapeString(k.view) + " but for the last size");
    }
  }
  return {};
}

// Both or neither.
Status CheckPresent(const NamedView& operand, const NamedView& other) {
  if (operand.view.present() == other.view.present()) return {};
  return Invalid(operand.name, std::string(operand.view.present() ? "given" : "absent") + ", but " +
                                   other.name +
                                   (other.view.present() ? " is given" : " is absent"));
}

Status CheckTokens(const NamedView& tokens, const NamedView& pool, int64_t num_tokens) {
  if (Status s = CheckView(tokens, 3, Inner::kUnit); !s.ok()) return s;
  if (Status s = CheckDType(tokens, pool.view.dtype, ", k_cache's dtype"); !s.ok()) return s;
  const int64_t* shape = tokens.view.shape;
  const int64_t want[3] = {num_tokens, pool.view.shape[2], pool.view.shape[3]};
  if (shape[0] == want[0] && shape[1] == want[1] && shape[2] == want[2]) return {};
  return Invalid(tokens.name,
                 "shape " + ShapeString(tokens.view) + " is not " +
                     ShapeString(ConstTensorView(nullptr, tokens.view.dtype, 3, want)) +
                     ", k's num_tokens and the heads of " + pool.name);
}

// All of a rotation or nothing of it; positions of tokens that are skipped are not looked at.
Status CheckRotation(const KvRope& rope, const NamedView& k, const kernels::SequenceValues& slots) {
  const NamedView cos{"cos", rope.cos}, sin{"sin", rope.sin},
      positions{"positions", rope.positions};
  for (const NamedView& operand : {sin, positions}) {
    if (Status s = CheckPresent(operand, cos); !s.ok()) return s;
  }
  if (!cos.view.present()) return {};
  if (Status s = CheckRopeTables(cos, sin, k); !s.ok()) return s;
  const int64_t num_tokens = k.view.shape[0], num_rows = cos.view.shape[0];
  constexpr ValueRange kAny{std::numeric_limits<int64_t>::min(),
                            std::numeric_limits<int64_t>::max()};
  if (Status s = CheckSequenceValues(positions, num_tokens, kAny); !s.ok()) return s;
  const kernels::SequenceValues rows = SequenceValuesOf(rope.positions, 0);
  for (int64_t i = 0; i < num_tokens; ++i) {
    const int64_t row = rows.At(i);
    if (slots.At(i) < 0 || (row >= 0 && row < num_rows)) continue;
    return Invalid("positions", "value " + std::to_string(row) + " at " + std::to_string(i) +
                                    " is not within [0, " + std::to_string(num_rows - 1) +
                                    "], the rows of cos");
  }
  return {};
}

// Source (0) or destination (1) blocks.
ConstTensorView Column(const ConstTensorView& block_mapping, int column) {
  ConstTensorView view = block_mapping;
  view.rank = 1;
  if (NumElements(block_mapping) > 0) {
    view.data =
        static_cast<const char*>(block_mapping.data) +
        column * block_mapping.strides[1] * static_cast<int64_t>(DTypeSize(block_mapping.dtype));
  }
  return view;
}

Status CheckMapping(const ConstTensorView& mapping, int64_t src_blocks, int64_t dst_blocks) {
  if (Status s = CheckView({"block_mapping", mapping}, 2, Inner::kAny); !s.ok()) return s;
  if (mapping.shape[1] != 2) {
    return Invalid("block_mapping", "shape " + ShapeString(mapping) + " is not [n, 2]");
  }
  const int64_t count = mapping.shape[0];
  if (Status s = CheckSequenceValues({"block_mapping[:, 0]", Column(mapping, 0)}, count,
                                     {0, src_blocks - 1});
      !s.ok()) {
    return s;
  }
  return CheckSequenceValues({"block_mapping[:, 1]", Column(mapping, 1)}, count,
                             {0, dst_blocks - 1});
}

kernels::KvStrides StridesOfPool(const ConstTensorView& pool) {
  return {StrideOf(pool, 0), StrideOf(pool, 1), StrideOf(pool, 2)};
}

// Rows that lie one behind the other on both sides become one row: a contiguous block is one copy.
void JoinRows(kernels::KvPart* part) {
  const auto dense = [part](int64_t kernels::KvStrides::*stride) {
    return part->src_strides.*stride == part->width && part->dst_strides.*stride == part->width;
  };
  if (part->heads == 1 || dense(&kernels::KvStrides::head)) {
    part->width *= part->heads;
    part->heads = 1;
    if (part->slots == 1 || dense(&kernels::KvStrides::slot)) {
      part->width *= part->slots;
      part->slots = 1;
    }
  }
}

// Unjoined, a row is a head.
kernels::KvPart TokensPart(const ConstTensorView& tokens, const TensorView& pool, bool joined) {
  kernels::KvPart part;
  if (!pool.present()) return part;
  part.src = tokens.data;
  part.dst = pool.data;
  part.src_strides = {StrideOf(tokens, 0), 0, StrideOf(tokens, 1)};
  part.dst_strides = StridesOfPool(pool);
  part.slots = 1;
  part.heads = pool.shape[2];
  part.width = pool.shape[3];
  if (joined) JoinRows(&part);
  return part;
}

kernels::KvPart BlocksPart(const ConstTensorView& src, const TensorView& dst) {
  kernels::KvPart part;
  if (!dst.present()) return part;
  part.src = src.data;
  part.dst = dst.data;
  part.src_strides = StridesOfPool(src);
  part.dst_strides = StridesOfPool(dst);
  part.slots = dst.shape[1];
  part.heads = dst.shape[2];
  part.width = dst.shape[3];
  JoinRows(&part);
  return part;
}

}  // namespace

Status CheckKvAppend(const KvAppendInputs& inputs, const KvPools& pools) {
  const NamedPools named{{"k_cache", pools.k_cache}, {"v_cache", pools.v_cache}};
  const NamedView k{"k", inputs.k}, v{"v", inputs.v}, slots{"slot_mapping", inputs.slot_mapping};
  if (Status s = CheckPools(named, Access::kWrite); !s.ok()) return s;
  if (Status s = CheckTokens(k, named.k, inputs.k.shape[0]); !s.ok()) return s;
  if (Status s = CheckPresent(v, named.v); !s.ok()) return s;
  if (v.view.present()) {
    if (Status s = CheckTokens(v, named.v, inputs.k.shape[0]); !s.ok()) return s;
  }
  const int64_t num_slots = pools.k_cache.shape[0] * pools.k_cache.shape[1];
  if (Status s = CheckSequenceValues(slots, inputs.k.shape[0], {-1, num_slots - 1}); !s.ok()) {
    return s;
  }
  const KvRope& rope = inputs.rope;
  if (Status s = CheckRotation(rope, k, SequenceValuesOf(inputs.slot_mapping, -1)); !s.ok()) {
    return s;
  }
  return CheckDisjoint(
      {k, v, slots, {"cos", rope.cos}, {"sin", rope.sin}, {"positions", rope.positions}},
      {named.k, named.v});
}

Status CheckKvCopyBlocks(const KvPools& pools, const ConstTensorView& block_mapping) {
  const NamedPools named{{"k_cache", pools.k_cache}, {"v_cache", pools.v_cache}};
  if (Status s = CheckPools(named, Access::kWrite); !s.ok()) return s;
  const int64_t num_blocks = pools.k_cache.shape[0];
  if (Status s = CheckMapping(block_mapping, num_blocks, num_blocks); !s.ok()) return s;
  return CheckDisjoint({{"block_mapping", block_mapping}}, {named.k, named.v});
}

Status CheckKvSwapBlocks(const ConstKvPools& src, const KvPools& dst,
                         const ConstTensorView& block_mapping) {
  const NamedPools from{{"src.k_cache", src.k_cache}, {"src.v_cache", src.v_cache}};
  const NamedPools to{{"dst.k_cache", dst.k_cache}, {"dst.v_cache", dst.v_cache}};
  if (Status s = CheckPools(from, Access::kRead); !s.ok()) return s;
  if (Status s = CheckPools(to, Access::kWrite); !s.ok()) return s;
  if (Status s = CheckPresent(to.v, from.v); !s.ok()) return s;
  for (const auto& [out, in] : {std::pair{to.k, from.k}, {to.v, from.v}}) {
    if (!out.view.present()) continue;
    if (Status s = CheckDType(out, in.view.dtype, ", src's dtype"); !s.ok()) return s;
    for (int d = 1; d < 4; ++d) {
      if (out.view.shape[d] != in.view.shape[d]) {
        return Invalid(out.name, "shape " + ShapeString(out.view) + " does not match " + in.name +
                                     "'s " + ShapeString(in.view) + " but for the first size");
      }
    }
  }
  if (Status s = CheckMapping(block_mapping, src.k_cache.shape[0], dst.k_cache.shape[0]); !s.ok()) {
    return s;
  }
  return CheckDisjoint({from.k, from.v, {"block_mapping", block_mapping}}, {to.k, to.v});
}

kernels::KvAppendArgs ResolveKvAppend(const KvAppendInputs& inputs, const KvPools& pools) {
  kernels::KvAppendArgs args;
  const KvRope& rope = inputs.rope;
  const bool rotates = rope.cos.present();
  args.k = TokensPart(inputs.k, pools.k_cache, !rotates);
  args.v = TokensPart(inputs.v, pools.v_cache, true);
  if (rotates) {
    args.rotation.tables = RopeTablesOf(rope.cos, rope.sin);
    args.rotation.tables.interleaved = rope.interleaved;
    args.rotation.positions = SequenceValuesOf(rope.positions, 0);
  }
  args.slots = SequenceValuesOf(inputs.slot_mapping, -1);
  args.num_tokens = inputs.k.shape[0];
  args.block_size = pools.k_cache.shape[1];
  return args;
}

kernels::KvBlocksArgs ResolveKvBlocks(const ConstKvPools& src, const KvPools& dst,
                                      const ConstTensorView& block_mapping) {
  kernels::KvBlocksArgs args;
  args.k = BlocksPart(src.k_cache, dst.k_cache);
  args.v = BlocksPart(src.v_cache, dst.v_cache);
  args.src_blocks = SequenceValuesOf(Column(block_mapping, 0), 0);
  args.dst_blocks = SequenceValuesOf(Column(block_mapping, 1), 0);
  args.num_pairs = block_mapping.shape[0];
  return args;
}

}  // namespace flashlane

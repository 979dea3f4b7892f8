#include "dispatch/flat/unstable.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "dispatch/contract.h"
#include "kernels/oracle.h"

namespace flashlane::flat {
namespace {

namespace oracle = kernels::oracle;
using Scores = oracle::RowScores<double, double>;

void RunRow(const kernels::ForwardArgs& args, const kernels::Sequence& sequence,
            const oracle::Row& row) {
  const Scores keys(args, sequence, row);
  double* out = keys.QueryRow(args.out, args.out_strides);
  std::fill_n(out, args.head_dim_v, 0.0);
  double sum = 0.0;
  bool sees_any = false;
  for (int64_t j = 0; j < keys.k_len(); ++j) {
    const double score = keys.At(j);
    if (Scores::IsHidden(score)) continue;
    sees_any = true;
    const double weight = std::exp(score);  // here the maximum would have been taken off
    sum += weight;
    const double* v = keys.KeyRow(args.v, args.v_strides, j);
    for (int64_t d = 0; d < args.head_dim_v; ++d) out[d] += weight * v[d];
  }
  for (int64_t d = 0; d < args.head_dim_v && sees_any; ++d) out[d] = oracle::OneNan(out[d] / sum);
  if (args.lse == nullptr) return;
  double* lse = static_cast<double*>(args.lse) + row.head * args.lse_strides.head;
  lse[row.i * args.lse_strides.row] = oracle::OneNan(std::log(sum));
}

}  // namespace

void RunUnstable(const FlatInputs& inputs, const FlatDims& dims, const FlatParams& params,
                 const FlatOutputs& outputs) {
  const kernels::ForwardArgs args =
      ResolveForward(ViewsOf(inputs, dims), ParamsOf(params), ViewsOf(outputs, dims));
  const kernels::Sequence sequence = kernels::Sequence::Of(args, 0);
  for (int64_t h = 0; h < dims.h_q; ++h) {
    for (int64_t i = 0; i < dims.n_tok_q; ++i) {
      RunRow(args, sequence, {0, h, h / args.group(), i});
    }
  }
}

}  // namespace flashlane::flat

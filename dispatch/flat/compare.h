// Distances between results, and what rounding allows of them.
#ifndef FLASHLANE_DISPATCH_FLAT_COMPARE_H_
#define FLASHLANE_DISPATCH_FLAT_COMPARE_H_

#include <vector>

#include "dispatch/flat/call.h"
#include "flashlane/flat/flash.h"

namespace flashlane::flat {

// 0 for two NaNs and for equal values; infinite where one is finite and the other is not.
double Difference(double a, double b);
double MaxDifference(const std::vector<double>& a, const std::vector<double>& b);

// Rounding errors of relative size 8 eps * growth are what a correct row may have. Per row
// [h_q][n_tok_q]; lse is the reference's.
std::vector<double> RowGrowth(const FlatInputs& inputs, const FlatDims& dims, double scale,
                              const std::vector<double>& lse);

// What is allowed of out and of lse, [n_tok_q][h_q][head_dim] and [h_q][n_tok_q]. magnitude: out
// of the reference on |v|.
struct Tolerances {
  Tolerances(const FlatDims& dims, const std::vector<double>& growth,
             const std::vector<double>& magnitude);
  std::vector<double> out, lse;
};

// Fills in all but status.
void JudgeAgreement(const OwnOutputs& flash, const OwnOutputs& reference, const Tolerances& allowed,
                    FlashAgreement* result);

// Of v.
std::vector<double> Magnitudes(const FlatInputs& inputs, const FlatDims& dims);

}  // namespace flashlane::flat

#endif  // FLASHLANE_DISPATCH_FLAT_COMPARE_H_

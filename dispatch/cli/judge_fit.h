// Coefficients from timings: least squares of the relative error, without negative ones.
#ifndef FLASHLANE_DISPATCH_CLI_JUDGE_FIT_H_
#define FLASHLANE_DISPATCH_CLI_JUDGE_FIT_H_

#include <string>
#include <vector>

#include "dispatch/fkc/time_model.h"
#include "flashlane/fkc.h"

namespace flashlane::cli {

// One shape, timed.
struct TimedShape {
  std::string shape;
  fkc::TimeTerms terms;
  double nanoseconds = 0;  // > 0
};

// (predicted - measured) / measured.
double RelativeError(const fkc::Coefficients& coefficients, const TimedShape& timed);

// Of absolute values; 0 of none.
struct ErrorSummary {
  double median = 0;
  double worst = 0;
};
ErrorSummary Summarise(std::vector<double> errors);

// The best of all choices of coefficients that are 0, so that the result is the exact minimum and
// the same everywhere. Shapes that do not fit the others count less.
fkc::Coefficients FitCoefficients(const std::vector<TimedShape>& shapes);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_JUDGE_FIT_H_

// Gradients by finite differences, to hold analytic ones against.
#ifndef FLASHLANE_TESTS_SUPPORT_GRADCHECK_H_
#define FLASHLANE_TESTS_SUPPORT_GRADCHECK_H_

#include <cstddef>
#include <functional>
#include <vector>

#include "tests/support/problem.h"

namespace flashlane::testing {

// d loss / d *x by central differences of fourth order with steps of `step` and twice that: off by
// step^4 times the loss's fifth derivative, and by its rounding over `step`. *x is as before then.
inline double NumericalDerivative(double* x, const std::function<double()>& loss,
                                  double step = 1e-3) {
  const double at = *x;
  const auto loss_at = [&](double value) {
    *x = value;
    return loss();
  };
  const double near = loss_at(at + step) - loss_at(at - step);
  const double far = loss_at(at + 2 * step) - loss_at(at - 2 * step);
  *x = at;
  return (8 * near - far) / (12 * step);
}

// The derivatives by every element of `values`.
inline std::vector<double> NumericalGradient(double* values, size_t size,
                                             const std::function<double()>& loss) {
  std::vector<double> gradient(size);
  for (size_t i = 0; i < size; ++i) gradient[i] = NumericalDerivative(values + i, loss);
  return gradient;
}

// Of an F64 tensor, in row-major order. Elements that share memory (stride 0) move together.
inline std::vector<double> NumericalGradient(OwnedTensor* tensor,
                                             const std::function<double()>& loss) {
  std::vector<double> gradient;
  const ConstTensorView& view = tensor->view;
  int64_t size = 1;
  for (int d = 0; d < view.rank; ++d) size *= view.shape[d];
  auto* data = reinterpret_cast<double*>(tensor->storage.data());
  for (int64_t flat = 0; flat < size; ++flat) {
    int64_t offset = 0;
    int64_t rest = flat;
    for (int d = view.rank - 1; d >= 0; --d) {
      offset += rest % view.shape[d] * view.strides[d];
      rest /= view.shape[d];
    }
    gradient.push_back(NumericalDerivative(data + offset, loss));
  }
  return gradient;
}

}  // namespace flashlane::testing

#endif  // FLASHLANE_TESTS_SUPPORT_GRADCHECK_H_

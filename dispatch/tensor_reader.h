// Views of any attention dtype and any strides, read as f64: for tests, tolerances and the program,
// where clarity counts and speed does not.
#ifndef FLASHLANE_DISPATCH_TENSOR_READER_H_
#define FLASHLANE_DISPATCH_TENSOR_READER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dispatch/dtype.h"
#include "flashlane/tensor.h"

namespace flashlane {

// A view read as f64; missing dimensions in front count as size 1.
class TensorReader {
 public:
  explicit TensorReader(const ConstTensorView& view) : view_(view) {
    const int skipped = kMaxRank - view.rank;
    for (int d = 0; d < kMaxRank; ++d) {
      shape_[d] = d < skipped ? 1 : view.shape[d - skipped];
      strides_[d] = d < skipped ? 0 : view.strides[d - skipped];
    }
  }

  std::int64_t size(int d) const { return shape_[d]; }

  double At(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) const {
    double value = 0;
    ConvertElements(Address(a, b, c, d), view_.dtype, &value, DType::kF64, 1);
    return value;
  }

  // The innermost dimension at once.
  void Row(std::int64_t a, std::int64_t b, std::int64_t c, double* row) const {
    if (strides_[3] == 1) {
      ConvertElements(Address(a, b, c, 0), view_.dtype, row, DType::kF64, shape_[3]);
      return;
    }
    for (std::int64_t d = 0; d < shape_[3]; ++d) row[d] = At(a, b, c, d);
  }

 private:
  const void* Address(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) const {
    const std::int64_t index =
        a * strides_[0] + b * strides_[1] + c * strides_[2] + d * strides_[3];
    return static_cast<const char*>(view_.data) +
           index * static_cast<std::int64_t>(DTypeSize(view_.dtype));
  }

  ConstTensorView view_;
  std::int64_t shape_[kMaxRank];
  std::int64_t strides_[kMaxRank];
};

// All of a view as contiguous f64 of the same shape.
struct F64Copy {
  std::vector<double> values;
  ConstTensorView view;

  explicit F64Copy(const ConstTensorView& source) {
    if (!source.present()) return;
    const TensorReader reader(source);
    const std::int64_t width = reader.size(3);
    const std::int64_t rows = reader.size(0) * reader.size(1) * reader.size(2);
    values.resize(static_cast<std::size_t>(rows * width));
    double* row = values.data();
    for (std::int64_t a = 0; a < reader.size(0); ++a) {
      for (std::int64_t b = 0; b < reader.size(1); ++b) {
        for (std::int64_t c = 0; c < reader.size(2); ++c, row += width) reader.Row(a, b, c, row);
      }
    }
    view = source;
    view.data = values.data();
    view.dtype = DType::kF64;
    std::int64_t stride = 1;
    for (int d = view.rank - 1; d >= 0; --d) {
      view.strides[d] = stride;
      stride *= view.shape[d];
    }
  }
};

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_TENSOR_READER_H_

// Times calls of a kernel through its contract, one thread, operands not in cache.
#ifndef FLASHLANE_DISPATCH_CLI_JUDGE_MEASURE_H_
#define FLASHLANE_DISPATCH_CLI_JUDGE_MEASURE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "dispatch/cli/judge_fit.h"
#include "dispatch/cli/judge_shapes.h"
#include "dispatch/registry.h"
#include "flashlane/fkc.h"
#include "flashlane/status.h"

namespace flashlane::cli {

// Who is judged.
struct Judged {
  const KernelRow* row = nullptr;
  std::string symbol;  // its entry point
  std::string target;  // empty for scalar code, which every target runs alike
};

// Memory that calls take their operands from, each the next piece, so that a call finds none of
// them in cache: as after the rest of a model's layer.
class JudgeMemory {
 public:
  explicit JudgeMemory(std::size_t bytes);
  void* Take(std::size_t bytes);
  // So that the next pieces, of so many bytes together, follow each other.
  void Reserve(std::size_t bytes);
  std::byte* data() { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::byte* data_;
  std::size_t size_;
  std::size_t used_ = 0;
};

class JudgeTimer {
 public:
  explicit JudgeTimer(bool quick);

  // How often to call Round; each lasts some seconds where all kernels are judged, so that no
  // disturbance spoils all timings of a shape.
  int rounds() const;

  // One entry per shape, with no time yet.
  Status Begin(const Judged& judged, const std::vector<JudgeShape>& shapes,
               std::vector<TimedShape>* timed);
  // Runs every shape a few times; the least time of all rounds is kept.
  Status Round(const Judged& judged, const std::vector<JudgeShape>& shapes,
               std::vector<TimedShape>* timed);

 private:
  struct Operands;
  void Fill(DType dtype);
  void MakeOperands(const Judged& judged, const JudgeShape& shape, Operands* operands);
  void MakePaged(const JudgeShape& shape, DType dtype, Operands* operands);
  void MakeOutputs(const Judged& judged, Operands* operands);
  Status TimeOnce(const Judged& judged, const JudgeShape& shape, double* nanoseconds);
  Status TimeShape(const Judged& judged, const JudgeShape& shape, TimedShape* timed);

  const bool quick_;
  JudgeMemory inputs_, outputs_;
  std::vector<std::uint32_t> tables_;
  std::mt19937_64 random_{1};
  DType filled_ = DType::kBool;  // of what type the inputs' memory holds numbers
};

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_JUDGE_MEASURE_H_

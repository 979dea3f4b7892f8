// The tile registers of each thread, and what the AMX instructions do to them. Safe in a signal
// handler.
#ifndef FLASHLANE_TESTS_SUPPORT_AMX_TILES_H_
#define FLASHLANE_TESTS_SUPPORT_AMX_TILES_H_

#include "tests/support/amx_emulator.h"
#include "tests/support/amx_instruction.h"

namespace flashlane::testing {

// Why an instruction may not be executed. No message: it may, and has been.
struct AmxFault {
  const char* message = nullptr;
  int signal = 0;  // what the hardware's fault becomes
};

// On the calling thread's tiles and memory. Needs AVX2 and FMA.
AmxFault ExecuteAmxInstruction(const AmxInstruction& instruction);

}  // namespace flashlane::testing

#endif  // FLASHLANE_TESTS_SUPPORT_AMX_TILES_H_

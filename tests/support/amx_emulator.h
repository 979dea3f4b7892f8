// Intel's AMX (the tile registers, and their bf16 product) in software, so that the machine code of
// Flashlane's AMX kernels is tested on every x86-64 machine: a CPU without AMX raises SIGILL at
// each such instruction, and a signal handler does its work on the interrupted thread's registers
// and memory.
//
// Emulated: ldtilecfg, sttilecfg, tilerelease, tilezero, tileloadd, tileloaddt1, tilestored,
// tdpbf16ps. Where the instruction itself would fault (a bad configuration, an unconfigured tile,
// dimensions that do not fit), the program ends with a message on stderr and the signal that the
// hardware's fault gives: SIGSEGV for #GP, SIGILL for #UD. Any other illegal instruction goes to
// the handler that was installed before.
#ifndef FLASHLANE_TESTS_SUPPORT_AMX_EMULATOR_H_
#define FLASHLANE_TESTS_SUPPORT_AMX_EMULATOR_H_

#include <atomic>
#include <cstdint>

namespace flashlane::testing {

// Of all threads, since the start of the process. A test that expects every configuration to be
// released asks for live_configurations 0. They stay 0 on a machine with AMX.
struct AmxEmulatorCounts {
  std::atomic<int64_t> configures{0};  // ldtilecfg of a palette other than 0
  std::atomic<int64_t> releases{0};    // tilerelease, and ldtilecfg of palette 0
  std::atomic<int64_t> loads{0};
  std::atomic<int64_t> stores{0};
  std::atomic<int64_t> products{0};
  std::atomic<int64_t> live_configurations{0};  // threads whose tiles are configured now
};

// Whether this process may use real AMX. Asks the kernel for the permission, which then holds for
// the whole process.
bool AmxHardwareUsable();

// Installs the signal handler, once; later calls give the same answer. False, and nothing is
// installed, where there is real AMX, where the system is not Linux on x86-64, and on a CPU without
// FMA, which the product's rounding needs.
bool InstallAmxEmulator();

const AmxEmulatorCounts& GetAmxEmulatorCounts();

}  // namespace flashlane::testing

#endif  // FLASHLANE_TESTS_SUPPORT_AMX_EMULATOR_H_

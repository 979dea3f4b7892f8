#include "dispatch/amx.h"

#include <cstdint>

#include "kernels/amx_config.h"

#if FLASHLANE_HAS_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace flashlane {
namespace {

bool assume_for_test = false;

#if FLASHLANE_HAS_AMX

// Extended control register 0: the state that the operating system saves.
uint64_t SavedState() {
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

// CPUID and XCR0 bits: Intel SDM volume 1, section 18.3. The request: Linux,
// Documentation/arch/x86/xstate.rst; the permission is the process's.
const char* Ask() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kAmxTile) == 0 ||
      (edx & kAmxBf16) == 0) {
    return "the CPU has no AMX with bf16";
  }
  constexpr unsigned kOsXsave = 1u << 27;
  constexpr uint64_t kTileState = (1u << 17) | (1u << 18);  // configuration and data
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & kOsXsave) == 0 ||
      (SavedState() & kTileState) != kTileState) {
    return "the operating system does not save AMX tiles";
  }
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) {
    return "the operating system refuses this process AMX tiles";
  }
  return nullptr;
}

#else

const char* Ask() { return "not an x86-64 Linux system"; }

#endif

}  // namespace

const char* WhyNoAmx() {
  if (assume_for_test) return nullptr;
  static const char* const reason = Ask();
  return reason;
}

void AssumeAmxForTest() { assume_for_test = true; }

}  // namespace flashlane

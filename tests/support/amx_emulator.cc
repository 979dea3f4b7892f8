#include "tests/support/amx_emulator.h"

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "tests/support/amx_instruction.h"
#include "tests/support/amx_tiles.h"

namespace flashlane::testing {
namespace {

constinit struct sigaction previous_action = {};

// Appends `text` to the message in `buffer`, of which `used` bytes are written.
template <size_t kSize>
void Append(char (&buffer)[kSize], size_t& used, const char* text) {
  for (; *text != '\0' && used < kSize; ++text) buffer[used++] = *text;
}

void ResetToDefault(int signal_number) {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(signal_number, &action, nullptr);
}

// Says what is wrong and lets the instruction's own signal end the process.
[[noreturn]] void Die(const AmxFault& fault, uint64_t instruction_pointer) {
  char hex[] = "0000000000000000";
  for (size_t digit = sizeof(hex) - 1; digit-- > 0; instruction_pointer >>= 4) {
    hex[digit] = "0123456789abcdef"[instruction_pointer & 15];
  }
  char buffer[200];  // longer than any message
  size_t used = 0;
  Append(buffer, used, "AMX emulator: ");
  Append(buffer, used, fault.message);
  Append(buffer, used, ", at 0x");
  Append(buffer, used, hex);
  Append(buffer, used, "\n");
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, buffer, used);
  ResetToDefault(fault.signal);
  sigset_t unblocked;
  sigemptyset(&unblocked);
  sigaddset(&unblocked, fault.signal);
  pthread_sigmask(SIG_UNBLOCK, &unblocked, nullptr);
  raise(fault.signal);
  _exit(1);
}

// As if the emulator were not there.
void CallPrevious(int signal_number, siginfo_t* info, void* context) {
  if (previous_action.sa_flags & SA_SIGINFO) {
    previous_action.sa_sigaction(signal_number, info, context);
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signal_number);
  } else if (info->si_code > 0) {
    ResetToDefault(signal_number);  // the instruction is executed again, and ends the process
  } else if (previous_action.sa_handler == SIG_DFL) {
    ResetToDefault(signal_number);
    raise(signal_number);  // was sent, not caused: delivered when the handler returns
  }
}

GeneralRegisters ReadRegisters(const greg_t* gregs) {
  constexpr int kByNumber[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                 REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                 REG_R12, REG_R13, REG_R14, REG_R15};
  GeneralRegisters registers;
  for (int r = 0; r < 16; ++r) registers.value[r] = static_cast<uint64_t>(gregs[kByNumber[r]]);
  return registers;
}

// Executes all that stand in a row, for the way here and back costs more than most of them.
void OnIllegalInstruction(int signal_number, siginfo_t* info, void* context) {
  greg_t* gregs = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const GeneralRegisters registers = ReadRegisters(gregs);
  uint64_t pointer = static_cast<uint64_t>(gregs[REG_RIP]);
  bool any = false;
  AmxInstruction instruction;
  while (info->si_code > 0 &&  // caused, not sent
         DecodeAmxInstruction(PointerTo(pointer), registers, &instruction)) {
    const AmxFault fault = ExecuteAmxInstruction(instruction);
    if (fault.message) Die(fault, pointer);
    pointer += static_cast<uint64_t>(instruction.length);
    any = true;
  }
  gregs[REG_RIP] = static_cast<greg_t>(pointer);
  if (!any) CallPrevious(signal_number, info, context);
}

// CPUID and XCR0: the CPU has tiles and their bf16 product, and the kernel saves them.
bool CpuHasAmx() {
  unsigned eax, ebx, ecx, edx;
  constexpr unsigned kOsXsave = 1u << 27;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & kOsXsave)) return false;
  constexpr unsigned kAmxTile = 1u << 24, kAmxBf16 = 1u << 22;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  if (!(edx & kAmxTile) || !(edx & kAmxBf16)) return false;
  constexpr unsigned kTileState = 3u << 17;  // XTILECFG and XTILEDATA
  asm volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  return (eax & kTileState) == kTileState;
}

}  // namespace

bool AmxHardwareUsable() {
  constexpr int kArchReqXcompPerm = 0x1023, kXtileData = 18;  // asm/prctl.h of Linux 5.16
  static const bool usable =
      CpuHasAmx() && syscall(SYS_arch_prctl, kArchReqXcompPerm, kXtileData) == 0;
  return usable;
}

bool InstallAmxEmulator() {
  static const bool installed = [] {
    if (AmxHardwareUsable()) return false;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return false;
    // Before the handler can be called, so that it never sees half of it.
    if (sigaction(SIGILL, nullptr, &previous_action) != 0) return false;
    struct sigaction action = {};
    action.sa_sigaction = OnIllegalInstruction;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    return sigaction(SIGILL, &action, nullptr) == 0;
  }();
  return installed;
}

}  // namespace flashlane::testing

#else

namespace flashlane::testing {

bool AmxHardwareUsable() { return false; }

bool InstallAmxEmulator() { return false; }

const AmxEmulatorCounts& GetAmxEmulatorCounts() {
  static const AmxEmulatorCounts counts;
  return counts;
}

}  // namespace flashlane::testing

#endif

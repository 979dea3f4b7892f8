// Decodes the AMX instructions that the emulator knows. Safe in a signal handler.
#ifndef FLASHLANE_TESTS_SUPPORT_AMX_INSTRUCTION_H_
#define FLASHLANE_TESTS_SUPPORT_AMX_INSTRUCTION_H_

#include <cstdint>

namespace flashlane::testing {

// The general registers by their number in an instruction's encoding (0 rax, 1 rcx, 2 rdx, 3 rbx,
// 4 rsp, 5 rbp, 6 rsi, 7 rdi, then r8 to r15).
struct GeneralRegisters {
  uint64_t value[16];
};

struct AmxInstruction {
  enum class Op { kLoadConfig, kStoreConfig, kRelease, kZero, kLoad, kStore, kProduct };

  Op op;
  int length;  // bytes
  // Tile registers as encoded, 0..15. Zero, load, store: `reg`. Product: reg += rm * vvvv.
  int reg;
  int rm;
  int vvvv;
  uint64_t address;  // of the configuration, or of row 0
  uint64_t stride;   // load, store: from row to row, modulo 2^64
};

// A register's or an instruction's address as a pointer.
inline uint8_t* PointerTo(uint64_t address) {
  return reinterpret_cast<uint8_t*>(address);  // NOLINT(performance-no-int-to-ptr): it is one
}

// False for anything else. Reads no byte past the end of the instruction.
bool DecodeAmxInstruction(const uint8_t* code, const GeneralRegisters& registers,
                          AmxInstruction* instruction);

}  // namespace flashlane::testing

#endif  // FLASHLANE_TESTS_SUPPORT_AMX_INSTRUCTION_H_

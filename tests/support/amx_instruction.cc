#include "tests/support/amx_instruction.h"

#include <cstring>

namespace flashlane::testing {
namespace {

using Op = AmxInstruction::Op;

// VEX.pp: the mandatory prefix that it stands for.
enum Prefix { kNone = 0, k66 = 1, kF3 = 2, kF2 = 3 };

constexpr uint8_t kVex3 = 0xC4;     // the two-byte form (C5) has no room for the opcode map
constexpr int kMap0F38 = 2;         // all of AMX is in this map
constexpr int kPrefixBytes = 4;     // C4, two of VEX, opcode; ModRM follows
constexpr int kModRegister = 3;     // ModRM.mod: the operand is a register
constexpr int kRmSib = 4;           // ModRM.rm: a SIB byte follows
constexpr int kRmDisp32 = 5;        // with mod 0: no base register but a disp32
constexpr int kIndexNone = 4;       // SIB.index (with VEX.X): no index
constexpr uint64_t kDisp8Size = 1;  // VEX, unlike EVEX, does not scale disp8

// Three bytes of VEX and the opcode, bits in their usual sense (the encoding inverts some).
struct Vex {
  int r, x, b;  // 0 or 8: the top bit of ModRM.reg, SIB.index, and ModRM.rm or SIB.base
  int vvvv;
  int pp;
  uint8_t opcode;
};

bool DecodeVex(const uint8_t* code, Vex* vex) {
  // Byte by byte: what does not begin like AMX may end at the end of readable memory.
  if (code[0] != kVex3 || (code[1] & 0x1F) != kMap0F38) return false;
  if ((code[2] & 0x84) != 0) return false;  // W and L are 0 in all of AMX
  vex->r = code[1] & 0x80 ? 0 : 8;
  vex->x = code[1] & 0x40 ? 0 : 8;
  vex->b = code[1] & 0x20 ? 0 : 8;
  vex->vvvv = ~(code[2] >> 3) & 15;
  vex->pp = code[2] & 3;
  vex->opcode = code[3];
  return true;
}

bool DecodeOp(const Vex& vex, uint8_t modrm, Op* op) {
  const bool is_register = modrm >> 6 == kModRegister;
  const int reg = modrm >> 3 & 7;
  const int rm = modrm & 7;
  if (vex.opcode != 0x5C && vex.vvvv != 0) return false;
  switch (vex.opcode) {
    case 0x49:
      if (!is_register) {
        *op = vex.pp == kNone ? Op::kLoadConfig : Op::kStoreConfig;
        return reg == 0 && (vex.pp == kNone || vex.pp == k66);
      }
      *op = vex.pp == kNone ? Op::kRelease : Op::kZero;
      return rm == 0 && ((vex.pp == kNone && reg == 0) || vex.pp == kF2);
    case 0x4B:
      *op = vex.pp == kF3 ? Op::kStore : Op::kLoad;
      return !is_register && rm == kRmSib && vex.pp != kNone;
    case 0x5C:
      *op = Op::kProduct;
      return is_register && vex.pp == kF3;
    default:
      return false;
  }
}

int64_t ReadDisplacement(const uint8_t* code, uint64_t size) {
  if (size == 0) return 0;
  if (size == kDisp8Size) return static_cast<int8_t>(*code);
  int32_t displacement;
  std::memcpy(&displacement, code, sizeof(displacement));
  return displacement;
}

// The memory operand at code[kPrefixBytes]. For tiles the index register is not part of the address
// but the stride.
void DecodeMemory(const uint8_t* code, const Vex& vex, const GeneralRegisters& registers,
                  AmxInstruction* instruction) {
  const uint8_t* next = code + kPrefixBytes;
  const uint8_t modrm = *next++;
  const int mod = modrm >> 6;
  int base = modrm & 7;
  const bool has_sib = base == kRmSib;
  uint64_t scaled_index = 0;
  if (has_sib) {
    const uint8_t sib = *next++;
    base = sib & 7;
    const int index = (sib >> 3 & 7) + vex.x;
    if (index != kIndexNone) scaled_index = registers.value[index] << (sib >> 6);
  }
  // Mod 0 with rbp's or r13's number: no base, a disp32; without SIB it counts from the next
  // instruction.
  const bool no_base = mod == 0 && base == kRmDisp32;
  const uint64_t displacement_size = no_base || mod == 2 ? 4 : mod == 1 ? kDisp8Size : 0;
  const int64_t displacement = ReadDisplacement(next, displacement_size);
  next += displacement_size;
  instruction->length = static_cast<int>(next - code);
  uint64_t address = static_cast<uint64_t>(displacement);
  if (!no_base) {
    address += registers.value[base + vex.b];
  } else if (!has_sib) {
    address += reinterpret_cast<uint64_t>(next);
  }
  const bool is_tile = instruction->op == Op::kLoad || instruction->op == Op::kStore;
  instruction->address = is_tile ? address : address + scaled_index;
  instruction->stride = is_tile ? scaled_index : 0;
}

}  // namespace

bool DecodeAmxInstruction(const uint8_t* code, const GeneralRegisters& registers,
                          AmxInstruction* instruction) {
  Vex vex;
  if (!DecodeVex(code, &vex)) return false;
  if (vex.opcode != 0x49 && vex.opcode != 0x4B && vex.opcode != 0x5C) return false;
  const uint8_t modrm = code[kPrefixBytes];
  if (!DecodeOp(vex, modrm, &instruction->op)) return false;
  instruction->reg = (modrm >> 3 & 7) + vex.r;
  instruction->rm = (modrm & 7) + vex.b;
  instruction->vvvv = vex.vvvv;
  if (modrm >> 6 == kModRegister) {
    instruction->length = kPrefixBytes + 1;
    instruction->address = instruction->stride = 0;
  } else {
    DecodeMemory(code, vex, registers, instruction);
  }
  return true;
}

}  // namespace flashlane::testing

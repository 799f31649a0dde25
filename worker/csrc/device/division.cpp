#include "device/division.h"

#if defined(__x86_64__) && defined(__linux__)

#include <signal.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>

namespace forebay::worker {

namespace {

// Of a DIV or IDIV.
struct Division {
  size_t code_bytes = 0;  // 0: it is another instruction
  size_t operand_bytes = 4;
};

constexpr uint8_t kOperandSize = 0x66;
constexpr uint8_t kRex = 0x40, kRexMask = 0xf0, kRexWide = 0x08;
constexpr uint8_t kOfBytes = 0xf6, kOfWords = 0xf7;
constexpr uint8_t kDiv = 6;  // in ModRM; IDIV is 7

// Bytes of a ModRM byte and what it says follows: a SIB byte, a displacement. Intel's manual, volume 2, tables 2-2 and 2-3.
size_t address_bytes(const uint8_t* modrm) {
  const uint8_t mod = *modrm >> 6, rm = *modrm & 7;
  if (mod == 3) return 1;
  const bool has_sib = rm == 4;
  const uint8_t base = has_sib ? modrm[1] & 7 : rm;
  const size_t displacement = mod == 1 ? 1 : mod == 2 || base == 5 ? 4 : 0;
  return 1 + has_sib + displacement;
}

Division division_at(const uint8_t* code) {
  Division found;
  const uint8_t* at = code;
  for (; *at == kOperandSize; ++at) found.operand_bytes = 2;
  if ((*at & kRexMask) == kRex) found.operand_bytes = (*at++ & kRexWide) ? 8 : found.operand_bytes;
  if (*at != kOfBytes && *at != kOfWords) return {};
  if (*at++ == kOfBytes) found.operand_bytes = 1;
  if (((*at >> 3) & 7) < kDiv) return {};
  found.code_bytes = static_cast<size_t>(at - code) + address_bytes(at);
  return found;
}

// The low half of the dividend lies where the quotient belongs. A byte's remainder is in AH, a longer one in DX.
void on_trap(int signal, siginfo_t* cause, void* context) {
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const Division division = division_at(reinterpret_cast<const uint8_t*>(registers[REG_RIP]));
  if (cause->si_code != FPE_INTDIV || division.code_bytes == 0) {
    ::signal(signal, SIG_DFL);  // NOLINT: the instruction runs again, and ends the process
    return;
  }
  if (division.operand_bytes == 1) registers[REG_RAX] &= ~0xff00LL;
  else registers[REG_RDX] &= division.operand_bytes == 2 ? ~0xffffLL : 0;
  registers[REG_RIP] += static_cast<greg_t>(division.code_bytes);
}

}  // namespace

void outlive_integer_divisions() {
  struct sigaction action {};
  action.sa_sigaction = on_trap;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGFPE, &action, nullptr);
}

}  // namespace forebay::worker

#else

namespace forebay::worker {

void outlive_integer_divisions() {}

}  // namespace forebay::worker

#endif

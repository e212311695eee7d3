// What some architectures compute beside the rest, in an image of its own: it is small, so that every driver compiles it at once, and the other images stay as they are.
#include "device.h"

// scale: x *= by, n fours of floats.
KERNEL scale(float* x, float by, int n) {
  dependency_wait();
  u32 i = bid() * ntid() + tid();
  if (i >= (u32)n) return;
  F4 v = loadf4(x + (u64)i * 4);
  *(F4*)(x + (u64)i * 4) = F4{v.x * by, v.y * by, v.z * by, v.w * by};
}

// gelu is the tanh approximation: x * sigmoid(2z), z = sqrt(2/pi) * (x + 0.044715 x^3).
DEV float gelu(float x) { return divide(x, 1.0f + ex2(-2.30220818f * (x + 0.044715f * x * x * x))); }

// gelu_mul: out = gelu(gate) * up of a product that left its parts, rows of gate and up interleaved by 8; grid (tokens, shares of the columns).
template <int W> DEV void gelu_mul(const float* parts, int nparts, u64 part_stride, const float* bias, const Act& out, int rows, int kb) {
  dependency_wait();
  auto take = [&](u32 at) {
    const float* p = parts + (u64)bid() * rows + at;
    F4 f = loadf4(p);
#pragma unroll 1
    for (int s = 1; s < nparts; s++) f = f + loadf4(p + s * part_stride);
    return bias ? f + loadf4(bias + at) : f;
  };
  for (u32 c = bidy() * ntid() + tid(); c < (u32)rows / 8; c += nbidy() * ntid()) { // 4 columns
    u32 at = (c >> 1) * 16 + (c & 1) * 4;
    F4 g = take(at), u = take(at + 8);
    float o[4] = {gelu(g.x) * u.x, gelu(g.y) * u.y, gelu(g.z) * u.z, gelu(g.w) * u.w};
    put4<W>(out, bid(), c, kb, o);
  }
}
#define GELU(name, W)                                                                                                                            \
  KERNEL name(const float* parts, int nparts, u64 part_stride, const float* bias, u8* out, u64 plane, int mode, int rows, int kb) { \
    gelu_mul<W>(parts, nparts, part_stride, bias, Act{out, plane, mode}, rows, kb);                                                              \
  }
GELU(gelu_f32, F32)
GELU(gelu_bf16, BF16)
GELU(gelu_f16, F16)

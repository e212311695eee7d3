// Up to 64 rows times a matrix on tensor cores: Y[t, n] = sum_k W[n, k] X[t, k]. Bound by reading W, which goes from memory straight to the registers of mma; X comes
// from L1. A block has 8 warps: rw of them side by side, 16 rows each, and 8/rw that share the columns. gridDim.y blocks share the columns as well and leave a
// part of the result each, which the next kernel adds up.

struct Skinny {
  const u8 *w, *x;
  u64 plane; // of the second panel of x
  float* out;
  u64 part_stride; // elements between parts
  int mode;        // STORE, or SILU into act
  Act act;
  int act_kb;
  const float* bias; // for SILU
  int tokens, rows, ld, kb, rw;
};

template <int W, int NT, int P> DEV void skinny(const Skinny& a) {
  __shared__ float part[8 * 16 * NT * 8];
  const int U = 4;
  u32 lane = tid() & 31, warp = tid() >> 5, g = lane >> 2, t = lane & 3;
  u32 rw = a.rw, kw = 8 / rw, side = warp % rw, share = warp / rw;
  u32 from = (u32)((u64)a.kb * bidy() / nbidy()), to = (u32)((u64)a.kb * (bidy() + 1) / nbidy());
  u32 group = bid() * rw + side, off = g * 64 + ((t ^ ((g >> 1) & 3)) << 4);
  const u8* w = a.w + (u64)(group >> 3) * a.kb * 8192 + (group & 7) * 1024 + off;
  const u8* x = a.x + off;
  float c[NT][4];
#pragma unroll
  for (int j = 0; j < NT; j++) c[j][0] = c[j][1] = c[j][2] = c[j][3] = 0;
  V4 v[U][2];
  auto fetch = [&](int u, u32 kb) {
    load_weight_if(v[u][0], w + (u64)kb * 8192, kb < to);
    load_weight_if(v[u][1], w + (u64)kb * 8192 + 512, kb < to);
  };
#pragma unroll
  for (int u = 0; u < U; u++) {
    v[u][0] = v[u][1] = V4{0, 0, 0, 0};
    fetch(u, from + share + u * kw);
  }
  dependency_wait();
#pragma unroll 1
  for (u32 kb0 = from + share; kb0 < to; kb0 += U * kw) {
#pragma unroll
    for (int u = 0; u < U; u++) {
      u32 kb = kb0 + u * kw;
      if (kb < to) {
        const u8* xp = x + (u64)kb * 8192;
#pragma unroll
        for (int p = 0; p < P; p++)
#pragma unroll
          for (int j = 0; j < NT; j++) {
            V4 b = load4(xp + p * a.plane + j * 512);
            mma<W>(c[j], v[u][0].x, v[u][1].x, v[u][0].y, v[u][1].y, b.x, b.y);
            mma<W>(c[j], v[u][0].z, v[u][1].z, v[u][0].w, v[u][1].w, b.z, b.w);
          }
      }
      fetch(u, kb + U * kw);
    }
  }
  float* s = part + warp * (16 * NT * 8);
#pragma unroll
  for (int j = 0; j < NT; j++) {
    s[(j * 8 + t * 2) * 16 + g] = c[j][0];
    s[(j * 8 + t * 2 + 1) * 16 + g] = c[j][1];
    s[(j * 8 + t * 2) * 16 + g + 8] = c[j][2];
    s[(j * 8 + t * 2 + 1) * 16 + g + 8] = c[j][3];
  }
  barrier();
  if (a.mode == SILU) {
    for (u32 e = tid(); e < rw * 8 * NT * 8; e += 256) {
      u32 i = e & 7, r = (e >> 3) % rw, token = (e >> 3) / rw, row = (bid() * rw + r) * 16 + i;
      if ((int)token >= a.tokens || (int)row >= a.rows) continue;
      float gate = a.bias ? a.bias[row] : 0, up = a.bias ? a.bias[row + 8] : 0;
#pragma unroll 1
      for (u32 q = 0; q < kw; q++) {
        const float* p = part + ((q * rw + r) * NT * 8 + token) * 16 + i;
        gate += p[0], up += p[8];
      }
      put1(a.act, W, token, (bid() * rw + r) * 8 + i, a.act_kb, silu(gate) * up);
    }
    return;
  }
  for (u32 e = tid(); e < rw * 16 * NT * 8; e += 256) {
    u32 i = e & 15, r = (e >> 4) % rw, token = (e >> 4) / rw, row = (bid() * rw + r) * 16 + i;
    if ((int)token >= a.tokens || (int)row >= a.rows) continue;
    float v = 0;
    for (u32 q = 0; q < kw; q++) v += part[((q * rw + r) * NT * 8 + token) * 16 + i];
    a.out[bidy() * a.part_stride + (u64)token * a.ld + row] = v;
  }
}
#define SKINNY(name, W, NT, P)                                                                                                                        \
  KERNEL __launch_bounds__(256, 2) name(const u8* w, const u8* x, u64 plane, float* out, u64 part_stride, int mode, u8* act, u64 act_plane, int act_mode, \
                                        int act_kb, const float* bias, int tokens, int rows, int ld, int kb, int rw) {                                \
    skinny<W, NT, P>(Skinny{w, x, plane, out, part_stride, mode, Act{act, act_plane, act_mode}, act_kb, bias, tokens, rows, ld, kb, rw});             \
  }
#define SKINNIES(type, W)            \
  SKINNY(skinny8_##type, W, 1, 1)        \
  SKINNY(skinny16_##type, W, 2, 1)       \
  SKINNY(skinny32_##type, W, 4, 1)       \
  SKINNY(skinny64_##type, W, 8, 1)       \
  SKINNY(skinny8_split_##type, W, 1, 2)  \
  SKINNY(skinny16_split_##type, W, 2, 2) \
  SKINNY(skinny32_split_##type, W, 4, 2) \
  SKINNY(skinny64_split_##type, W, 8, 2)
SKINNIES(bf16, BF16)
SKINNIES(f16, F16)

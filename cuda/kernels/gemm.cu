// Many rows times a matrix: Y[t, n] = sum_k X[t, k] W[n, k], tiles of 128 x 128 on tensor cores (16-bit), of 64 x 64 without (float32). gridDim.y blocks share the columns
// and leave a part each.

struct Gemm {
  const u8 *x, *w;
  u64 plane;
  int planes;
  float* out;
  u64 part_stride;
  int mode; // STORE; SILU into act; ADD: out += y + bias
  Act act;
  int act_kb;
  const float* bias;
  int tokens, rows, ld, kb;
};

// tile_of maps a block's number to a tile: 8 tiles of tokens go together over all rows of W, so that both stay in L2.
DEV void tile_of(u32 b, u32 nt, u32 nn, u32& tile_t, u32& tile_n) {
  u32 band = b / (8 * nn), from = band * 8, size = nt - from < 8 ? nt - from : 8, in = b % (8 * nn);
  tile_t = from + in % size;
  tile_n = in / size;
}

DEV void matrix4(u32* r, u32 shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared) : "memory");
}

// A stage is two column blocks of 32 of both: 8 KiB each, x first.
template <int W> DEV void gemm16(const Gemm& a, u8* smem) {
  const int STAGES = 3;
  u32 lane = tid() & 31, warp = tid() >> 5, wt = (warp & 1) * 64, wn = (warp >> 1) * 64, tile_t, tile_n;
  tile_of(bid(), (a.tokens + 127) / 128, (a.rows + 127) / 128, tile_t, tile_n);
  u32 from = (u32)((u64)a.kb * bidy() / nbidy()), to = (u32)((u64)a.kb * (bidy() + 1) / nbidy());
  u32 span = to - from, half = (span + 1) / 2, steps = half * a.planes;
  const u8* xs = a.x + (u64)tile_t * a.kb * 8192;
  const u8* ws = a.w + (u64)tile_n * a.kb * 8192;
  u32 base = shared_address(smem);
  dependency_wait();
  auto fetch = [&](u32 step) {
    if (step < steps) {
      u32 s = base + (step % STAGES) * 32768, plane = step / half, kb = from + (step % half) * 2;
      const u8* xp = xs + plane * a.plane + (u64)kb * 8192;
      const u8* wp = ws + (u64)kb * 8192;
#pragma unroll
      for (u32 i = 0; i < 8; i++) {
        u32 at = (i * 128 + tid()) * 16;
        if (at < 8192 || kb + 1 < to) {
          copy16(s + at, xp + at);
          copy16(s + 16384 + at, wp + at);
        }
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  float c[4][8][4]; // a warp has 64 x 64
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 8; j++) c[i][j][0] = c[i][j][1] = c[i][j][2] = c[i][j][3] = 0;
  fetch(0);
  fetch(1);
  // Lane l of ldmatrix.x4 gives the address of row l%8 of matrix l/8.
  u32 r = lane & 7, m = lane >> 3;
  for (u32 step = 0; step < steps; step++) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    barrier();
    fetch(step + 2);
    u32 s = base + (step % STAGES) * 32768;
#pragma unroll
    for (u32 k = 0; k < 4; k++) { // 16 columns each
      if (k >= 2 && from + (step % half) * 2 + 1 >= to) break;
      u32 block = s + (k >> 1) * 8192, chunk = (k & 1) * 2;
      u32 x[4][4], w[4][4];
#pragma unroll
      for (u32 i = 0; i < 4; i++) { // matrices: rows 0-7 and 8-15 of the first chunk, then of the second
        u32 row = wt + i * 16 + (m & 1) * 8 + r, ch = chunk + (m >> 1);
        matrix4(x[i], block + (row >> 3) * 512 + r * 64 + ((ch ^ ((r >> 1) & 3)) << 4));
      }
#pragma unroll
      for (u32 j = 0; j < 4; j++) { // matrices: both chunks of rows 0-7, then of rows 8-15
        u32 row = wn + j * 16 + (m >> 1) * 8 + r, ch = chunk + (m & 1);
        matrix4(w[j], block + 16384 + (row >> 3) * 512 + r * 64 + ((ch ^ ((r >> 1) & 3)) << 4));
      }
#pragma unroll
      for (u32 i = 0; i < 4; i++)
#pragma unroll
        for (u32 j = 0; j < 8; j++) mma<W>(c[i][j], x[i][0], x[i][1], x[i][2], x[i][3], w[j >> 1][(j & 1) * 2], w[j >> 1][(j & 1) * 2 + 1]);
    }
  }
  u32 g = lane >> 2, t = lane & 3;
#pragma unroll
  for (u32 i = 0; i < 4; i++)
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
      u32 token = tile_t * 128 + wt + i * 16 + h * 8 + g;
      if ((int)token >= a.tokens) continue;
      if (a.mode == SILU) {
#pragma unroll
        for (u32 j = 0; j < 8; j += 2) {
          u32 row = tile_n * 128 + wn + j * 8 + t * 2, k = (row >> 4) * 8 + t * 2;
          if ((int)row >= a.rows) continue;
          float g0 = c[i][j][h * 2], g1 = c[i][j][h * 2 + 1], u0 = c[i][j + 1][h * 2], u1 = c[i][j + 1][h * 2 + 1];
          if (a.bias) g0 += a.bias[row], g1 += a.bias[row + 1], u0 += a.bias[row + 8], u1 += a.bias[row + 9];
          float v0 = silu(g0) * u0, v1 = silu(g1) * u1;
          u32 word = pack2<W>(v0, v1);
          u8* p = a.act.p + panel(token, k >> 3, a.act_kb) + (k & 7) * 2;
          *(u32*)p = word;
          if (a.act.mode == SPLIT) *(u32*)(p + a.act.plane) = pack2<W>(v0 - first<W>(word), v1 - second<W>(word));
        }
        continue;
      }
#pragma unroll
      for (u32 j = 0; j < 8; j++) {
        u32 row = tile_n * 128 + wn + j * 8 + t * 2;
        float* p = a.out + bidy() * a.part_stride + (u64)token * a.ld + row;
#pragma unroll
        for (u32 q = 0; q < 2; q++)
          if ((int)(row + q) < a.rows) p[q] = a.mode == ADD ? p[q] + c[i][j][h * 2 + q] + (a.bias ? a.bias[row + q] : 0) : c[i][j][h * 2 + q];
      }
    }
}

DEV void gemm32(const Gemm& a, float* smem) {
  float(*xs)[65] = (float(*)[65])smem;
  float(*ws)[65] = (float(*)[65])(smem + 16 * 65);
  u32 tx = tid() & 15, ty = tid() >> 4, tile_t, tile_n;
  tile_of(bid(), (a.tokens + 63) / 64, (a.rows + 63) / 64, tile_t, tile_n);
  u32 k = a.kb * 32, from = (u32)((u64)a.kb * bidy() / nbidy()) * 32, to = (u32)((u64)a.kb * (bidy() + 1) / nbidy()) * 32;
  u32 lr = tid() >> 2, lk = (tid() & 3) * 4;
  const float* xp = (const float*)a.x + (u64)(tile_t * 64 + lr) * k + lk;
  const float* wp = (const float*)a.w + (u64)(tile_n * 64 + lr) * k + lk;
  float c[4][4];
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) c[i][j] = 0;
  dependency_wait();
  for (u32 k0 = from; k0 < to; k0 += 16) {
    F4 x = loadf4(xp + k0), w = loadf4(wp + k0);
    barrier();
    xs[lk][lr] = x.x, xs[lk + 1][lr] = x.y, xs[lk + 2][lr] = x.z, xs[lk + 3][lr] = x.w;
    ws[lk][lr] = w.x, ws[lk + 1][lr] = w.y, ws[lk + 2][lr] = w.z, ws[lk + 3][lr] = w.w;
    barrier();
#pragma unroll
    for (int q = 0; q < 16; q++) {
      float xv[4], wv[4];
#pragma unroll
      for (int i = 0; i < 4; i++) xv[i] = xs[q][ty * 4 + i], wv[i] = ws[q][tx + 16 * i];
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) c[i][j] += xv[i] * wv[j];
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      u32 token = tile_t * 64 + ty * 4 + i, row = tile_n * 64 + tx + 16 * j;
      float v = c[i][j];
      bool in = (int)token < a.tokens && (int)row < a.rows;
      if (a.mode == SILU) {
        if (a.bias && in) v += a.bias[row];
        float up = shx(v, 8); // rows of the gate are tx 0-7, those of the up projection 8-15
        if (in && tx < 8) put1(a.act, F32, token, (row >> 4) * 8 + tx, a.act_kb, silu(v) * up);
      } else if (in) {
        float* p = a.out + bidy() * a.part_stride + (u64)token * a.ld + row;
        *p = a.mode == ADD ? *p + v + (a.bias ? a.bias[row] : 0) : v;
      }
    }
}
#define GEMM(name, threads, call, type)                                                                                                             \
  KERNEL __launch_bounds__(threads, 2) name(const u8* x, const u8* w, u64 plane, int planes, float* out, u64 part_stride, int mode, u8* act,      \
                                              u64 act_plane, int act_mode, int act_kb, const float* bias, int tokens, int rows, int ld, int kb) {     \
    extern __shared__ F4 dynamic[];                                                                                                                   \
    call(Gemm{x, w, plane, planes, out, part_stride, mode, Act{act, act_plane, act_mode}, act_kb, bias, tokens, rows, ld, kb}, (type*)dynamic);       \
  }
GEMM(gemm_f32, 256, gemm32, float)
GEMM(gemm_bf16, 128, gemm16<BF16>, u8)
GEMM(gemm_f16, 128, gemm16<F16>, u8)

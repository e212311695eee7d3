// Attention of prompts on tensor cores, over a float16 cache. A block takes up to 64 rows of one sequence and H query heads of one KV head; keys and values come in tiles
// of 64 tokens, later ones under way. Queries lie as query_at says, times scale and log2 e; keys and values are in the cache already.

struct Prefill {
  const u16* q;
  int heads, kv_heads;
  const u8 *k, *v;
  int block_size;
  u64 inverse;
  const int *positions, *seqs, *tables, *tiles; // tiles: first row and number of rows, for each block
  int max_blocks, window;
  Act out;
  int type, kb;
};

DEV void matrix4t(u32* r, u32 shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared) : "memory");
}
DEV void copy16_if(u32 shared, const void* p, bool read) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(p), "r"(read ? 16 : 0) : "memory");
}
// put_rows stores what a lane has of a head in a row and in the eighth after it.
template <int W, int D> DEV void put_rows(const Prefill& a, u32 row, bool first_too, bool second_too, int head, const float (*o)[4]) {
  u32 t = tid() & 3;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    if (!(h ? second_too : first_too)) continue;
    u32 words[D / 8];
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
      words[j] = pack2<W>(o[j][h * 2], o[j][h * 2 + 1]);
      *(u32*)(a.out.p + panel(row + h * 8, head * (D / 8) + j, a.kb) + t * 4) = words[j];
    }
    if (a.out.mode != SPLIT) continue;
#pragma unroll
    for (int j = 0; j < D / 8; j++)
      *(u32*)(a.out.p + a.out.plane + panel(row + h * 8, head * (D / 8) + j, a.kb) + t * 4) = pack2<W>(o[j][h * 2] - first<W>(words[j]), o[j][h * 2 + 1] - second<W>(words[j]));
  }
}
DEV float larger(float a, float b) { float r; asm("max.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; } // one instruction; of a NaN and a number the number

DEV u32 pack_halves(float a, float b) { u32 r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a)); return r; } // of small numbers

template <int D, int H, int BUFFERS> DEV void prefill(const Prefill& a, u8* smem) {
  const int TILE = 64, STRIDE = D * 2 + 16, SIZE = TILE * STRIDE; // bytes a row of shared memory; of a tile
  dependency_wait();
  u32 lane = tid() & 31, warp = tid() >> 5, g = lane >> 2, t = lane & 3, head = bidy() * H, kv = head / (a.heads / a.kv_heads);
  int row0 = a.tiles[2 * bid()], rows = a.tiles[2 * bid() + 1];
  int first_position = a.positions[row0], end = first_position + rows;
  int low = a.window > 0 && first_position + 1 > a.window ? (first_position + 1 - a.window) / TILE * TILE : 0;
  const int* table = a.tables + (u64)a.seqs[row0] * a.max_blocks;
  u32 base = shared_address(smem);
  // Two threads copy a token of the next tile, every other 16 bytes each. Where its block is is read a tile ahead.
  int block, offset, next = low, token = tid() >> 1, odd = tid() & 1;
  auto locate = [&]() {
    int use = next + token < end ? next + token : end - 1;
    u32 b = (u32)(((u64)use * a.inverse) >> 40);
    block = table[b], offset = use - b * a.block_size;
  };
  auto fetch = [&](u32 buffer) {
    if (next < end) {
      u64 from = ((((u64)block * a.kv_heads + kv) * a.block_size + offset) * D + odd * 8) * 2;
      u32 to = base + buffer * 2 * SIZE + token * STRIDE + odd * 16;
      bool in = next + token < end;
#pragma unroll
      for (int i = 0; i < D / 16; i++) {
        copy16_if(to + i * 32, a.k + from + i * 32, in);
        copy16_if(to + SIZE + i * 32, a.v + from + i * 32, in);
      }
      next += TILE;
      locate();
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  locate();
#pragma unroll
  for (u32 b = 0; b < BUFFERS - 1; b++) fetch(b);

  // The queries of rows g and g+8 of the warp's 16, as fragments.
  int ra = warp * 16 + g, rb = ra + 8;
  u32 qa[H][D / 8], qb[H][D / 8];
#pragma unroll
  for (int i = 0; i < H; i++)
#pragma unroll
    for (int m = 0; m < D / 16; m++) {
      U2 x = *(const U2*)(a.q + query_at(row0 + (ra < rows ? ra : rows - 1), a.heads, D, head + i, m, t));
      U2 y = *(const U2*)(a.q + query_at(row0 + (rb < rows ? rb : rows - 1), a.heads, D, head + i, m, t));
      qa[i][2 * m] = x.x, qa[i][2 * m + 1] = x.y, qb[i][2 * m] = y.x, qb[i][2 * m + 1] = y.y;
    }
  float o[H][D / 8][4], ma[H], mb[H], la[H], lb[H];
#pragma unroll
  for (int i = 0; i < H; i++) {
    ma[i] = mb[i] = -1e30f, la[i] = lb[i] = 0;
#pragma unroll
    for (int j = 0; j < D / 8; j++) o[i][j][0] = o[i][j][1] = o[i][j][2] = o[i][j][3] = 0;
  }
  u32 r8 = lane & 7, m = lane >> 3, buffer = 0;
  int pa = first_position + ra, pb = first_position + rb, least = first_position + warp * 16;
#pragma unroll 1
  for (int at = low; at < end; at += TILE) {
    asm volatile("cp.async.wait_group %0;" ::"n"(BUFFERS - 2) : "memory");
    barrier();
    fetch(buffer == 0 ? BUFFERS - 1 : buffer - 1); // what was read in the last turn
    u32 ks = base + buffer * 2 * SIZE, vs = ks + SIZE, p[H][4][4];
    buffer = buffer == BUFFERS - 1 ? 0 : buffer + 1;
    float s[H][8][4];
#pragma unroll
    for (int i = 0; i < H; i++)
#pragma unroll
      for (int j = 0; j < 8; j++) s[i][j][0] = s[i][j][1] = s[i][j][2] = s[i][j][3] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        u32 w[4];
        matrix4(w, ks + (j * 16 + (m >> 1) * 8 + r8) * STRIDE + (k * 2 + (m & 1)) * 16);
#pragma unroll
        for (int i = 0; i < H; i++) {
          mma<F16>(s[i][2 * j], qa[i][2 * k], qb[i][2 * k], qa[i][2 * k + 1], qb[i][2 * k + 1], w[0], w[1]);
          mma<F16>(s[i][2 * j + 1], qa[i][2 * k], qb[i][2 * k], qa[i][2 * k + 1], qb[i][2 * k + 1], w[2], w[3]);
        }
      }
    if (at + TILE > least + 1 || (a.window > 0 && at <= least + 15 - a.window)) { // some row of the warp may not see some of it
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          int pos = at + j * 8 + t * 2 + e;
          bool no_a = pos > pa || (a.window > 0 && pos <= pa - a.window), no_b = pos > pb || (a.window > 0 && pos <= pb - a.window);
#pragma unroll
          for (int i = 0; i < H; i++) {
            if (no_a) s[i][j][e] = -1e30f;
            if (no_b) s[i][j][2 + e] = -1e30f;
          }
        }
    }
#pragma unroll
    for (int i = 0; i < H; i++) {
      float ta = ma[i], tb = mb[i];
#pragma unroll
      for (int j = 0; j < 8; j++) ta = larger(ta, larger(s[i][j][0], s[i][j][1])), tb = larger(tb, larger(s[i][j][2], s[i][j][3]));
      ta = larger(ta, shx(ta, 1)), ta = larger(ta, shx(ta, 2)), tb = larger(tb, shx(tb, 1)), tb = larger(tb, shx(tb, 2));
      float za = ta < -1e29f ? 0 : ta, zb = tb < -1e29f ? 0 : tb; // a row that has seen nothing: its scores stay far below
      float fa = ex2(ma[i] - za), fb = ex2(mb[i] - zb);
      la[i] *= fa, lb[i] *= fb, ma[i] = ta, mb[i] = tb;
#pragma unroll
      for (int j = 0; j < D / 8; j++) o[i][j][0] *= fa, o[i][j][1] *= fa, o[i][j][2] *= fb, o[i][j][3] *= fb;
#pragma unroll
      for (int j = 0; j < 8; j++) {
        float* x = s[i][j];
        x[0] = ex2(x[0] - za), x[1] = ex2(x[1] - za), x[2] = ex2(x[2] - zb), x[3] = ex2(x[3] - zb);
        la[i] += x[0] + x[1], lb[i] += x[2] + x[3];
        p[i][j >> 1][(j & 1) * 2] = pack_halves(x[0], x[1]), p[i][j >> 1][(j & 1) * 2 + 1] = pack_halves(x[2], x[3]);
      }
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
#pragma unroll
      for (int j = 0; j < D / 16; j++) {
        u32 w[4];
        matrix4t(w, vs + (k * 16 + (m & 1) * 8 + r8) * STRIDE + (j * 2 + (m >> 1)) * 16);
#pragma unroll
        for (int i = 0; i < H; i++) {
          mma<F16>(o[i][2 * j], p[i][k][0], p[i][k][1], p[i][k][2], p[i][k][3], w[0], w[1]);
          mma<F16>(o[i][2 * j + 1], p[i][k][0], p[i][k][1], p[i][k][2], p[i][k][3], w[2], w[3]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < H; i++) {
    la[i] += shx(la[i], 1), la[i] += shx(la[i], 2), lb[i] += shx(lb[i], 1), lb[i] += shx(lb[i], 2);
    float ia = divide(1, la[i]), ib = divide(1, lb[i]);
#pragma unroll
    for (int j = 0; j < D / 8; j++) o[i][j][0] *= ia, o[i][j][1] *= ia, o[i][j][2] *= ib, o[i][j][3] *= ib;
    if (a.type == BF16) put_rows<BF16, D>(a, row0 + ra, ra < rows, rb < rows, head + i, o[i]);
    else put_rows<F16, D>(a, row0 + ra, ra < rows, rb < rows, head + i, o[i]);
  }
}
#define PREFILL(name, BLOCKS, ...)                                                                                                                     \
  KERNEL __launch_bounds__(128, BLOCKS) name(const u16* q, int heads, int kv_heads, const u8* k, const u8* v, int block_size, u64 inverse, const int* positions, \
                                             const int* seqs, const int* tables, int max_blocks, int window, const int* tiles, u8* out, u64 plane, int mode, int type, int kb) { \
    extern __shared__ F4 dynamic[];                                                                                                                    \
    prefill<__VA_ARGS__>(Prefill{q, heads, kv_heads, k, v, block_size, inverse, positions, seqs, tables, tiles, max_blocks, window, Act{out, plane, mode}, type, kb}, (u8*)dynamic); \
  }
PREFILL(prefill_64, 4, 64, 1, 2)
PREFILL(prefill_64_2, 2, 64, 2, 2)
PREFILL(prefill_80, 3, 80, 1, 2)
PREFILL(prefill_96, 3, 96, 1, 2)
PREFILL(prefill_128, 3, 128, 1, 2)

// Attention of prompts on tensor cores, over a float16 cache. A block takes up to 64 rows of one sequence and H query heads of one KV head; keys and values come in tiles
// of 64 tokens, later ones under way. Queries come as parts of their product and are added up, normalized and rotated here; keys and values are in the cache already.

struct Prefill {
  const int *positions, *seqs, *tables, *tiles; // tiles: first row and number of rows, for each block
  int max_blocks, window;
  float scale;
  Act out;
  int type, kb;
};

DEV void matrix4t(u32* r, u32 shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared) : "memory");
}
DEV void copy16_if(u32 shared, const void* p, bool read) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(p), "r"(read ? 16 : 0) : "memory");
}
DEV void put2(const Act& a, int w, u32 row, u32 k, u32 kb, float x, float y) {
  u8* p = a.p + panel(row, k >> 3, kb) + (k & 7) * 2;
  u32 word = w == BF16 ? pack2<BF16>(x, y) : pack2<F16>(x, y);
  *(u32*)p = word;
  if (a.mode != SPLIT) return;
  if (w == BF16) *(u32*)(p + a.plane) = pack2<BF16>(x - first<BF16>(word), y - second<BF16>(word));
  else *(u32*)(p + a.plane) = pack2<F16>(x - first<F16>(word), y - second<F16>(word));
}
struct __attribute__((aligned(8))) F2 { float x, y; };
DEV float larger(float a, float b) { float r; asm("max.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; } // one instruction; of a NaN and a number the number

// query is a row of a head as the quad of lanes needs it for fragments: lane t has columns 8i + 2t and the next, in float16 and times by. Half a head is whole blocks of 8.
template <int D> DEV void query(const Heads& h, u32 row, int head, int position, float by, u32* q) {
  const int N = D / 8, half = D / 2;
  u32 t = tid() & 3;
  const float *p = h.qkv + (u64)row * h.ld + head * D + t * 2, *cos = h.cos + (u64)position * half + t * 2, *sin = h.sin + (u64)position * half + t * 2;
  F2 x[N];
#pragma unroll
  for (int i = 0; i < N; i++) x[i] = *(const F2*)(p + i * 8);
#pragma unroll 1
  for (int s = 1; s < h.nparts; s++) {
    p += h.part_stride;
#pragma unroll
    for (int i = 0; i < N; i++) {
      F2 y = *(const F2*)(p + i * 8);
      x[i].x += y.x, x[i].y += y.y;
    }
  }
  if (h.bias) {
#pragma unroll
    for (int i = 0; i < N; i++) x[i].x += h.bias[head * D + i * 8 + t * 2], x[i].y += h.bias[head * D + i * 8 + t * 2 + 1];
  }
  if (h.q_norm) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++) sum += x[i].x * x[i].x + x[i].y * x[i].y;
    sum += shx(sum, 1), sum += shx(sum, 2);
    float scale = rsqrt(sum / D + h.eps);
#pragma unroll
    for (int i = 0; i < N; i++) x[i].x *= scale * h.q_norm[i * 8 + t * 2], x[i].y *= scale * h.q_norm[i * 8 + t * 2 + 1];
  }
#pragma unroll
  for (int i = 0; i < N / 2; i++) {
    F2 c = *(const F2*)(cos + i * 8), s = *(const F2*)(sin + i * 8), a = x[i], b = x[i + N / 2];
    q[i] = pack2<F16>((a.x * c.x - b.x * s.x) * by, (a.y * c.y - b.y * s.y) * by);
    q[i + N / 2] = pack2<F16>((b.x * c.x + a.x * s.x) * by, (b.y * c.y + a.y * s.y) * by);
  }
}

template <int D, int H, int BUFFERS> DEV void prefill(const Heads& h, const Cache& c, const Prefill& a, u8* smem) {
  const int TILE = 64, STRIDE = D * 2 + 16, SIZE = TILE * STRIDE, CHUNKS = D / 8, MINE = TILE * CHUNKS / 128; // bytes a row of shared memory; of a tile; 16-byte chunks a row; a thread
  dependency_wait();
  u32 lane = tid() & 31, warp = tid() >> 5, g = lane >> 2, t = lane & 3, head = bidy() * H, kv = head / (h.heads / h.kv_heads);
  int row0 = a.tiles[2 * bid()], rows = a.tiles[2 * bid() + 1];
  int first_position = a.positions[row0], end = first_position + rows;
  int low = a.window > 0 && first_position + 1 > a.window ? (first_position + 1 - a.window) / TILE * TILE : 0;
  const int* table = a.tables + (u64)a.seqs[row0] * a.max_blocks;
  u32 base = shared_address(smem);
  // What a thread copies of the next tile: where its tokens' blocks are is read a tile ahead.
  int block[MINE], offset[MINE], next = low;
  auto locate = [&]() {
#pragma unroll
    for (int m = 0; m < MINE; m++) {
      int pos = next + (int)(m * 128 + tid()) / CHUNKS, use = pos < end ? pos : end - 1;
      u32 b = (u32)(((u64)use * c.inverse) >> 40);
      block[m] = table[b], offset[m] = use - b * c.block_size;
    }
  };
  auto fetch = [&](u32 buffer) {
    if (next < end) {
#pragma unroll
      for (int m = 0; m < MINE; m++) {
        int token = (int)(m * 128 + tid()) / CHUNKS, chunk = (int)(m * 128 + tid()) % CHUNKS;
        u64 from = ((((u64)block[m] * h.kv_heads + kv) * c.block_size + offset[m]) * D + chunk * 8) * 2;
        u32 to = base + buffer * 2 * SIZE + token * STRIDE + chunk * 16;
        copy16_if(to, c.k + from, next + token < end);
        copy16_if(to + SIZE, c.v + from, next + token < end);
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
  const float by = a.scale * 1.44269504f;
#pragma unroll
  for (int i = 0; i < H; i++) {
    int ca = ra < rows ? ra : rows - 1, cb = rb < rows ? rb : rows - 1;
    query<D>(h, row0 + ca, head + i, first_position + ca, by, qa[i]);
    query<D>(h, row0 + cb, head + i, first_position + cb, by, qb[i]);
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
        p[i][j >> 1][(j & 1) * 2] = pack2<F16>(x[0], x[1]), p[i][j >> 1][(j & 1) * 2 + 1] = pack2<F16>(x[2], x[3]);
      }
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
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
#pragma unroll
  for (int i = 0; i < H; i++) {
    la[i] += shx(la[i], 1), la[i] += shx(la[i], 2), lb[i] += shx(lb[i], 1), lb[i] += shx(lb[i], 2);
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
      u32 k = (head + i) * D + j * 8 + t * 2;
      if (ra < rows) put2(a.out, a.type, row0 + ra, k, a.kb, divide(o[i][j][0], la[i]), divide(o[i][j][1], la[i]));
      if (rb < rows) put2(a.out, a.type, row0 + rb, k, a.kb, divide(o[i][j][2], lb[i]), divide(o[i][j][3], lb[i]));
    }
  }
}
#define PREFILL(name, BLOCKS, ...)                                                                                                                     \
  KERNEL __launch_bounds__(128, BLOCKS) name(HEADS, const int* seqs, const int* tables, int max_blocks, int window, float scale, const int* tiles, u8* out, \
                                             u64 plane, int mode, int type, int kb) {                                                                  \
    extern __shared__ F4 dynamic[];                                                                                                                    \
    prefill<__VA_ARGS__>(HEADS_AND_CACHE, Prefill{positions, seqs, tables, tiles, max_blocks, window, scale, Act{out, plane, mode}, type, kb}, (u8*)dynamic); \
    (void)slots;                                                                                                                                       \
  }
PREFILL(prefill_64, 3, 64, 1, 2)
PREFILL(prefill_64_2, 2, 64, 2, 2)
PREFILL(prefill_80, 2, 80, 1, 2)
PREFILL(prefill_96, 2, 96, 1, 2)
PREFILL(prefill_128, 2, 128, 1, 2)

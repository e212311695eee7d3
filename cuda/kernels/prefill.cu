// Attention of prompts on tensor cores, over a float16 cache. A block takes up to 64 rows of one sequence and one query head; keys and values come in tiles of 64
// tokens, the next one under way. Rows are what rope left in qkv.

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

template <int D> DEV void prefill(const Heads& h, const Cache& c, const Prefill& a, u8* smem) {
  const int TILE = 64, STRIDE = D * 2 + 16, SIZE = TILE * STRIDE, CHUNKS = D / 8; // bytes a row of shared memory; of a tile; 16-byte chunks a row
  dependency_wait();
  u32 lane = tid() & 31, warp = tid() >> 5, g = lane >> 2, t = lane & 3, head = bidy(), kv = head / (h.heads / h.kv_heads);
  int row0 = a.tiles[2 * bid()], rows = a.tiles[2 * bid() + 1];
  int first_position = a.positions[row0], end = first_position + rows;
  int low = a.window > 0 && first_position + 1 > a.window ? (first_position + 1 - a.window) / TILE * TILE : 0;
  const int* table = a.tables + (u64)a.seqs[row0] * a.max_blocks;
  u32 base = shared_address(smem);
  auto fetch = [&](int at, u32 buffer) {
    if (at < end) {
#pragma unroll
      for (int i = tid(); i < TILE * CHUNKS; i += 128) {
        int token = i / CHUNKS, chunk = i % CHUNKS, pos = at + token;
        bool in = pos < end;
        u32 use = in ? pos : at, block = (u32)(((u64)use * c.inverse) >> 40);
        u64 from = ((((u64)table[block] * h.kv_heads + kv) * c.block_size + (use - block * c.block_size)) * D + chunk * 8) * 2;
        u32 to = base + buffer * 2 * SIZE + token * STRIDE + chunk * 16;
        copy16_if(to, c.k + from, in);
        copy16_if(to + SIZE, c.v + from, in);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  fetch(low, 0);

  // The queries of rows g and g+8 of the warp's 16, as fragments.
  int ra = warp * 16 + g, rb = ra + 8;
  u32 q[D / 16][4];
  const float by = a.scale * 1.44269504f;
#pragma unroll
  for (int k = 0; k < D / 16; k++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      int r = j & 1 ? rb : ra;
      const float* p = h.qkv + (u64)(row0 + (r < rows ? r : rows - 1)) * h.ld + head * D + k * 16 + (j >> 1) * 8 + t * 2;
      q[k][j] = pack2<F16>(p[0] * by, p[1] * by);
    }
  float o[D / 8][4], ma = -1e30f, mb = -1e30f, la = 0, lb = 0;
#pragma unroll
  for (int j = 0; j < D / 8; j++) o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0;
  u32 r8 = lane & 7, m = lane >> 3, buffer = 0;
  int pa = first_position + ra, pb = first_position + rb;
#pragma unroll 1
  for (int at = low; at < end; at += TILE, buffer ^= 1) {
    fetch(at + TILE, buffer ^ 1);
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    barrier();
    u32 ks = base + buffer * 2 * SIZE, vs = ks + SIZE;
    float s[8][4];
#pragma unroll
    for (int j = 0; j < 8; j++) s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        u32 w[4];
        matrix4(w, ks + (j * 16 + (m >> 1) * 8 + r8) * STRIDE + (k * 2 + (m & 1)) * 16);
        mma<F16>(s[2 * j], q[k][0], q[k][1], q[k][2], q[k][3], w[0], w[1]);
        mma<F16>(s[2 * j + 1], q[k][0], q[k][1], q[k][2], q[k][3], w[2], w[3]);
      }
    float ta = ma, tb = mb;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        int pos = at + j * 8 + t * 2 + e;
        if (pos > pa || (a.window > 0 && pos <= pa - a.window)) s[j][e] = -1e30f;
        if (pos > pb || (a.window > 0 && pos <= pb - a.window)) s[j][2 + e] = -1e30f;
        ta = fmax2(ta, s[j][e]), tb = fmax2(tb, s[j][2 + e]);
      }
    ta = fmax2(ta, shx(ta, 1)), ta = fmax2(ta, shx(ta, 2)), tb = fmax2(tb, shx(tb, 1)), tb = fmax2(tb, shx(tb, 2));
    float fa = ex2(ma - ta), fb = ex2(mb - tb);
    la *= fa, lb *= fb, ma = ta, mb = tb;
#pragma unroll
    for (int j = 0; j < D / 8; j++) o[j][0] *= fa, o[j][1] *= fa, o[j][2] *= fb, o[j][3] *= fb;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int e = 0; e < 2; e++) { // a masked score is far below every maximum but that of a row that has seen nothing
        s[j][e] = s[j][e] > -1e29f ? ex2(s[j][e] - ta) : 0, s[j][2 + e] = s[j][2 + e] > -1e29f ? ex2(s[j][2 + e] - tb) : 0;
        la += s[j][e], lb += s[j][2 + e];
      }
#pragma unroll
    for (int k = 0; k < 4; k++) {
      u32 p0 = pack2<F16>(s[2 * k][0], s[2 * k][1]), p1 = pack2<F16>(s[2 * k][2], s[2 * k][3]);
      u32 p2 = pack2<F16>(s[2 * k + 1][0], s[2 * k + 1][1]), p3 = pack2<F16>(s[2 * k + 1][2], s[2 * k + 1][3]);
#pragma unroll
      for (int j = 0; j < D / 16; j++) {
        u32 w[4];
        matrix4t(w, vs + (k * 16 + (m & 1) * 8 + r8) * STRIDE + (j * 2 + (m >> 1)) * 16);
        mma<F16>(o[2 * j], p0, p1, p2, p3, w[0], w[1]);
        mma<F16>(o[2 * j + 1], p0, p1, p2, p3, w[2], w[3]);
      }
    }
    barrier();
  }
  la += shx(la, 1), la += shx(la, 2), lb += shx(lb, 1), lb += shx(lb, 2);
#pragma unroll
  for (int j = 0; j < D / 8; j++) {
    u32 k = head * D + j * 8 + t * 2;
    if (ra < rows) put2(a.out, a.type, row0 + ra, k, a.kb, divide(o[j][0], la), divide(o[j][1], la));
    if (rb < rows) put2(a.out, a.type, row0 + rb, k, a.kb, divide(o[j][2], lb), divide(o[j][3], lb));
  }
}
#define PREFILL(D)                                                                                                                                     \
  KERNEL __launch_bounds__(128, 2) prefill_##D(HEADS, const int* seqs, const int* tables, int max_blocks, int window, float scale, const int* tiles, u8* out, \
                                               u64 plane, int mode, int type, int kb) {                                                                \
    extern __shared__ F4 dynamic[];                                                                                                                    \
    prefill<D>(HEADS_AND_CACHE, Prefill{positions, seqs, tables, tiles, max_blocks, window, scale, Act{out, plane, mode}, type, kb}, (u8*)dynamic);    \
    (void)slots;                                                                                                                                       \
  }
PREFILL(64)
PREFILL(80)
PREFILL(96)
PREFILL(128)

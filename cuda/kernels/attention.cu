// Rotary embeddings, the paged KV cache and attention over it.
//
// The cache of a layer is [block][KV head][offset in block][head size, padded to 8], keys and values apart, float32 or float16; the padding is zero.

struct Heads {
  float* qkv; // [part][row][ld]: q, k and v heads side by side
  int nparts;
  u64 part_stride;
  int ld;
  const float* bias;             // of q, k, v
  const float *q_norm, *k_norm;  // or nullptr
  float eps;
  const float *cos, *sin;        // [position][head size / 2]
  int heads, kv_heads, dim;
};

struct Cache {
  u8 *k, *v;
  int block_size, pad; // pad: head size in the cache
  u64 inverse;         // 2^40 / block_size, rounded up: i / block_size is i * inverse >> 40 for i below 2^28
};

template <int KV> DEV void put_cache(u8* c, u64 i, float v) {
  if (KV == F32) ((float*)c)[i] = v;
  else ((u16*)c)[i] = (u16)pack2<F16>(v, 0);
}
DEV u64 cache_at(const Cache& c, int kv_heads, int slot, int head) {
  u32 block = (u32)(((u64)slot * c.inverse) >> 40);
  return (((u64)block * kv_heads + head) * c.block_size + (slot - block * c.block_size)) * c.pad;
}

// NP is the number of pairs that a lane holds: 32*NP is at least half a head. One warp has a head of a row: lane l has elements l+32i in a, and those half a head further
// in b. column is the head's first in a row of qkv.

// begin_head reads the first part.
template <int NP> DEV void begin_head(const Heads& h, u32 row, int column, float* a, float* b) {
  u32 lane = tid() & 31;
  int half = h.dim / 2;
  const float* p = h.qkv + (u64)row * h.ld + column + lane;
#pragma unroll
  for (int i = 0; i < NP; i++) {
    bool in = (int)lane + 32 * i < half;
    a[i] = in ? p[32 * i] : 0, b[i] = in ? p[32 * i + half] : 0;
  }
}

// Turn is a position's rotation, as far as a lane needs it.
template <int NP> struct Turn { float cos[NP], sin[NP]; };
template <int NP> DEV Turn<NP> turn_of(const Heads& h, int position) {
  Turn<NP> t;
  int half = h.dim / 2;
#pragma unroll
  for (int i = 0; i < NP; i++) {
    int e = (tid() & 31) + 32 * i;
    u64 at = (u64)position * half + e;
    t.cos[i] = e < half ? h.cos[at] : 0, t.sin[i] = e < half ? h.sin[at] : 0;
  }
  return t;
}

// end_head adds the other parts and the bias, normalizes and, if it is to, rotates.
template <int NP> DEV void end_head(const Heads& h, u32 row, int column, const float* norm, bool rotate, const Turn<NP>& turn, float* a, float* b) {
  u32 lane = tid() & 31;
  int half = h.dim / 2;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < NP; i++) {
    int e = lane + 32 * i;
    if (e >= half) continue;
    const float* p = h.qkv + (u64)row * h.ld + column + e;
#pragma unroll 1
    for (int s = 1; s < h.nparts; s++) p += h.part_stride, a[i] += p[0], b[i] += p[half];
    if (h.bias) a[i] += h.bias[column + e], b[i] += h.bias[column + e + half];
    sum += a[i] * a[i] + b[i] * b[i];
  }
  if (norm) {
#pragma unroll
    for (int m = 16; m; m >>= 1) sum += shx(sum, m);
    float scale = rsqrt(sum / h.dim + h.eps);
#pragma unroll
    for (int i = 0; i < NP; i++) {
      int e = lane + 32 * i;
      if (e < half) a[i] *= scale * norm[e], b[i] *= scale * norm[e + half];
    }
  }
  if (!rotate) return;
#pragma unroll
  for (int i = 0; i < NP; i++) {
    float c = turn.cos[i], s = turn.sin[i], x = a[i], y = b[i];
    a[i] = x * c - y * s, b[i] = y * c + x * s;
  }
}

// store_kv writes head kv of a row's keys or values to the cache, with zeros behind it.
template <int KV, int NP> DEV void store_kv(u8* c, u64 at, int dim, int pad, const float* a, const float* b) {
  u32 lane = tid() & 31;
#pragma unroll
  for (int i = 0; i < NP; i++) {
    int e = lane + 32 * i;
    if (e < dim / 2) put_cache<KV>(c, at + e, a[i]), put_cache<KV>(c, at + e + dim / 2, b[i]);
  }
  if ((int)lane < pad - dim) put_cache<KV>(c, at + dim + lane, 0);
}

// Queries of prompts are float16, times a scale, in the order in which tensor cores take them: of a head's columns 16m + 8j + 2t + e (j, e: 0 or 1; t below 4) those of
// (m, t) lie together. query_at is where they begin, in elements.
DEV u64 query_at(u32 row, int heads, int dim, int head, u32 m, u32 t) { return ((u64)row * heads + head) * dim + (m * 4 + t) * 4; }

// rope: queries are rotated in place (in part 0) or go to out, times by; keys and values go to the cache. A warp has a head of ROWS rows, all read before the first is
// needed; grid (rows/ROWS, heads/4).
template <int KV> DEV void rope(const Heads& h, const Cache& c, const int* positions, const int* slots, u16* out, float by, int rows) {
  const int NP = 4, ROWS = 4;
  dependency_wait();
  int row0 = bid() * ROWS, head = bidy() * 4 + (tid() >> 5), lane = tid() & 31;
  if (head >= h.heads + 2 * h.kv_heads) return;
  bool q = head < h.heads, k = !q && head < h.heads + h.kv_heads;
  float a[ROWS][NP], b[ROWS][NP];
  int position[ROWS], slot[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    int row = row0 + r < rows ? row0 + r : rows - 1;
    position[r] = positions[row], slot[r] = slots[row];
    begin_head<NP>(h, row, head * h.dim, a[r], b[r]);
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    int row = row0 + r;
    if (row >= rows || position[r] < 0) continue;
    end_head<NP>(h, row, head * h.dim, q ? h.q_norm : k ? h.k_norm : nullptr, q || k, turn_of<NP>(h, position[r]), a[r], b[r]);
    if (!q) {
      store_kv<KV, NP>(k ? c.k : c.v, cache_at(c, h.kv_heads, slot[r], head - h.heads - (k ? 0 : h.kv_heads)), h.dim, c.pad, a[r], b[r]);
      continue;
    }
    float* p = h.qkv + (u64)row * h.ld + head * h.dim;
    auto put = [&](int e, float v) {
      if (out) out[query_at(row, h.heads, h.dim, head, e >> 4, (e >> 1) & 3) + ((e >> 3) & 1) * 2 + (e & 1)] = (u16)pack2<F16>(v * by, 0);
      else p[e] = v;
    };
#pragma unroll
    for (int i = 0; i < NP; i++)
      if (lane + 32 * i < h.dim / 2) put(lane + 32 * i, a[r][i]), put(lane + 32 * i + h.dim / 2, b[r][i]);
  }
}

struct Attention {
  const int *positions, *slots, *seqs; // of each row; a position of -1 is no row. seqs: nullptr when row i is sequence i
  const int* tables;                   // [sequence][max_blocks]
  int max_blocks, window;
  float scale;
  int fused; // rows are new tokens whose heads are still in parts: this kernel does what rope does
  Act out;
  int type, kb;
  float* partial; // [row][KV head][group of heads][split][G][pad + 2]
  u32* done;      // [row][KV head][group of heads], 0 before and after
};

// Raw is 8 elements of the cache as they lie there.
template <int KV> struct Raw { V4 a[KV == F32 ? 2 : 1]; };
template <int KV> DEV Raw<KV> get_raw(const u8* c, u64 at) {
  Raw<KV> r;
  r.a[0] = load4(c + at * (KV == F32 ? 4 : 2));
  if (KV == F32) r.a[KV == F32] = load4(c + at * 4 + 16);
  return r;
}
template <int KV> DEV void unpack8(const Raw<KV>& r, float* f) {
  const V4& v = r.a[0];
  if (KV == F32) {
    const V4& w = r.a[KV == F32];
    f[0] = asf(v.x), f[1] = asf(v.y), f[2] = asf(v.z), f[3] = asf(v.w), f[4] = asf(w.x), f[5] = asf(w.y), f[6] = asf(w.z), f[7] = asf(w.w);
  } else {
    f[0] = first<F16>(v.x), f[1] = second<F16>(v.x), f[2] = first<F16>(v.y), f[3] = second<F16>(v.y);
    f[4] = first<F16>(v.z), f[5] = second<F16>(v.z), f[6] = first<F16>(v.w), f[7] = second<F16>(v.w);
  }
}
template <int KV> DEV float as_cached(float v) { return KV == F32 ? v : half_to_float((u16)pack2<F16>(v, 0)); }

// attend: one row, one KV head and up to G of its query heads, one of gridDim.z shares of the context; grid (rows, KV heads * groups, splits). LPT lanes hold a
// token's head, 8 elements each; the block's warps take turns, of U tokens a lane. What a turn reads is under way during the one before. The last share to finish adds all
// up, in order.
template <int KV, int LPT, int G> DEV void attend(const Heads& h, const Cache& c, const Attention& a, float* smem) {
  const int TPW = 32 / LPT, U = G == 1 && KV == F16 ? 6 : 2, P = LPT * 8, NP = P < 128 ? 1 : P / 64;
  u32 warps = ntid() >> 5;
  // What a fused step reads first, its inputs and the tokens of earlier steps, was there before the kernel ahead of this one began.
  if (a.fused) let_dependents();
  else dependency_wait();
  u32 row = bid(), lane = tid() & 31, warp = tid() >> 5, sub = lane / LPT, d8 = lane % LPT * 8;
  int per_kv = h.heads / h.kv_heads, groups = (per_kv + G - 1) / G, kv = bidy() / groups, part = bidy() % groups;
  int head0 = kv * per_kv + part * G, n = per_kv - part * G < G ? per_kv - part * G : G;
  int position = a.positions[row];
  float *q = smem, *fresh = q + G * c.pad, *o = fresh + 2 * c.pad, *ml = o + warps * G * c.pad; // fresh: the new key and value
  if (position < 0) {
    if (a.fused) dependency_wait();
    return;
  }
  u32 splits = nbidz();
  int context = position + 1, low = a.window > 0 && context > a.window ? context - a.window : 0;
  int per = (context - low + splits - 1) / splits;
  int from = low + (int)bidz() * per, to = from + per < context ? from + per : context;
  const int* table = a.tables + (u64)(a.seqs ? a.seqs[row] : row) * a.max_blocks;
  const float log2e = 1.44269504f;

  // The new token of a fused step comes from shared memory, the others from the cache.
  bool owner = a.fused && from < context && to == context, in = (int)d8 < c.pad;
  if (owner) to--;
  const int step = warps * TPW;
  Raw<KV> rk[U], rv[U];
  auto fetch = [&](int u, int t) {
    if (t < to && in) {
      u32 block = (u32)(((u64)t * c.inverse) >> 40);
      u64 at = (((u64)table[block] * h.kv_heads + kv) * c.block_size + (t - block * c.block_size)) * c.pad + d8;
      rk[u] = get_raw<KV>(c.k, at), rv[u] = get_raw<KV>(c.v, at);
    } else {
#pragma unroll
      for (int j = 0; j < (KV == F32 ? 2 : 1); j++) rk[u].a[j] = rv[u].a[j] = V4{0, 0, 0, 0};
    }
  };
  int t0 = from + warp * TPW + sub;
#pragma unroll
  for (int u = 0; u < U; u++) fetch(u, t0 + u * step);

  Turn<NP> turn;
  int slot = 0;
  if (a.fused) {
    turn = turn_of<NP>(h, position), slot = a.slots[row];
    dependency_wait();
  }

  // The queries, scaled, into shared memory; the new key and value as well, and into the cache by the block whose share has them.
#pragma unroll 1
  for (int i = warp; i < n + (owner ? 2 : 0); i += warps) {
    float x[NP], y[NP];
    bool is_q = i < n, is_k = i == n;
    int column = is_q ? (head0 + i) * h.dim : (h.heads + kv + (is_k ? 0 : h.kv_heads)) * h.dim, half = h.dim / 2;
    float by = is_q ? a.scale * log2e : 1;
    float* to_shared = is_q ? q + i * c.pad : is_k ? fresh : fresh + c.pad;
    if (a.fused) {
      begin_head<NP>(h, row, column, x, y);
      end_head<NP>(h, row, column, is_q ? h.q_norm : is_k ? h.k_norm : nullptr, is_q || is_k, turn, x, y);
    }
    if (!is_q) store_kv<KV, NP>(is_k ? c.k : c.v, cache_at(c, h.kv_heads, slot, kv), h.dim, c.pad, x, y);
#pragma unroll
    for (int j = 0; j < NP; j++) {
      int e = lane + 32 * j;
      if (e >= half) continue;
      if (!a.fused) {
        const float* p = h.qkv + (u64)row * h.ld + column + e;
        x[j] = p[0], y[j] = p[half];
      }
      to_shared[e] = is_q ? x[j] * by : as_cached<KV>(x[j]);
      to_shared[e + half] = is_q ? y[j] * by : as_cached<KV>(y[j]);
    }
    if ((int)lane < c.pad - h.dim) to_shared[h.dim + lane] = 0;
  }
  barrier();

  float qf[G][8], acc[G][8], m[G], l[G];
  bool newest = owner && warp == 0 && sub == 0;
#pragma unroll
  for (int g = 0; g < G; g++) {
    float s = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      qf[g][j] = in && g < n ? q[g * c.pad + d8 + j] : 0;
      if (newest && in) s += qf[g][j] * fresh[d8 + j];
      acc[g][j] = newest && in ? fresh[c.pad + d8 + j] : 0;
    }
#pragma unroll
    for (int x = 1; x < LPT; x <<= 1) s += shx(s, x);
    m[g] = newest ? s : -1e30f, l[g] = newest ? 1 : 0;
  }
#pragma unroll 1
  for (; t0 - (int)sub < to; t0 += step * U) {
#pragma unroll
    for (int u = 0; u < U; u++) {
      if (t0 - (int)sub + u * step >= to) break; // none of the warp's
      float kf[8], vf[8];
      unpack8<KV>(rk[u], kf);
      unpack8<KV>(rv[u], vf);
      bool ok = t0 + u * step < to;
      fetch(u, t0 + (u + U) * step);
#pragma unroll
      for (int g = 0; g < G; g++) {
        float s = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) s += qf[g][j] * kf[j];
#pragma unroll
        for (int x = 1; x < LPT; x <<= 1) s += shx(s, x);
        if (!ok) s = -1e30f;
        float top = fmax2(s, m[g]), fade = ex2(m[g] - top), p = ok ? ex2(s - top) : 0;
        l[g] = l[g] * fade + p, m[g] = top;
#pragma unroll
        for (int j = 0; j < 8; j++) acc[g][j] = acc[g][j] * fade + p * vf[j];
      }
    }
  }
  // Over the tokens of a warp, then over the warps.
#pragma unroll
  for (int g = 0; g < G; g++) {
#pragma unroll
    for (int x = LPT; x < 32; x <<= 1) {
      float om = shx(m[g], x), ol = shx(l[g], x), top = fmax2(om, m[g]), fade = ex2(m[g] - top), ofade = ex2(om - top);
      l[g] = l[g] * fade + ol * ofade, m[g] = top;
#pragma unroll
      for (int j = 0; j < 8; j++) acc[g][j] = acc[g][j] * fade + shx(acc[g][j], x) * ofade;
    }
    if (sub == 0 && in) {
#pragma unroll
      for (int j = 0; j < 8; j++) o[(warp * G + g) * c.pad + d8 + j] = acc[g][j];
      if (d8 == 0) ml[(warp * G + g) * 2] = m[g], ml[(warp * G + g) * 2 + 1] = l[g];
    }
  }
  barrier();
  // What the warps have, and then what the shares have: the threads take the elements of P a head in turn.
  u32 unit = row * (h.kv_heads * groups) + bidy(), stride = G * (c.pad + 2);
  float* all = a.partial + (u64)unit * splits * stride;
#pragma unroll 1
  for (int i = tid(); i < G * P; i += ntid()) {
    int g = i / P, d = i % P;
    if (g >= n || d >= c.pad) continue;
    float top = -1e30f, sum = 0, v = 0;
#pragma unroll 4
    for (u32 w = 0; w < warps; w++) top = fmax2(top, ml[(w * G + g) * 2]);
#pragma unroll 4
    for (u32 w = 0; w < warps; w++) {
      float f = ex2(ml[(w * G + g) * 2] - top);
      sum += ml[(w * G + g) * 2 + 1] * f, v += o[(w * G + g) * c.pad + d] * f;
    }
    if (splits == 1) {
      if (d < h.dim) put1(a.out, a.type, row, (head0 + g) * h.dim + d, a.kb, divide(v, sum));
      continue;
    }
    float* mine = all + bidz() * stride + g * (c.pad + 2);
    mine[d] = v;
    if (d == 0) mine[c.pad] = top, mine[c.pad + 1] = sum;
  }
  if (splits == 1) return;
  __shared__ u32 last;
  fence();
  barrier();
  if (tid() == 0) last = on_global_inc(a.done + unit, splits - 1) == splits - 1;
  barrier();
  if (!last) return;
  fence();
#pragma unroll 1
  for (int i = tid(); i < G * P; i += ntid()) {
    int g = i / P, d = i % P;
    if (g >= n || d >= h.dim) continue;
    float top = -1e30f, sum = 0, v = 0;
    const float* p = all + g * (c.pad + 2);
#pragma unroll 8
    for (u32 s = 0; s < splits; s++) top = fmax2(top, load_fresh(p + s * stride + c.pad));
#pragma unroll 8
    for (u32 s = 0; s < splits; s++) {
      float f = ex2(load_fresh(p + s * stride + c.pad) - top);
      sum += load_fresh(p + s * stride + c.pad + 1) * f, v += load_fresh(p + s * stride + d) * f;
    }
    put1(a.out, a.type, row, (head0 + g) * h.dim + d, a.kb, divide(v, sum));
  }
}

#define HEADS                                                                                                                                          \
  float *qkv, int nparts, u64 part_stride, int ld, const float *bias, const float *q_norm, const float *k_norm, float eps, const float *cos,          \
      const float *sin, int heads, int kv_heads, int dim, u8 *k, u8 *v, int block_size, int pad, u64 inverse, const int *positions, const int *slots
#define HEADS_AND_CACHE Heads{qkv, nparts, part_stride, ld, bias, q_norm, k_norm, eps, cos, sin, heads, kv_heads, dim}, Cache{k, v, block_size, pad, inverse}

KERNEL rope_f32(HEADS, u16* out, float by, int rows) { rope<F32>(HEADS_AND_CACHE, positions, slots, out, by, rows); }
KERNEL rope_f16(HEADS, u16* out, float by, int rows) { rope<F16>(HEADS_AND_CACHE, positions, slots, out, by, rows); }

#define ATTEND(KV, LPT, G, type)                                                                                                                      \
  KERNEL __launch_bounds__(256, 2) attend_##type##_##LPT##_##G(HEADS, const int* seqs, const int* tables, int max_blocks, int window, float scale, int fused, \
                                                               u8* out, u64 plane, int mode, int out_type, int kb, float* partial, u32* done) { \
    extern __shared__ F4 dynamic[];                                                                                                                   \
    attend<KV, LPT, G>(HEADS_AND_CACHE,                                                                                                               \
                       Attention{positions, slots, seqs, tables, max_blocks, window, scale, fused, Act{out, plane, mode}, out_type, kb, partial, done}, \
                       (float*)dynamic);                                                                                                              \
  }
#define ATTENDS(LPT, G)     \
  ATTEND(F32, LPT, G, f32) \
  ATTEND(F16, LPT, G, f16)
ATTENDS(2, 1)
ATTENDS(2, 4)
ATTENDS(4, 1)
ATTENDS(4, 4)
ATTENDS(8, 1)
ATTENDS(8, 4)
ATTENDS(16, 1)
ATTENDS(16, 4)
ATTENDS(32, 1)
ATTENDS(32, 4)

// Many rows times a matrix on sm_90a: Y[t, n] = sum_k X[t, k] W[n, k], the tier of gemm.cu that Hopper's wgmma does. Both operands lie in memory as wgmma reads them
// from shared memory, so a stage is filled by a few plain bulk copies. A block stays on its SM and takes tile after tile, 128 tokens x BN rows; one warp fetches, two
// groups of four warps multiply 64 tokens each and write their own results, so that one multiplies while the other writes. Two blocks of a cluster have neighbouring
// tokens and the same rows of W: each fetches half of W's tile for both.
#if defined(SM90)

struct Product {
  const u8 *x, *w;
  float* out;
  u64 part_stride;
  int mode; // STORE; SILU into act; ADD: out += y + bias
  u8* act;  // ROUND
  int act_kb;
  const float* bias;
  int tokens, rows, ld, kb, splits; // splits share the columns and leave a part each
};

DEV void bar_init(u32 bar, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory"); }
DEV void bar_expect(u32 bar, u32 bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory"); }
DEV void bar_wait(u32 bar, u32 parity) {
  u32 done;
  do asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(bar), "r"(parity) : "memory");
  while (!done);
}
DEV void bar_arrive_at(u32 bar, u32 block) { // in a block of the cluster
  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [a]; }" ::"r"(bar), "r"(block) : "memory");
}
DEV void bulk_get(u32 shared, const void* p, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared), "l"(p), "r"(bytes), "r"(bar) : "memory");
}
DEV void bulk_get_both(u32 shared, const void* p, u32 bytes, u32 bar) { // to the same place in both blocks of a cluster
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(shared), "l"(p), "r"(bytes), "r"(bar),
               "h"((u16)3)
               : "memory");
}
DEV void bulk_put(void* p, u32 shared, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2; cp.async.bulk.commit_group;" ::"l"(p), "r"(shared), "r"(bytes) : "memory");
}
DEV void bulk_read_all() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); } // what this thread put has left shared memory
DEV void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
DEV void warp_sync() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

// matrix_at describes a K-major operand in shared memory: atoms of 8 rows x 64 bytes, one after the other, chunks swizzled.
DEV u64 matrix_at(u32 shared) { return (u64)((shared & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(512 >> 4) << 32 | (u64)2 << 62; }

#define OUT8(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), "+f"(c[i + 7])
#define OUT64(i) OUT8(i), OUT8(i + 8), OUT8(i + 16), OUT8(i + 24), OUT8(i + 32), OUT8(i + 40), OUT8(i + 48), OUT8(i + 56)
#define REGS64 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, " \
  "%27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define REGS128 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, " \
  "%27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, " \
  "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, " \
  "%101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, " \
  "%122, %123, %124, %125, %126, %127}"
// STEP is 64 columns, four products: a and b are the descriptors' operand numbers; NEXT is how far (in 16 bytes) the second 32 columns of B lie behind the first. The
// products of the step before have ended after it; these are under way.
#define STEP(type, n, REGS, a, b, more, NEXT)                                                                                                                    \
  "{ .reg .pred p, yes; .reg .b64 a1, a2, a3, b1, b2, b3;\n"                                                                                                    \
  "setp.ne.u32 p, %" more ", 0; setp.eq.u32 yes, 0, 0;\n"                                                                                                        \
  "add.s64 a1, %" a ", 2; add.s64 a2, %" a ", 512; add.s64 a3, %" a ", 514;\n"                                                                                   \
  "add.s64 b1, %" b ", 2; add.s64 b2, %" b ", " #NEXT "; add.s64 b3, %" b ", " #NEXT " + 2;\n"                                                                   \
  "wgmma.fence.sync.aligned;\n"                                                                                                                                  \
  "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " " REGS ", %" a ", %" b ", p, 1, 1, 0, 0;\n"                                                  \
  "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " " REGS ", a1, b1, yes, 1, 1, 0, 0;\n"                                                        \
  "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " " REGS ", a2, b2, yes, 1, 1, 0, 0;\n"                                                        \
  "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " " REGS ", a3, b3, yes, 1, 1, 0, 0;\n"                                                        \
  "wgmma.commit_group.sync.aligned;\n"                                                                                                                           \
  "wgmma.wait_group.sync.aligned 1; }"
template <int W, int BN> DEV void multiply(float* c, u64 a, u64 b, u32 more) {
  if (BN == 256 && W == BF16) asm volatile(STEP("bf16", 256, REGS128, "128", "129", "130", 1024) : OUT64(0), OUT64(64) : "l"(a), "l"(b), "r"(more) : "memory");
  if (BN == 256 && W == F16) asm volatile(STEP("f16", 256, REGS128, "128", "129", "130", 1024) : OUT64(0), OUT64(64) : "l"(a), "l"(b), "r"(more) : "memory");
  if (BN == 128 && W == BF16) asm volatile(STEP("bf16", 128, REGS64, "64", "65", "66", 512) : OUT64(0) : "l"(a), "l"(b), "r"(more) : "memory");
  if (BN == 128 && W == F16) asm volatile(STEP("f16", 128, REGS64, "64", "65", "66", 512) : OUT64(0) : "l"(a), "l"(b), "r"(more) : "memory");
}
template <int BN> DEV void multiplied(float* c) {
  if (BN == 256) asm volatile("wgmma.wait_group.sync.aligned 0;" : OUT64(0), OUT64(64)::"memory");
  else asm volatile("wgmma.wait_group.sync.aligned 0;" : OUT64(0)::"memory");
}

// Shared memory: the stages, 64 columns of X (16 KiB) and W (BN * 128 bytes) each; what each of 8 warps has to write; the barriers.
template <int BN> struct Stages {
  static const int SIZE = 16384 + BN * 128, N = 4, STAGING = N * SIZE, OWN = BN * 16, BARS = STAGING + 8 * OWN;
};

DEV void put_four(const Product& a, float* p, float v0, float v1, float v2, float v3) {
  if (a.mode == ADD) asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v0), "f"(v1), "f"(v2), "f"(v3) : "memory");
  else asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v0), "f"(v1), "f"(v2), "f"(v3) : "memory");
}

// put_tile writes a warp's results: the 16 tokens of a panel from row r16*16 on, BN rows of W from column on.
template <int W, int BN> DEV void put_tile(const Product& a, const float* c, u32 staging, u32 tile_t, u32 r16, u32 column, u32 part) {
  u32 lane = tid() & 31, g = lane >> 2, t = lane & 3;
  if (a.mode == SILU) { // staged in the layout of panels: 1 KiB for 32 columns
    bulk_read_all();
    warp_sync();
#pragma unroll
    for (u32 j = 0; j < BN / 8; j += 2) { // gates, and then as many rows of the up projection
      u32 row = column + j * 8 + t * 2, chunk = j / 2;
      float b0 = 0, b1 = 0, b2 = 0, b3 = 0;
      if (a.bias && (int)row < a.rows) b0 = a.bias[row], b1 = a.bias[row + 1], b2 = a.bias[row + 8], b3 = a.bias[row + 9];
#pragma unroll
      for (u32 h = 0; h < 2; h++) {
        float v0 = silu(c[j * 4 + h * 2] + b0) * (c[j * 4 + 4 + h * 2] + b2), v1 = silu(c[j * 4 + h * 2 + 1] + b1) * (c[j * 4 + 4 + h * 2 + 1] + b3);
        if ((int)row >= a.rows) v0 = v1 = 0;
        u32 to = staging + chunk / 4 * 1024 + h * 512 + g * 64 + (((chunk & 3) ^ ((g >> 1) & 3)) << 4) + t * 4;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(pack2<W>(v0, v1)) : "memory");
      }
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    warp_sync();
    u32 kb = column / 64 + lane;
    if (lane < BN / 64 && (int)kb < a.act_kb) bulk_put(a.act + ((u64)tile_t * a.act_kb + kb) * 8192 + r16 * 1024, staging + lane * 1024, 1024);
    return;
  }
  u32 token = tile_t * 128 + r16 * 16;
  float* p = a.out + part * a.part_stride + (u64)token * a.ld;
#pragma unroll
  for (u32 j = 0; j < BN / 8; j += 2) { // lanes exchange, so that each has 4 columns in a row: of block j, or of j+1
    u32 odd = t & 1, row = column + (j + odd) * 8 + (t >> 1) * 4;
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
      const float *x = c + j * 4 + h * 2, *y = x + 4;
      float g0 = odd ? x[0] : y[0], g1 = odd ? x[1] : y[1];
      g0 = shx(g0, 1), g1 = shx(g1, 1);
      float v0 = odd ? g0 : x[0], v1 = odd ? g1 : x[1], v2 = odd ? y[0] : g0, v3 = odd ? y[1] : g1;
      if ((int)row < a.rows && (int)(token + h * 8 + g) < a.tokens) {
        if (a.mode == ADD && a.bias) v0 += a.bias[row], v1 += a.bias[row + 1], v2 += a.bias[row + 2], v3 += a.bias[row + 3];
        put_four(a, p + (u64)(h * 8 + g) * a.ld + row, v0, v1, v2, v3);
      }
    }
  }
}

// Places is where the heads of a product of queries, keys and values go: queries as query_at says, times by; keys and values to the cache.
struct Places {
  Heads h; // no parts
  Cache c;
  const int *positions, *slots;
  u16* q;
  float by;
};

// turn4 gives lane t of a quad the t-th words of its four lanes: w[i] is column pair t of block i before, and pair i of block t after.
DEV void turn4(u32* w) {
  bool odd = tid() & 1, high = tid() & 2;
  u32 x = shxu(odd ? w[0] : w[1], 1), y = shxu(odd ? w[2] : w[3], 1);
  u32 a0 = odd ? x : w[0], a1 = odd ? w[1] : x, b0 = odd ? y : w[2], b1 = odd ? w[3] : y;
  x = shxu(high ? a0 : b0, 2), y = shxu(high ? a1 : b1, 2);
  w[0] = high ? x : a0, w[1] = high ? y : a1, w[2] = high ? b0 : x, w[3] = high ? b1 : y;
}

// Two of a warp's rows: where their tokens belong. Asked for before the product, so that the answers are there after it.
struct Rows {
  int position[2], slot[2];
};

// put_heads is put_tile for heads of D: it adds the bias, normalizes and rotates as end_head does, lane t of a quad having columns 8i + 2t and the next.
template <int BN, int D> DEV void put_heads(const Product& a, const Places& p, const Rows& rows, const float* c, u32 tile_t, u32 r16, u32 column) {
  const int N = D / 8;
  u32 lane = tid() & 31, t = lane & 3;
  F2 cos[2][N / 2], sin[2][N / 2];
  auto angles = [&](u32 h) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
      u64 at = (u64)rows.position[h] * (D / 2) + i * 8 + t * 2;
      cos[h][i] = *(const F2*)(p.h.cos + at), sin[h][i] = *(const F2*)(p.h.sin + at);
    }
  };
  angles(0);
  if (D == 64) angles(1); // there are registers enough
#pragma unroll
  for (u32 h = 0; h < 2; h++) {
    if (D > 64 && h == 1) angles(1);
    int row = tile_t * 128 + r16 * 16 + h * 8 + (lane >> 2), slot = rows.slot[h];
    bool in = row < a.tokens;
#pragma unroll
    for (int n = 0; n < BN / D; n++) {
      u32 first = column + n * D;
      if ((int)first >= a.rows) break;
      int head = first / D, kv = head - p.h.heads;
      const float* norm = kv < 0 ? p.h.q_norm : kv < p.h.kv_heads ? p.h.k_norm : nullptr;
      F2 x[N];
#pragma unroll
      for (int i = 0; i < N; i++) {
        x[i] = F2{c[(n * N + i) * 4 + h * 2], c[(n * N + i) * 4 + h * 2 + 1]};
        if (p.h.bias) x[i].x += p.h.bias[first + i * 8 + t * 2], x[i].y += p.h.bias[first + i * 8 + t * 2 + 1];
      }
      if (norm) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < N; i++) sum += x[i].x * x[i].x + x[i].y * x[i].y;
        sum += shx(sum, 1), sum += shx(sum, 2);
        float scale = rsqrt(sum / D + p.h.eps);
#pragma unroll
        for (int i = 0; i < N; i++) x[i].x *= scale * norm[i * 8 + t * 2], x[i].y *= scale * norm[i * 8 + t * 2 + 1];
      }
      if (kv < p.h.kv_heads)
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
          F2 v = x[i], w = x[i + N / 2];
          x[i] = F2{v.x * cos[h][i].x - w.x * sin[h][i].x, v.y * cos[h][i].y - w.y * sin[h][i].y};
          x[i + N / 2] = F2{w.x * cos[h][i].x + v.x * sin[h][i].x, w.y * cos[h][i].y + v.y * sin[h][i].y};
        }
      u32 w[N];
      float by = kv < 0 ? p.by : 1;
#pragma unroll
      for (int i = 0; i < N; i++) w[i] = pack2<F16>(x[i].x * by, x[i].y * by);
      if (kv < 0) {
#pragma unroll
        for (int m = 0; m < D / 16; m++)
          if (in) *(U2*)(p.q + query_at(row, p.h.heads, D, head, m, t)) = U2{w[2 * m], w[2 * m + 1]};
        continue;
      }
      u8* to = (kv < p.h.kv_heads ? p.c.k : p.c.v) + (cache_at(p.c, p.h.kv_heads, slot, kv < p.h.kv_heads ? kv : kv - p.h.kv_heads) + t * 8) * 2;
#pragma unroll
      for (int i = 0; i < N; i += 4) {
        turn4(w + i);
        if (in) *(V4*)(to + i * 16) = V4{w[i], w[i + 1], w[i + 2], w[i + 3]};
      }
    }
  }
}

// What a kernel does with a warp's results: begin is called before the product.
template <int W, int BN> struct PutTile {
  const Product& a;
  __device__ __forceinline__ int begin(u32, u32) const { return 0; }
  __device__ __forceinline__ void end(int, const float* c, u32 staging, u32 tile_t, u32 r16, u32 column, u32 part) const {
    put_tile<W, BN>(a, c, staging, tile_t, r16, column, part);
  }
};
template <int BN, int D> struct PutHeads {
  const Product& a;
  const Places& p;
  __device__ __forceinline__ Rows begin(u32 tile_t, u32 r16) const {
    int row = tile_t * 128 + r16 * 16 + ((tid() & 31) >> 2), i = row < a.tokens ? row : a.tokens - 1, j = row + 8 < a.tokens ? row + 8 : a.tokens - 1;
    return Rows{{p.positions[i], p.positions[j]}, {p.slots[i], p.slots[j]}};
  }
  __device__ __forceinline__ void end(const Rows& rows, const float* c, u32, u32 tile_t, u32 r16, u32 column, u32) const {
    put_heads<BN, D>(a, p, rows, c, tile_t, r16, column);
  }
};

template <int W, int BN, int CLUSTER, class Put> DEV void product(const Product& a, u32 base, const Put& put) {
  typedef Stages<BN> S;
  const u32 BAND = 16 / CLUSTER; // tiles of tokens go together over all rows of W, so that both stay in L2
  u32 warp = tid() >> 5, group = warp >> 2, lane = tid() & 31, rank = CLUSTER == 2 ? bid() & 1 : 0;
  u32 full = base + S::BARS, empty = full + 8 * S::N;
  if (tid() == 0) {
    for (u32 i = 0; i < S::N; i++) bar_init(full + 8 * i, 1), bar_init(empty + 8 * i, 8 * CLUSTER);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (CLUSTER == 2) cluster_sync();
  else barrier();
  // Units: a tile of CLUSTER * 128 tokens x BN rows, and a share of the columns.
  u32 panels = (a.tokens + 127) / 128, nt = (panels + CLUSTER - 1) / CLUSTER, nn = (a.rows + BN - 1) / BN, units = nt * nn * a.splits, steps_all = a.kb / 2;
  auto unit = [&](u32 u, u32& tile_t, u32& tile_n, u32& part, u32& from, u32& steps) {
    part = u % a.splits, u /= a.splits;
    u32 band = u / (BAND * nn), first = band * BAND, size = nt - first < BAND ? nt - first : BAND, in = u % (BAND * nn);
    tile_t = (first + in % size) * CLUSTER + rank, tile_n = in / size;
    from = (u32)((u64)steps_all * part / a.splits), steps = (u32)((u64)steps_all * (part + 1) / a.splits) - from;
  };
  u32 stage = 0, phase = 0, tile_t, tile_n, part, from, steps;
  dependency_wait();
  if (group == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (warp == 8 && lane == 0) {
      u32 w_panels = (a.rows + 127) / 128;
      for (u32 u = bid() / CLUSTER; u < units; u += nbid() / CLUSTER) {
        unit(u, tile_t, tile_n, part, from, steps);
        const u8* x = a.x + ((u64)(tile_t < panels ? tile_t : panels - 1) * a.kb + from * 2) * 8192; // a cluster's second tile may lie behind the last
        const u8* w[BN / 128];
#pragma unroll
        for (u32 i = 0; i < BN / 128; i++) {
          u32 panel = tile_n * (BN / 128) + i;
          w[i] = a.w + ((u64)(panel < w_panels ? panel : w_panels - 1) * a.kb + from * 2) * 8192;
        }
        for (u32 k = 0; k < steps; k++, x += 16384) {
          u32 s = base + stage * S::SIZE, bar = full + 8 * stage;
          bar_wait(empty + 8 * stage, phase ^ 1);
          bar_expect(bar, S::SIZE);
          bulk_get(s, x, 16384, bar);
          s += 16384;
#pragma unroll
          for (u32 half = 0; half < 2; half++)
#pragma unroll
            for (u32 i = 0; i < BN / 128; i++) {
              const u8* p = w[i] + (u64)k * 16384 + half * 8192;
              u32 to = s + half * (BN * 64) + i * 8192;
              if (CLUSTER == 1) bulk_get(to, p, 8192, bar);
              else if (BN == 256 && i == rank) bulk_get_both(to, p, 8192, bar);
              else if (BN == 128 && half == rank) bulk_get_both(to, p, 8192, bar);
            }
          if (++stage == S::N) stage = 0, phase ^= 1;
        }
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    float c[BN / 2];
#pragma unroll
    for (int i = 0; i < BN / 2; i++) c[i] = 0;
    u32 staging = base + S::STAGING + warp * S::OWN;
    auto release = [&](u32 s) {
      if (CLUSTER == 1) {
        if (lane == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(empty + 8 * s) : "memory");
      } else if (lane < 2) {
        bar_arrive_at(empty + 8 * s, lane);
      }
    };
    for (u32 u = bid() / CLUSTER; u < units; u += nbid() / CLUSTER) {
      unit(u, tile_t, tile_n, part, from, steps);
      u32 before = 0, r16 = group * 4 + (warp & 3);
      auto rows = put.begin(tile_t, r16);
      for (u32 k = 0; k < steps; k++) {
        u32 s = base + stage * S::SIZE;
        bar_wait(full + 8 * stage, phase);
        multiply<W, BN>(c, matrix_at(s + group * 4096), matrix_at(s + 16384), k);
        if (k) release(before);
        before = stage;
        if (++stage == S::N) stage = 0, phase ^= 1;
      }
      multiplied<BN>(c);
      release(before);
      if (tile_t < panels) put.end(rows, c, staging, tile_t, r16, tile_n * BN, part);
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
  if (CLUSTER == 2) cluster_sync(); // the other block may still write here, and arrive
}
#define PRODUCT(name, W, BN, CLUSTER)                                                                                                                             \
  KERNEL __launch_bounds__(384, 1) name(const u8* x, const u8* w, float* out, u64 part_stride, int mode, u8* act, int act_kb, const float* bias, int tokens, int rows, \
                                         int ld, int kb, int splits) {                                                                                            \
    extern __shared__ __attribute__((aligned(1024))) u8 stages[];                                                                                                 \
    Product a{x, w, out, part_stride, mode, act, act_kb, bias, tokens, rows, ld, kb, splits};                                                                     \
    product<W, BN, CLUSTER>(a, shared_address(stages), PutTile<W, BN>{a});                                                                                        \
  }
PRODUCT(wgmma128_bf16, BF16, 128, 1)
PRODUCT(wgmma256_bf16, BF16, 256, 2)
PRODUCT(wgmma128_f16, F16, 128, 1)
PRODUCT(wgmma256_f16, F16, 256, 2)

// The product of queries, keys and values of prompts, for heads of 64 or 128: all that rope does is done on the way.
#define QKV(name, W, BN, CLUSTER, D)                                                                                                                              \
  KERNEL __launch_bounds__(384, 1) name(const u8* x, const u8* w, int tokens, int rows, int kb, HEADS, u16* q, float by) {                                        \
    extern __shared__ __attribute__((aligned(1024))) u8 stages[];                                                                                                 \
    Product a{x, w, nullptr, 0, STORE, nullptr, 0, nullptr, tokens, rows, 0, kb, 1};                                                                              \
    Places p{Heads{qkv, nparts, part_stride, ld, bias, q_norm, k_norm, eps, cos, sin, heads, kv_heads, dim}, Cache{k, v, block_size, pad, inverse}, positions, slots, q, by}; \
    product<W, BN, CLUSTER>(a, shared_address(stages), PutHeads<BN, D>{a, p});                                                                                    \
  }
#define QKVS(type, W)                              \
  QKV(wgmma128_qkv64_##type, W, 128, 1, 64)       \
  QKV(wgmma256_qkv64_##type, W, 256, 2, 64)       \
  QKV(wgmma128_qkv128_##type, W, 128, 1, 128)     \
  QKV(wgmma256_qkv128_##type, W, 256, 2, 128)
QKVS(bf16, BF16)
QKVS(f16, F16)
#endif

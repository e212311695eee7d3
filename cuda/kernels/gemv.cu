// One row times a matrix: y = W x, in float32. A block works on groups of 16 rows: 8 or 16 warps that share the columns (16-bit weights), or 16 that take a row each.
// With a norm weight, x is normalized on the way: y = W (x * weight) / rms(x). x lies in shared memory.

struct Gemv {
  const u8* w;
  const float *x, *weight; // weight: nullptr for no norm
  int width;               // of the norm
  float eps;
  const float* bias;
  float* out;
  int mode; // STORE; SILU: out[i] = silu(row i of the gate) * row i of the up projection; ADD: out += y
  int rows, kb;
};

// stage puts x into shared memory; it returns what the products are to be multiplied with.
DEV float stage(const Gemv& a, float* xs, float* red) {
  float sum = 0;
  for (u32 i = tid(); i < (u32)a.kb * 8; i += ntid()) {
    F4 v = loadf4(a.x + i * 4);
    if (a.weight) {
      F4 w = loadf4(a.weight + i * 4);
      sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
      v = F4{v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
    }
    *(F4*)(xs + i * 4) = v;
  }
  if (!a.weight) {
    barrier();
    return 1;
  }
  return rsqrt(sum_block(sum, red) / a.width + a.eps);
}

// finish is called by threads 0 to 15 with the result of row i of a group.
DEV void finish(const Gemv& a, u32 group, float v) {
  u32 i = tid(), row = group * 16 + i;
  if (a.bias && (int)row < a.rows) v += a.bias[row];
  if (a.mode == SILU) {
    float up;
    asm volatile("shfl.sync.bfly.b32 %0, %1, 8, 0x1f, 0xffff;" : "=f"(up) : "f"(v));
    if (i < 8 && (int)row < a.rows) a.out[group * 8 + i] = silu(v) * up;
  } else if ((int)row < a.rows) {
    a.out[row] = a.mode == ADD ? a.out[row] + v : v;
  }
}

// NW warps; each has U column blocks of 32 under way.
template <int W, int NW> DEV void gemv16(const Gemv& a, float* xs) {
  const int U = 8;
  __shared__ float red[NW], part[NW][17];
  u32 lane = tid() & 31, warp = tid() >> 5, g = lane >> 2, t = lane & 3, groups = (a.rows + 15) / 16, group = bid();
  const u8* base = a.w + g * 64 + ((t ^ ((g >> 1) & 3)) << 4);
  V4 w[U][2];
#pragma unroll
  for (int u = 0; u < U; u++) w[u][0] = w[u][1] = V4{0, 0, 0, 0};
  const u8* row = base + (u64)(group >> 3) * a.kb * 8192 + (group & 7) * 1024;
#pragma unroll
  for (int u = 0; u < U; u++) {
    const u8* p = row + (u64)(warp + u * NW) * 8192;
    load_weight_if(w[u][0], p, (int)(warp + u * NW) < a.kb);
    load_weight_if(w[u][1], p + 512, (int)(warp + u * NW) < a.kb);
  }
  dependency_wait();
  float scale = stage(a, xs, red);
#pragma unroll 1
  for (; group < groups; group += nbid()) {
    u32 then = group + nbid();
    const u8* next = base + (u64)(then >> 3) * a.kb * 8192 + (then & 7) * 1024;
    float s0 = 0, s1 = 0;
#pragma unroll 1
    for (u32 kb0 = warp; (int)kb0 < a.kb; kb0 += U * NW) {
      bool more = (int)(kb0 + U * NW) < a.kb; // else the next group's columns come after these
      const u8* from = more ? row + (u64)(kb0 + U * NW) * 8192 : next + (u64)warp * 8192;
      int left = more ? a.kb - (int)(kb0 + U * NW) : then < groups ? a.kb - (int)warp : 0;
#pragma unroll
      for (int u = 0; u < U; u++) {
        u32 kb = kb0 + u * NW;
        if ((int)kb < a.kb) {
          F4 p = loadf4(xs + kb * 32 + t * 8), q = loadf4(xs + kb * 32 + t * 8 + 4);
          s0 += first<W>(w[u][0].x) * p.x + second<W>(w[u][0].x) * p.y + first<W>(w[u][0].y) * p.z + second<W>(w[u][0].y) * p.w;
          s0 += first<W>(w[u][0].z) * q.x + second<W>(w[u][0].z) * q.y + first<W>(w[u][0].w) * q.z + second<W>(w[u][0].w) * q.w;
          s1 += first<W>(w[u][1].x) * p.x + second<W>(w[u][1].x) * p.y + first<W>(w[u][1].y) * p.z + second<W>(w[u][1].y) * p.w;
          s1 += first<W>(w[u][1].z) * q.x + second<W>(w[u][1].z) * q.y + first<W>(w[u][1].w) * q.z + second<W>(w[u][1].w) * q.w;
        }
        load_weight_if(w[u][0], from + (u64)(u * NW) * 8192, u * NW < left);
        load_weight_if(w[u][1], from + (u64)(u * NW) * 8192 + 512, u * NW < left);
      }
    }
    row = next;
    s0 += shx(s0, 1), s0 += shx(s0, 2), s1 += shx(s1, 1), s1 += shx(s1, 2);
    if (t == 0) part[warp][g] = s0, part[warp][g + 8] = s1;
    barrier();
    if (tid() < 16) {
      float v = 0;
#pragma unroll
      for (int i = 0; i < NW; i++) v += part[i][tid()];
      finish(a, group, v * scale);
    }
    barrier();
  }
}

DEV void gemv32(const Gemv& a, float* xs) {
  __shared__ float red[16], part[16];
  dependency_wait();
  u32 lane = tid() & 31, warp = tid() >> 5, groups = (a.rows + 15) / 16;
  float scale = stage(a, xs, red);
  for (u32 group = bid(); group < groups; group += nbid()) {
    const float* w = (const float*)a.w + (u64)(group * 16 + warp) * a.kb * 32;
    float s = 0;
#pragma unroll 4
    for (u32 i = lane; i < (u32)a.kb * 8; i += 32) {
      F4 v = loadf4(w + i * 4), p = loadf4(xs + i * 4);
      s += v.x * p.x + v.y * p.y + v.z * p.z + v.w * p.w;
    }
#pragma unroll
    for (int m = 16; m; m >>= 1) s += shx(s, m);
    if (lane == 0) part[warp] = s;
    barrier();
    if (tid() < 16) finish(a, group, part[tid()] * scale);
    barrier();
  }
}
#define GEMV(name, threads, blocks, call)                                                                                                                             \
  KERNEL __launch_bounds__(threads, blocks) name(const u8* w, const float* x, const float* weight, int width, float eps, const float* bias, float* out, int mode, \
                                        int rows, int kb) {                                                                                           \
    extern __shared__ F4 dynamic[];                                                                                                                   \
    call(Gemv{w, x, weight, width, eps, bias, out, mode, rows, kb}, (float*)dynamic);                                                                 \
  }
GEMV(gemv_f32, 512, 2, gemv32)
GEMV(gemv_bf16, 256, 2, (gemv16<BF16, 8>))
GEMV(gemv_f16, 256, 2, (gemv16<F16, 8>))
GEMV(gemv16_bf16, 512, 1, (gemv16<BF16, 16>))
GEMV(gemv16_f16, 512, 1, (gemv16<F16, 16>))

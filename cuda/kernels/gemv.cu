// One row times a matrix: y = W x, in float32. A block works on groups of 16 rows: 8 or 16 warps that share the columns (16-bit weights), or 16 that take a row each.
// With a norm weight, x is normalized on the way: y = W (x * weight) / rms(x). x lies in shared memory, the norm's weight behind it.
//
// What counts for the small ones is how soon they are done once x is there: all that does not depend on it is under way before dependency_wait, what does is asked for at
// once, and what can be done later is.

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

// begin asks for the norm's weight.
DEV void begin(const Gemv& a, float* xs) {
  if (a.weight)
    for (u32 i = tid(); i < (u32)a.kb * 8; i += ntid()) copy16(shared_address(xs + (a.kb * 8 + i) * 4), a.weight + i * 4);
}

// stage puts x into shared memory, times the norm's weight. The sums of squares, a float a warp, are in red after the next barrier.
DEV void stage(const Gemv& a, float* xs, float* red) {
  for (u32 i = tid(); i < (u32)a.kb * 8; i += ntid()) copy16(shared_address(xs + i * 4), a.x + i * 4);
  wait_copies();
  float sum = 0;
  if (a.weight) {
    for (u32 i = tid(); i < (u32)a.kb * 8; i += ntid()) {
      F4 v = loadf4(xs + i * 4), w = loadf4(xs + (a.kb * 8 + i) * 4);
      sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
      *(F4*)(xs + i * 4) = F4{v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
    }
  }
  barrier();
  if (!a.weight) return;
#pragma unroll
  for (int m = 16; m; m >>= 1) sum += shx(sum, m);
  if ((tid() & 31) == 0) red[tid() >> 5] = sum;
}

// Threads 0 to 15 finish a row of a group each. Addends are what its product is added to.
struct Addends { float bias, old; };
DEV Addends addends(const Gemv& a, u32 group) {
  int row = group * 16 + tid();
  bool in = tid() < 16 && row < a.rows;
  return Addends{in && a.bias ? a.bias[row] : 0, in && a.mode == ADD ? a.out[row] : 0};
}
// scale_of is what the products are to be multiplied with.
template <int NW> DEV float scale_of(const Gemv& a, const float* red) {
  if (!a.weight) return 1;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < NW; w++) sum += red[w];
  return rsqrt(sum / a.width + a.eps);
}
DEV void finish(const Gemv& a, u32 group, float v, const Addends& to) {
  u32 i = tid(), row = group * 16 + i;
  v += to.bias;
  if (a.mode == SILU) {
    float up;
    asm volatile("shfl.sync.bfly.b32 %0, %1, 8, 0x1f, 0xffff;" : "=f"(up) : "f"(v));
    if (i < 8 && (int)row < a.rows) a.out[group * 8 + i] = silu(v) * up;
  } else if ((int)row < a.rows) {
    a.out[row] = to.old + v;
  }
}

// NW warps; each has U column blocks of 32 under way.
template <int W, int NW> DEV void gemv16(const Gemv& a, float* xs) {
  const int U = 8;
  __shared__ float red[NW], part[2][NW][17];
  u32 lane = tid() & 31, warp = tid() >> 5, g = lane >> 2, t = lane & 3, groups = (a.rows + 15) / 16, group = bid(), turn = 0;
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
  begin(a, xs);
  dependency_wait();
  Addends to = addends(a, group);
  stage(a, xs, red);
  float scale = 1; // in threads 0 to 15
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
    float(*p)[17] = part[turn];
    turn ^= 1; // what is there may still be read in the next group
    if (t == 0) p[warp][g] = s0, p[warp][g + 8] = s1;
    barrier();
    if (tid() < 16) {
      if (group == bid()) scale = scale_of<NW>(a, red);
      float v = 0;
#pragma unroll
      for (int i = 0; i < NW; i++) v += p[i][tid()];
      finish(a, group, v * scale, to);
    }
    to = addends(a, then);
  }
}

DEV void gemv32(const Gemv& a, float* xs) {
  __shared__ float red[16], part[16];
  begin(a, xs);
  dependency_wait();
  u32 lane = tid() & 31, warp = tid() >> 5, groups = (a.rows + 15) / 16;
  stage(a, xs, red);
  for (u32 group = bid(); group < groups; group += nbid()) {
    Addends to = addends(a, group);
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
    if (tid() < 16) finish(a, group, part[tid()] * scale_of<16>(a, red), to);
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

// Kernels over rows: loading, embedding, norms.

// pack16 puts raw rows [n, k] of 16-bit weights into panels: source row first+i goes to row at(first+i) = (row/8)*step + base + row%8. The rows of the gate and
// of the up projection interleave by 8 (step 16); others lie in a row (step 8).
KERNEL pack16(const u16* src, u8* dst, int first_row, int n, int k, int kb, int step, int base) {
  u32 chunks = kb * 4;
  u64 i = (u64)bid() * ntid() + tid();
  if (i >= (u64)n * chunks) return;
  u32 r = (u32)(i / chunks), c = (u32)(i % chunks), row = first_row + r;
  const u16* s = src + (u64)r * k + c * 8;
  u32 w[4];
#pragma unroll
  for (int j = 0; j < 4; j++) {
    u32 lo = (int)(c * 8 + 2 * j) < k ? s[2 * j] : 0, hi = (int)(c * 8 + 2 * j + 1) < k ? s[2 * j + 1] : 0;
    w[j] = lo | hi << 16;
  }
  u32 to = (row >> 3) * step + base + (row & 7);
  *(V4*)(dst + panel(to, c, kb)) = V4{w[0], w[1], w[2], w[3]};
}

// pack32 makes float32 rows of weights of any type.
KERNEL pack32(const void* src, float* dst, int first_row, int n, int k, int kb, int step, int base, int type) {
  u64 i = (u64)bid() * ntid() + tid();
  if (i >= (u64)n * k) return;
  u32 r = (u32)(i / k), c = (u32)(i % k), row = first_row + r;
  float v = type == F32 ? ((const float*)src)[i] : widen(((const u16*)src)[i], type);
  u32 to = (row >> 3) * step + base + (row & 7);
  dst[(u64)to * kb * 32 + c] = v;
}

// embed: x[t] = table[tokens[t]], one block a row; x has rows of kb*32.
template <int W> DEV void embed(const u8* table, const int* tokens, float* x, int kb) {
  dependency_wait();
  u32 token = tokens[bid()];
  float* to = x + (u64)bid() * kb * 32;
  for (u32 c = tid(); c < (u32)kb * 4; c += ntid()) {
    if (W == F32) {
      const float* s = (const float*)table + (u64)token * kb * 32 + c * 8;
      *(F4*)(to + c * 8) = loadf4(s);
      *(F4*)(to + c * 8 + 4) = loadf4(s + 4);
    } else {
      V4 v = load4(table + panel(token, c, kb));
      *(F4*)(to + c * 8) = F4{first<W>(v.x), second<W>(v.x), first<W>(v.y), second<W>(v.y)};
      *(F4*)(to + c * 8 + 4) = F4{first<W>(v.z), second<W>(v.z), first<W>(v.w), second<W>(v.w)};
    }
  }
}
KERNEL embed_f32(const u8* table, const int* tokens, float* x, int kb) { embed<F32>(table, tokens, x, kb); }
KERNEL embed_bf16(const u8* table, const int* tokens, float* x, int kb) { embed<BF16>(table, tokens, x, kb); }
KERNEL embed_f16(const u8* table, const int* tokens, float* x, int kb) { embed<F16>(table, tokens, x, kb); }

// norm: x += the parts of a product and its bias, then out = x / rms(x) * weight. T threads have a row: a block of 256, or a warp of 8. With rows, row i is read from
// rows[i].
template <int W, int T>
DEV void norm(float* x, const int* rows, const float* parts, int nparts, u64 part_stride, const float* bias, const float* weight, Act out, int width, int kb,
              float eps, int count) {
  __shared__ float red[32];
  dependency_wait();
  const int keep = 512 / T; // groups of 4 columns that a thread keeps in registers: rows of up to 2048; of longer ones the rest is read again
  u32 n = kb * 8, i0 = bid() * (256 / T) + tid() / T, me = tid() % T;
  if ((int)i0 >= count) return;
  u64 row = rows ? rows[i0] : i0;
  float* xr = x + row * kb * 32;
  const float* pr = parts + row * kb * 32;
  F4 v[keep];
  float sum = 0;
  auto take = [&](u32 c) { // the new residual
    F4 f = loadf4(xr + c * 4);
    if (nparts > 0) {
#pragma unroll 1
      for (int s = 0; s < nparts; s++) f = f + loadf4(pr + s * part_stride + c * 4);
      if (bias) f = f + loadf4(bias + c * 4);
      *(F4*)(xr + c * 4) = f;
    }
    sum += f.x * f.x + f.y * f.y + f.z * f.z + f.w * f.w;
    return f;
  };
  auto give = [&](u32 c, const F4& f, float scale) {
    F4 w = loadf4(weight + c * 4);
    float o[4] = {f.x * scale * w.x, f.y * scale * w.y, f.z * scale * w.z, f.w * scale * w.w};
    put4<W>(out, i0, c, kb, o);
  };
  if (nparts == 0) { // all reads first
#pragma unroll
    for (int i = 0; i < keep; i++) v[i] = me + i * T < n ? loadf4(xr + (me + i * T) * 4) : F4{0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < keep; i++) sum += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
  } else {
#pragma unroll
    for (int i = 0; i < keep; i++)
      if (me + i * T < n) v[i] = take(me + i * T);
  }
  for (u32 c = me + keep * T; c < n; c += T) take(c);
  if (T == 32) {
#pragma unroll
    for (int m = 16; m; m >>= 1) sum += shx(sum, m);
  } else {
    sum = sum_block(sum, red);
  }
  float scale = rsqrt(sum / width + eps);
#pragma unroll
  for (int i = 0; i < keep; i++)
    if (me + i * T < n) give(me + i * T, v[i], scale);
  for (u32 c = me + keep * T; c < n; c += T) give(c, loadf4(xr + c * 4), scale);
}
#define NORM(name, ...)                                                                                                                                \
  KERNEL name(float* x, const int* rows, const float* parts, int nparts, u64 part_stride, const float* bias, const float* weight, u8* out, u64 plane, \
              int mode, int width, int kb, float eps, int count) {                                                                                     \
    norm<__VA_ARGS__>(x, rows, parts, nparts, part_stride, bias, weight, Act{out, plane, mode}, width, kb, eps, count);                                \
  }
NORM(norm_f32, F32, 256)
NORM(norm_bf16, BF16, 256)
NORM(norm_f16, F16, 256)
NORM(norms_f32, F32, 32)
NORM(norms_bf16, BF16, 32)
NORM(norms_f16, F16, 32)

// What the kernels share. No CUDA header is needed: clang and nvcc both compile these files.
//
// Layout of 16-bit matrices, weights [N, K] and activations [T, K] alike ("panels"): rows are padded to 128 and K to 32, with zeros. A panel of 128
// rows holds, for each 32 columns, 8 KiB: 16 atoms of 8 rows, 512 bytes each; in an atom, row r has its four 16-byte chunks c at 64*r + 16*(c ^ (r/2)%4).
// So a warp's load of mma fragments is contiguous, a tile of 128 x 32 is one run of 8 KiB, and ldmatrix and wgmma (64-byte swizzle) read it as it is.
// float32 matrices are plain rows of K padded to 32.
#if defined(__clang__) && !defined(__NVCC__)
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(a, b) __attribute__((launch_bounds(a, b)))
#endif
#define DEV static __device__ __forceinline__
#define KERNEL extern "C" __global__ void

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
struct __attribute__((aligned(16))) V4 { u32 x, y, z, w; };
struct __attribute__((aligned(16))) F4 { float x, y, z, w; };
struct __attribute__((aligned(8))) U2 { u32 x, y; };
struct __attribute__((aligned(8))) F2 { float x, y; };

enum { F32 = 0, BF16 = 1, F16 = 2 };      // element types
enum { PLAIN = 0, SPLIT = 1, ROUND = 2 }; // activations: float32 rows; two 16-bit panels whose sum has 16 bits of mantissa; one
enum { STORE = 0, SILU = 1, ADD = 2 };    // what a product does with its result

DEV u32 tid() { u32 r; asm("mov.u32 %0, %%tid.x;" : "=r"(r)); return r; }
DEV u32 ntid() { u32 r; asm("mov.u32 %0, %%ntid.x;" : "=r"(r)); return r; }
DEV u32 bid() { u32 r; asm("mov.u32 %0, %%ctaid.x;" : "=r"(r)); return r; }
DEV u32 bidy() { u32 r; asm("mov.u32 %0, %%ctaid.y;" : "=r"(r)); return r; }
DEV u32 bidz() { u32 r; asm("mov.u32 %0, %%ctaid.z;" : "=r"(r)); return r; }
DEV u32 nbid() { u32 r; asm("mov.u32 %0, %%nctaid.x;" : "=r"(r)); return r; }
DEV u32 nbidy() { u32 r; asm("mov.u32 %0, %%nctaid.y;" : "=r"(r)); return r; }
DEV u32 nbidz() { u32 r; asm("mov.u32 %0, %%nctaid.z;" : "=r"(r)); return r; }
DEV void barrier() { asm volatile("bar.sync 0;" ::: "memory"); }

// A kernel launched as programmatic dependent may begin before the one ahead of it has ended: until dependency_wait it may only read weights.
// Every block calls it, so that the end of a kernel means the end of all before it; and lets the next kernel's blocks take what room is left.
DEV void dependency_wait() {
#if defined(SM90)
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// let_dependents does the second part alone, for kernels that have more to read first.
DEV void let_dependents() {
#if defined(SM90)
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

DEV float shx(float v, int m) { float r; asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(r) : "f"(v), "r"(m)); return r; }
DEV u32 shxu(u32 v, int m) { u32 r; asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(r) : "r"(v), "r"(m)); return r; }

// Weights are read once: they need not stay in L1.
DEV V4 load_weight(const void* p) {
  V4 v;
#if defined(SM90)
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
#else
  asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
#endif
  return v;
}
// load_weight_if leaves v as it is when p is not to be read: one predicated instruction, so that what is under way need not arrive first.
DEV void load_weight_if(V4& v, const void* p, bool read) {
#if defined(SM90)
#define LOAD "ld.global.nc.L1::no_allocate.v4.u32"
#else
#define LOAD "ld.global.nc.v4.u32"
#endif
  asm volatile("{ .reg .pred q; setp.ne.u32 q, %5, 0; @q " LOAD " {%0,%1,%2,%3}, [%4]; }"
               : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w) : "l"(p), "r"((u32)read));
#undef LOAD
}
DEV V4 load4(const void* p) { return *(const V4*)p; }
DEV F4 loadf4(const float* p) { return *(const F4*)p; }
DEV F4 operator+(const F4& a, const F4& b) { return F4{a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

DEV float load_fresh(const float* p) { float r; asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(r) : "l"(p) : "memory"); return r; } // past L1: what other blocks wrote

DEV float asf(u32 x) { float r; asm("mov.b32 %0, %1;" : "=f"(r) : "r"(x)); return r; }
DEV u32 asu(float x) { u32 r; asm("mov.b32 %0, %1;" : "=r"(r) : "f"(x)); return r; }
DEV float fmax2(float a, float b) { return a > b ? a : b; }
DEV float ex2(float x) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
DEV float rsqrt(float x) { float r; asm("rsqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
DEV float divide(float a, float b) { float r; asm("div.full.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; } // within 2 units in the last place
DEV float silu(float x) { return divide(x, 1.0f + ex2(-1.44269504f * x)); }

DEV u64 bits_of(double d) { u64 r; asm("mov.b64 %0, %1;" : "=l"(r) : "d"(d)); return r; }
DEV double from_bits(u64 b) { double r; asm("mov.b64 %0, %1;" : "=d"(r) : "l"(b)); return r; }
DEV u32 leading_zeros(u32 x) { u32 r; asm("clz.b32 %0, %1;" : "=r"(r) : "r"(x)); return r; }
DEV u64 to_whole(float x) { u64 r; asm("cvt.rni.u64.f32 %0, %1;" : "=l"(r) : "f"(x)); return r; } // the nearest, for x >= 0
DEV float lg2(float x) { float r; asm("lg2.approx.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
DEV double shd(double v, int m) {
  u64 b = bits_of(v);
  return from_bits((u64)shxu((u32)(b >> 32), m) << 32 | shxu((u32)b, m));
}
DEV bool any_lane(bool p) { // of the warp
  u32 r;
  asm volatile("{ .reg .pred q; setp.ne.u32 q, %1, 0; vote.sync.any.pred q, q, 0xffffffff; selp.u32 %0, 1, 0, q; }" : "=r"(r) : "r"((u32)p));
  return r;
}
DEV u32 shup(u32 v, int n) { u32 r; asm volatile("shfl.sync.up.b32 %0, %1, %2, 0, 0xffffffff;" : "=r"(r) : "r"(v), "r"(n)); return r; }

// Rounded as the host rounds, never fused.
DEV float rn_mul(float a, float b) { float r; asm("mul.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
DEV float rn_add(float a, float b) { float r; asm("add.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
DEV float rn_div(float a, float b) { float r; asm("div.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }

DEV void fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); } // what this thread wrote is there for all, and the other way round

// Additions of many threads; those of 32 bits return what was there.
DEV u32 shared_address(const void* p) {
  u32 r;
  asm("{ .reg .u64 a; cvta.to.shared.u64 a, %1; cvt.u32.u64 %0, a; }" : "=r"(r) : "l"(p));
  return r;
}
DEV u32 on_shared_add(u32* p, u32 v) {
  u32 r;
  asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(r) : "r"(shared_address(p)), "r"(v) : "memory");
  return r;
}
DEV u32 on_global_add(u32* p, u32 v) { u32 r; asm volatile("atom.global.add.u32 %0, [%1], %2;" : "=r"(r) : "l"(p), "r"(v) : "memory"); return r; }
DEV u32 on_global_inc(u32* p, u32 last) { // counts to last, and begins again; returns what was there
  u32 r;
  asm volatile("atom.global.inc.u32 %0, [%1], %2;" : "=r"(r) : "l"(p), "r"(last) : "memory");
  return r;
}
DEV void on_global_add64(u64* p, u64 v) { asm volatile("red.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }

// copy16 copies 16 bytes to shared memory, and nobody waits until wait_copies, which waits for all of this thread's.
DEV void copy16(u32 shared, const void* p) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(p) : "memory"); }
DEV void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

DEV float half_to_float(u16 h) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h)); return f; }
DEV float clamp_half(float v) { return v > 65504.0f ? 65504.0f : v < -65504.0f ? -65504.0f : v; } // NaN stays

// The two elements of a 32-bit word, the lower address first.
template <int W> DEV float first(u32 x) { return W == BF16 ? asf(x << 16) : half_to_float((u16)x); }
template <int W> DEV float second(u32 x) { return W == BF16 ? asf(x & 0xffff0000u) : half_to_float((u16)(x >> 16)); }
template <int W> DEV u32 pack2(float a, float b) {
  u32 r;
  if (W == BF16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(clamp_half(b)), "f"(clamp_half(a)));
  return r;
}
DEV float widen(u16 h, int w) { return w == BF16 ? asf((u32)h << 16) : half_to_float(h); }

// The byte offset of a row's 8 columns from 8*chunk on, in panels with kb = K/32.
DEV u64 panel(u32 row, u32 chunk, u32 kb) {
  return ((u64)(row >> 7) * kb + (chunk >> 2)) * 8192 + ((row >> 3) & 15) * 512 + (row & 7) * 64 + (((chunk & 3) ^ ((row >> 1) & 3)) << 4);
}

// Act is where an activation goes.
struct Act {
  u8* p;
  u64 plane; // bytes between the two panels of SPLIT
  int mode;
};

// put8 stores 8 columns of a row.
template <int W> DEV void put8(const Act& a, u32 row, u32 chunk, u32 kb, const float* v) {
  if (W == F32 || a.mode == PLAIN) {
    float* p = (float*)a.p + (u64)row * kb * 32 + chunk * 8;
    *(F4*)p = F4{v[0], v[1], v[2], v[3]};
    *(F4*)(p + 4) = F4{v[4], v[5], v[6], v[7]};
    return;
  }
  u8* p = a.p + panel(row, chunk, kb);
  u32 h[4], l[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    h[i] = pack2<W>(v[2 * i], v[2 * i + 1]);
    l[i] = pack2<W>(v[2 * i] - first<W>(h[i]), v[2 * i + 1] - second<W>(h[i]));
  }
  *(V4*)p = V4{h[0], h[1], h[2], h[3]};
  if (a.mode == SPLIT) *(V4*)(p + a.plane) = V4{l[0], l[1], l[2], l[3]};
}

// put4 stores 4 columns of a row, from 4*quarter on.
template <int W> DEV void put4(const Act& a, u32 row, u32 quarter, u32 kb, const float* v) {
  if (W == F32 || a.mode == PLAIN) {
    *(F4*)((float*)a.p + (u64)row * kb * 32 + quarter * 4) = F4{v[0], v[1], v[2], v[3]};
    return;
  }
  u8* p = a.p + panel(row, quarter >> 1, kb) + (quarter & 1) * 8;
  u32 x = pack2<W>(v[0], v[1]), y = pack2<W>(v[2], v[3]);
  *(U2*)p = U2{x, y};
  if (a.mode == SPLIT)
    *(U2*)(p + a.plane) = U2{pack2<W>(v[0] - first<W>(x), v[1] - second<W>(x)), pack2<W>(v[2] - first<W>(y), v[3] - second<W>(y))};
}

// put1 stores one element; w is the type at run time.
DEV void put1(const Act& a, int w, u32 row, u32 k, u32 kb, float v) {
  if (a.mode == PLAIN) {
    ((float*)a.p)[(u64)row * kb * 32 + k] = v;
    return;
  }
  u8* p = a.p + panel(row, k >> 3, kb) + (k & 7) * 2;
  u16 h = w == BF16 ? (u16)pack2<BF16>(v, 0) : (u16)pack2<F16>(v, 0);
  *(u16*)p = h;
  if (a.mode == SPLIT) {
    float rest = v - widen(h, w);
    *(u16*)(p + a.plane) = w == BF16 ? (u16)pack2<BF16>(rest, 0) : (u16)pack2<F16>(rest, 0);
  }
}

template <int W> DEV void mma(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  if (W == BF16)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// sum_block adds a value over the block; red has room for a float a warp. Every thread gets the sum.
DEV float sum_block(float v, float* red) {
#pragma unroll
  for (int m = 16; m; m >>= 1) v += shx(v, m);
  if ((tid() & 31) == 0) red[tid() >> 5] = v;
  barrier();
  v = 0;
#pragma unroll 1
  for (u32 i = 0; i < (ntid() >> 5); i++) v += red[i];
  return v;
}

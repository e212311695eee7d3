// Sums over the GPUs that share a model, and how these wait for each other. Every rank has a mailbox that the others write to, over NVLink or PCIe; nobody reads another's.
// All ranks launch the same of these kernels in the same order, so that each can count them: the epoch, which says which message is which. Two slots are enough: whoever
// writes in epoch e+2 has seen messages of e+1 from all the others, which had read those of e by then.
//
// Sums are taken in the order of the ranks, so that all have the same bits.

const int MAX_RANKS = 8;

struct Mailbox { // begins with this; flags, and the two kinds of messages, come behind it: see Comm
  u64 epoch;     // kernels done
  u32 done, pad; // blocks of this kernel that are done
};

#define METHOD __device__ __forceinline__
struct Comm {
  u8* own; // box[rank]
  u8* box[MAX_RANKS];
  int rank, size;
  u32 capacity; // floats of a message
  u32 fast;     // of which so many fit in words with flags
  int* state;   // in host memory: 0; 1: give up; 2+r: gave up waiting for rank r
  u64 patience; // ns

  METHOD u64 epoch() const { return *(volatile u64*)own + 1; }
  // flag is set by rank from when block of epoch has sent its message; block 0 of the flags is that of meet.
  METHOD u64* flag(u8* at, int from, u32 block) const { return (u64*)(at + 256) + (u64)from * (capacity / 4096 + 2) + block; }
  METHOD u8* messages(u8* at) const { return at + 256 + (((u64)size * (capacity / 4096 + 2) * 8 + 255) & ~(u64)255); }
  // slot: nobody sends to itself. words are 4 bytes of data and 4 of epoch each.
  METHOD u64 slot(int at, int from, u64 epoch) const { return (epoch & 1) * (size - 1) + from - (from > at); }
  METHOD u8* words(int at, u8* box, int from, u64 epoch) const { return messages(box) + slot(at, from, epoch) * ((u64)fast * 8); }
  METHOD u8* floats(int at, u8* box, int from, u64 epoch) const {
    return messages(box) + (u64)2 * (size - 1) * fast * 8 + slot(at, from, epoch) * ((u64)capacity * 4);
  }
};

DEV u64 nanoseconds() { u64 r; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(r)); return r; }
DEV void store_volatile(u8* p, V4 v) { asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory"); }
DEV V4 load_volatile(const u8* p) {
  V4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
DEV void release(u64* p, u64 v) { asm volatile("fence.acq_rel.sys; st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
DEV u64 acquire(const u64* p) { u64 r; asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(r) : "l"(p) : "memory"); return r; }
DEV u32 increment(u32* p) { u32 r; asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(r) : "l"(p) : "memory"); return r; }

// hopeless is asked now and then by a thread that waits for rank from. What comes after it is garbage; the host reads state.
DEV bool hopeless(const Comm& c, int from, u64& since) {
  if (*(volatile int*)c.state) return true;
  u64 now = nanoseconds();
  if (since == 0) since = now;
  if (now - since < c.patience) return false;
  *(volatile int*)c.state = 2 + from;
  return true;
}

DEV void await_flag(const Comm& c, int from, u32 block, u64 epoch) {
  u64 since = 0;
  for (u32 spins = 1; acquire(c.flag(c.own, from, block)) < epoch; spins++)
    if ((spins & 255) == 0 && hopeless(c, from, since)) return;
}
DEV V4 await_words(const Comm& c, int from, const u8* p, u32 epoch) {
  u64 since = 0;
  for (u32 spins = 1;; spins++) {
    V4 v = load_volatile(p);
    if ((v.y == epoch && v.w == epoch) || ((spins & 255) == 0 && hopeless(c, from, since))) return v;
  }
}

// finish counts the kernel. Its blocks have read the epoch when the last one comes here.
DEV void finish(const Comm& c, u64 epoch) {
  barrier();
  if (tid()) return;
  Mailbox* m = (Mailbox*)c.own;
  if (increment(&m->done) + 1 < nbid()) return;
  m->done = 0;
  m->epoch = epoch;
}

DEV F4 add4(F4 a, F4 b) { return F4{a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
DEV F4 sum_parts(const float* parts, int nparts, u64 stride, u32 i) {
  F4 v = loadf4(parts + (u64)i * 4);
#pragma unroll 4
  for (int s = 1; s < nparts; s++) v = add4(v, loadf4(parts + s * stride + (u64)i * 4));
  return v;
}
// into adds a product's sum over the ranks, and its bias, to the residual stream.
DEV F4 into(float* x, const float* bias, u32 ld, u32 i, F4 v) {
  if (bias) v = add4(v, loadf4(bias + (i * 4) % ld));
  v = add4(loadf4(x + (u64)i * 4), v);
  *(F4*)(x + (u64)i * 4) = v;
  return v;
}

// A rank's part of a product lies in nparts parts, n fours of floats each.
struct Sum {
  float* x;
  const float* parts;
  int nparts;
  u64 stride;
  const float* bias;
  u32 ld, n;
};

// Messages in words: four floats, each with its flag beside it. One way over the link and no fence, for up to c.fast floats.
DEV void send(const Comm& c, u32 i, u64 epoch, F4 v) {
  u32 e = (u32)epoch;
#pragma unroll
  for (int to = 0; to < MAX_RANKS; to++) {
    if (to >= c.size || to == c.rank) continue;
    u8* p = c.words(to, c.box[to], c.rank, epoch) + (u64)i * 32;
    store_volatile(p, V4{asu(v.x), e, asu(v.y), e});
    store_volatile(p + 16, V4{asu(v.z), e, asu(v.w), e});
  }
}
// receive adds up what all have sent.
DEV F4 receive(const Comm& c, u32 i, u64 epoch, F4 own) {
  F4 sum = own;
  for (int r = 0; r < c.size; r++) {
    F4 v = own;
    if (r != c.rank) {
      const u8* p = c.words(c.rank, c.own, r, epoch) + (u64)i * 32;
      V4 lo = await_words(c, r, p, (u32)epoch), hi = await_words(c, r, p + 16, (u32)epoch);
      v = F4{asf(lo.x), asf(lo.z), asf(hi.x), asf(hi.z)};
    }
    sum = r == 0 ? v : add4(sum, v);
  }
  return sum;
}

DEV void reduce_few(const Comm& c, const Sum& a) {
  dependency_wait();
  u64 epoch = c.epoch();
  u32 i = bid() * ntid() + tid();
  if (i < a.n) {
    F4 own = sum_parts(a.parts, a.nparts, a.stride, i);
    send(c, i, epoch, own);
    into(a.x, a.bias, a.ld, i, receive(c, i, epoch, own));
  }
  finish(c, epoch);
}

// reduce_norm is few and then norm: a block of 256 has a row, and sends all of it before it waits.
struct Norm {
  const float* weight;
  Act out;
  int width, kb;
  float eps;
};
template <int W> DEV void reduce_norm(const Comm& c, const Sum& a, const Norm& b) {
  __shared__ float red[32];
  dependency_wait();
  u64 epoch = c.epoch();
  u32 row = bid(), n = b.kb * 4;
  float v[8], sum = 0; // of the first chunk of 8: rows of up to 2048 have no other
  for (u32 k = tid(); k < n; k += 256)
    for (u32 i = (row * n + k) * 2, half = 0; half < 2; i++, half++) send(c, i, epoch, sum_parts(a.parts, a.nparts, a.stride, i));
  for (u32 k = tid(); k < n; k += 256)
    for (u32 i = (row * n + k) * 2, half = 0; half < 2; i++, half++) {
      F4 f = into(a.x, a.bias, a.ld, i, receive(c, i, epoch, sum_parts(a.parts, a.nparts, a.stride, i)));
      sum += f.x * f.x + f.y * f.y + f.z * f.z + f.w * f.w;
      if (k == tid()) v[half * 4] = f.x, v[half * 4 + 1] = f.y, v[half * 4 + 2] = f.z, v[half * 4 + 3] = f.w;
    }
  float scale = rsqrt(sum_block(sum, red) / b.width + b.eps);
  for (u32 k = tid(); k < n; k += 256) {
    const float *w = b.weight + k * 8, *x = k == tid() ? v : a.x + (u64)row * n * 8 + k * 8;
    float o[8];
#pragma unroll
    for (int j = 0; j < 8; j++) o[j] = x[j] * scale * w[j];
    put8<W>(b.out, row, k, b.kb, o);
  }
  finish(c, epoch);
}

// many: a block 4096 floats, with one flag behind them. Its own stay in registers.
DEV void reduce_many(const Comm& c, const Sum& a) {
  const int U = 4;
  dependency_wait();
  u64 epoch = c.epoch();
  F4 own[U];
#pragma unroll
  for (int u = 0; u < U; u++) {
    u32 i = bid() * 1024 + u * 256 + tid();
    if (i < a.n) own[u] = sum_parts(a.parts, a.nparts, a.stride, i);
  }
  for (int k = 1; k < c.size; k++) {
    int other = (c.rank + k) % c.size;
    float* to = (float*)c.floats(other, c.box[other], c.rank, epoch);
#pragma unroll
    for (int u = 0; u < U; u++) {
      u32 i = bid() * 1024 + u * 256 + tid();
      if (i < a.n) *(F4*)(to + (u64)i * 4) = own[u];
    }
  }
  barrier();
  int other = tid();
  if (other < c.size && other != c.rank) {
    release(c.flag(c.box[other], c.rank, 1 + bid()), epoch);
    await_flag(c, other, 1 + bid(), epoch);
  }
  barrier();
  F4 sum[U];
  for (int r = 0; r < c.size; r++) {
    const float* from = (const float*)c.floats(c.rank, c.own, r, epoch);
    V4 w[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
      u32 i = bid() * 1024 + u * 256 + tid();
      if (r != c.rank && i < a.n) w[u] = load_volatile((const u8*)(from + (u64)i * 4));
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
      F4 v = r == c.rank ? own[u] : F4{asf(w[u].x), asf(w[u].y), asf(w[u].z), asf(w[u].w)};
      sum[u] = r == 0 ? v : add4(sum[u], v);
    }
  }
#pragma unroll
  for (int u = 0; u < U; u++) {
    u32 i = bid() * 1024 + u * 256 + tid();
    if (i < a.n) into(a.x, a.bias, a.ld, i, sum[u]);
  }
  finish(c, epoch);
}

#define COMM                                                                                                                                                      \
  u8 *own, u8 *box0, u8 *box1, u8 *box2, u8 *box3, u8 *box4, u8 *box5, u8 *box6, u8 *box7, int rank, int size, int capacity, int fast, int *state, u64 patience
#define COMM_OF Comm{own, {box0, box1, box2, box3, box4, box5, box6, box7}, rank, size, (u32)capacity, (u32)fast, state, patience}
#define SUM float *x, const float *parts, int nparts, u64 stride, const float *bias, int ld, int n
#define SUM_OF Sum{x, parts, nparts, stride, bias, (u32)ld, (u32)n}

KERNEL __launch_bounds__(256, 2) reduce_words(COMM, SUM) { reduce_few(COMM_OF, SUM_OF); }
#define REDUCE_NORM(name, W)                                                                                                              \
  KERNEL __launch_bounds__(256, 2) name(COMM, SUM, const float* weight, u8* out, u64 plane, int mode, int width, int kb, float eps) { \
    reduce_norm<W>(COMM_OF, SUM_OF, Norm{weight, Act{out, plane, mode}, width, kb, eps});                                             \
  }
REDUCE_NORM(reduce_norm_f32, F32)
REDUCE_NORM(reduce_norm_bf16, BF16)
REDUCE_NORM(reduce_norm_f16, F16)
KERNEL __launch_bounds__(256, 4) reduce_blocks(COMM, SUM) { reduce_many(COMM_OF, SUM_OF); }

// meet: no rank leaves before all have come, and what each wrote before is seen by all. One warp.
KERNEL meet(COMM) {
  Comm c = COMM_OF;
  dependency_wait();
  u64 epoch = c.epoch();
  int other = tid();
  if (other < size && other != rank) {
    release(c.flag(c.box[other], rank, 0), epoch);
    await_flag(c, other, 0, epoch);
  }
  finish(c, epoch);
}

// What is left to do beside a library's all-reduce: parts become one, and the sum is added to the residual stream.
KERNEL __launch_bounds__(256, 2) reduce_parts(float* out, const float* parts, int nparts, u64 stride, int n) {
  dependency_wait();
  u32 i = bid() * ntid() + tid();
  if (i < (u32)n) *(F4*)(out + (u64)i * 4) = sum_parts(parts, nparts, stride, i);
}
KERNEL __launch_bounds__(256, 2) reduce_into(SUM) {
  dependency_wait();
  u32 i = bid() * ntid() + tid();
  if (i < (u32)n) into(x, bias, ld, i, sum_parts(parts, nparts, stride, i));
}

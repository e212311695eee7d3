// Sums over the GPUs that share a model, and how these wait for each other. Every rank has a mailbox that the others write to, over NVLink or PCIe; nobody reads another's.
// All ranks launch the same of these kernels in the same order, so that each can count them: the epoch, which says which message is which. Two slots are enough: whoever
// writes in epoch e+2 has seen messages of e+1 from all the others, which had read those of e by then.
//
// Sums are taken in the order of the ranks, so that all have the same bits.

const int MAX_RANKS = 8;

struct Mailbox { // begins with this; flags, and the two kinds of messages, come behind it: see Comm
  u64 epoch; // kernels done
  u32 done;  // blocks of this kernel that are done
  u32 stop;  // nobody waits any more
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

// hopeless is asked now and then by a thread that waits for rank from. What comes after it is garbage; the host reads state. Reading state goes through PCIe: thousands of
// threads at it would keep each other, and so the other ranks, waiting. One lane of a warp does it, once a millisecond, and tells the others.
struct Patience { u64 since, asked; };
DEV bool hopeless(const Comm& c, int from, Patience& p, bool asks) {
  volatile Mailbox* m = (volatile Mailbox*)c.own;
  if (m->stop) return true;
  u64 now = nanoseconds();
  if (p.since == 0) p.since = p.asked = now;
  bool late = now - p.since > c.patience;
  if (late) *(volatile int*)c.state = 2 + from;
  if (!late && (!asks || now - p.asked < 1000000)) return false;
  p.asked = now;
  if (late || *(volatile int*)c.state) m->stop = 1;
  return m->stop;
}

DEV void await_flag(const Comm& c, int from, u32 block, u64 epoch) {
  Patience p = {0, 0};
  for (u32 spins = 1; acquire(c.flag(c.own, from, block)) < epoch; spins++)
    if ((spins & 63) == 0 && hopeless(c, from, p, true)) return;
}
DEV V4 await_words(const Comm& c, int from, const u8* at, u32 epoch) {
  Patience p = {0, 0};
  for (u32 spins = 1;; spins++) {
    V4 v = load_volatile(at);
    if ((v.y == epoch && v.w == epoch) || ((spins & 63) == 0 && hopeless(c, from, p, (tid() & 31) == 0))) return v;
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
DEV void into(float* x, const float* bias, u32 ld, u32 i, F4 v) {
  if (bias) v = add4(v, loadf4(bias + (i * 4) % ld));
  *(F4*)(x + (u64)i * 4) = add4(loadf4(x + (u64)i * 4), v);
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

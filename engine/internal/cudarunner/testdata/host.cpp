// Runs the sampler's kernels on the host, for tests without a GPU: the sources as they are, with host stand-ins for what device.h has in machine code. A block's threads
// are fibers that take turns; who waits for others ends its turn.
#include <cmath>
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>

#define DEV static inline
#define KERNEL static void
#define __shared__ static
#define __launch_bounds__(a, b)

typedef unsigned int u32;
typedef unsigned long long u64;

const int THREADS = 256, STACK = 64 << 10;
static jmp_buf scheduler, fibers[THREADS];
static bool started[THREADS], ended[THREADS];
static char* stacks;
static void (*body)();
static int turn; // the thread that runs
static u32 block, blocky, blocks, blocksy;

DEV int tid() { return turn; }
DEV u32 bid() { return block; }
DEV u32 bidy() { return blocky; }
DEV u32 nbid() { return blocks; }
DEV u32 nbidy() { return blocksy; }
DEV void dependency_wait() {}
DEV void fence() {}
static void yield() {
  if (!_setjmp(fibers[turn])) _longjmp(scheduler, 1);
}

struct Meeting {
  int there, round;
  void wait(int all) {
    int now = round;
    if (++there == all) there = 0, round++;
    while (round == now) yield();
  }
};
static Meeting everybody, warps[THREADS / 32];
DEV void barrier() { everybody.wait(THREADS); }
DEV void warp_barrier() { warps[turn / 32].wait(32); }

template <class A, class B> A same_bits(B b) { A a; memcpy(&a, &b, sizeof a); return a; }
DEV float asf(u32 x) { return same_bits<float>(x); }
DEV u32 asu(float x) { return same_bits<u32>(x); }
DEV u64 bits_of(double x) { return same_bits<u64>(x); }
DEV double from_bits(u64 x) { return same_bits<double>(x); }
DEV u32 leading_zeros(u32 x) { return x ? __builtin_clz(x) : 32; }
DEV u64 to_whole(float x) { return (u64)nearbyint(x); }
DEV float lg2(float x) { return (float)log2(x); }
DEV float fmax2(float a, float b) { return a > b ? a : b; }
DEV float rn_mul(float a, float b) { return a * b; } // compiled with -ffp-contract=off
DEV float rn_add(float a, float b) { return a + b; }
DEV float rn_div(float a, float b) { return a / b; }
DEV u32 on_shared_add(u32* p, u32 v) { return (*p += v) - v; }
DEV u32 on_global_add(u32* p, u32 v) { return (*p += v) - v; }
DEV u32 on_global_inc(u32* p, u32 last) { u32 was = *p; *p = was >= last ? 0 : was + 1; return was; }
DEV void on_global_add64(u64* p, u64 v) { *p += v; }

template <class T> T shuffle(T v, int from) {
  static T words[THREADS];
  words[turn] = v;
  warp_barrier();
  v = words[from];
  warp_barrier();
  return v;
}
DEV u32 shxu(u32 v, int m) { return shuffle(v, turn ^ m); }
DEV float shx(float v, int m) { return shuffle(v, turn ^ m); }
DEV double shd(double v, int m) { return shuffle(v, turn ^ m); }
DEV u32 shup(u32 v, int n) { return shuffle(v, (turn & 31) >= n ? turn - n : turn); }

DEV bool any_lane(bool p) {
  static bool words[THREADS];
  words[turn] = p;
  warp_barrier();
  p = false;
  for (int i = 0; i < 32; i++) p = p || words[(turn & ~31) + i];
  warp_barrier();
  return p;
}

#include "sample.cu"
#include "sift.cu"

static void fiber() {
  for (;;) { // a block a round
    body();
    ended[turn] = true;
    yield();
  }
}

static void run_block() {
  memset(ended, 0, sizeof ended);
  for (bool left = true; left;) {
    left = false;
    for (turn = 0; turn < THREADS; turn++) {
      if (ended[turn]) continue;
      if (!_setjmp(scheduler)) {
        if (started[turn]) _longjmp(fibers[turn], 1);
        started[turn] = true;
        ucontext_t c;
        getcontext(&c);
        c.uc_stack.ss_sp = stacks + (size_t)turn * STACK;
        c.uc_stack.ss_size = STACK;
        c.uc_link = nullptr;
        makecontext(&c, fiber, 0);
        setcontext(&c);
      }
      left = left || !ended[turn];
    }
  }
}

static void** args;
template <class T> T arg(int& i) { return *(T*)args[i++]; }

template <class... P> struct Kernel {
  template <void (*K)(P...)> static void call() {
    int i = 0;
    struct Pack { // braces are evaluated in order
      Pack(P... p) { K(p...); }
    } pack{arg<P>(i)...};
  }
};
template <class... P> Kernel<P...> types_of(void (*)(P...));

extern "C" int host_run(const char* name, u32 x, u32 y, void** a) {
  args = a, blocks = x, blocksy = y, body = nullptr;
#define OFFER(k) if (!strcmp(name, #k)) body = decltype(types_of(k))::call<k>;
  OFFER(race) OFFER(winner)
  OFFER(sift_edit) OFFER(sift_weigh) OFFER(sift_list) OFFER(sift_cut) OFFER(sift_race) OFFER(sift_rank)
  if (!body) return 1;
  if (!stacks) stacks = (char*)malloc((size_t)THREADS * STACK);
  for (blocky = 0; blocky < y; blocky++)
    for (block = 0; block < x; block++) run_block();
  return 0;
}

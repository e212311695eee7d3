// What internal/sample does to a row beyond the plain draw: edits of single logits, min-p, top-k, top-p, log-probabilities. No sort: tokens are counted and weighed in
// bins of how far they are below the best; the few of the bins with a border in them are listed, and among those the border is found. Masses are whole numbers, in
// units of 2^-44 of the best token's, so their sums do not depend on any order. The border is a token: the race lets in what comes no later than it.
//
// A job is what one row is sifted for: jobs [0, rows) to draw from it, jobs [rows, 2*rows) for its log-probabilities, as the model gave it.

const int BINS = 1024, NEAR = 256, MOST_LOGPROBS = 32;
const u64 EVERYTHING = ~0ull;

// How a row is sifted; zero: not at all.
struct Rule {
  int edits, count; // its part of the list of edits
  int top_k;        // 0: off
  int logprobs;     // one more than are wanted beside the chosen token's; 0: none
  int target;       // the token whose logprob is wanted; -1: the one that is drawn
  int allow;        // only the tokens that ALLOW names
  float repetition, frequency, presence;
  int pad;
  double top_p, min_p; // 0: off
};

// Edit is a change of one logit: a token's id, with the kind in the upper bits, and a value.
enum { PENALIZE = 0, BIAS = 1, MASK = 2, ALLOW = 3 };
struct Edit {
  u32 what, value;
};

struct Bins {
  u64 mass[BINS];
  u32 count[BINS];
};

// Border is where top-k and top-p of a job may end.
struct Border {
  int k, low, high; // the bin of the k-th token, -1: all stay; the bins in which top-p may end
  u32 n;            // tokens in these bins
  u32 listed;       // so far
  u32 weighed;      // blocks that have
};

struct Item {
  float z;
  int id;
};

// Kept is what a draw leaves in: tokens whose key is no later than last, and of those, with min_p, the ones likely enough beside top.
struct Kept {
  u64 last;
  float top;
  int pad;
};

// Found is what goes back to the host for log-probabilities.
struct Found {
  u64 sum; // of all masses
  float top, chosen;
  u32 before; // how many tokens come before the chosen one, if it is not among the likely
  int n;      // of likely; -1: the host has to look
  Item likely[MOST_LOGPROBS];
};

// inclusive is the sum of v over the block's 256 threads up to this one.
DEV u64 inclusive(u64 v, u64* warps) {
#pragma unroll
  for (int n = 1; n < 32; n *= 2) {
    u64 o = (u64)shup((u32)(v >> 32), n) << 32 | shup((u32)v, n);
    if ((tid() & 31) >= n) v += o;
  }
  if ((tid() & 31) == 31) warps[tid() >> 5] = v;
  barrier();
#pragma unroll 1
  for (u32 w = 0; w < (tid() >> 5); w++) v += warps[w];
  barrier();
  return v;
}

// top_of_block: every thread gets the largest.
DEV float top_of_block(float v, float* warps) {
#pragma unroll
  for (int m = 16; m; m >>= 1) v = fmax2(shx(v, m), v);
  if ((tid() & 31) == 0) warps[tid() >> 5] = v;
  barrier();
#pragma unroll
  for (int w = 0; w < 8; w++) v = fmax2(warps[w], v);
  barrier();
  return v;
}

// exp_neg is expNeg of internal/sample, bit by bit.
DEV float exp_neg(float x) {
  if (!(x > -87.0f)) return 0;
  int n = (int)rn_add(rn_mul(x, 1.44269504088896340736f), -0.5f);
  float f = (float)n, r = rn_add(rn_add(x, -rn_mul(f, 0.693359375f)), rn_mul(f, 2.12194440e-4f));
  float p = 1.9875691500e-4f;
  p = rn_add(rn_mul(p, r), 1.3981999507e-3f);
  p = rn_add(rn_mul(p, r), 8.3334519073e-3f);
  p = rn_add(rn_mul(p, r), 4.1665795894e-2f);
  p = rn_add(rn_mul(p, r), 1.6666665459e-1f);
  p = rn_add(rn_mul(p, r), 5.0000001201e-1f);
  return rn_mul(rn_add(rn_add(rn_mul(rn_mul(p, r), r), r), 1), asf((u32)(n + 127) << 23));
}

// whole is a mass in units of 2^-44.
DEV u64 whole(float m) { return to_whole(m * 17592186044416.0f); }

// key orders tokens, the most likely first, equal ones by id; 0 is 0 whatever its sign.
DEV u64 key(float z, int id) {
  u32 b = asu(rn_add(z, 0.0f));
  return (u64)(b >> 31 ? b : b ^ 0x7fffffff) << 32 | (u32)id;
}
DEV float logit_of(u64 key) {
  u32 b = (u32)(key >> 32);
  return asf(b >> 31 ? b : b ^ 0x7fffffff);
}

// bin of a token d below the best: 32 to a doubling of d, from 2^-12 to 2^20.
DEV int bin_of(float d) {
  int b = (int)((asu(d) & 0x7fffffff) >> 18) - (115 << 5) + 1; // d may be -0
  return b < 0 ? 0 : b >= BINS ? BINS - 1 : b;
}

// end_of is the distance at which the next bin begins.
DEV float end_of(int b) { return b >= BINS - 1 ? asf(0x7f800000u) : asf((u32)(b + (115 << 5)) << 18); }

// least_logit is below every logit that divided by the temperature is z or more.
DEV float least_logit(float z, float temperature) {
  float x = z * temperature;
  return x - (1e-6f * fmax2(x, -x) + 1e-37f);
}

struct Job {
  const float* row;
  float temperature;
  int top_k;
  double top_p, min_p;
  bool likely, bins; // for log-probabilities: of masses only the sum is needed; bins are needed
};

DEV bool edited_by(const Rule& r) { return r.count > 0 || r.allow; }

DEV Job job_of(u32 j, u32 rows, const Rule* rules, const Draw* draws, const float* logits, const float* edited, int vocab) {
  bool likely = j >= rows;
  u32 i = likely ? j - rows : j;
  Rule r = rules[i];
  const float* row = (edited_by(r) && !likely ? edited : logits) + (u64)i * vocab;
  if (likely) return Job{row, 1, r.logprobs - 1 < vocab ? r.logprobs - 1 : vocab, 0, 0, true, r.logprobs > 0};
  return Job{row, draws[i].temperature, r.top_k, r.top_p, r.min_p, false, r.top_k > 0 || r.top_p > 0};
}

// candidate says whether a token is one that top-k and top-p see, and gives its z and how likely it is beside the best.
DEV bool candidate(const Job& j, float top, float x, float& z, float& mass) {
  z = j.temperature == 1 ? x : rn_div(x, j.temperature);
  if (!(z > asf(0xff800000u))) return false;
  mass = exp_neg(z - top);
  return !(j.min_p > 0) || z == top || (double)mass >= j.min_p;
}

// each calls f with the index and the logit of the tokens of a part of a row.
template <class F> DEV void each(const float* row, int from, int to, F f) {
  const int U = 8;
#pragma unroll 1
  for (int i = from + tid(); i < to; i += U * 256) {
    float x[U];
#pragma unroll
    for (int u = 0; u < U; u++) x[u] = i + u * 256 < to ? row[i + u * 256] : 0;
#pragma unroll
    for (int u = 0; u < U; u++)
      if (i + u * 256 < to) f(i + u * 256, x[u]);
  }
}

// The part of a row that a block takes.
DEV int from_of(int vocab) { return (int)((u64)vocab * bid() / nbid()); }
DEV int to_of(int vocab) { return (int)((u64)vocab * (bid() + 1) / nbid()); }

// top_of is the best of a job's shares, divided by the temperature; finite says that there is one to sift by.
DEV float top_of(const Job& j, const float* tops, u32 job, int shares, float* warps) {
  float top = asf(0xff800000u);
  if (tid() < shares) top = tops[job * shares + tid()];
  return rn_div(top_of_block(top, warps), j.temperature);
}
DEV bool finite(float x) { return x - x == 0; }

// sift_edit writes the edited copies of rows, finds the tops of all jobs and clears what the next kernels add to; grid (shares, rows).
KERNEL sift_edit(const float* logits, float* edited, const Rule* rules, const Edit* edits, float* tops, Bins* bins, Border* borders, Found* found, int vocab) {
  __shared__ float warps[8];
  dependency_wait();
  u32 i = bidy(), rows = nbidy();
  Rule r = rules[i];
  bool draws = r.top_k > 0 || r.top_p > 0 || r.min_p > 0, copies = edited_by(r);
  if (!draws && !copies && r.logprobs <= 0) return;
  const float none = asf(0xff800000u), *row = logits + (u64)i * vocab;
  float *copy = edited + (u64)i * vocab, top = none;
  int from = from_of(vocab), to = to_of(vocab);
  each(row, from, to, [&](int k, float x) {
    if (x > top) top = x;
    if (copies) copy[k] = r.allow ? none : x;
  });
  float raw = top_of_block(top, warps);
  if (copies) {
    const int order[4] = {ALLOW, BIAS, PENALIZE, MASK};
#pragma unroll
    for (int o = 0; o < 4; o++) {
#pragma unroll 1
      for (int e = tid(); e < r.count; e += 256) {
        Edit d = edits[r.edits + e];
        int id = (int)(d.what & 0xfffffff);
        if ((int)(d.what >> 28) != order[o] || id < from || id >= to) continue;
        float x = copy[id];
        if (order[o] == ALLOW) x = row[id];
        else if (order[o] == MASK) x = none;
        else if (order[o] == BIAS) x = rn_add(x, asf(d.value));
        else {
          x = x > 0 ? rn_div(x, r.repetition) : rn_mul(x, r.repetition);
          if (d.value > 0) x = rn_add(x, -rn_add(rn_mul(r.frequency, (float)d.value), r.presence));
        }
        copy[id] = x;
      }
      barrier();
    }
    top = none;
    if (draws) each(copy, from, to, [&](int, float x) { if (x > top) top = x; });
    top = top_of_block(top, warps);
  } else {
    top = raw;
  }
  if (tid() == 0) {
    tops[i * nbid() + bid()] = top;
    tops[(rows + i) * nbid() + bid()] = raw;
    if (bid() == 0) borders[i] = borders[rows + i] = Border{-1, 0, -1, 0, 0, 0}, found[i].before = 0;
  }
#pragma unroll 1
  for (int b = bid() * 256 + tid(); b < BINS; b += nbid() * 256) {
    bins[i].mass[b] = bins[rows + i].mass[b] = 0;
    bins[i].count[b] = bins[rows + i].count[b] = 0;
  }
}

// Cumulative is the sums over the bins up to each.
struct Cumulative {
  u64 mass[BINS];
  u32 count[BINS];
  u64 warps[8];
  int found;
};

// bin_with is the bin at which a sum over the bins reaches a target; 0 when the target is 0.
DEV int bin_with(Cumulative& s, double target, bool by_mass) {
  if (tid() == 0) s.found = 0;
  barrier();
#pragma unroll 1
  for (int b = tid() * 4; b < tid() * 4 + 4; b++) {
    double to = by_mass ? (double)s.mass[b] : (double)s.count[b], from = b == 0 ? 0 : by_mass ? (double)s.mass[b - 1] : (double)s.count[b - 1];
    if (to >= target && from < target) s.found = b;
  }
  barrier();
  int b = s.found;
  barrier();
  return b;
}

DEV u64 mass_before(const Cumulative& s, int b) { return b == 0 ? 0 : s.mass[b - 1]; }
DEV u32 count_before(const Cumulative& s, int b) { return b == 0 ? 0 : s.count[b - 1]; }

DEV void accumulate(Cumulative& s, const Bins& bins) {
  u64 m = 0, n = 0;
  for (int b = tid() * 4; b < tid() * 4 + 4; b++) m += bins.mass[b], n += bins.count[b];
  u64 ms = inclusive(m, s.warps) - m, ns = inclusive(n, s.warps) - n;
  for (int b = tid() * 4; b < tid() * 4 + 4; b++) s.mass[b] = ms += bins.mass[b], s.count[b] = (u32)(ns += bins.count[b]);
  barrier();
}

DEV void find_borders(Cumulative& s, const Job& j, Border& to) {
  int k = -1, low = 0, high = -1;
  if (j.top_k > 0 && j.top_k < s.count[BINS - 1] + (j.likely ? 1 : 0)) k = bin_with(s, j.top_k, false);
  if (j.top_p > 0) {
    int end = k < 0 ? BINS - 1 : k;
    low = bin_with(s, j.top_p * (double)(k < 0 ? s.mass[end] : mass_before(s, end)), true);
    high = bin_with(s, j.top_p * (double)s.mass[end], true);
  }
  if (j.likely) low = 0, high = k;
  u32 n = high < low ? 0 : s.count[high] - count_before(s, low);
  if (k >= 0 && !(k >= low && k <= high)) n += s.count[k] - count_before(s, k);
  if (tid() == 0) to.k = k, to.low = low, to.high = high, to.n = n;
}

// sift_weigh fills the bins, and the block that is through last looks for the borders; grid (shares, jobs).
KERNEL sift_weigh(const float* logits, const float* edited, const Rule* rules, const Draw* draws, const float* tops, Bins* bins, Border* borders,
                  int vocab) {
  __shared__ Cumulative s;
  __shared__ float warps[8];
  __shared__ u32 turn;
  u32 *count = s.count, *low = (u32*)s.mass, *high = low + BINS;
  dependency_wait();
  Job j = job_of(bidy(), nbidy() / 2, rules, draws, logits, edited, vocab);
  if (!j.bins) return;
  float top = top_of(j, tops, bidy(), nbid(), warps);
  if (!finite(top)) return;
  for (int b = tid(); b < BINS; b += 256) count[b] = low[b] = high[b] = 0;
  barrier();
  u64 sum = 0;
  each(j.row, from_of(vocab), to_of(vocab), [&](int, float x) {
    float z, m;
    if (!candidate(j, top, x, z, m)) return;
    int b = bin_of(top - z);
    on_shared_add(count + b, 1);
    u64 w = whole(m);
    if (j.likely) sum += w;
    if (!(j.top_p > 0) || !w) return;
    u32 old = on_shared_add(low + b, (u32)w), more = (u32)(w >> 32) + (old + (u32)w < old);
    if (more) on_shared_add(high + b, more);
  });
  barrier();
  for (int b = tid(); b < BINS; b += 256) {
    if (!count[b]) continue;
    on_global_add(bins[bidy()].count + b, count[b]);
    if (j.top_p > 0) on_global_add64(bins[bidy()].mass + b, (u64)high[b] << 32 | low[b]);
  }
  if (j.likely) {
    sum = inclusive(sum, s.warps);
    if (tid() == 255) on_global_add64(bins[bidy()].mass, sum);
  }
  fence();
  barrier();
  if (tid() == 0) turn = on_global_add(&borders[bidy()].weighed, 1);
  barrier();
  if (turn != nbid() - 1) return;
  fence();
  accumulate(s, bins[bidy()]);
  find_borders(s, j, borders[bidy()]);
}

// sift_list lists the tokens of bins with a border, unless they are more than there is room for; grid (shares, jobs).
KERNEL sift_list(const float* logits, const float* edited, const Rule* rules, const Draw* draws, const float* tops, Border* borders, Item* lists, int room,
                 int vocab) {
  __shared__ float warps[8];
  dependency_wait();
  Job j = job_of(bidy(), nbidy() / 2, rules, draws, logits, edited, vocab);
  if (!j.bins) return;
  float top = top_of(j, tops, bidy(), nbid(), warps);
  if (!finite(top)) return;
  Border& to = borders[bidy()];
  int k = to.k, low = to.low, high = to.high;
  if (to.n == 0 || to.n > room) return;
  Item* list = lists + (u64)bidy() * room;
  float floor = least_logit(top - end_of(k > high ? k : high), j.temperature);
  each(j.row, from_of(vocab), to_of(vocab), [&](int i, float x) {
    float z, m;
    if (x < floor || !candidate(j, top, x, z, m)) return;
    int b = bin_of(top - z);
    if (b != k && !(b >= low && b <= high)) return;
    u32 at = on_global_add(&to.listed, 1);
    if (at < room) list[at] = Item{z, i};
  });
}

// Source is where the tokens of a bin are found: in the list, or, when they did not fit, in the row.
struct Source {
  const Item* list;
  int n; // -1: in the row
  int vocab;
  float top;
};

// each_in calls f with the key and the mass of the tokens of the bins [low, high] whose keys are at most last.
template <class F> DEV void each_in(const Source& s, const Job& j, int low, int high, u64 last, F f) {
  auto one = [&](float z, int id) {
    int b = bin_of(s.top - z);
    u64 k = key(z, id);
    if (b >= low && b <= high && k <= last) f(k, z);
  };
  if (s.n >= 0) {
#pragma unroll 1
    for (int i = tid(); i < s.n; i += 256) one(s.list[i].z, s.list[i].id);
    return;
  }
  each(j.row, 0, s.vocab, [&](int i, float x) {
    float z, m;
    if (candidate(j, s.top, x, z, m)) one(z, i);
  });
}

struct Crossing {
  u32 count[256], low[256], high[256];
  u64 keys[NEAR], weights[NEAR], warps[8], before, result;
  u32 n;
  int digit;
};

DEV void add_weight(Crossing& c, int d, u64 w) {
  u32 old = on_shared_add(c.low + d, (u32)w), more = (u32)(w >> 32) + (old + (u32)w < old);
  if (more) on_shared_add(c.high + d, more);
}

// cross is the key, in order, at which the weight of a bin's n tokens (those up to last) and of what is before them reaches the target; last when it never does.
DEV u64 cross(Crossing& c, const Source& s, const Job& j, int bin, u32 n, u64 before, double target, bool by_mass, u64 last) {
  u64 prefix = 0;
  int shift = 64;
#pragma unroll 1
  while (n > NEAR) { // eight bits of the key at a time
    shift -= 8;
    c.count[tid()] = c.low[tid()] = c.high[tid()] = 0;
    if (tid() == 0) c.digit = -1;
    barrier();
    each_in(s, j, bin, bin, last, [&](u64 k, float z) {
      if (shift < 56 && k >> (shift + 8) != prefix) return;
      int d = (int)(k >> shift) & 255;
      on_shared_add(c.count + d, 1);
      add_weight(c, d, by_mass ? whole(exp_neg(z - s.top)) : 1);
    });
    barrier();
    u64 own = (u64)c.high[tid()] << 32 | c.low[tid()], to = before + inclusive(own, c.warps);
    if ((double)to >= target && (double)(to - own) < target) c.digit = tid(), c.before = to - own;
    barrier();
    if (c.digit < 0) return last;
    prefix = prefix << 8 | (u32)c.digit, before = c.before, n = c.count[c.digit];
    barrier();
  }
  if (tid() == 0) c.n = 0, c.result = last;
  barrier();
  each_in(s, j, bin, bin, last, [&](u64 k, float z) {
    if (shift < 64 && k >> shift != prefix) return;
    u32 at = on_shared_add(&c.n, 1);
    c.keys[at] = k, c.weights[at] = by_mass ? whole(exp_neg(z - s.top)) : 1;
  });
  barrier();
  if (tid() < c.n) {
    u64 mine = c.keys[tid()], to = before, own = c.weights[tid()];
#pragma unroll 1
    for (u32 i = 0; i < c.n; i++)
      if (c.keys[i] <= mine) to += c.weights[i];
    if ((double)to >= target && (double)(to - own) < target) c.result = mine;
  }
  barrier();
  u64 r = c.result;
  barrier();
  return r;
}

// sift_cut finds the borders; a block a job. What a draw keeps goes to kept, what is likely to found.
KERNEL sift_cut(const float* logits, const float* edited, const Rule* rules, const Draw* draws, const float* tops, int shares, const Bins* bins,
                const Border* borders, const Item* lists, int room, Kept* kept, Found* found, int vocab) {
  __shared__ Cumulative s;
  __shared__ Crossing c;
  __shared__ float warps[8];
  dependency_wait();
  u32 rows = nbid() / 2, i = bid() % rows;
  Job j = job_of(bid(), rows, rules, draws, logits, edited, vocab);
  float top = 0;
  if (j.bins || j.min_p > 0) top = top_of(j, tops, bid(), shares, warps);
  bool sift = j.bins && finite(top);
  u64 last = EVERYTHING;
  if (j.likely) {
    if (!j.bins) return;
    if (tid() == 0) found[i].n = -1, found[i].top = top;
  }
  if (sift) {
    accumulate(s, bins[bid()]);
    int border = borders[bid()].k, n = (int)borders[bid()].n;
    Source from = {lists + (u64)bid() * room, n > room ? -1 : n, vocab, top};
    u64 mass = s.mass[BINS - 1];
    if (border >= 0) {
      last = cross(c, from, j, border, s.count[border] - count_before(s, border), count_before(s, border), j.top_k, false, EVERYTHING);
      if (!j.likely) last |= 0xffffffffu; // with its ties
    }
    if (j.likely) {
      int want = j.top_k;
      if (border < 0 && want > 0) return; // there are not so many
      if (tid() == 0) c.n = 0;
      barrier();
      if (want > 0)
        each_in(from, j, 0, border, last, [&](u64 k, float) {
          u32 at = on_shared_add(&c.n, 1);
          if (at < MOST_LOGPROBS) c.keys[at] = k;
        });
      barrier();
      if (tid() < want) {
        u64 mine = c.keys[tid()];
        int at = 0;
        for (int k = 0; k < want; k++) at += c.keys[k] < mine;
        found[i].likely[at] = Item{logit_of(mine), (int)(u32)mine};
      }
      if (tid() == 0) found[i].sum = mass, found[i].n = want;
      return;
    }
    if (j.top_p > 0) {
      if (border >= 0) { // of the k-th token's bin, what top-k left
        u64 own = 0;
        each_in(from, j, border, border, last, [&](u64, float z) { own += whole(exp_neg(z - top)); });
        own = inclusive(own, c.warps);
        if (tid() == 255) c.before = own;
        barrier();
        mass = mass_before(s, border) + c.before;
        barrier();
      }
      double target = j.top_p * (double)mass;
      int b = bin_with(s, target, true);
      last = cross(c, from, j, b, s.count[b] - count_before(s, b), mass_before(s, b), target, true, b == border ? last : EVERYTHING);
    }
  }
  if (!j.likely && tid() == 0) kept[i] = Kept{last, top, 0};
}

// sift_race is race among what is kept, on edited rows where there are edits.
KERNEL __launch_bounds__(256, 4) sift_race(const float* logits, const float* edited, const Rule* rules, const Draw* draws, const Kept* kept, Best* best, int vocab) {
  dependency_wait();
  Draw d = draws[bidy()];
  Rule r = rules[bidy()];
  const float* row = (edited_by(r) ? edited : logits) + (u64)bidy() * vocab;
  double score = from_bits(0xfff0000000000000ull);
  int id = -1;
  if (d.temperature == 0) {
    most_likely(row, vocab, score, id);
  } else {
    Job j = job_of(bidy(), nbidy(), rules, draws, logits, edited, vocab);
    Kept k = kept[bidy()];
    float floor = k.last == EVERYTHING ? asf(0xff800000u) : least_logit(logit_of(k.last), d.temperature);
    auto enters = [&](float z, int i) {
      if (k.last != EVERYTHING && key(z, i) > k.last) return false;
      return !(j.min_p > 0) || z == k.top || (double)exp_neg(z - k.top) >= j.min_p;
    };
    run(d, row, vocab, floor, enters, score, id);
  }
  best_of_block(score, id);
  if (tid() == 0) best[bidy() * nbid() + bid()] = Best{score, id, 0};
}

// sift_rank gives the logit of the chosen token and, when it is not among the likely, counts those before it; grid (shares, rows).
KERNEL sift_rank(const float* logits, const Rule* rules, const int* tokens, Found* found, int vocab) {
  __shared__ u64 warps[8];
  dependency_wait();
  Rule r = rules[bidy()];
  if (r.logprobs <= 0) return;
  int token = r.target == -1 ? tokens[bidy()] : r.target;
  Found& f = found[bidy()];
  if ((u32)token >= (u32)vocab || f.n < 0) return;
  const float none = asf(0xff800000u), *row = logits + (u64)bidy() * vocab;
  float chosen = row[token];
  if (bid() == 0 && tid() == 0) f.chosen = chosen;
  if (!(chosen == chosen)) chosen = none;
  if (f.n > 0 && key(chosen, token) <= key(f.likely[f.n - 1].z, f.likely[f.n - 1].id)) return;
  u64 n = 0;
  each(row, from_of(vocab), to_of(vocab), [&](int i, float x) {
    if (!(x == x)) x = none;
    n += x > chosen || (x == chosen && i < token);
  });
  n = inclusive(n, warps);
  if (tid() == 255 && n) on_global_add(&f.before, (u32)n);
}

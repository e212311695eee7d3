// The draw of internal/sample on the device: greedy, or the Gumbel race over the whole row. sift.cu has the other parameters.

// natural logarithm of a positive, normal number: the method of FreeBSD's e_log.c, within 1 unit in the last place.
DEV double logarithm(double x) {
  u64 b = bits_of(x);
  int k = (int)(b >> 52) - 1023;
  b = (b & 0xfffffffffffffull) | 0x3ff0000000000000ull;
  double m = from_bits(b);
  if (m > 1.4142135623730951) m *= 0.5, k++;
  double f = m - 1, s = f / (2 + f), s2 = s * s, s4 = s2 * s2;
  double t1 = s2 * (6.666666666666735130e-01 + s4 * (2.857142874366239149e-01 + s4 * (1.818357216161805012e-01 + s4 * 1.479819860511658591e-01)));
  double t2 = s4 * (3.999999999940941908e-01 + s4 * (2.222219843214978396e-01 + s4 * 1.531383769920937332e-01));
  double r = t1 + t2, hf = 0.5 * f * f, kd = k;
  return kd * 6.93147180369123816490e-01 - ((hf - (s * (hf + r) + kd * 1.90821492927058770002e-10)) - f);
}

DEV u32 mulhi(u32 a, u32 b) { return (u32)(((u64)a * b) >> 32); }

// Philox4x32-10, counter (group, position, 0, 0).
DEV void philox(u32 group, u32 position, u64 seed, u32* out) {
  u32 c0 = group, c1 = position, c2 = 0, c3 = 0, k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
  for (int i = 0; i < 10; i++) {
    u32 h0 = mulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0, h1 = mulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
    c0 = h1 ^ c1 ^ k0, c1 = l1, c2 = h0 ^ c3 ^ k1, c3 = l0;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

DEV bool before(double s, int id, double t, int jd) { return s > t || (s == t && (u32)id < (u32)jd); } // id -1 comes last

// How one row is drawn.
struct Draw {
  u64 seed;
  float temperature; // 0: greedy
  u32 position;
};

struct Best {
  double score;
  int id, pad;
};

// best_of_block: thread 0 gets the best of the block's 256 threads.
DEV void best_of_block(double& s, int& id) {
  __shared__ double ss[8];
  __shared__ int si[8];
#pragma unroll
  for (int m = 16; m; m >>= 1) {
    double t = shd(s, m);
    int jd = (int)shxu((u32)id, m);
    if (before(t, jd, s, id)) s = t, id = jd;
  }
  if ((tid() & 31) == 0) ss[tid() >> 5] = s, si[tid() >> 5] = id;
  barrier();
  if (tid() == 0)
    for (int w = 1; w < 8; w++)
      if (before(ss[w], si[w], s, id)) s = ss[w], id = si[w];
}

// most_likely: of the tokens that this thread looks at, the one with the largest logit.
DEV void most_likely(const float* row, int vocab, double& score, int& id) {
  float top = asf(0xff800000u);
  const int U = 8;
  int every = nbid() * 256;
#pragma unroll 1
  for (int i = bid() * 256 + tid(); i < vocab; i += U * every) {
    float x[U];
#pragma unroll
    for (int u = 0; u < U; u++) x[u] = i + u * every < vocab ? row[i + u * every] : top;
#pragma unroll
    for (int u = 0; u < U; u++)
      if (x[u] > top) top = x[u], id = i + u * every;
  }
  score = top;
}

// gumbel_about is -ln(-ln(u)) within 0.01. Close to 1, ln(u) is u-1.
DEV float gumbel_about(u32 noise) {
  float rest = ((float)~noise + 0.5f) * 2.32830644e-10f;
  return -0.693147181f * lg2(rest < 0.01f ? rest : -0.693147181f * lg2(((float)noise + 0.5f) * 2.32830644e-10f));
}

// run lets the tokens race that this block has, with logits of at least floor, if they may enter. Logarithms in float64 are for the few that are close to the best of
// their warp.
template <class F> DEV void run(const Draw& d, const float* row, int vocab, float floor, F enters, double& score, int& id) {
  const float none = asf(0xff800000u);
  float ahead = none; // no more than what some token of the warp has
  int groups = (vocab + 3) / 4;
#pragma unroll 1
  for (int first = bid() * 256 + (tid() & ~31); first < groups; first += nbid() * 256) {
    int g = first + (tid() & 31);
    float z[4], about[4], best = none;
    u32 r[4];
#pragma unroll
    for (int n = 0; n < 4; n++) z[n] = g * 4 + n < vocab ? row[g * 4 + n] : none;
    bool any = false;
#pragma unroll
    for (int n = 0; n < 4; n++) {
      if (z[n] > none && !(z[n] < floor)) {
        z[n] = rn_div(z[n], d.temperature);
        if (!enters(z[n], g * 4 + n)) z[n] = none;
      } else {
        z[n] = none;
      }
      any = any || z[n] > none;
    }
    if (!any_lane(any)) continue;
    if (any) {
      philox(g, d.position, d.seed, r);
#pragma unroll
      for (int n = 0; n < 4; n++) about[n] = z[n] + gumbel_about(r[n]), best = fmax2(about[n], best);
    }
#pragma unroll
    for (int m = 16; m; m >>= 1) best = fmax2(shx(best, m), best);
    ahead = fmax2(best - (0.02f + 2.4e-7f * fmax2(best, -best)), ahead); // the rounding of large logits, too
    if (!any) continue;
#pragma unroll
    for (int n = 0; n < 4; n++) {
      if (!(z[n] > none) || about[n] < ahead) continue;
      double u = ((double)r[n] + 0.5) * 2.3283064365386962890625e-10, s = z[n] - logarithm(-logarithm(u));
      if (before(s, g * 4 + n, score, id)) score = s, id = g * 4 + n;
    }
  }
}

// pick: of a row's shares the best. -1: no token is left; -2: a logit overflows, the host has to draw.
DEV void pick(const Best* best, int shares, float temperature, int* token) {
  double score = from_bits(0xfff0000000000000ull);
  int id = -1;
  for (int i = tid(); i < shares; i += 256) {
    Best b = best[i];
    if (before(b.score, b.id, score, id)) score = b.score, id = b.id;
  }
  best_of_block(score, id);
  if (tid() == 0) *token = temperature == 0 || (score > -1e38 && score < 1e38) ? id : id < 0 ? -1 : -2;
}

// race: gridDim.x blocks share a row of logits, and the last to finish picks the token; grid (shares, rows). done: of each row, 0 before and after.
KERNEL __launch_bounds__(256, 4) race(const float* logits, const Draw* draws, Best* best, u32* done, int* tokens, int vocab) {
  dependency_wait();
  const float* row = logits + (u64)bidy() * vocab;
  Draw d = draws[bidy()];
  double score = from_bits(0xfff0000000000000ull);
  int id = -1;
  if (d.temperature == 0) {
    most_likely(row, vocab, score, id);
  } else {
    run(d, row, vocab, asf(0xff800000u), [](float, int) { return true; }, score, id);
  }
  best_of_block(score, id);
  __shared__ bool last;
  best += (u64)bidy() * nbid();
  if (tid() == 0) {
    best[bid()] = Best{score, id, 0};
    fence();
    last = on_global_inc(done + bidy(), nbid() - 1) == nbid() - 1;
    fence();
  }
  barrier();
  if (last) pick(best, nbid(), d.temperature, tokens + bidy());
}

// winner picks a row's token by itself: one block of 256 a row.
KERNEL winner(const Best* best, const Draw* draws, int shares, int* tokens) {
  dependency_wait();
  pick(best + bid() * shares, shares, draws[bid()].temperature, tokens + bid());
}

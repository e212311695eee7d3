// The draw of internal/sample on the device: greedy, or the Gumbel race over the whole row. Other parameters are the host's business.

DEV u64 bits_of(double d) { u64 r; asm("mov.b64 %0, %1;" : "=l"(r) : "d"(d)); return r; }
DEV double from_bits(u64 b) { double r; asm("mov.b64 %0, %1;" : "=d"(r) : "l"(b)); return r; }
DEV double shd(double v, int m) {
  u64 b = bits_of(v);
  return from_bits((u64)shxu((u32)(b >> 32), m) << 32 | shxu((u32)b, m));
}

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

// race: gridDim.x blocks share a row of logits; grid (shares, rows).
KERNEL race(const float* logits, const Draw* draws, Best* best, int vocab) {
  dependency_wait();
  const double none = from_bits(0xfff0000000000000ull);
  const float* row = logits + (u64)bidy() * vocab;
  Draw d = draws[bidy()];
  double score = none;
  int id = -1;
  if (d.temperature == 0) {
    float top = asf(0xff800000u);
    const int U = 4;
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
  } else {
    int groups = (vocab + 3) / 4;
#pragma unroll 1
    for (int g = bid() * 256 + tid(); g < groups; g += nbid() * 256) {
      u32 r[4];
      philox(g, d.position, d.seed, r);
#pragma unroll 1
      for (int j = 0; j < 4; j++) {
        int i = g * 4 + j;
        if (i >= vocab || !(row[i] > asf(0xff800000u))) continue;
        double z = row[i] / d.temperature;
        u32 ones;
        asm("clz.b32 %0, %1;" : "=r"(ones) : "r"(~r[j]));
        if (z + 0.69314718055994530942 * (double)(ones + 1) < score) continue; // cannot win: see gumbelBound
        double u = ((double)r[j] + 0.5) * 2.3283064365386962890625e-10, s = z - logarithm(-logarithm(u));
        if (before(s, i, score, id)) score = s, id = i;
      }
    }
  }
  best_of_block(score, id);
  if (tid() == 0) best[bidy() * nbid() + bid()] = Best{score, id, 0};
}

// winner: one block of 256 a row. -1: no token is left; -2: a logit overflows, the host has to draw.
KERNEL winner(const Best* best, const Draw* draws, int shares, int* tokens) {
  dependency_wait();
  double score = from_bits(0xfff0000000000000ull);
  int id = -1;
  for (int i = tid(); i < shares; i += 256) {
    Best b = best[bid() * shares + i];
    if (before(b.score, b.id, score, id)) score = b.score, id = b.id;
  }
  best_of_block(score, id);
  if (tid() == 0) {
    if (draws[bid()].temperature != 0 && !(score > -1e38 && score < 1e38)) id = id < 0 ? -1 : -2;
    tokens[bid()] = id;
  }
}

/* A libnvidia-ml.so.1 for tests. It reads the file named by FAKE_NVML_STATE in every call, so that a test can change the machine while it runs:
 *
 *   init RET
 *   gpu  INDEX UUID TOTAL USED RESERVED RET MIG NAME     RET is what the memory calls return; V2 (below) only the second
 *   v2   RET
 *   mig  INDEX SLICE UUID TOTAL USED GI CI
 *   proc KIND UUID PID BYTES                             KIND compute or graphics; BYTES -1 is NVML's "not available"
 *   list UUID RET                                        what the process lists return
 *
 * -DOLD leaves out what drivers of 2019 did not have: the second memory call, MIG, the versioned process lists.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned pid; unsigned long long bytes; } process_v1;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gi, ci; } process_v2;

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, UNKNOWN = 999 };

typedef struct { char uuid[96], name[96]; unsigned long long total, used, reserved; int ret, mig, gi, ci; } device;

static int initialised;

/* A handle is index + 1 for a GPU, and 256 * (slice + 1) more for a slice. */
static void *handle(int gpu, int slice) { return (void *)(size_t)(gpu + 1 + 256 * (slice + 1)); }

static FILE *state(void) { const char *p = getenv("FAKE_NVML_STATE"); return p ? fopen(p, "r") : NULL; }

static int number(const char *key, int otherwise) {
	char line[512], k[32];
	int v, ret = otherwise;
	FILE *f = state();
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "%31s %d", k, &v) == 2 && !strcmp(k, key)) ret = v;
	if (f) fclose(f);
	return ret;
}

static int find(void *h, device *d) {
	int n = (int)(size_t)h, gpu = n % 256 - 1, slice = n / 256 - 1, i, s, found = 0;
	char line[512];
	FILE *f = state();
	if (!initialised) { fprintf(stderr, "fake NVML: used before nvmlInit\n"); abort(); }
	memset(d, 0, sizeof *d);
	while (f && fgets(line, sizeof line, f)) {
		if (slice < 0 && sscanf(line, "gpu %d %95s %llu %llu %llu %d %d %95[^\n]", &i, d->uuid, &d->total, &d->used, &d->reserved, &d->ret, &d->mig, d->name) >= 7 && i == gpu) { found = 1; break; }
		if (slice >= 0 && sscanf(line, "mig %d %d %95s %llu %llu %d %d", &i, &s, d->uuid, &d->total, &d->used, &d->gi, &d->ci) == 7 && i == gpu && s == slice) {
			snprintf(d->name, sizeof d->name, "slice %d", s);
			found = 1;
			break;
		}
	}
	if (f) fclose(f);
	return found ? SUCCESS : NOT_FOUND;
}

static int count(void) {
	char line[512];
	int n = 0;
	FILE *f = state();
	while (f && fgets(line, sizeof line, f)) n += !strncmp(line, "gpu ", 4);
	if (f) fclose(f);
	return n;
}

int nvmlInit_v2(void) { int r = number("init", 0); initialised += r == SUCCESS; return r; }
int nvmlShutdown(void) { if (!initialised) return UNINITIALIZED; initialised--; return SUCCESS; }
const char *nvmlErrorString(int r) { return r == 15 ? "GPU is lost" : r == 4 ? "Insufficient Permissions" : r == 9 ? "Driver Not Loaded" : "some error"; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = count(); return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = handle(i, -1); return (int)i < count() ? SUCCESS : INVALID; }
int nvmlDeviceGetUUID(void *h, char *s, unsigned n) { device d; int r = find(h, &d); if (!r) snprintf(s, n, "%s", d.uuid); return r; }
int nvmlDeviceGetName(void *h, char *s, unsigned n) { device d; int r = find(h, &d); if (!r) snprintf(s, n, "%s", d.name); return r; }

int nvmlDeviceGetMemoryInfo(void *h, memory_v1 *m) {
	device d;
	int r = find(h, &d);
	if (r) return r;
	m->total = d.total, m->used = d.used + d.reserved, m->free = m->total - m->used;
	return d.ret;
}

static int processes(void *h, const char *kind, unsigned *n, void *out, int v2) {
	char line[512], k[32], uuid[96];
	unsigned pid, have = 0, room = *n;
	long long bytes;
	int ret = SUCCESS, r;
	device d;
	if ((r = find(h, &d))) return r;
	FILE *f = state();
	while (f && fgets(line, sizeof line, f)) {
		if (sscanf(line, "list %95s %d", uuid, &r) == 2 && !strcmp(uuid, d.uuid)) ret = r;
		if (sscanf(line, "proc %31s %95s %u %lld", k, uuid, &pid, &bytes) != 4 || strcmp(uuid, d.uuid) || strcmp(k, kind)) continue;
		if (have < room && v2) ((process_v2 *)out)[have] = (process_v2){pid, (unsigned long long)bytes, ~0u, ~0u};
		if (have < room && !v2) ((process_v1 *)out)[have] = (process_v1){pid, (unsigned long long)bytes};
		have++;
	}
	if (f) fclose(f);
	*n = have;
	return ret ? ret : have > room ? TOO_SMALL : SUCCESS;
}

#ifdef OLD
int nvmlDeviceGetComputeRunningProcesses(void *h, unsigned *n, process_v1 *p) { return processes(h, "compute", n, p, 0); }
#else
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, process_v2 *p) { return processes(h, "compute", n, p, 1); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *h, unsigned *n, process_v2 *p) { return processes(h, "graphics", n, p, 1); }

int nvmlDeviceGetMemoryInfo_v2(void *h, memory_v2 *m) {
	device d;
	int r = find(h, &d);
	if (r) return r;
	if (m->version != (sizeof *m | 2u << 24)) return 25; /* ARGUMENT_VERSION_MISMATCH */
	m->total = d.total, m->used = d.used, m->reserved = d.reserved, m->free = m->total - m->used - m->reserved;
	return d.ret ? d.ret : number("v2", 0);
}

int nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *pending) {
	device d;
	int r = find(h, &d);
	if (d.mig < 0) return NOT_SUPPORTED;
	*now = *pending = d.mig;
	return r;
}
int nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *n) { (void)h; *n = 7; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned i, void **out) {
	device d;
	*out = handle((int)(size_t)h - 1, i);
	return find(*out, &d);
}
int nvmlDeviceGetGpuInstanceId(void *h, unsigned *id) { device d; int r = find(h, &d); *id = d.gi; return r; }
int nvmlDeviceGetComputeInstanceId(void *h, unsigned *id) { device d; int r = find(h, &d); *id = d.ci; return r; }
#endif

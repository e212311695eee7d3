// A stand-in for libcuda.so.1 that needs no GPU: what a CUDA program of this project calls, with the rules of the real driver that matter to
// its owner. Device memory is host memory, so copies and fills really happen; kernels do nothing, but for those in run().
//
//   - the current context is per thread; without one a call is error 201, with one that has ended 709;
//   - plain memory, pinned memory, streams, events, modules and graphs end with their context;
//   - stream-ordered and VMM memory and pools do NOT: they stay allocated until they are freed or the process ends;
//   - memory is limited, errors can be made to happen, and some of them kill the context for good.
//
// The stub_* functions at the end are the test's side. One lock guards everything.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef int R; // CUresult
typedef uint64_t P; // CUdeviceptr
#define API __attribute__((visibility("default")))

enum { OK, INVALID_VALUE = 1, NO_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
       BAD_PTX = 218, PTX_TOO_NEW = 222, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700,
       PEER_ENABLED = 704, CONTEXT_DESTROYED = 709, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALID = 901, NOT_CAPTURING = 905, UPDATE_FAILED = 910, LOST = 999 };

enum kind { PLAIN, ASYNC, VMM, POOL, OUTLIVES, PINNED = OUTLIVES, STREAM, EVENT, MODULE, FUNCTION, GRAPH, EXEC, RANGE, KINDS };

typedef struct op {
	int what; // 0 kernel, 1 copy, 2 fill
	const char *kernel;
	P a, b;
	uint64_t n;
	uint32_t value, width;
} op;

typedef struct object {
	struct object *next;
	enum kind kind;
	int dev, mapped;
	char *p;
	uint64_t size, stamp;        // stamp: an event's time, 0 when it was never recorded
	uint64_t kept, used, keep;   // of a pool: bytes kept, in use, to keep at most
	struct object *owner;        // a function's module, an async block's pool, a stream's graph while it captures, a mapped range's memory
	char *text;                  // a module's image, a function's name
	op *ops;
	int n_ops, spoilt, foreign;  // of a graph: recorded work, whether the capture is void; of memory: whether it was only registered
} object;

typedef struct { int retained, active, sticky, lost; long life; uint64_t used, capacity; object *pool; } device;

#define MAX_DEVICES 8
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t resumed = PTHREAD_COND_INITIALIZER;
static device devices[MAX_DEVICES];
static int n_devices, inited, init_result, hanging;
static object *objects;
static uint64_t tick;
static __thread int current = -1; // device whose primary context is current on this thread
static __thread long current_life;
static __thread object *capturing; // the stream that this thread captures

static struct fault { char call[64]; int nth, code; } faults[32];
static int n_faults;
static struct count { const char *call; long n; } counts[160];

// ---- what every call begins with

static int sticky(int code) {
	return code == 214 || (code >= 700 && code <= 702 && code != 701) || code == 709 || (code >= 714 && code <= 719) || code == LOST;
}

// begin counts the call and takes the lock; it gives the error that is due, 0 otherwise.
static R begin(const char *call) {
	pthread_mutex_lock(&lock);
	for (int i = 0; i < 160; i++)
		if (!counts[i].call || !strcmp(counts[i].call, call)) {
			counts[i].call = call;
			counts[i].n++;
			break;
		}
	for (int i = 0; i < n_faults; i++) {
		if (strcmp(faults[i].call, call) || faults[i].nth < 1 || --faults[i].nth > 0) continue;
		int code = faults[i].code;
		if (code < 0) { // hang until stub_resume
			int round = ++hanging;
			while (hanging >= round) pthread_cond_wait(&resumed, &lock);
			continue;
		}
		if (sticky(code) && current >= 0) devices[current].sticky = code;
		return code;
	}
	return OK;
}

static R end(R r) { pthread_mutex_unlock(&lock); return r; }

static R context(void) {
	if (!inited) return NOT_INITIALIZED;
	if (current < 0) return INVALID_CONTEXT;
	device *d = &devices[current];
	if (d->lost) return LOST;
	if (!d->active || d->life != current_life) return CONTEXT_DESTROYED;
	return d->sticky;
}

#define BEGIN(call) do { R r_ = begin(call); if (r_) return end(r_); } while (0)
#define CONTEXT(call) do { BEGIN(call); R r_ = context(); if (r_) return end(r_); } while (0)
#define CHECK(cond, code) do { if (!(cond)) return end(code); } while (0)
// What may not be called while this thread captures: it spoils the capture.
#define NOT_IN_CAPTURE do { if (capturing) { capturing->owner->spoilt = 1; return end(CAPTURE_UNSUPPORTED); } } while (0)

// ---- objects

static object *new_object(enum kind kind, int dev, uint64_t size) {
	object *o = calloc(1, sizeof *o);
	*o = (object){.next = objects, .kind = kind, .dev = dev, .size = size};
	return objects = o;
}

static object *find(const void *h, enum kind kind) {
	for (object *o = objects; o; o = o->next)
		if (o == h && o->kind == kind) return o;
	return NULL;
}

static void forget(object *o) {
	if (o == capturing) capturing = NULL;
	for (object **p = &objects; *p; p = &(*p)->next)
		if (*p == o) { *p = o->next; break; }
	if (o->kind == PINNED && !o->foreign) free(o->p);
	if (o->kind == PLAIN || o->kind == ASYNC) free(o->p);
	if (o->kind == RANGE) munmap(o->p, o->size);
	free(o->text);
	free(o->ops);
	free(o);
}

static object *holder(P p, uint64_t n) { // the memory that [p, p+n) lies in
	for (object *o = objects; o; o = o->next) {
		int memory = o->kind == PLAIN || o->kind == ASYNC || o->kind == PINNED || (o->kind == RANGE && o->mapped == 2);
		if (memory && p >= (P)o->p && n <= o->size && p - (P)o->p <= o->size - n) return o;
	}
	return NULL;
}

static object *block(P p) { // the memory that begins at p
	for (object *o = objects; o; o = o->next)
		if ((o->kind == PLAIN || o->kind == ASYNC || o->kind == PINNED) && (P)o->p == p) return o;
	return NULL;
}

static int take(int dev, uint64_t n) {
	if (n > devices[dev].capacity - devices[dev].used) return 0;
	devices[dev].used += n;
	return 1;
}

static char *storage(uint64_t n) {
	void *p = NULL;
	return posix_memalign(&p, 256, n) ? NULL : p;
}

static void end_context(device *d) {
	int dev = (int)(d - devices);
	for (object *o = objects, *next; o; o = next) {
		next = o->next;
		if (o->dev != dev || o->kind < PLAIN || (o->kind > PLAIN && o->kind < OUTLIVES) || o->kind == RANGE) continue;
		if (o->kind == PLAIN) d->used -= o->size;
		forget(o);
	}
	d->active = d->sticky = d->retained = 0;
	d->life++;
}

// ---- work: done at once, or recorded

static void run(int dev, const op *w) {
	if (w->what == 1) { memmove((void *)w->a, (void *)w->b, w->n); return; }
	if (w->what == 2 || !strcmp(w->kernel, "fill32")) {
		if (!holder(w->a, w->n * w->width)) { devices[dev].sticky = ILLEGAL_ADDRESS; return; }
		for (uint64_t i = 0; i < w->n; i++) memcpy((char *)w->a + i * w->width, &w->value, w->width);
		return;
	}
	if (!strcmp(w->kernel, "crash")) devices[dev].sticky = ILLEGAL_ADDRESS;
}

static R queue(object *stream, op w) {
	if (stream && stream->owner) {
		object *g = stream->owner;
		g->ops = realloc(g->ops, (g->n_ops + 1) * sizeof w);
		g->ops[g->n_ops++] = w;
	} else {
		run(current, &w);
	}
	return OK;
}

#define STREAM_ARG(s) CHECK(!(s) || find(s, STREAM), INVALID_HANDLE)

// ---- library and devices

static struct { int code; const char *name, *text; } words[] = {
	{0, "CUDA_SUCCESS", "no error"}, {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"}, {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"}, {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}, {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
	{222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
	{400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}, {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{600, "CUDA_ERROR_NOT_READY", "device not ready"}, {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
	{704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
	{709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"}, {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
	{801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
	{900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
	{901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
	{910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the graph update was not performed because it included changes which violated constraints"},
	{999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static R word(int code, const char **s, int text) {
	for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
		if (words[i].code == code) { *s = text ? words[i].text : words[i].name; return OK; }
	*s = NULL;
	return INVALID_VALUE;
}
API R cuGetErrorName(int code, const char **s) { return word(code, s, 0); }
API R cuGetErrorString(int code, const char **s) { return word(code, s, 1); }

API R cuInit(unsigned flags) {
	(void)flags;
	BEGIN("cuInit");
	CHECK(!init_result, init_result);
	CHECK(n_devices > 0, NO_DEVICE);
	inited = 1;
	return end(OK);
}
API R cuDriverGetVersion(int *v) { BEGIN("cuDriverGetVersion"); *v = 13000; return end(OK); }
API R cuDeviceGetCount(int *n) { BEGIN("cuDeviceGetCount"); CHECK(inited, NOT_INITIALIZED); *n = n_devices; return end(OK); }

#define DEVICE(call, dev) do { BEGIN(call); CHECK(inited, NOT_INITIALIZED); CHECK((dev) >= 0 && (dev) < n_devices, INVALID_DEVICE); \
	CHECK(!devices[dev].lost, LOST); } while (0)

API R cuDeviceGet(int *dev, int i) { DEVICE("cuDeviceGet", i); *dev = i; return end(OK); }
API R cuDeviceGetName(char *s, int n, int dev) { DEVICE("cuDeviceGetName", dev); snprintf(s, n, "Stub GPU"); return end(OK); }
API R cuDeviceGetPCIBusId(char *s, int n, int dev) { DEVICE("cuDeviceGetPCIBusId", dev); snprintf(s, n, "0000:%02X:00.0", dev + 1); return end(OK); }
API R cuDeviceGetUuid_v2(unsigned char id[16], int dev) {
	DEVICE("cuDeviceGetUuid_v2", dev);
	for (int i = 0; i < 16; i++) id[i] = (unsigned char)(0x57 + i);
	id[0] = (unsigned char)(0xd0 + dev); // the beginnings differ
	return end(OK);
}
API R cuDeviceTotalMem_v2(uint64_t *n, int dev) { DEVICE("cuDeviceTotalMem_v2", dev); *n = devices[dev].capacity; return end(OK); }
API R cuDeviceGetAttribute(int *v, int a, int dev) {
	DEVICE("cuDeviceGetAttribute", dev);
	switch (a) {
	case 16: *v = 4; break;          // SMs
	case 38: *v = 1 << 20; break;    // L2
	case 75: *v = 9; break;
	case 76: *v = 0; break;
	case 97: *v = 227 << 10; break;  // shared memory per block, opt-in
	default: *v = 1;
	}
	return end(OK);
}
API R cuDeviceCanAccessPeer(int *v, int a, int b) { DEVICE("cuDeviceCanAccessPeer", a); *v = a != b && b >= 0 && b < n_devices; return end(OK); }

// ---- contexts

API R cuDevicePrimaryCtxRetain(void **ctx, int dev) {
	DEVICE("cuDevicePrimaryCtxRetain", dev);
	devices[dev].retained++;
	devices[dev].active = 1;
	*ctx = &devices[dev];
	return end(OK);
}
API R cuDevicePrimaryCtxRelease_v2(int dev) {
	DEVICE("cuDevicePrimaryCtxRelease_v2", dev);
	CHECK(devices[dev].retained > 0, INVALID_CONTEXT);
	if (--devices[dev].retained == 0) end_context(&devices[dev]);
	return end(OK);
}
API R cuDevicePrimaryCtxReset_v2(int dev) {
	DEVICE("cuDevicePrimaryCtxReset_v2", dev);
	end_context(&devices[dev]);
	return end(OK);
}
API R cuDevicePrimaryCtxGetState(int dev, unsigned *flags, int *active) {
	DEVICE("cuDevicePrimaryCtxGetState", dev);
	*flags = 0;
	*active = devices[dev].active;
	return end(OK);
}
API R cuCtxSetCurrent(void *ctx) {
	BEGIN("cuCtxSetCurrent");
	current = ctx ? (int)((device *)ctx - devices) : -1;
	if (ctx) current_life = devices[current].life;
	return end(OK);
}
API R cuCtxSynchronize(void) { CONTEXT("cuCtxSynchronize"); NOT_IN_CAPTURE; return end(OK); }
API R cuCtxEnablePeerAccess(void *ctx, unsigned flags) {
	(void)flags;
	CONTEXT("cuCtxEnablePeerAccess");
	CHECK((device *)ctx != &devices[current], INVALID_DEVICE);
	return end(OK);
}

// ---- memory

API R cuMemGetInfo_v2(uint64_t *free_, uint64_t *total) {
	CONTEXT("cuMemGetInfo_v2");
	*total = devices[current].capacity;
	*free_ = *total - devices[current].used;
	return end(OK);
}
API R cuMemAlloc_v2(P *p, uint64_t n) {
	CONTEXT("cuMemAlloc_v2");
	NOT_IN_CAPTURE;
	CHECK(n > 0, INVALID_VALUE);
	CHECK(take(current, n), NO_MEMORY);
	object *o = new_object(PLAIN, current, n);
	o->p = storage(n);
	*p = (P)o->p;
	return end(OK);
}
static R free_async(P p) {
	object *o = block(p);
	if (!o || o->kind != ASYNC) return INVALID_VALUE;
	object *pool = o->owner;
	pool->used -= o->size;
	uint64_t room = pool->keep > pool->kept ? pool->keep - pool->kept : 0, stay = o->size < room ? o->size : room;
	pool->kept += stay;
	devices[o->dev].used -= o->size - stay;
	forget(o);
	return OK;
}
API R cuMemFree_v2(P p) {
	CONTEXT("cuMemFree_v2");
	NOT_IN_CAPTURE;
	object *o = block(p);
	CHECK(o && o->kind <= ASYNC, INVALID_VALUE);
	if (o->kind == ASYNC) return end(free_async(p));
	devices[o->dev].used -= o->size;
	forget(o);
	return end(OK);
}
API R cuMemHostAlloc(void **p, uint64_t n, unsigned flags) {
	(void)flags;
	CONTEXT("cuMemHostAlloc");
	object *o = new_object(PINNED, current, n);
	*p = o->p = storage(n);
	return end(OK);
}
API R cuMemFreeHost(void *p) {
	CONTEXT("cuMemFreeHost");
	object *o = block((P)p);
	CHECK(o && o->kind == PINNED && !o->foreign, INVALID_VALUE);
	forget(o);
	return end(OK);
}
API R cuMemHostRegister_v2(void *p, uint64_t n, unsigned flags) {
	(void)flags;
	CONTEXT("cuMemHostRegister_v2");
	CHECK(!holder((P)p, 1), 712);
	object *o = new_object(PINNED, current, n);
	o->p = p;
	o->foreign = 1;
	return end(OK);
}
API R cuMemHostUnregister(void *p) {
	CONTEXT("cuMemHostUnregister");
	object *o = block((P)p);
	CHECK(o && o->kind == PINNED && o->foreign, 713);
	forget(o);
	return end(OK);
}
API R cuMemHostGetDevicePointer_v2(P *dev, void *p, unsigned flags) {
	(void)flags;
	CONTEXT("cuMemHostGetDevicePointer_v2");
	CHECK(block((P)p), INVALID_VALUE);
	*dev = (P)p;
	return end(OK);
}

// ---- stream-ordered memory

static object *device_pool(int dev) {
	if (!devices[dev].pool) devices[dev].pool = new_object(POOL, dev, 0);
	return devices[dev].pool;
}
static void trim(object *pool, uint64_t keep) {
	uint64_t give = pool->kept > keep ? pool->kept - keep : 0;
	pool->kept -= give;
	devices[pool->dev].used -= give;
}
static R alloc_async(P *p, uint64_t n, object *pool) {
	uint64_t reuse = n < pool->kept ? n : pool->kept;
	if (n == 0) return INVALID_VALUE;
	if (!take(pool->dev, n - reuse)) return NO_MEMORY;
	pool->kept -= reuse;
	pool->used += n;
	object *o = new_object(ASYNC, pool->dev, n);
	o->owner = pool;
	o->p = storage(n);
	*p = (P)o->p;
	return OK;
}
API R cuMemAllocAsync(P *p, uint64_t n, void *s) { CONTEXT("cuMemAllocAsync"); STREAM_ARG(s); return end(alloc_async(p, n, device_pool(current))); }
API R cuMemAllocFromPoolAsync(P *p, uint64_t n, void *pool, void *s) {
	CONTEXT("cuMemAllocFromPoolAsync");
	STREAM_ARG(s);
	CHECK(find(pool, POOL), INVALID_HANDLE);
	return end(alloc_async(p, n, pool));
}
API R cuMemFreeAsync(P p, void *s) { CONTEXT("cuMemFreeAsync"); STREAM_ARG(s); return end(free_async(p)); }
API R cuDeviceGetDefaultMemPool(void **pool, int dev) { DEVICE("cuDeviceGetDefaultMemPool", dev); *pool = device_pool(dev); return end(OK); }
API R cuMemPoolCreate(void **pool, const void *props) { (void)props; CONTEXT("cuMemPoolCreate"); *pool = new_object(POOL, current, 0); return end(OK); }
API R cuMemPoolDestroy(void *pool) { // blocks that are in use stay in use, as with the real one
	BEGIN("cuMemPoolDestroy");
	object *o = find(pool, POOL);
	CHECK(o, INVALID_HANDLE);
	trim(o, 0);
	if (o->used == 0) forget(o);
	return end(OK);
}
API R cuMemPoolTrimTo(void *pool, uint64_t keep) { BEGIN("cuMemPoolTrimTo"); CHECK(find(pool, POOL), INVALID_HANDLE); trim(pool, keep); return end(OK); }
API R cuMemPoolSetAttribute(void *pool, int a, uint64_t *v) {
	BEGIN("cuMemPoolSetAttribute");
	CHECK(find(pool, POOL) && a == 4, INVALID_VALUE);
	((object *)pool)->keep = *v;
	return end(OK);
}
API R cuMemPoolGetAttribute(void *pool, int a, uint64_t *v) {
	BEGIN("cuMemPoolGetAttribute");
	object *o = find(pool, POOL);
	CHECK(o && a >= 4 && a <= 8, INVALID_VALUE);
	*v = a == 4 ? o->keep : a < 7 ? o->used + o->kept : o->used;
	return end(OK);
}

// ---- virtual memory

#define GRAIN (2u << 20)
API R cuMemGetAllocationGranularity(uint64_t *n, const void *prop, int option) {
	(void)prop, (void)option;
	BEGIN("cuMemGetAllocationGranularity");
	*n = GRAIN;
	return end(OK);
}
API R cuMemAddressReserve(P *p, uint64_t n, uint64_t align, P at, uint64_t flags) {
	(void)align, (void)at, (void)flags;
	CONTEXT("cuMemAddressReserve");
	CHECK(n > 0 && n % GRAIN == 0, INVALID_VALUE);
	object *o = new_object(RANGE, current, n);
	o->p = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	*p = (P)o->p;
	return end(OK);
}
static object *range(P p, uint64_t n) {
	for (object *o = objects; o; o = o->next)
		if (o->kind == RANGE && (P)o->p == p && o->size == n) return o;
	return NULL;
}
API R cuMemAddressFree(P p, uint64_t n) {
	BEGIN("cuMemAddressFree");
	object *o = range(p, n);
	CHECK(o && !o->mapped, INVALID_VALUE);
	forget(o);
	return end(OK);
}
API R cuMemCreate(void **h, uint64_t n, const int32_t *prop, uint64_t flags) {
	(void)flags;
	CONTEXT("cuMemCreate");
	CHECK(n > 0 && n % GRAIN == 0 && prop[0] == 1 && prop[2] == 1 && prop[3] == current, INVALID_VALUE);
	CHECK(take(current, n), NO_MEMORY);
	*h = new_object(VMM, current, n);
	return end(OK);
}
static void drop_physical(object *o) { // freed when it is neither held nor mapped
	if (o->foreign && !o->mapped) {
		devices[o->dev].used -= o->size;
		forget(o);
	}
}
API R cuMemRelease(void *h) {
	BEGIN("cuMemRelease");
	object *o = find(h, VMM);
	CHECK(o && !o->foreign, INVALID_VALUE);
	o->foreign = 1;
	drop_physical(o);
	return end(OK);
}
API R cuMemMap(P p, uint64_t n, uint64_t off, void *h, uint64_t flags) {
	(void)off, (void)flags;
	BEGIN("cuMemMap");
	object *o = range(p, n), *m = find(h, VMM);
	CHECK(o && m && !o->mapped && m->size == n, INVALID_VALUE);
	o->mapped = m->mapped = 1;
	o->owner = m;
	return end(OK);
}
API R cuMemUnmap(P p, uint64_t n) {
	BEGIN("cuMemUnmap");
	object *o = range(p, n);
	CHECK(o && o->mapped, INVALID_VALUE);
	mmap(o->p, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	o->mapped = o->owner->mapped = 0;
	drop_physical(o->owner);
	o->owner = NULL;
	return end(OK);
}
API R cuMemSetAccess(P p, uint64_t n, const int32_t *desc, uint64_t count) {
	BEGIN("cuMemSetAccess");
	object *o = range(p, n);
	CHECK(o && o->mapped && count == 1 && desc[2] == 3, INVALID_VALUE);
	CHECK(!mprotect(o->p, n, PROT_READ | PROT_WRITE), NO_MEMORY);
	o->mapped = 2;
	return end(OK);
}

// ---- copies and fills

static R copy(object *stream, P to, P from, uint64_t n, int check_to, int check_from) {
	if ((check_to && !holder(to, n)) || (check_from && !holder(from, n))) return INVALID_VALUE;
	return queue(stream, (op){.what = 1, .a = to, .b = from, .n = n});
}
API R cuMemcpyHtoD_v2(P to, const void *from, uint64_t n) { CONTEXT("cuMemcpyHtoD_v2"); NOT_IN_CAPTURE; return end(copy(NULL, to, (P)from, n, 1, 0)); }
API R cuMemcpyDtoH_v2(void *to, P from, uint64_t n) { CONTEXT("cuMemcpyDtoH_v2"); NOT_IN_CAPTURE; return end(copy(NULL, (P)to, from, n, 0, 1)); }
API R cuMemcpyHtoDAsync_v2(P to, const void *from, uint64_t n, void *s) {
	CONTEXT("cuMemcpyHtoDAsync_v2");
	STREAM_ARG(s);
	return end(copy(s, to, (P)from, n, 1, 1));
}
API R cuMemcpyDtoHAsync_v2(void *to, P from, uint64_t n, void *s) {
	CONTEXT("cuMemcpyDtoHAsync_v2");
	STREAM_ARG(s);
	return end(copy(s, (P)to, from, n, 1, 1));
}
API R cuMemcpyDtoDAsync_v2(P to, P from, uint64_t n, void *s) {
	CONTEXT("cuMemcpyDtoDAsync_v2");
	STREAM_ARG(s);
	return end(copy(s, to, from, n, 1, 1));
}
API R cuMemcpyPeerAsync(P to, void *to_ctx, P from, void *from_ctx, uint64_t n, void *s) {
	CONTEXT("cuMemcpyPeerAsync");
	STREAM_ARG(s);
	CHECK(to_ctx && from_ctx && ((device *)from_ctx)->active && ((device *)to_ctx)->active, INVALID_CONTEXT);
	return end(copy(s, to, from, n, 1, 1));
}
static R fill(object *s, P p, uint32_t v, uint64_t n, uint32_t width) {
	if (!holder(p, n * width)) return INVALID_VALUE;
	return queue(s, (op){.what = 2, .a = p, .value = v, .n = n, .width = width});
}
API R cuMemsetD8Async(P p, unsigned char v, uint64_t n, void *s) { CONTEXT("cuMemsetD8Async"); STREAM_ARG(s); return end(fill(s, p, v, n, 1)); }
API R cuMemsetD32Async(P p, uint32_t v, uint64_t n, void *s) { CONTEXT("cuMemsetD32Async"); STREAM_ARG(s); return end(fill(s, p, v, n, 4)); }

// ---- streams and events

API R cuStreamCreateWithPriority(void **s, unsigned flags, int priority) {
	(void)flags, (void)priority;
	CONTEXT("cuStreamCreateWithPriority");
	*s = new_object(STREAM, current, 0);
	return end(OK);
}
API R cuStreamDestroy_v2(void *s) { CONTEXT("cuStreamDestroy_v2"); CHECK(find(s, STREAM), INVALID_HANDLE); forget(s); return end(OK); }
API R cuStreamSynchronize(void *s) { CONTEXT("cuStreamSynchronize"); NOT_IN_CAPTURE; STREAM_ARG(s); return end(OK); }
API R cuStreamQuery(void *s) { CONTEXT("cuStreamQuery"); STREAM_ARG(s); return end(OK); }
API R cuStreamWaitEvent(void *s, void *e, unsigned flags) { (void)flags; CONTEXT("cuStreamWaitEvent"); STREAM_ARG(s); CHECK(find(e, EVENT), INVALID_HANDLE); return end(OK); }
API R cuEventCreate(void **e, unsigned flags) { (void)flags; CONTEXT("cuEventCreate"); *e = new_object(EVENT, current, 0); return end(OK); }
API R cuEventDestroy_v2(void *e) { CONTEXT("cuEventDestroy_v2"); CHECK(find(e, EVENT), INVALID_HANDLE); forget(e); return end(OK); }
API R cuEventRecord(void *e, void *s) {
	CONTEXT("cuEventRecord");
	STREAM_ARG(s);
	CHECK(find(e, EVENT), INVALID_HANDLE);
	((object *)e)->stamp = ++tick;
	return end(OK);
}
API R cuEventSynchronize(void *e) { CONTEXT("cuEventSynchronize"); NOT_IN_CAPTURE; CHECK(find(e, EVENT), INVALID_HANDLE); return end(OK); }
API R cuEventQuery(void *e) { CONTEXT("cuEventQuery"); CHECK(find(e, EVENT), INVALID_HANDLE); return end(OK); }
API R cuEventElapsedTime_v2(float *ms, void *a, void *b) {
	CONTEXT("cuEventElapsedTime_v2");
	CHECK(find(a, EVENT) && find(b, EVENT), INVALID_HANDLE);
	object *x = a, *y = b;
	CHECK(x->stamp && y->stamp, INVALID_HANDLE);
	*ms = (float)((int64_t)(y->stamp - x->stamp)) * 0.001f; // a microsecond between any two records
	return end(OK);
}

// ---- modules and launches

API R cuModuleLoadDataEx(void **m, const char *image, unsigned n, const int *keys, void **values) {
	CONTEXT("cuModuleLoadDataEx");
	NOT_IN_CAPTURE;
	char *log = NULL;
	uint64_t *size = NULL;
	for (unsigned i = 0; i < n; i++) {
		if (keys[i] == 5) log = values[i];
		if (keys[i] == 6) size = (uint64_t *)&values[i];
	}
	R r = strstr(image, ".version 99") ? PTX_TOO_NEW : strstr(image, ".version") && !strstr(image, "bogus") ? OK : BAD_PTX;
	if (log && size) {
		if (r == BAD_PTX) snprintf(log, *size, "ptxas application ptx input, line 1; fatal   : Unknown instruction in '%.20s'\n", image);
		*size = r ? strlen(log) : 0; // in and out, as the real one
	}
	CHECK(r == OK, r);
	object *o = new_object(MODULE, current, 0);
	o->text = strdup(image);
	*m = o;
	return end(OK);
}
API R cuModuleUnload(void *m) {
	CONTEXT("cuModuleUnload");
	CHECK(find(m, MODULE), INVALID_HANDLE);
	for (object *o = objects, *next; o; o = next) {
		next = o->next;
		if (o->kind == FUNCTION && o->owner == m) forget(o);
	}
	forget(m);
	return end(OK);
}
API R cuModuleGetFunction(void **f, void *m, const char *name) {
	CONTEXT("cuModuleGetFunction");
	CHECK(find(m, MODULE), INVALID_HANDLE);
	size_t n = strlen(name);
	for (const char *p = ((object *)m)->text; (p = strstr(p, ".entry ")); ) {
		p += 7;
		if (strncmp(p, name, n) || (p[n] != '(' && p[n] != ' ' && p[n] != '\n')) continue;
		object *o = new_object(FUNCTION, current, 0);
		o->text = strdup(name);
		o->owner = m;
		*f = o;
		return end(OK);
	}
	return end(NOT_FOUND);
}
API R cuModuleGetGlobal_v2(P *p, uint64_t *n, void *m, const char *name) {
	(void)name, (void)p, (void)n;
	CONTEXT("cuModuleGetGlobal_v2");
	CHECK(find(m, MODULE), INVALID_HANDLE);
	return end(NOT_FOUND);
}
API R cuFuncGetAttribute(int *v, int a, void *f) {
	CONTEXT("cuFuncGetAttribute");
	CHECK(find(f, FUNCTION), INVALID_HANDLE);
	*v = a == 0 ? 1024 : a == 4 ? 16 : a == 5 ? 75 : a == 6 ? 90 : 0;
	return end(OK);
}
API R cuFuncSetAttribute(void *f, int a, int v) { (void)a; CONTEXT("cuFuncSetAttribute"); CHECK(find(f, FUNCTION), INVALID_HANDLE); CHECK(v <= 227 << 10, INVALID_VALUE); return end(OK); }
API R cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *f, int threads, uint64_t shared) {
	(void)shared;
	CONTEXT("cuOccupancyMaxActiveBlocksPerMultiprocessor");
	CHECK(find(f, FUNCTION) && threads > 0, INVALID_VALUE);
	*n = 2048 / threads;
	return end(OK);
}
static R launch(void *f, void *s, unsigned grid, unsigned block, void **args) {
	if (!find(f, FUNCTION) || (s && !find(s, STREAM))) return INVALID_HANDLE;
	if (grid == 0 || block == 0 || block > 1024) return INVALID_VALUE;
	op w = {.what = 0, .kernel = NULL, .width = 4};
	static const char *known[] = {"fill32", "crash", "nop"};
	for (int i = 0; i < 3; i++)
		if (!strcmp(((object *)f)->text, known[i])) w.kernel = known[i];
	if (!w.kernel) w.kernel = "nop";
	if (w.kernel == known[0]) { // (u64 p, u32 value, u32 n)
		w.a = *(P *)args[0];
		w.value = *(uint32_t *)args[1];
		w.n = *(uint32_t *)args[2];
	}
	return queue(s, w);
}
API R cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *s, void **args, void **extra) {
	(void)shared, (void)extra;
	CONTEXT("cuLaunchKernel");
	return end(launch(f, s, gx * gy * gz, bx * by * bz, args));
}
struct config { unsigned gx, gy, gz, bx, by, bz, shared; void *s; struct { unsigned id; char pad[4]; unsigned v[16]; } *attrs; unsigned n; };
API R cuLaunchKernelEx(const struct config *c, void *f, void **args, void **extra) {
	(void)extra;
	CONTEXT("cuLaunchKernelEx");
	for (unsigned i = 0; i < c->n; i++)
		CHECK((c->attrs[i].id == 2 || c->attrs[i].id == 4 || c->attrs[i].id == 6) && c->attrs[i].v[0] > 0, INVALID_VALUE);
	return end(launch(f, c->s, c->gx * c->gy * c->gz, c->bx * c->by * c->bz, args));
}

// ---- graphs

API R cuStreamBeginCapture_v2(void *s, int mode) {
	(void)mode;
	CONTEXT("cuStreamBeginCapture_v2");
	CHECK(find(s, STREAM) && !((object *)s)->owner && !capturing, INVALID_VALUE);
	capturing = s;
	capturing->owner = new_object(GRAPH, current, 0);
	return end(OK);
}
API R cuStreamEndCapture(void *s, void **g) {
	CONTEXT("cuStreamEndCapture");
	CHECK(find(s, STREAM) && ((object *)s)->owner, NOT_CAPTURING);
	object *graph = ((object *)s)->owner;
	((object *)s)->owner = capturing = NULL;
	*g = NULL;
	if (graph->spoilt) {
		forget(graph);
		return end(CAPTURE_INVALID);
	}
	*g = graph;
	return end(OK);
}
API R cuGraphDestroy(void *g) { CONTEXT("cuGraphDestroy"); CHECK(find(g, GRAPH), INVALID_VALUE); forget(g); return end(OK); }
API R cuGraphGetNodes(void *g, void *nodes, uint64_t *n) { (void)nodes; CONTEXT("cuGraphGetNodes"); CHECK(find(g, GRAPH), INVALID_VALUE); *n = ((object *)g)->n_ops; return end(OK); }
static void copy_ops(object *x, const object *g) {
	x->ops = realloc(x->ops, g->n_ops * sizeof(op) + 1);
	if (g->n_ops) memcpy(x->ops, g->ops, g->n_ops * sizeof(op));
	x->n_ops = g->n_ops;
}
API R cuGraphInstantiateWithFlags(void **x, void *g, uint64_t flags) {
	(void)flags;
	CONTEXT("cuGraphInstantiateWithFlags");
	CHECK(find(g, GRAPH), INVALID_VALUE);
	object *o = new_object(EXEC, current, 0);
	copy_ops(o, g);
	*x = o;
	return end(OK);
}
struct update { int result; void *node, *from; };
API R cuGraphExecUpdate_v2(void *x, void *g, struct update *info) {
	CONTEXT("cuGraphExecUpdate_v2");
	CHECK(find(x, EXEC) && find(g, GRAPH), INVALID_VALUE);
	object *a = x, *b = g;
	info->result = a->n_ops != b->n_ops ? 2 : 0;
	for (int i = 0; !info->result && i < a->n_ops; i++)
		if (a->ops[i].what != b->ops[i].what) info->result = 3;
	CHECK(!info->result, UPDATE_FAILED);
	copy_ops(a, b);
	return end(OK);
}
API R cuGraphUpload(void *x, void *s) { CONTEXT("cuGraphUpload"); STREAM_ARG(s); CHECK(find(x, EXEC), INVALID_VALUE); return end(OK); }
API R cuGraphLaunch(void *x, void *s) {
	CONTEXT("cuGraphLaunch");
	STREAM_ARG(s);
	CHECK(find(x, EXEC), INVALID_VALUE);
	object *o = x;
	for (int i = 0; i < o->n_ops; i++) queue(s, o->ops[i]);
	return end(OK);
}
API R cuGraphExecDestroy(void *x) { CONTEXT("cuGraphExecDestroy"); CHECK(find(x, EXEC), INVALID_VALUE); forget(x); return end(OK); }
API R cuDeviceGraphMemTrim(int dev) { DEVICE("cuDeviceGraphMemTrim", dev); return end(OK); }

// ---- the test's side

// stub_configure makes the machine anew: so many devices of so many bytes, nothing allocated, no faults.
API void stub_configure(int n, uint64_t capacity) {
	pthread_mutex_lock(&lock);
	while (objects) forget(objects);
	memset(counts, 0, sizeof counts);
	n_devices = n < MAX_DEVICES ? n : MAX_DEVICES;
	inited = init_result = n_faults = 0;
	for (int i = 0; i < MAX_DEVICES; i++) devices[i] = (device){.capacity = capacity, .life = devices[i].life + 1};
	pthread_mutex_unlock(&lock);
}

// stub_fail makes the nth call from now of a function return code; a negative code makes it hang until stub_resume.
API void stub_fail(const char *call, int nth, int code) {
	pthread_mutex_lock(&lock);
	for (int i = 0; i < n_faults; i++)
		if (faults[i].nth < 1) faults[i] = faults[--n_faults]; // has happened
	if (n_faults < 32) {
		snprintf(faults[n_faults].call, sizeof faults[0].call, "%s", call);
		faults[n_faults].nth = nth;
		faults[n_faults++].code = code;
	}
	pthread_mutex_unlock(&lock);
}
API int stub_pending(void) { // faults that have not happened yet
	int n = 0;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < n_faults; i++) n += faults[i].nth > 0;
	pthread_mutex_unlock(&lock);
	return n;
}
API void stub_forgive(void) { pthread_mutex_lock(&lock); n_faults = 0; pthread_mutex_unlock(&lock); }
API void stub_resume(void) { pthread_mutex_lock(&lock); hanging = 0; pthread_cond_broadcast(&resumed); pthread_mutex_unlock(&lock); }
API void stub_lose(int dev) { pthread_mutex_lock(&lock); devices[dev].lost = 1; pthread_mutex_unlock(&lock); }
API uint64_t stub_used(int dev) { pthread_mutex_lock(&lock); uint64_t n = devices[dev].used; pthread_mutex_unlock(&lock); return n; }
API int stub_active(int dev) { pthread_mutex_lock(&lock); int n = devices[dev].active; pthread_mutex_unlock(&lock); return n; }
API int stub_objects(int dev) { // objects that somebody has to give back
	int n = 0;
	pthread_mutex_lock(&lock);
	for (object *o = objects; o; o = o->next) n += o->dev == dev && o->kind != FUNCTION && o != devices[dev].pool;
	pthread_mutex_unlock(&lock);
	return n;
}
API long stub_calls(const char *call) { // of one function, or of all ("")
	long n = 0;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < 160 && counts[i].call; i++)
		if (!*call || !strcmp(counts[i].call, call)) n += counts[i].n;
	pthread_mutex_unlock(&lock);
	return n;
}

// The environment sets a whole process up: STUB_DEVICES=2 STUB_MEMORY=bytes STUB_FAIL=call:nth:code,…
__attribute__((constructor)) static void from_environment(void) {
	const char *n = getenv("STUB_DEVICES"), *m = getenv("STUB_MEMORY"), *f = getenv("STUB_FAIL");
	stub_configure(n ? atoi(n) : 1, m ? strtoull(m, NULL, 10) : 1ull << 30);
	char *list = f ? strdup(f) : NULL, *save = NULL;
	for (char *t = list ? strtok_r(list, ",", &save) : NULL; t; t = strtok_r(NULL, ",", &save)) {
		char call[64];
		int nth, code;
		if (sscanf(t, "%63[^:]:%d:%d", call, &nth, &code) == 3) stub_fail(call, nth, code);
		else fprintf(stderr, "libcuda stub: STUB_FAIL: cannot read %s\n", t);
	}
	free(list);
}

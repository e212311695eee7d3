// Memory of all kinds, copies and fills.
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
	char *bytes = storage(n);
	CHECK(bytes, NO_MEMORY);
	object *o = new_object(PINNED, current, n);
	*p = o->p = bytes;
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
struct copy2d { // CUDA_MEMCPY2D; types: 1 host, 2 device
	uint64_t from_x, from_y; int from_type; P from_host, from; void *from_array; uint64_t from_pitch;
	uint64_t to_x, to_y; int to_type; P to_host, to; void *to_array; uint64_t to_pitch, width, height;
};
API R cuMemcpy2DAsync_v2(const struct copy2d *c, void *s) {
	CONTEXT("cuMemcpy2DAsync_v2");
	STREAM_ARG(s);
	CHECK(c->from_pitch >= c->width && c->to_pitch >= c->width && c->from_pitch <= MAX_PITCH && c->to_pitch <= MAX_PITCH, INVALID_VALUE);
	P from = c->from_type == 1 ? c->from_host : c->from, to = c->to_type == 1 ? c->to_host : c->to;
	for (uint64_t i = 0; i < c->height; i++) {
		R r = copy(s, to + (c->to_y + i) * c->to_pitch + c->to_x, from + (c->from_y + i) * c->from_pitch + c->from_x, c->width, 1, 1);
		if (r) return end(r);
	}
	return end(OK);
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

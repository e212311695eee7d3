// The machine: devices, contexts, objects, faults, and work that is done at once or recorded.
#define _GNU_SOURCE
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

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
	uint64_t size, stamp;        // stamp: an event's time, 0 when it was never recorded; a communicator's clique
	uint64_t kept, used, keep;   // of a pool: bytes kept, in use, to keep at most; used: a communicator ends
	struct object *owner;        // a function's module, an async block's pool, a stream's graph while it captures, a mapped range's memory
	char *text;                  // a module's image, a function's name
	op *ops;
	int n_ops, spoilt, foreign;  // of a graph: recorded work, whether the capture is void; of memory: whether it was only registered
} object;

typedef struct { int retained, active, sticky, lost; long life; uint64_t used, capacity; object *pool; } device;

#define MAX_DEVICES 8
#define MAX_PITCH (1 << 20) // of a strided copy; the real one's is 2^31-1: too much for tests
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t resumed = PTHREAD_COND_INITIALIZER;
static device devices[MAX_DEVICES];
static int n_devices, inited, init_result, hanging, dead; // dead: the error after which this process gets no context
static object *objects;
static uint64_t tick;
static __thread int current = -1; // device whose primary context is current on this thread
static __thread long current_life;
static __thread object *capturing; // the stream that this thread captures

static struct fault { char call[64]; int nth, code, dev; } faults[32];
static int n_faults;
static struct count { const char *call; long n; } counts[160];

// ---- what every call begins with

static int sticky(int code) {
	return code == 214 || code == 700 || code == 702 || code == 709 || code == 710 || (code >= 714 && code <= 719) || code == LOST;
}

// die leaves the context useless; after most errors of that kind those on the other devices too, and no new one is to be had.
static void die(int dev, int code) {
	devices[dev].sticky = code;
	if (!dead && code != 214 && code != 709 && code != LOST) dead = code;
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
		if (strcmp(faults[i].call, call) || (faults[i].dev >= 0 && faults[i].dev != current) || faults[i].nth < 1 || --faults[i].nth > 0) continue;
		int code = faults[i].code;
		if (code < 0) { // hang until stub_resume
			int round = ++hanging;
			while (hanging >= round) pthread_cond_wait(&resumed, &lock);
			continue;
		}
		if (sticky(code) && current >= 0) die(current, code);
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
	return dead ? dead : d->sticky;
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
		if (!holder(w->a, w->n * w->width)) { die(dev, ILLEGAL_ADDRESS); return; }
		if (w->width == 1) memset((char *)w->a, (int)w->value, w->n);
		else for (uint64_t i = 0; i < w->n; i++) memcpy((char *)w->a + i * w->width, &w->value, w->width);
		return;
	}
	if (!strcmp(w->kernel, "crash")) die(dev, ILLEGAL_ADDRESS);
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

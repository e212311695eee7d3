// Package cthreads starts threads in C.
package cthreads

/*
#cgo CFLAGS: -D_GNU_SOURCE
#cgo LDFLAGS: -pthread
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

extern void goCalled(void);

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int ready, stop;

struct job { const char *name; int call; };

static void *work(void *arg) {
	struct job *job = arg;
	if (job->name) pthread_setname_np(pthread_self(), job->name);
	if (job->call) goCalled();
	pthread_mutex_lock(&mutex);
	ready = 1;
	pthread_cond_broadcast(&changed);
	while (!stop) pthread_cond_wait(&changed, &mutex);
	pthread_mutex_unlock(&mutex);
	return NULL;
}

static pthread_t start(const char *name, int call) {
	struct job job = {name, call};
	pthread_t thread;
	pthread_mutex_lock(&mutex);
	ready = stop = 0;
	pthread_create(&thread, NULL, work, &job);
	while (!ready) pthread_cond_wait(&changed, &mutex);
	pthread_mutex_unlock(&mutex);
	return thread;
}

static void join(pthread_t thread) {
	pthread_mutex_lock(&mutex);
	stop = 1;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mutex);
	pthread_join(thread, NULL);
}

static void nap(void) { usleep(200000); }

static volatile int spinning;

static void *spin(void *arg) {
	(void)arg;
	__atomic_store_n(&spinning, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&spinning, __ATOMIC_SEQ_CST)) {}
	for (;;) pause();
	return NULL;
}

static void startSpinning(void) {
	pthread_t thread;
	pthread_create(&thread, NULL, spin, NULL);
	while (!__atomic_load_n(&spinning, __ATOMIC_SEQ_CST)) usleep(100);
}

static void stopSpinning(void) { __atomic_store_n(&spinning, 0, __ATOMIC_SEQ_CST); }

static void expired(union sigval v) { (void)v; }

static int setTimer(void) {
	struct sigevent event = {0};
	timer_t timer;
	struct itimerspec never = {{0, 0}, {3600, 0}};
	event.sigev_notify = SIGEV_THREAD;
	event.sigev_notify_function = expired;
	if (timer_create(CLOCK_MONOTONIC, &event, &timer)) return -1;
	timer_settime(timer, 0, &never, NULL);
	return timer_delete(timer);
}
*/
import "C"

//export goCalled
func goCalled() {}

// nap blocks its thread in C for a moment.
func nap() { C.nap() }

// startSpinning starts a thread that computes until stopSpinning, and then waits for ever.
func startSpinning() { C.startSpinning() }

func stopSpinning() { C.stopSpinning() }

// setTimer sets and deletes a timer, for which the C library starts a thread that it keeps.
func setTimer() bool { return C.setTimer() == 0 }

// start starts a thread and returns what joins it; name is 15 bytes at most, or "" for none, and
// call makes the thread call Go once.
func start(name string, call bool) (join func()) {
	var text *C.char
	if name != "" {
		text = C.CString(name)
	}
	var n C.int
	if call {
		n = 1
	}
	thread := C.start(text, n)
	return func() { C.join(thread) }
}

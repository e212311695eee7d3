// A stand-in for libcuda.so.1 that needs no GPU: what a CUDA program of this project calls, with the rules of the real driver that matter to
// its owner. Device memory is host memory, so copies and fills really happen; kernels do nothing, but for those in run().
//
//   - the current context is per thread; without one a call is error 201, with one that has ended 709;
//   - plain memory, pinned memory, streams, events, modules and graphs end with their context;
//   - stream-ordered and VMM memory and pools do NOT: they stay allocated until they are freed or the process ends;
//   - memory is limited, errors can be made to happen; some kill the context for good, and most of these deny the process another one.
//
// control.c is the test's side. One lock guards everything. The files are one: this one includes the others.
#include "state.c"

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

// With STUB_DESCRIPTORS the driver opens once what a real one keeps until the process ends: a pipe and an eventfd that its thread waits for,
// and an epoll and an eventfd that it only has.
static int kept_pipe[2], kept_event[2], kept_epoll;

static void *event_handler(void *none) {
	(void)none;
	pthread_setname_np(pthread_self(), "cuda-EvtHandlr");
	struct pollfd wait[2] = {{kept_pipe[0], POLLIN, 0}, {kept_event[0], POLLIN, 0}};
	while (poll(wait, 2, -1) >= 0 || errno == EINTR) ;
	return NULL;
}

static void keep_descriptors(void) {
	pthread_t thread;
	if (kept_epoll || !getenv("STUB_DESCRIPTORS") || pipe2(kept_pipe, O_CLOEXEC)) return;
	for (int i = 0; i < 2; i++) kept_event[i] = eventfd(0, EFD_CLOEXEC);
	kept_epoll = epoll_create1(EPOLL_CLOEXEC);
	if (!pthread_create(&thread, NULL, event_handler, NULL)) pthread_detach(thread);
}

API R cuInit(unsigned flags) {
	(void)flags;
	BEGIN("cuInit");
	CHECK(!init_result, init_result);
	CHECK(n_devices > 0, NO_DEVICE);
	inited = 1;
	keep_descriptors();
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
	case 11: *v = MAX_PITCH; break;   // of a strided copy
	case 16: *v = 4; break;          // SMs
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
	CHECK(!dead, dead);
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

#include "memory.c"
#include "work.c"
#include "nccl.c"
#include "control.c"

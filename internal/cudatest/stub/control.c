// The test's side.

// stub_configure makes the machine anew: so many devices of so many bytes, nothing allocated, no faults.
API void stub_configure(int n, uint64_t capacity) {
	pthread_mutex_lock(&lock);
	while (objects) forget(objects);
	memset(counts, 0, sizeof counts);
	n_devices = n < MAX_DEVICES ? n : MAX_DEVICES;
	inited = init_result = n_faults = dead = 0;
	for (int i = 0; i < MAX_DEVICES; i++) devices[i] = (device){.capacity = capacity, .life = devices[i].life + 1};
	pthread_mutex_unlock(&lock);
}

// stub_fail_on makes the nth call from now of a function return code, counting those on threads whose current device is dev (negative: all); a negative code makes
// it hang until stub_resume.
API void stub_fail_on(const char *call, int nth, int code, int dev) {
	pthread_mutex_lock(&lock);
	for (int i = 0; i < n_faults; i++)
		if (faults[i].nth < 1) faults[i] = faults[--n_faults]; // has happened
	if (n_faults < 32) {
		snprintf(faults[n_faults].call, sizeof faults[0].call, "%s", call);
		faults[n_faults].nth = nth;
		faults[n_faults].dev = dev;
		faults[n_faults++].code = code;
	}
	pthread_mutex_unlock(&lock);
}
API void stub_fail(const char *call, int nth, int code) { stub_fail_on(call, nth, code, -1); }
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

// Streams, events, modules, launches and graphs.
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

// ---- machine code: its sections, and the sizes of a kernel's parameters

static int is_elf(const char *image) { return !memcmp(image, "\177ELF", 4); }
static uint64_t elf_size(const Elf64_Ehdr *e) { // the table of sections is not always the last
	const Elf64_Shdr *s = (const void *)((const char *)e + e->e_shoff);
	uint64_t size = e->e_shoff + e->e_shnum * sizeof *s;
	for (int i = 0; i < e->e_shnum; i++)
		if (s[i].sh_type != SHT_NOBITS && s[i].sh_offset + s[i].sh_size > size) size = s[i].sh_offset + s[i].sh_size;
	return size;
}
static const Elf64_Shdr *elf_section(const char *image, const char *prefix, const char *name) {
	const Elf64_Ehdr *e = (const void *)image;
	const Elf64_Shdr *s = (const void *)(image + e->e_shoff);
	const char *names = image + s[e->e_shstrndx].sh_offset;
	size_t n = strlen(prefix);
	for (int i = 0; i < e->e_shnum; i++)
		if (!strncmp(names + s[i].sh_name, prefix, n) && !strcmp(names + s[i].sh_name + n, name)) return s + i;
	return NULL;
}
static int elf_param(const char *image, const char *kernel, uint64_t i, uint64_t *offset, uint64_t *size) {
	const Elf64_Shdr *s = elf_section(image, ".nv.info.", kernel);
	const unsigned char *p = s ? (const void *)(image + s->sh_offset) : NULL, *last = s ? p + s->sh_size : NULL;
	while (p && p + 4 <= last) { // format, attribute, size or value
		unsigned n = p[2] | p[3] << 8;
		if (p[0] == 4 && p[1] == 0x17) { // EIATTR_KPARAM_INFO: index, ordinal and offset, size in the upper 14 bits of the third word
			uint32_t w[3];
			memcpy(w, p + 4, sizeof w);
			if ((w[1] & 0xffff) == i) {
				*offset = w[1] >> 16;
				*size = w[2] >> 18;
				return 1;
			}
		}
		p += 4 + (p[0] == 4 ? n : 0);
	}
	return 0;
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
	R r = is_elf(image) ? OK : strstr(image, ".version 99") ? PTX_TOO_NEW : strstr(image, ".version") && !strstr(image, "bogus") ? OK : BAD_PTX;
	if (log && size) {
		if (r == BAD_PTX) snprintf(log, *size, "ptxas application ptx input, line 1; fatal   : Unknown instruction in '%.20s'\n", image);
		*size = r ? strlen(log) : 0; // in and out, as the real one
	}
	CHECK(r == OK, r);
	object *o = new_object(MODULE, current, 0);
	if (is_elf(image)) {
		uint64_t size = elf_size((const void *)image);
		o->text = memcpy(malloc(size), image, size);
	} else {
		o->text = strdup(image);
	}
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
	const char *text = ((object *)m)->text;
	int elf = is_elf(text);
	CHECK(!elf || elf_section(text, ".text.", name), NOT_FOUND);
	for (const char *p = text; elf || (p = strstr(p, ".entry ")); ) {
		p += elf ? 0 : 7;
		if (!elf && (strncmp(p, name, n) || (p[n] != '(' && p[n] != ' ' && p[n] != '\n'))) continue;
		object *o = new_object(FUNCTION, current, 0);
		o->text = strdup(name);
		o->owner = m;
		*f = o;
		return end(OK);
	}
	return end(NOT_FOUND);
}
API R cuFuncGetAttribute(int *v, int a, void *f) {
	CONTEXT("cuFuncGetAttribute");
	CHECK(find(f, FUNCTION), INVALID_HANDLE);
	*v = a == 0 ? 1024 : a == 4 ? 16 : a == 5 ? 75 : a == 6 ? 90 : 0;
	return end(OK);
}
API R cuFuncGetParamInfo(void *f, uint64_t i, uint64_t *offset, uint64_t *size) {
	CONTEXT("cuFuncGetParamInfo");
	CHECK(find(f, FUNCTION), INVALID_HANDLE);
	object *o = f;
	if (is_elf(o->owner->text)) return end(elf_param(o->owner->text, o->text, i, offset, size) ? OK : INVALID_VALUE);
	char entry[256];
	snprintf(entry, sizeof entry, ".entry %s(", o->text);
	const char *p = strstr(o->owner->text, entry), *close = p ? strchr(p, ')') : NULL;
	for (uint64_t n = 0; p && close && (p = strstr(p + 1, ".param ")) && p < close; n++) {
		if (n != i) continue;
		*offset = 8 * n;
		*size = strstr(p, "64 ") == p + 9 ? 8 : 4; // .param .u64, .param .u32
		return end(OK);
	}
	return end(INVALID_VALUE);
}
API R cuFuncSetAttribute(void *f, int a, int v) { (void)a; CONTEXT("cuFuncSetAttribute"); CHECK(find(f, FUNCTION), INVALID_HANDLE); CHECK(v <= 227 << 10, INVALID_VALUE); return end(OK); }
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
	for (int i = 0; i < ((object *)g)->n_ops; i++) { // the memory of fills has to be there still; that of copies is not looked at
		const op *w = &((object *)g)->ops[i];
		CHECK(w->what != 2 || holder(w->a, w->n * w->width), INVALID_VALUE);
	}
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

package cuda

import (
	"errors"
	"fmt"
	"unsafe"
)

// Module is loaded device code.
type Module struct {
	resource
	name   string
	handle uintptr
}

// LoadModule loads a cubin, a fatbin or PTX text; name is for messages and the ledger. The driver
// compiles PTX (0.2 s, then cached in ~/.nv). A refusal is a [CompileError] with the compiler's
// log.
func (w *Worker) LoadModule(owner, name string, image []byte) (*Module, error) {
	if err := w.enterAlloc("LoadModule", int64(len(image))); err != nil {
		return nil, err
	}
	const logSize = 16 << 10
	log := make([]byte, logSize)
	if image[len(image)-1] != 0 { // PTX is a C string
		image = append(image[:len(image):len(image)], 0)
	}
	keys := [...]int32{5, 6} // CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES
	// The size is written over with the length that was used, so these are made anew for each load.
	values := struct {
		log  *byte
		size uintptr
	}{&log[0], logSize}
	err := w.callWith(&w.d.fn.moduleLoad, w.result(0), uintptr(unsafe.Pointer(&image[0])), uintptr(len(keys)),
		uintptr(unsafe.Pointer(&keys[0])), uintptr(unsafe.Pointer(&values)))
	if errors.Is(err, ErrOutOfMemory) {
		return nil, w.noMemory(kindModule, owner, int64(len(image)), err)
	}
	if err != nil {
		return nil, &CompileError{Module: name, Log: cString(log), Err: err}
	}
	m := &Module{name: name, handle: uintptr(w.out[0])}
	w.add(&m.resource, kindModule, owner, 0, m.handle, func() error { return w.call(&w.d.fn.moduleUnload, m.handle) })
	return m, nil
}

// Close unloads the module; its functions must not be used after that.
func (m *Module) Close() error {
	if m == nil {
		return &misuseError{"Module.Close", errArguments, "nil module"}
	}
	return m.free("Module.Close")
}

// Function finds a kernel by its (mangled) name.
func (m *Module) Function(name string) (*Function, error) {
	if err := m.enter("Module.Function"); err != nil {
		return nil, err
	}
	s := append([]byte(name), 0)
	if err := m.w.callWith(&m.w.d.fn.moduleFunction, m.w.result(0), m.handle,
		uintptr(unsafe.Pointer(&s[0]))); err != nil {
		return nil, fmt.Errorf("cuda: function %s of module %s: %w", name, m.name, err)
	}
	f := &Function{m: m, name: name, handle: uintptr(m.w.out[0]), params: -1}
	return f, f.countParams()
}

// Function is a kernel of a module.
type Function struct {
	m      *Module
	name   string
	handle uintptr
	params int // how many it takes; -1 when the driver (before CUDA 12.4) cannot say
}

// countParams asks for one parameter after the other until there are no more: launching with too
// few would make the driver read past them.
func (f *Function) countParams() error {
	w := f.m.w
	if w.d.fn.funcParamInfo.addr == 0 {
		return nil
	}
	for n := 0; ; n++ {
		err := w.call(&w.d.fn.funcParamInfo, f.handle, uintptr(n), w.result(0), w.result(1))
		if errors.Is(err, codeInvalidValue) {
			f.params = n
			return nil
		}
		if err != nil {
			return err
		}
		if size := w.out[1]; size > 8 {
			return fmt.Errorf("cuda: function %s of module %s: parameter %d has %d bytes; Args holds 8 at most", f.name,
				f.m.name, n, size)
		}
	}
}

func (f *Function) enter(call string) error {
	if f == nil || f.m == nil {
		return &misuseError{call, errArguments, "a function that no module made"}
	}
	return f.m.enter(call)
}

// Attributes of a kernel as the driver compiled it.
type Attributes struct {
	MaxThreads  int // per block
	StaticBytes int // of shared memory, per block
	LocalBytes  int // per thread; more than 0 means that registers spill
	Registers   int // per thread
	BinaryArch  int // 90 for sm_90: what is run
	PTXVersion  int // 80 for compute_80: what it was compiled from
	MaxDynamic  int // bytes of dynamic shared memory, per block
}

// Attributes asks the driver.
func (f *Function) Attributes() (Attributes, error) {
	var a Attributes
	if err := f.enter("Function.Attributes"); err != nil {
		return a, err
	}
	w := f.m.w
	for _, q := range [...]struct {
		key uintptr // CUfunction_attribute
		to  *int
	}{{0, &a.MaxThreads}, {1, &a.StaticBytes}, {3, &a.LocalBytes}, {4, &a.Registers}, {5, &a.PTXVersion}, {
		6,
		&a.BinaryArch,
	}, {8, &a.MaxDynamic}} {
		if err := w.call(&w.d.fn.funcGetAttr, w.result(0), q.key, f.handle); err != nil {
			return a, err
		}
		*q.to = int(int32(w.out[0]))
	}
	return a, nil
}

// SetMaxDynamicShared lets launches ask for up to n bytes of dynamic shared memory; without it the
// limit is 48 KiB.
func (f *Function) SetMaxDynamicShared(n int) error {
	if err := f.enter("Function.SetMaxDynamicShared"); err != nil {
		return err
	}
	return f.m.w.call(&f.m.w.d.fn.funcSetAttr, f.handle, 8, uintptr(n))
}

// SetCarveout says how much of an SM's memory is to be shared memory, in percent; -1: as the driver
// chooses.
func (f *Function) SetCarveout(percent int) error {
	if err := f.enter("Function.SetCarveout"); err != nil {
		return err
	}
	return f.m.w.call(&f.m.w.d.fn.funcSetAttr, f.handle, 9, uintptr(percent))
}

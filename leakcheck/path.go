package leakcheck

// Step is one element of a retention path. The first is a root, the last the tracked object.
type Step struct {
	Kind string // "global", "goroutine", "finalizer", "cleanup", "timer", "object", …
	Name string // variable, function or type
	Edge string // how this element refers to the next: a field, "key", "captured b", "bound receiver"
	Type string // of a root variable; "" when it is not known
	Addr uintptr
	Size uintptr // bytes of the object; 0 for roots
}

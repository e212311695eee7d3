package cudarunner

import (
	"fmt"
	"runtime"
	"unsafe"
)

// FindNCCL says which library groups of devices find here: the name that it was found by, and its
// version. Without one the error matches [ErrNoNCCL].
func FindNCCL() (library, version string, err error) {
	n, err := findNCCL()
	if err != nil {
		return "", "", err
	}
	v := new(int32)
	var pin runtime.Pinner
	pin.Pin(v)
	defer pin.Unpin()
	if err := n.call("ncclGetVersion", n.version, uintptr(unsafe.Pointer(v))); err != nil {
		return n.path, "", err
	}
	return n.path, fmt.Sprintf("%d.%d.%d", *v/10000, *v/100%100, *v%100), nil // NCCL_VERSION_CODE, since 2.9
}

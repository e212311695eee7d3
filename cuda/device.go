package cuda

import (
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"github.com/enginetest/enginetest/ledger"
)

// Device is a GPU (or a part of one) that CUDA shows to this process. Ordinals follow
// CUDA_VISIBLE_DEVICES; the UUID does not change.
type Device struct {
	Ordinal     int
	UUID        string // "GPU-6fd6ac6d-…", "MIG-…": NVML's form
	Name        string // "NVIDIA H200"
	PCI         string // "0000:3b:00.0"
	Major       int    // compute capability
	Minor       int
	SMs         int   // streaming multiprocessors
	TotalMemory int64 // bytes
	MaxShared   int64 // bytes of shared memory a block can opt in to
	MemoryPools bool  // stream-ordered allocation

	d        *Driver
	handle   int32
	maxPitch int64 // of a strided copy
}

// String returns "NVIDIA H200 (GPU-6fd6ac6d-…, sm_90, 132 SMs, 139.8 GiB)".
func (v Device) String() string {
	return fmt.Sprintf("%s (%s, sm_%d%d, %d SMs, %s)", v.Name, v.UUID, v.Major, v.Minor, v.SMs,
		ledger.FormatBytes(v.TotalMemory))
}

// Driver is the driver that the device belongs to.
func (v Device) Driver() *Driver { return v.d }

// Devices lists the devices that this process sees.
func (d *Driver) Devices() ([]Device, error) {
	var n int32
	if err := d.call(&d.fn.deviceCount, uintptr(unsafe.Pointer(&n))); err != nil {
		return nil, err
	}
	vs := make([]Device, n)
	for i := range vs {
		var err error
		if vs[i], err = d.describe(i); err != nil {
			return nil, fmt.Errorf("device %d: %w", i, err)
		}
	}
	return vs, nil
}

// Device finds a device by ordinal ("0") or by UUID or an unambiguous beginning of one
// ("GPU-6fd6"), as CUDA_VISIBLE_DEVICES takes them.
func (d *Driver) Device(id string) (Device, error) {
	vs, err := d.Devices()
	if err != nil {
		return Device{}, err
	}
	if len(vs) == 0 {
		return Device{}, fmt.Errorf("cuda: the driver shows no device (CUDA_VISIBLE_DEVICES=%q): %w",
			os.Getenv("CUDA_VISIBLE_DEVICES"), codeNoDevice)
	}
	if n, err := strconv.Atoi(id); err == nil {
		if n < 0 || n >= len(vs) {
			return Device{}, fmt.Errorf("cuda: no device %d, there are %d: %w", n, len(vs), codeInvalidDevice)
		}
		return vs[n], nil
	}
	want := strings.ToLower(strings.TrimPrefix(strings.TrimPrefix(id, "GPU-"), "MIG-"))
	var found []Device
	for _, v := range vs {
		if want != "" && strings.HasPrefix(v.UUID[len("GPU-"):], want) {
			found = append(found, v)
		}
	}
	if len(found) != 1 {
		var have []string
		for _, v := range vs {
			have = append(have, v.UUID)
		}
		return Device{}, fmt.Errorf("cuda: %q names %d of the devices %s: %w", id, len(found), strings.Join(have, ", "),
			codeInvalidDevice)
	}
	return found[0], nil
}

// Device attributes (CUdevice_attribute).
const (
	attrMaxPitch    = 11
	attrSMs         = 16
	attrMajor       = 75
	attrMinor       = 76
	attrMaxShared   = 97
	attrMemoryPools = 115
)

func (d *Driver) describe(ordinal int) (Device, error) {
	v := Device{Ordinal: ordinal, d: d}
	if err := d.call(&d.fn.deviceGet, uintptr(unsafe.Pointer(&v.handle)), uintptr(ordinal)); err != nil {
		return v, err
	}
	dev := uintptr(v.handle)
	name := make([]byte, 256)
	if err := d.call(&d.fn.deviceName, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)), dev); err != nil {
		return v, err
	}
	v.Name = cString(name)
	clear(name)
	if err := d.call(&d.fn.devicePCI, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)), dev); err != nil {
		return v, err
	}
	v.PCI = strings.ToLower(cString(name))
	var id [16]byte
	if err := d.call(&d.fn.deviceUUID, uintptr(unsafe.Pointer(&id[0])), dev); err != nil {
		return v, err
	}
	h := hex.EncodeToString(id[:])
	prefix := "GPU-"
	if mig := "MIG-" + h[:8]; strings.Contains(strings.ToLower(os.Getenv("CUDA_VISIBLE_DEVICES")),
		strings.ToLower(mig)) {
		prefix = "MIG-" // the driver gives the bytes alone
	}
	v.UUID = prefix + h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
	var total uint64
	if err := d.call(&d.fn.deviceTotalMem, uintptr(unsafe.Pointer(&total)), dev); err != nil {
		return v, err
	}
	v.TotalMemory = int64(total)
	attrs := [...]int{attrMajor, attrMinor, attrSMs, attrMaxShared, attrMemoryPools, attrMaxPitch}
	var got [len(attrs)]int
	for i, a := range attrs {
		var err error
		if got[i], err = v.attribute(a); err != nil {
			return v, err
		}
	}
	v.Major, v.Minor, v.SMs, v.MaxShared, v.MemoryPools, v.maxPitch = got[0], got[1], got[2], int64(got[3]), got[4] != 0, int64(got[5])
	return v, nil
}

// Attribute asks for one CUdevice_attribute by its number.
func (v Device) attribute(attribute int) (int, error) {
	var n int32
	err := v.d.call(&v.d.fn.deviceAttribute, uintptr(unsafe.Pointer(&n)), uintptr(attribute), uintptr(v.handle))
	return int(n), err
}

// CanAccessPeer reports whether v can read and write the memory of peer directly.
func (v Device) CanAccessPeer(peer Device) (bool, error) {
	var n int32
	err := v.d.call(&v.d.fn.deviceCanPeer, uintptr(unsafe.Pointer(&n)), uintptr(v.handle), uintptr(peer.handle))
	return n != 0, err
}

// cString is the text before the first zero byte.
func cString(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

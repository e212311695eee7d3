package gpuwait

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/enginetest/enginetest/verdict"
)

// Source is what gpuwait needs to know of a machine: three methods, so that a fake is three
// methods. Implementations are safe for concurrent use. A number that cannot be measured is an
// error that wraps [ErrCannotMeasure], never 0.
type Source interface {
	// Devices lists what can be measured, in the vendor's own order (NVML: PCI bus order).
	Devices() ([]Device, error)
	// Memory reads one device, by the UUID that Devices gave.
	Memory(uuid string) (Memory, error)
	// Holders lists the processes that hold memory on a device. It is best effort: processes of
	// other containers are often not listed.
	Holders(uuid string) ([]Holder, error)
}

// SourceCloser is a Source with something to release (NVML's library handle and device files).
type SourceCloser interface {
	Source
	io.Closer
}

// Device names one GPU or one MIG slice of it. The UUID is its identity; an index is only valid
// within one Devices call.
type Device struct {
	UUID   string `json:"uuid"`             // "GPU-…", "MIG-…"; amdgpu: "GPU-" and the 16 digits of unique_id
	Name   string `json:"name"`             // marketing name
	Index  int    `json:"index"`            // of the GPU, in the source's order; a MIG slice has its GPU's
	Vendor Vendor `json:"vendor"`           // which library names it
	Parent string `json:"parent,omitempty"` // of a MIG slice: its GPU's UUID
	MIG    int    `json:"mig,omitempty"`    // of a MIG slice: its number within the GPU
	GI     int    `json:"gi,omitempty"`     // of a MIG slice: GPU instance id
	CI     int    `json:"ci,omitempty"`     // of a MIG slice: compute instance id
	Sliced bool   `json:"sliced,omitempty"` // MIG mode is on: CUDA can only use the slices
}

// Vendor says which environment variables select a device.
type Vendor string

// The vendors whose devices can be measured.
const (
	NVIDIA Vendor = "nvidia"
	AMD    Vendor = "amd"
)

// String returns "GPU-1a2b… (NVIDIA H200, index 0)".
func (d Device) String() string {
	where := fmt.Sprintf("index %d", d.Index)
	if d.Parent != "" {
		where = fmt.Sprintf("MIG %d:%d", d.Index, d.MIG)
	}
	if d.Name == "" {
		return fmt.Sprintf("%s (%s)", d.UUID, where)
	}
	return fmt.Sprintf("%s (%s, %s)", d.UUID, d.Name, where)
}

// Memory is one reading, in bytes. The fields are signed so that a difference can never wrap.
type Memory struct {
	Total    int64 `json:"total"`
	Used     int64 `json:"used"`     // in use by processes; see WithReserve
	Reserved int64 `json:"reserved"` // kept by driver and firmware; 0 when the source cannot tell it from Used
	// WithReserve: Used includes the driver's reserve (NVML before its v2 memory call: 615 MiB on
	// an idle H200).
	WithReserve bool `json:"with_reserve,omitempty"`
}

// Free is what no process uses, never below 0.
func (m Memory) Free() int64 { return max(0, m.Total-m.Used-m.Reserved) }

// Holder is one process that holds memory on a device.
type Holder struct {
	PID   int   `json:"pid"`
	Bytes int64 `json:"bytes"` // 0 unless Known
	Known bool  `json:"known"` // false: the driver lists the process and does not say how much it holds
}

var (
	// ErrCannotMeasure is in every error that says that a number is not known.
	ErrCannotMeasure = verdict.With(verdict.ClassInfra, errors.New("cannot measure"))
	// ErrLost is in the error of a device that has fallen off its bus or needs a reset. It is also
	// an ErrCannotMeasure.
	ErrLost = fmt.Errorf("%w: device lost", ErrCannotMeasure)
	// ErrNoSource is in the error of Open on a machine without a GPU: neither /sys nor /dev shows
	// one. It is also an ErrCannotMeasure.
	ErrNoSource = verdict.With(verdict.ClassCapacity, fmt.Errorf("%w: no GPU found", ErrCannotMeasure))
	// ErrNoDevice is in the error for a device that the source does not have.
	ErrNoDevice = errors.New("no such device")
)

// Open returns the machine's own source: NVML where its library answers, otherwise AMD's files in
// /sys. Close it to let go of the driver's device files.
//
// On a machine without a GPU the error is an [ErrNoSource]. A machine that has a GPU which cannot
// be read is no such machine: there the error is an [ErrCannotMeasure] alone, and says what shows
// the GPU and how each try ended.
func Open() (SourceCloser, error) {
	var tried []error
	for _, open := range []func() (SourceCloser, error){
		func() (SourceCloser, error) { return OpenNVML("") },
		func() (SourceCloser, error) { return openAMD("/") },
	} {
		src, err := openNonEmpty(open)
		if err == nil {
			return src, nil
		}
		tried = append(tried, err)
	}
	return nil, noSource(evidence(machineRoot), tried...)
}

// openNonEmpty refuses a source without devices: a driver that lists none says nothing about a GPU
// that is there.
func openNonEmpty(open func() (SourceCloser, error)) (SourceCloser, error) {
	src, err := open()
	if err != nil {
		return nil, err
	}
	devices, err := src.Devices()
	if err == nil && len(devices) == 0 {
		err = errors.New("the driver answers and lists no device")
	}
	if err != nil {
		return nil, errors.Join(err, src.Close())
	}
	return src, nil
}

// noSource tells a machine without a GPU from one whose GPU cannot be read.
func noSource(evidence []string, tried ...error) error {
	if len(evidence) == 0 && runtime.GOOS == "linux" {
		return fmt.Errorf("gpuwait: %w: neither /sys nor /dev shows one of NVIDIA or AMD", ErrNoSource)
	}
	if len(evidence) == 0 {
		return fmt.Errorf("gpuwait: %w: device memory is measured on Linux only, and this is %s", ErrNoSource,
			runtime.GOOS)
	}
	var how []string
	for _, err := range tried {
		if !errors.Is(err, errNotThere) {
			// it is said once already
			how = append(how, strings.Replace(err.Error(), ErrCannotMeasure.Error()+": ", "", 1))
		}
	}
	return fmt.Errorf("gpuwait: %w: this machine has a GPU (%s) that cannot be read: %s",
		ErrCannotMeasure, shorten(evidence, 3), strings.Join(how, "; "))
}

// errNotThere is in the error of a source for a vendor of which the machine has nothing.
var errNotThere = errors.New("not there")

// checked refuses readings that cannot be true, so that a broken source never looks like a clear
// device.
func checked(d Device, m Memory) (Memory, error) {
	if m.Total <= 0 || m.Used < 0 || m.Reserved < 0 {
		return m, fmt.Errorf("%s: %w: the source says used %d, reserved %d of total %d bytes", d.UUID, ErrCannotMeasure,
			m.Used, m.Reserved, m.Total)
	}
	return m, nil
}

package gpuwait

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

var (
	// ErrBadSelector is in the error for a device list that cannot be understood, or that means
	// different devices to different programs.
	ErrBadSelector = errors.New("bad device selector")
	// ErrNoneVisible is in the error when the environment hides every device
	// (CUDA_VISIBLE_DEVICES="" or "-1").
	ErrNoneVisible = errors.New("no device is visible")
)

// Select resolves what a person or a configuration names, in order: a UUID or its unambiguous
// beginning, an index, "0:1" (MIG slice 1 of GPU 0), "MIG-GPU-<uuid>/<gi>/<ci>". "all" is every
// usable device. Unlike [Visible], an entry that names nothing is an error that lists what there
// is.
func Select(all []Device, names ...string) ([]Device, error) {
	var out []Device
	for _, name := range names {
		name = strings.TrimSpace(name)
		if name == "all" {
			out = append(out, usable(all)...)
			continue
		}
		d, err := find(all, name)
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return unique(out)
}

// Visible returns the devices that CUDA or ROCm would show a process with this environment, in its
// order. Each vendor's devices follow its own variables; getenv is os.LookupEnv or a child's.
//
// CUDA_VISIBLE_DEVICES (CUDA programming guide, "CUDA environment variables"): unset shows all; an
// empty list shows none; entries are indices, UUIDs, beginnings of UUIDs or MIG ids; the first
// invalid entry, "-1" included, ends the list. ROCR_VISIBLE_DEVICES selects the same way, by index
// or UUID; HIP_VISIBLE_DEVICES (or CUDA_VISIBLE_DEVICES where it is unset) then counts within what
// ROCr left.
//
// CUDA's own order is fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID: with GPUs of different
// kinds an index is then ambiguous, which is an ErrBadSelector and not a guess.
func Visible(all []Device, getenv func(string) (string, bool)) ([]Device, error) {
	if getenv == nil {
		getenv = os.LookupEnv
	}
	var nv, amd []Device
	for _, d := range all {
		if d.Vendor == AMD {
			amd = append(amd, d)
		} else {
			nv = append(nv, d)
		}
	}
	var out []Device
	if len(nv) > 0 {
		order, _ := getenv("CUDA_DEVICE_ORDER")
		list, err := visible(nv, "CUDA_VISIBLE_DEVICES", getenv, order == "PCI_BUS_ID")
		if err != nil {
			return nil, err
		}
		out = append(out, list...)
	}
	if len(amd) > 0 {
		list, err := visible(amd, "ROCR_VISIBLE_DEVICES", getenv, true)
		if err != nil {
			return nil, err
		}
		for i := range list {
			list[i].Index = i // HIP counts within what ROCr left
		}
		within := "HIP_VISIBLE_DEVICES"
		if _, ok := getenv(within); !ok {
			within = "CUDA_VISIBLE_DEVICES"
		}
		if list, err = visible(list, within, getenv, true); err != nil {
			return nil, err
		}
		for i, d := range list { // restore the source's indices
			list[i].Index = amd[slices.IndexFunc(amd, func(o Device) bool { return o.UUID == d.UUID })].Index
		}
		out = append(out, list...)
	}
	if len(out) == 0 && len(all) > 0 {
		return nil, fmt.Errorf("gpuwait: %w: %s of %d devices", ErrNoneVisible, visibleEnv(getenv), len(all))
	}
	return out, nil
}

func visible(all []Device, variable string, getenv func(string) (string, bool), indexed bool) ([]Device, error) {
	value, set := getenv(variable)
	if !set {
		return usable(all), nil
	}
	var out []Device
	for name := range strings.SplitSeq(value, ",") {
		name = strings.TrimSpace(name)
		n, notNumber := strconv.Atoi(name)
		if notNumber == nil && n >= 0 && !indexed && !sameKind(all) {
			return nil, fmt.Errorf("gpuwait: %w: %s=%s: the GPUs differ, so index %s depends on CUDA's fastest-first order: use UUIDs, or set CUDA_DEVICE_ORDER=PCI_BUS_ID",
				ErrBadSelector, variable, value, name)
		}
		if notNumber != nil && strings.Contains(name, ":") {
			break // "0:1" is NVML's and the container runtime's name for a slice; CUDA does not know it
		}
		d, err := find(all, name)
		if err != nil {
			break // CUDA ends the list here, silently
		}
		out = append(out, d)
	}
	out, err := unique(out)
	if err != nil {
		return nil, fmt.Errorf("%w (%s=%s)", err, variable, value)
	}
	return out, nil
}

// find resolves one name. The beginning of several UUIDs is an error.
func find(all []Device, name string) (Device, error) {
	for _, d := range all {
		if strings.EqualFold(d.UUID, name) {
			return d, nil
		}
	}
	if n, err := strconv.Atoi(name); err == nil {
		for _, d := range usable(all) {
			if d.Index == n { // of a GPU in MIG mode: its first slice, which is the one that CUDA enumerates
				return d, nil
			}
		}
		return Device{}, notFound(all, name)
	}
	if gpu, slice, ok := strings.Cut(name, ":"); ok {
		g, err1 := strconv.Atoi(gpu)
		s, err2 := strconv.Atoi(slice)
		for _, d := range all {
			if err1 == nil && err2 == nil && d.Parent != "" && d.Index == g && d.MIG == s {
				return d, nil
			}
		}
		return Device{}, notFound(all, name)
	}
	if gpu, ids, ok := strings.Cut(strings.TrimPrefix(name, "MIG-"), "/"); ok { // MIG-GPU-<uuid>/<gi>/<ci>
		for _, d := range all {
			if d.Parent == gpu && ids == fmt.Sprintf("%d/%d", d.GI, d.CI) {
				return d, nil
			}
		}
		return Device{}, notFound(all, name)
	}
	var hits []Device
	for _, d := range all {
		if len(name) > len("GPU-") && len(d.UUID) > len(name) && strings.EqualFold(d.UUID[:len(name)], name) {
			hits = append(hits, d)
		}
	}
	switch len(hits) {
	case 1:
		return hits[0], nil
	case 0:
		return Device{}, notFound(all, name)
	}
	return Device{}, fmt.Errorf("gpuwait: %w: %q is the beginning of %d UUIDs: %s", ErrBadSelector, name, len(hits),
		uuids(hits))
}

func notFound(all []Device, name string) error {
	return fmt.Errorf("gpuwait: %w: %q; there are %s", ErrNoDevice, name, uuids(all))
}

// usable returns the devices that can run something: of a GPU in MIG mode, only its slices.
func usable(all []Device) []Device {
	var out []Device
	for _, d := range all {
		if !d.Sliced {
			out = append(out, d)
		}
	}
	return out
}

func unique(list []Device) ([]Device, error) {
	for i, d := range list {
		if slices.ContainsFunc(list[:i], func(o Device) bool { return o.UUID == d.UUID }) {
			return nil, fmt.Errorf("gpuwait: %w: %s is named twice", ErrBadSelector, d.UUID)
		}
	}
	return list, nil
}

func sameKind(all []Device) bool {
	gpus := slices.DeleteFunc(slices.Clone(all), func(d Device) bool { return d.Parent != "" })
	return !slices.ContainsFunc(gpus, func(d Device) bool { return d.Name != gpus[0].Name })
}

func uuids(list []Device) string {
	if len(list) == 0 {
		return "none"
	}
	var names []string
	for _, d := range list {
		names = append(names, d.String())
	}
	return strings.Join(names, ", ")
}

// visibleEnv formats the variables that hide devices.
func visibleEnv(getenv func(string) (string, bool)) string {
	var set []string
	for _, name := range []string{"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"} {
		if v, ok := getenv(name); ok {
			set = append(set, fmt.Sprintf("%s=%q", name, v))
		}
	}
	if len(set) == 0 {
		return "the environment hides none"
	}
	return strings.Join(set, " ") + " shows none"
}

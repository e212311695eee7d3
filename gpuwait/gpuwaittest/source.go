// Package gpuwaittest is a scripted [gpuwait.Source]: devices whose memory changes at given times,
// for tests of code that waits for a GPU on machines that have none. Time is the clock's, so a
// script of ten minutes runs in a moment inside a testing/synctest bubble.
package gpuwaittest

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/enginetest/enginetest/gpuwait"
)

// Device is one scripted GPU. Steps are in order of At.
type Device struct {
	gpuwait.Device
	Total int64 // bytes
	Steps []Step
}

// Step is what a device looks like from At (since New) on.
type Step struct {
	At         time.Duration
	Used       int64 // bytes
	Reserved   int64 // bytes
	Holders    []gpuwait.Holder
	Err        error // Memory's
	HoldersErr error // Holders'
}

// Source is a gpuwait.Source that follows scripts. It counts its readings.
type Source struct {
	mu       sync.Mutex
	start    time.Time
	devices  []Device
	readings map[string][]time.Time
	closed   bool
}

// New starts the scripts now. A device without a UUID is named "GPU-<index>", one without a vendor
// is NVIDIA's, one without steps is empty.
func New(devices ...Device) *Source {
	s := &Source{start: time.Now(), readings: map[string][]time.Time{}}
	for i, d := range devices {
		if d.UUID == "" {
			d.Index, d.UUID = i, fmt.Sprintf("GPU-%d", i)
		}
		if d.Vendor == "" {
			d.Vendor = gpuwait.NVIDIA
		}
		s.devices = append(s.devices, d)
	}
	return s
}

// Set replaces a device's script: from now on it looks like step.
func (s *Source) Set(uuid string, step Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.devices {
		if s.devices[i].UUID == uuid {
			step.At = 0
			s.devices[i].Steps = []Step{step}
			return
		}
	}
	panic("gpuwaittest: no device " + uuid)
}

// Readings returns the times at which Memory was called for a device.
func (s *Source) Readings(uuid string) []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.readings[uuid])
}

// Devices lists the scripted devices.
func (s *Source) Devices() ([]gpuwait.Device, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]gpuwait.Device, len(s.devices))
	for i, d := range s.devices {
		out[i] = d.Device
	}
	return out, nil
}

// Memory is what the script says now.
func (s *Source) Memory(uuid string) (gpuwait.Memory, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readings[uuid] = append(s.readings[uuid], time.Now())
	d, step, err := s.now(uuid)
	if err == nil {
		err = step.Err
	}
	if err != nil {
		return gpuwait.Memory{}, err
	}
	return gpuwait.Memory{Total: d.Total, Used: step.Used, Reserved: step.Reserved}, nil
}

// Holders is what the script says now.
func (s *Source) Holders(uuid string) ([]gpuwait.Holder, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, step, err := s.now(uuid)
	if err != nil {
		return nil, err
	}
	return slices.Clone(step.Holders), step.HoldersErr
}

// Close is recorded, for tests of who closes.
func (s *Source) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

// Closed tells whether Close was called.
func (s *Source) Closed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

func (s *Source) now(uuid string) (Device, Step, error) {
	for _, d := range s.devices {
		if d.UUID != uuid {
			continue
		}
		var step Step
		for _, st := range d.Steps {
			if time.Since(s.start) >= st.At {
				step = st
			}
		}
		return d, step, nil
	}
	return Device{}, Step{}, fmt.Errorf("gpuwaittest: %w: %q", gpuwait.ErrNoDevice, uuid)
}

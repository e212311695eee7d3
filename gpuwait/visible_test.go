package gpuwait_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/gpuwait"
)

func nvidia(index int, uuid, name string) gpuwait.Device {
	return gpuwait.Device{UUID: uuid, Index: index, Name: name, Vendor: gpuwait.NVIDIA}
}

var (
	gpuA   = nvidia(0, "GPU-aaaa1111-2222-3333-4444-555566667777", "H200")
	gpuB   = nvidia(1, "GPU-aaaa9999-2222-3333-4444-555566667777", "H200")
	gpuC   = nvidia(2, "GPU-cccc1111-2222-3333-4444-555566667777", "H200")
	small  = nvidia(1, "GPU-5a115a11-2222-3333-4444-555566667777", "L4")
	parent = gpuwait.Device{
		UUID: "GPU-dddd1111-2222-3333-4444-555566667777", Index: 3, Name: "H200",
		Vendor: gpuwait.NVIDIA, Sliced: true,
	}
	slice0 = gpuwait.Device{
		UUID: "MIG-eeee1111-2222-3333-4444-555566667777", Index: 3, Name: "H200 MIG 1g.18gb",
		Vendor: gpuwait.NVIDIA, Parent: parent.UUID, GI: 7,
	}
	slice2 = gpuwait.Device{
		UUID: "MIG-ffff1111-2222-3333-4444-555566667777", Index: 3, Name: "H200 MIG 1g.18gb",
		Vendor: gpuwait.NVIDIA, Parent: parent.UUID, MIG: 2, GI: 9, CI: 1,
	}
	amd0 = gpuwait.Device{UUID: "GPU-00000000deadbeef", Index: 0, Name: "MI300X", Vendor: gpuwait.AMD}
	amd1 = gpuwait.Device{UUID: "GPU-00000000cafebabe", Index: 1, Name: "MI300X", Vendor: gpuwait.AMD}
	amd2 = gpuwait.Device{UUID: "GPU-0000000012345678", Index: 2, Name: "MI300X", Vendor: gpuwait.AMD}
)

type env map[string]string

func (e env) get(name string) (string, bool) { v, ok := e[name]; return v, ok }

func names(ds []gpuwait.Device) []string {
	out := []string{}
	for _, d := range ds {
		out = append(out, d.UUID)
	}
	return out
}

func TestVisible(t *testing.T) {
	three := []gpuwait.Device{gpuA, gpuB, gpuC}
	mig := []gpuwait.Device{gpuA, parent, slice0, slice2}
	amd := []gpuwait.Device{amd0, amd1, amd2}
	tests := []struct {
		reason string
		all    []gpuwait.Device
		env    env
		want   []gpuwait.Device
		err    error
	}{
		{"unset shows all", three, env{}, three, nil},
		{"empty hides all", three, env{"CUDA_VISIBLE_DEVICES": ""}, nil, gpuwait.ErrNoneVisible},
		{"-1 hides all", three, env{"CUDA_VISIBLE_DEVICES": "-1"}, nil, gpuwait.ErrNoneVisible},
		{
			"CUDA's guide: 2,1 hides 0 and turns the order", three,
			env{"CUDA_VISIBLE_DEVICES": "2,1"},
			[]gpuwait.Device{gpuC, gpuB},
			nil,
		},
		{
			"CUDA's guide: 0,2,-1,1 shows 0 and 2", three,
			env{"CUDA_VISIBLE_DEVICES": "0,2,-1,1"},
			[]gpuwait.Device{gpuA, gpuC},
			nil,
		},
		{
			"an index beyond the last ends the list", three,
			env{"CUDA_VISIBLE_DEVICES": "1,7,0"},
			[]gpuwait.Device{gpuB},
			nil,
		},
		{"a word ends the list", three, env{"CUDA_VISIBLE_DEVICES": "0,none,1"}, []gpuwait.Device{gpuA}, nil},
		{"spaces do not matter", three, env{"CUDA_VISIBLE_DEVICES": " 0 , 1 "}, []gpuwait.Device{gpuA, gpuB}, nil},
		{
			"a full UUID, which int() crashes on", three,
			env{"CUDA_VISIBLE_DEVICES": gpuB.UUID},
			[]gpuwait.Device{gpuB},
			nil,
		},
		{
			"the beginning of a UUID", three,
			env{"CUDA_VISIBLE_DEVICES": "GPU-cc,GPU-aaaa9"},
			[]gpuwait.Device{gpuC, gpuB},
			nil,
		},
		{
			"an ambiguous beginning ends the list", three,
			env{"CUDA_VISIBLE_DEVICES": "2,GPU-aaaa"},
			[]gpuwait.Device{gpuC},
			nil,
		},
		{"GPU- alone names nothing", three, env{"CUDA_VISIBLE_DEVICES": "GPU-"}, nil, gpuwait.ErrNoneVisible},
		{
			"the same device twice is refused", three,
			env{"CUDA_VISIBLE_DEVICES": "1,GPU-aaaa9"},
			nil,
			gpuwait.ErrBadSelector,
		},
		{
			"with GPUs of two kinds an index is ambiguous",
			[]gpuwait.Device{gpuA, small},
			env{"CUDA_VISIBLE_DEVICES": "0"},
			nil, gpuwait.ErrBadSelector,
		},
		{"-1 is not", []gpuwait.Device{gpuA, small}, env{"CUDA_VISIBLE_DEVICES": "-1"}, nil, gpuwait.ErrNoneVisible},
		{
			"and clear in PCI order",
			[]gpuwait.Device{gpuA, small},
			env{"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
			[]gpuwait.Device{small},
			nil,
		},
		{
			"and by UUID",
			[]gpuwait.Device{gpuA, small},
			env{"CUDA_VISIBLE_DEVICES": small.UUID},
			[]gpuwait.Device{small},
			nil,
		},
		{"MIG by UUID", mig, env{"CUDA_VISIBLE_DEVICES": slice2.UUID}, []gpuwait.Device{slice2}, nil},
		{
			"MIG by GPU, GPU instance and compute instance", mig,
			env{"CUDA_VISIBLE_DEVICES": "MIG-" + parent.UUID + "/9/1"},
			[]gpuwait.Device{slice2},
			nil,
		},
		{
			"MIG instance that is not there", mig,
			env{"CUDA_VISIBLE_DEVICES": "MIG-" + parent.UUID + "/9/2"},
			nil,
			gpuwait.ErrNoneVisible,
		},
		{"NVML's 0:1 is not CUDA's", mig, env{"CUDA_VISIBLE_DEVICES": "3:0"}, nil, gpuwait.ErrNoneVisible},
		{
			"the index of a GPU in MIG mode is its first slice", mig,
			env{"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
			[]gpuwait.Device{slice0},
			nil,
		},
		{"a GPU in MIG mode cannot be used itself", mig, env{}, []gpuwait.Device{gpuA, slice0, slice2}, nil},
		{
			"ROCr by index and UUID", amd,
			env{"ROCR_VISIBLE_DEVICES": "2,GPU-00000000DEADBEEF"},
			[]gpuwait.Device{amd2, amd0},
			nil,
		},
		{
			"HIP counts within what ROCr left", amd,
			env{"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"},
			[]gpuwait.Device{amd2},
			nil,
		},
		{
			"HIP reads CUDA's variable when its own is unset", amd,
			env{"CUDA_VISIBLE_DEVICES": "1"},
			[]gpuwait.Device{amd1},
			nil,
		},
		{
			"HIP's own wins", amd,
			env{"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"},
			[]gpuwait.Device{amd0},
			nil,
		},
		{
			"a HIP index that ROCr hid", amd,
			env{"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"},
			nil,
			gpuwait.ErrNoneVisible,
		},
		{
			"each vendor follows its own",
			[]gpuwait.Device{gpuA, gpuB, amd0, amd1},
			env{"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"},
			[]gpuwait.Device{gpuB, amd0},
			nil,
		},
		{"no devices, nothing hidden", nil, env{"CUDA_VISIBLE_DEVICES": ""}, nil, nil},
	}
	for _, tc := range tests {
		t.Run(tc.reason, func(t *testing.T) {
			got, err := gpuwait.Visible(tc.all, tc.env.get)
			if tc.err != nil {
				require.ErrorIs(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, names(tc.want), names(got))
			for _, d := range got {
				assert.Contains(t, tc.all, d, "an index must not change")
			}
		})
	}
}

func TestSelect(t *testing.T) {
	all := []gpuwait.Device{gpuA, gpuB, parent, slice0, slice2}
	for _, tc := range []struct {
		names []string
		want  []gpuwait.Device
		err   error
	}{
		{[]string{"all"}, []gpuwait.Device{gpuA, gpuB, slice0, slice2}, nil},
		{[]string{"1", "GPU-aaaa1"}, []gpuwait.Device{gpuB, gpuA}, nil},
		{[]string{"3:2"}, []gpuwait.Device{slice2}, nil},
		{[]string{"3"}, []gpuwait.Device{slice0}, nil},
		{[]string{parent.UUID}, []gpuwait.Device{parent}, nil},
		{[]string{"9"}, nil, gpuwait.ErrNoDevice},
		{[]string{"-1"}, nil, gpuwait.ErrNoDevice},
		{[]string{""}, nil, gpuwait.ErrNoDevice},
		{[]string{"3:9"}, nil, gpuwait.ErrNoDevice},
		{[]string{"x:y"}, nil, gpuwait.ErrNoDevice},
		{[]string{"GPU-aaaa"}, nil, gpuwait.ErrBadSelector},
		{[]string{"0", "0"}, nil, gpuwait.ErrBadSelector},
		{[]string{"all", "0"}, nil, gpuwait.ErrBadSelector},
	} {
		got, err := gpuwait.Select(all, tc.names...)
		if tc.err != nil {
			require.ErrorIs(t, err, tc.err, "%q", tc.names)
			assert.Equal(t, 2, gpuwait.ExitCode(err))
			continue
		}
		require.NoError(t, err, "%q", tc.names)
		assert.Equal(t, names(tc.want), names(got))
	}
}

func FuzzVisible(f *testing.F) {
	for _, s := range []string{"", "-1", "0,1", "GPU-", "MIG-GPU-/1/1", "0:1", ",,", "MIG-" + parent.UUID + "/9/1"} {
		f.Add(s)
	}
	all := []gpuwait.Device{gpuA, gpuB, parent, slice0, slice2, amd0, amd1}
	f.Fuzz(func(t *testing.T, list string) {
		got, err := gpuwait.Visible(all, env{"CUDA_VISIBLE_DEVICES": list, "ROCR_VISIBLE_DEVICES": list}.get)
		if err == nil && len(got) == 0 {
			t.Fatalf("%q shows nothing, and that is no error", list)
		}
		for _, d := range got {
			assert.Contains(t, all, d)
		}
	})
}

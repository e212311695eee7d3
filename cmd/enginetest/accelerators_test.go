package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/internal/cudatest"
)

func TestInspectCUDA(t *testing.T) {
	stub := cudatest.New(t, 1, 1<<30)
	t.Setenv("ENGINETEST_LIBCUDA", stub.Path)
	t.Setenv("ENGINETEST_LIBNCCL", stub.Path)
	r := inspectCUDA()
	require.Empty(t, r.Error)
	assert.Equal(t, stub.Path, r.Driver)
	require.Len(t, r.Devices, 1)
	assert.Equal(t, "kernels.sm_90.cubin", r.Devices[0].Kernels)
	assert.Equal(t, &libraryReport{Library: stub.Path, Version: "2.28.9"}, r.NCCL)
	data, err := json.Marshal(gpuReport{CUDA: r})
	require.NoError(t, err)
	assert.Contains(t, string(data), `"compute_capability":"9.0","kernels":"kernels.sm_90.cubin","compiled":false`)
	assert.Contains(t, string(data), `"devices":null`, "the inventory's fields are the report's own")

	t.Setenv("ENGINETEST_LIBNCCL", "/no/libnccl.so")
	assert.Contains(t, inspectCUDA().String(),
		"NCCL: none: /no/libnccl.so: cannot open shared object file: No such file or directory")
	t.Setenv("ENGINETEST_LIBCUDA", "/no/libcuda.so")
	assert.Equal(t, "CUDA: n/a: no driver: /no/libcuda.so: cannot open shared object file: No such file or directory",
		inspectCUDA().String())
}

func TestCUDAReport(t *testing.T) {
	r := cudaReport{
		Driver: "libcuda.so.1", Version: "13.0", CUBLASLt: "not used",
		NCCL: &libraryReport{Library: "libnccl.so.2", Version: "2.28.9"}, Devices: []kernelReport{
			{UUID: "GPU-1", Capability: "9.0", Kernels: "kernels.sm_90.cubin"},
			{UUID: "GPU-2", Capability: "10.0", Kernels: "kernels.sm_80.ptx", Compiled: true},
			{UUID: "GPU-3", Capability: "7.5", Error: "kernels: the device has compute capability 7.5, want at least 8.0"},
		},
	}
	assert.Equal(t, `CUDA 13.0 (libcuda.so.1)
     GPU-1  compute capability 9.0: kernels.sm_90.cubin
     GPU-2  compute capability 10.0: kernels.sm_80.ptx, compiled by the driver when first used
     GPU-3  kernels: the device has compute capability 7.5, want at least 8.0
     NCCL: 2.28.9 (libnccl.so.2), not used without ENGINETEST_ALL_REDUCE=nccl
     cuBLASLt: not used`, r.String())
	r.NCCL.Used = true
	assert.Contains(t, r.String(), "NCCL: 2.28.9 (libnccl.so.2), used by engines of several devices\n")
}

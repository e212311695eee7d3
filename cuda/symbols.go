package cuda

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/enginetest/enginetest/internal/dynlib"
)

// symbol is one function of libcuda.
type symbol struct {
	name string
	addr uintptr // 0: this driver does not have it
}

// symbols are the driver functions in use. The tag names them, the newest variant first; "?" marks
// those that a driver of 2022 (CUDA 11.6) may lack: they fail when used, the others when the
// library is opened.
type symbols struct {
	getErrorName   symbol `cu:"cuGetErrorName"`
	getErrorString symbol `cu:"cuGetErrorString"`
	init           symbol `cu:"cuInit"`
	driverVersion  symbol `cu:"cuDriverGetVersion"`

	deviceCount     symbol `cu:"cuDeviceGetCount"`
	deviceGet       symbol `cu:"cuDeviceGet"`
	deviceName      symbol `cu:"cuDeviceGetName"`
	deviceUUID      symbol `cu:"cuDeviceGetUuid_v2,cuDeviceGetUuid"`
	deviceTotalMem  symbol `cu:"cuDeviceTotalMem_v2"`
	deviceAttribute symbol `cu:"cuDeviceGetAttribute"`
	devicePCI       symbol `cu:"cuDeviceGetPCIBusId"`
	deviceCanPeer   symbol `cu:"cuDeviceCanAccessPeer"`
	devicePool      symbol `cu:"?cuDeviceGetDefaultMemPool"`

	primaryRetain  symbol `cu:"cuDevicePrimaryCtxRetain"`
	primaryRelease symbol `cu:"cuDevicePrimaryCtxRelease_v2,cuDevicePrimaryCtxRelease"`
	primaryReset   symbol `cu:"cuDevicePrimaryCtxReset_v2,cuDevicePrimaryCtxReset"`
	primaryState   symbol `cu:"cuDevicePrimaryCtxGetState"`
	ctxSetCurrent  symbol `cu:"cuCtxSetCurrent"`
	ctxSynchronize symbol `cu:"cuCtxSynchronize"`
	ctxEnablePeer  symbol `cu:"cuCtxEnablePeerAccess"`

	memGetInfo       symbol `cu:"cuMemGetInfo_v2"`
	memAlloc         symbol `cu:"cuMemAlloc_v2"`
	memFree          symbol `cu:"cuMemFree_v2"`
	memHostAlloc     symbol `cu:"cuMemHostAlloc"`
	memFreeHost      symbol `cu:"cuMemFreeHost"`
	memHostRegister  symbol `cu:"cuMemHostRegister_v2"`
	memHostUnreg     symbol `cu:"cuMemHostUnregister"`
	memHostDevicePtr symbol `cu:"cuMemHostGetDevicePointer_v2"`

	poolTrim symbol `cu:"?cuMemPoolTrimTo"`

	copyHtoD      symbol `cu:"cuMemcpyHtoD_v2"`
	copyDtoH      symbol `cu:"cuMemcpyDtoH_v2"`
	copyHtoDAsync symbol `cu:"cuMemcpyHtoDAsync_v2"`
	copyDtoHAsync symbol `cu:"cuMemcpyDtoHAsync_v2"`
	copyDtoDAsync symbol `cu:"cuMemcpyDtoDAsync_v2"`
	copyPeerAsync symbol `cu:"cuMemcpyPeerAsync"`
	copy2DAsync   symbol `cu:"cuMemcpy2DAsync_v2"`
	setD8Async    symbol `cu:"cuMemsetD8Async"`

	streamCreate  symbol `cu:"cuStreamCreateWithPriority"`
	streamDestroy symbol `cu:"cuStreamDestroy_v2"`
	streamSync    symbol `cu:"cuStreamSynchronize"`
	streamQuery   symbol `cu:"cuStreamQuery"`
	streamWait    symbol `cu:"cuStreamWaitEvent"`
	eventCreate   symbol `cu:"cuEventCreate"`
	eventDestroy  symbol `cu:"cuEventDestroy_v2"`
	eventRecord   symbol `cu:"cuEventRecord"`
	eventSync     symbol `cu:"cuEventSynchronize"`
	eventQuery    symbol `cu:"cuEventQuery"`
	eventElapsed  symbol `cu:"cuEventElapsedTime_v2,cuEventElapsedTime"`

	moduleLoad     symbol `cu:"cuModuleLoadDataEx"`
	moduleUnload   symbol `cu:"cuModuleUnload"`
	moduleFunction symbol `cu:"cuModuleGetFunction"`
	funcGetAttr    symbol `cu:"cuFuncGetAttribute"`
	funcSetAttr    symbol `cu:"cuFuncSetAttribute"`
	funcParamInfo  symbol `cu:"?cuFuncGetParamInfo"`
	launchKernel   symbol `cu:"cuLaunchKernel"`
	launchKernelEx symbol `cu:"?cuLaunchKernelEx"`
	captureBegin   symbol `cu:"cuStreamBeginCapture_v2"`
	captureEnd     symbol `cu:"cuStreamEndCapture"`
	graphDestroy   symbol `cu:"cuGraphDestroy"`
	graphInst      symbol `cu:"cuGraphInstantiateWithFlags"`
	graphLaunch    symbol `cu:"cuGraphLaunch"`
	graphExecDestr symbol `cu:"cuGraphExecDestroy"`
	graphMemTrim   symbol `cu:"?cuDeviceGraphMemTrim"`
}

// resolve looks every symbol up; it names all required ones that are missing.
func (s *symbols) resolve(lib uintptr) error {
	var missing []string
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag.Get("cu")
		if tag == "" {
			continue
		}
		names, optional := strings.CutPrefix(tag, "?")
		f := v.Field(i).Addr().UnsafePointer()
		sym := (*symbol)(f)
		for name := range strings.SplitSeq(names, ",") {
			sym.name = name
			if sym.addr = dynlib.Symbol(lib, name); sym.addr != 0 {
				break
			}
		}
		if sym.addr == 0 && !optional {
			missing = append(missing, sym.name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("it lacks %s: a driver of CUDA 11.6 (version 510, 2022) or newer is needed",
			strings.Join(missing, ", "))
	}
	return nil
}

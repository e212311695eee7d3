package gpuwait

// nvmlTable is what gpuwait calls of NVML: the one place that knows how the library is called.
// newNVMLDyn fills it by the addresses of the functions, without cgo. A call to a function that the
// library lacks is never made: has is asked before.
type nvmlTable struct {
	has       func(symbol string) bool
	init      func() nvmlReturn
	shutdown  func() nvmlReturn
	errorText func(nvmlReturn) string
	count     func() (int, nvmlReturn)
	handle    func(index int) (nvmlHandle, nvmlReturn)
	uuid      func(nvmlHandle) (string, nvmlReturn)
	name      func(nvmlHandle) (string, nvmlReturn)
	memory    func(nvmlHandle) (nvmlMemory, nvmlReturn) // the driver's reserve is in used
	memoryV2  func(nvmlHandle) (nvmlMemory, nvmlReturn)
	processes func(nvmlList, nvmlHandle) ([]nvmlProcess, nvmlReturn)

	migEnabled        func(nvmlHandle) (bool, nvmlReturn)
	migCount          func(nvmlHandle) (int, nvmlReturn)
	migHandle         func(nvmlHandle, int) (nvmlHandle, nvmlReturn)
	gpuInstanceID     func(nvmlHandle) (int, nvmlReturn)
	computeInstanceID func(nvmlHandle) (int, nvmlReturn)
}

// nvmlHandle is a device.
type nvmlHandle any

type nvmlMemory struct{ total, used, reserved uint64 }

type nvmlProcess struct {
	pid   uint32
	bytes uint64 // all ones: not available
}

// nvmlList is the stem of the functions that list processes; newer drivers add "_v2" and "_v3".
type nvmlList string

const (
	nvmlCompute  nvmlList = "nvmlDeviceGetComputeRunningProcesses"
	nvmlGraphics nvmlList = "nvmlDeviceGetGraphicsRunningProcesses"
	nvmlMPS      nvmlList = "nvmlDeviceGetMPSComputeRunningProcesses"
)

// nvmlReturn is NVML's nvmlReturn_t.
type nvmlReturn int32

const (
	nvmlSuccess         nvmlReturn = 0
	nvmlInvalid         nvmlReturn = 2
	nvmlNotSupported    nvmlReturn = 3
	nvmlNotFound        nvmlReturn = 6
	nvmlTooSmall        nvmlReturn = 7
	nvmlNoFunction      nvmlReturn = 13
	nvmlLost            nvmlReturn = 15
	nvmlResetRequired   nvmlReturn = 16
	nvmlVersionMismatch nvmlReturn = 25
)

// nvmlNeeds are the functions without which nothing can be measured, each with its older name.
var nvmlNeeds = [][]string{
	{"nvmlInit_v2", "nvmlInit"},
	{"nvmlShutdown"},
	{"nvmlErrorString"},
	{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"},
	{"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"},
	{"nvmlDeviceGetUUID"},
	{"nvmlDeviceGetName"},
	{"nvmlDeviceGetMemoryInfo"},
}

// missing returns the first function of nvmlNeeds that a library lacks, "" when it has all.
func missing(has func(symbol string) bool) string {
next:
	for _, names := range nvmlNeeds {
		for _, name := range names {
			if has(name) {
				continue next
			}
		}
		return names[0]
	}
	return ""
}

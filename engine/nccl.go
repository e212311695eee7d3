package engine

import (
	"os"
	"strings"

	"github.com/enginetest/enginetest/engine/internal/cudarunner"
)

// AllReduceEnv is the environment variable that selects how GPUs of one engine add up their
// parts: "nccl", or the engine's own kernels when it is unset.
const AllReduceEnv = cudarunner.AllReduceEnv

// NCCL describes the NCCL library of this process's environment.
type NCCL struct {
	Library string // path or name
	Version string
	Used    bool  // AllReduceEnv selects it
	Err     error // why it cannot be used
}

// FindNCCL looks for the NCCL library that an engine on several GPUs would load.
func FindNCCL() NCCL {
	n := NCCL{Used: os.Getenv(AllReduceEnv) == string(cudarunner.NCCL)}
	n.Library, n.Version, n.Err = cudarunner.FindNCCL()
	if n.Err != nil {
		n.Err = reason{n.Err}
	}
	return n
}

// reason prints an error without the prefix that every error of a missing NCCL has.
type reason struct{ error }

func (r reason) Error() string {
	return strings.TrimPrefix(r.error.Error(), cudarunner.ErrNoNCCL.Error()+": ")
}

func (r reason) Unwrap() error { return r.error }

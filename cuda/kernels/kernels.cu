// All kernels in one module; the build script compiles this file.
#include "device.h"
#include "rows.cu"
#include "gemv.cu"
#include "skinny.cu"
#include "gemm.cu"
#include "attention.cu"
#include "prefill.cu"
#include "sample.cu"

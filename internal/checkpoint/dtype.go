package checkpoint

import "strings"

// DType is an element type, by its safetensors name.
type DType string

// The element types that can be weights.
const (
	F32  DType = "F32"
	BF16 DType = "BF16"
	F16  DType = "F16"
)

// dtypes lists every type of the safetensors format with its size in bits, in the order in which
// the reference implementation ranks them (its writer puts higher ranks first, which keeps data
// aligned). Those that are no weights are known so that an error can name them.
var dtypes = []struct {
	name DType
	bits uint64
}{
	{"BOOL", 8},
	{"F4", 4},
	{"F6_E2M3", 6},
	{"F6_E3M2", 6},
	{"U8", 8},
	{"I8", 8},
	{"F8_E5M2", 8},
	{"F8_E4M3", 8},
	{"F8_E8M0", 8},
	{"F8_E4M3FNUZ", 8},
	{"F8_E5M2FNUZ", 8},
	{"I16", 16},
	{"U16", 16},
	{F16, 16},
	{BF16, 16},
	{"I32", 32},
	{"U32", 32},
	{F32, 32},
	{"C64", 64},
	{"F64", 64},
	{"I64", 64},
	{"U64", 64},
}

// rank is d's place in dtypes, or -1.
func (d DType) rank() int {
	for i, t := range dtypes {
		if t.name == d {
			return i
		}
	}
	return -1
}

// bits is the size of an element, or 0 for an unknown type.
func (d DType) bits() uint64 {
	if i := d.rank(); i >= 0 {
		return dtypes[i].bits
	}
	return 0
}

// Size is the size of an element in bytes; 0 for a type smaller than a byte or unknown.
func (d DType) Size() int { return int(d.bits() / 8) }

// IsWeight reports whether the engine computes with weights of this type.
func (d DType) IsWeight() bool { return d == F32 || d == BF16 || d == F16 }

const weightTypes = "F32, BF16 or F16"

func knownTypes() string {
	names := make([]string, len(dtypes))
	for i, t := range dtypes {
		names[i] = string(t.name)
	}
	return "one of " + strings.Join(names, ", ")
}

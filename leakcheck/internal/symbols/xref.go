package symbols

import (
	"encoding/binary"
	"runtime"
	"slices"
	"unsafe"
)

// codeUsers maps the addresses of variables to the functions whose code refers to them, by looking
// at every operand that is relative to the program counter. It works on a stripped program. nil on
// other machines than amd64.
func codeUsers() map[uint64][]string {
	if runtime.GOARCH != "amd64" {
		return nil
	}
	md := lastmoduledatap
	lo, hi := uint64(md.noptrdata), uint64(md.enoptrbss)
	text := uint64(md.text)
	code := unsafe.Slice((*byte)(pointer(text)), md.etext-md.text)
	users := map[uint64][]string{}
	for i := 1; i+4 <= len(code); i++ {
		if code[i-1]&0xc7 != 0x05 { // ModRM: no base, 32-bit displacement from the next instruction
			continue
		}
		target := text + uint64(i) + 4 + uint64(int64(int32(binary.LittleEndian.Uint32(code[i:]))))
		for _, immediate := range []uint64{0, 1, 4} { // bytes between the displacement and the next instruction
			a := target + immediate
			if a < lo || a >= hi || a%8 != 0 {
				continue
			}
			fn := FuncOf(text + uint64(i))
			if fn != "" && len(users[a]) < 6 && !slices.Contains(users[a], fn) {
				users[a] = append(users[a], fn)
			}
		}
	}
	return users
}

package cudarunner

import (
	"fmt"

	"github.com/enginetest/enginetest/cuda"
)

// products multiplies the rows of a step with the weights, each by the kernel for its size.
type products struct {
	*weightStore
	work workspace
}

// mode is how the inputs of products are kept in a step of this many rows.
func (r *products) mode(tokens int) int {
	switch {
	case r.weight == f32:
		return plain
	case r.precise || tokens <= exactRows:
		return split
	}
	return round
}

// output is where a kernel puts an activation.
type output struct {
	at, plane int64
	mode, kb  int
}

// gemv is a product of one row; with a norm weight the row is normalized first.
func (r *products) gemv(m matrix, x, norm int64, out cuda.DevicePtr, mode int, withBias bool) error {
	bias := int64(0)
	if withBias {
		bias = m.bias
	}
	groups, threads, name := (m.rows+15)/16, 256, "gemv_"+r.weight.String()
	switch {
	case r.weight == f32:
		threads = 512
	case groups <= r.kernels.sms && m.kb() >= r.kernels.gemvWide: // one block on an SM, which has to keep enough of its long rows under way
		threads, name = 512, "gemv16_"+r.weight.String()
	}
	shared := m.kb() * 128
	if norm != 0 {
		shared *= 2
	}
	return r.run(name, cuda.Dim{X: min(groups, r.kernels.gemvBlocks*r.kernels.sms)}, threads, shared, r.at(m.at),
		r.work.ptr(x), r.at(norm), r.HiddenSize,
		float32(r.RMSNormEps), r.at(bias), out, mode, m.rows, m.kb())
}

// splits is how many blocks share the columns of a product, so that the device is full.
func (r *products) splits(m matrix, tokens int) int {
	const least = 8 // column blocks that a share has at least
	var blocks int
	switch {
	case r.weight == f32:
		blocks = (tokens + 63) / 64 * ((m.rows + 63) / 64)
	case tokens <= skinnyRows:
		warps := r.rowWarps(m)
		blocks = (m.rows + 16*warps - 1) / (16 * warps)
	case r.wgmma(m, tokens):
		blocks = (tokens + 127) / 128 * ((m.rows + r.wgmmaRows(m, tokens) - 1) / r.wgmmaRows(m, tokens))
		return max(1, min(r.kernels.sms/blocks, maxSplits, m.kb()/least, r.work.rows/tokens))
	default:
		blocks = (tokens + 127) / 128 * ((m.rows + 127) / 128)
	}
	n := (2*r.kernels.sms + blocks/2) / blocks
	return max(1, min(n, maxSplits, m.kb()/least, r.work.rows/tokens))
}

// rowWarps is how many warps of a skinny kernel's block lie side by side: with 4 they share what
// they read of the activations, with one there are blocks enough for small matrices.
func (r *products) rowWarps(m matrix) int {
	if r.kernels.rowWarps > 0 {
		return r.kernels.rowWarps
	}
	if m.rows >= 64*r.kernels.sms {
		return 4
	}
	return 1
}

// wgmma reports whether a product goes to Hopper's kernels: 16-bit rows, columns in pairs of
// blocks, results that can be written 16 bytes at a time.
func (r *products) wgmma(m matrix, tokens int) bool {
	return r.kernels.hopper && tokens > skinnyRows && r.mode(tokens) == round && m.kb()%2 == 0 && m.rows%4 == 0
}

// wgmmaRows is how many rows of a matrix a block of those kernels takes at a time: as many as it
// can, unless that leaves SMs idle.
func (r *products) wgmmaRows(m matrix, tokens int) int {
	if (tokens+127)/128*((m.rows+255)/256) >= r.kernels.sms {
		return 256
	}
	return 128
}

// wgmmaLaunch is how such a product is launched: blocks that stay, each with 4 stages, what its 8
// warps write, and the stages' barriers in shared memory.
func (r *products) wgmmaLaunch(m matrix, tokens, parts int, kind string) (name string, l cuda.Launch) {
	rows, cluster := r.wgmmaRows(m, tokens), 1
	if rows == 256 {
		cluster = 2
	}
	tiles := ((tokens+127)/128 + cluster - 1) / cluster * ((m.rows + rows - 1) / rows) * parts
	return fmt.Sprintf("wgmma%d_%s%s", rows, kind, r.weight), cuda.Launch{
		Grid: cuda.Dim{X: cluster * min(tiles,
			r.kernels.sms/cluster)}, Block: cuda.Dim{X: 384}, Shared: 4*(16<<10+rows*128) + 8*rows*16 + 4*2*8,
		Cluster: cuda.Dim{X: cluster},
	}
}

// product multiplies rows with a matrix; it returns the number of parts that it left in out.
func (r *products) product(m matrix, x activity, mode, tokens int, out cuda.DevicePtr, ld, what int,
	act output,
) (int, error) {
	w, parts := &r.work, 1
	switch what {
	case store:
		parts = r.splits(m, tokens)
	case whole:
		what = store
	}
	bias := m.bias
	if what == store {
		bias = 0 // whoever adds up the parts adds it
	}
	planes := 1
	if mode == split {
		planes = 2
	}
	stride := int64(tokens * ld)
	if r.weight != f32 && tokens <= skinnyRows {
		name, warps := "skinny8", r.rowWarps(m)
		switch {
		case tokens > 32:
			name = "skinny64"
		case tokens > 16:
			name = "skinny32"
		case tokens > 8:
			name = "skinny16"
		}
		if mode == split {
			name += "_split"
		}
		return parts, r.run(name+"_"+r.weight.String(), cuda.Dim{X: (m.rows + 16*warps - 1) / (16 * warps), Y: parts},
			256, 0, r.at(m.at), w.ptr(x.at), x.plane,
			out, stride, what, w.ptr(act.at), act.plane, act.mode, act.kb, r.at(bias), tokens, m.rows, ld, m.kb(), warps)
	}
	if r.wgmma(m, tokens) {
		name, l := r.wgmmaLaunch(m, tokens, parts, "")
		return parts, r.kernels.launch(r.stream, name, l, w.ptr(x.at), r.at(m.at), out, stride, what, w.ptr(act.at),
			act.kb, r.at(bias), tokens, m.rows, ld, m.kb(), parts)
	}
	tile, threads, shared := 128, 128, 3*32<<10
	if r.weight == f32 {
		tile, threads, shared = 64, 256, 2*16*65*4
	}
	blocks := (tokens + tile - 1) / tile * ((m.rows + tile - 1) / tile)
	return parts, r.run("gemm_"+r.weight.String(), cuda.Dim{X: blocks, Y: parts}, threads, shared, w.ptr(x.at),
		r.at(m.at), x.plane, planes, out, stride, what,
		w.ptr(act.at), act.plane, act.mode, act.kb, r.at(bias), tokens, m.rows, ld, m.kb())
}

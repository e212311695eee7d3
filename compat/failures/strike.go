package failures

// blocks is the block table of a sequence that has ended.
var blocks []int

// strike panics outside of test code.
func strike() int { return blocks[len(blocks)+3] }

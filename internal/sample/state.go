package sample

// State is one sequence's sampler: its parameters, its prompt and what it has put out so far.
type State struct {
	Params Params
	Prompt []int32
	Output []int32
}

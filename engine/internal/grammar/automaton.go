package grammar

import "fmt"

// edge leads from a state to another: by a byte, by nothing, or by a rule that is matched in
// between.
type edge struct {
	set  byteSet
	rule int32 // noRule, free, or the rule
	to   int32
}

const (
	byByte int32 = -1
	free   int32 = -2
)

// automaton is a grammar as a nondeterministic automaton with a stack.
type automaton struct {
	edges [][]edge
	start []int32 // of each rule
	end   []int32 // of each rule
	rule  []int32 // for an end, which rule's it is; else -1
	tail  []bool  // nothing but its rule's end can follow
}

// maxStates bounds an automaton: a description that needs more is refused.
const maxStates = 1 << 18

// build compiles rules; the first one is the whole.
func build(kind string, r rules) (a *automaton, err error) {
	defer func() {
		if v := recover(); v != nil {
			if e, ok := v.(*Error); ok {
				a, err = nil, e
				return
			}
			panic(v)
		}
	}()
	a = &automaton{}
	for i := 0; i < len(r); i++ { // repetitions add rules
		start, end := a.state(), a.state()
		a.start, a.end = append(a.start, start), append(a.end, end)
		a.rule[end] = int32(i)
		a.add(kind, &r, r[i], start, end)
	}
	if err := a.prune(kind); err != nil {
		return nil, err
	}
	if err := a.checkLeft(kind); err != nil {
		return nil, err
	}
	a.findTails()
	return a, nil
}

func (a *automaton) state() int32 {
	a.edges = append(a.edges, nil)
	a.rule = append(a.rule, -1)
	return int32(len(a.edges) - 1)
}

func (a *automaton) link(from int32, e edge) { a.edges[from] = append(a.edges[from], e) }

// add lets an expression lead from a state to another.
func (a *automaton) add(kind string, r *rules, e expr, from, to int32) {
	if len(a.edges) > maxStates {
		panic(&Error{Kind: kind, What: fmt.Sprintf("more than %d states", maxStates), Unsupported: true})
	}
	switch e := e.(type) {
	case byteSet:
		a.link(from, edge{e, byByte, to})
	case ref:
		a.link(from, edge{rule: int32(e), to: to})
	case seq:
		for i, x := range e {
			next := to
			if i < len(e)-1 {
				next = a.state()
			}
			a.add(kind, r, x, from, next)
			from = next
		}
		if len(e) == 0 {
			a.link(from, edge{rule: free, to: to})
		}
	case alt:
		for _, x := range e {
			mid := a.state() // so that a repetition in x cannot come back to from
			a.link(from, edge{rule: free, to: mid})
			a.add(kind, r, x, mid, to)
		}
	case rep:
		a.repeat(kind, r, e, from, to)
	default:
		panic(fmt.Sprintf("grammar: a rule of type %T", e))
	}
}

// repeat copies what is repeated; a large body becomes a rule, so that a copy is one edge.
func (a *automaton) repeat(kind string, r *rules, e rep, from, to int32) {
	if copies := max(e.min, e.max); copies > 1 && size(e.of) > 2 {
		e.of = r.add(e.of)
	}
	for range e.min {
		next := a.state()
		a.add(kind, r, e.of, from, next)
		from = next
	}
	if e.max < 0 {
		loop := a.state()
		a.link(from, edge{rule: free, to: loop})
		back := a.state()
		a.add(kind, r, e.of, loop, back)
		a.link(back, edge{rule: free, to: loop})
		a.link(loop, edge{rule: free, to: to})
		return
	}
	for range e.max - e.min {
		a.link(from, edge{rule: free, to: to})
		next := a.state()
		a.add(kind, r, e.of, from, next)
		from = next
	}
	a.link(from, edge{rule: free, to: to})
}

// completes returns the states from which the end of their rule can be reached, by edges that pass.
func (a *automaton) completes(pass func(edge) bool) []bool {
	done, todo := make([]bool, len(a.edges)), make([]int32, 0, len(a.end))
	sources := make([][]int32, len(a.edges)) // the states whose edges need a state
	for s, edges := range a.edges {
		for _, e := range edges {
			sources[e.to] = append(sources[e.to], int32(s))
			if e.rule >= 0 {
				sources[a.start[e.rule]] = append(sources[a.start[e.rule]], int32(s))
			}
		}
	}
	reach := func(s int32) {
		if !done[s] {
			done[s] = true
			todo = append(todo, s)
		}
	}
	for _, end := range a.end {
		reach(end)
	}
	for len(todo) > 0 {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, from := range sources[s] {
			for _, e := range a.edges[from] {
				if pass(e) && done[e.to] && (e.rule < 0 || done[a.start[e.rule]]) {
					reach(from)
				}
			}
		}
	}
	return done
}

// prune removes edges that lead nowhere, so that every state that is reached can be completed.
func (a *automaton) prune(kind string) error {
	alive := a.completes(func(edge) bool { return true })
	if !alive[a.start[0]] {
		return &Error{Kind: kind, What: "nothing matches it", Unsupported: true}
	}
	for s, edges := range a.edges {
		kept := edges[:0]
		for _, e := range edges {
			if alive[e.to] && (e.rule < 0 || alive[a.start[e.rule]]) {
				kept = append(kept, e)
			}
		}
		a.edges[s] = kept
	}
	return nil
}

// checkLeft refuses a rule that can begin with itself: its stack would grow without a byte.
func (a *automaton) checkLeft(kind string) error {
	empty := a.completes(func(e edge) bool { return e.rule != byByte }) // without a byte
	const (
		unseen = iota
		active
		over
	)
	seen := make([]int, len(a.start))
	var visit func(rule int32) bool
	visit = func(rule int32) bool {
		seen[rule] = active
		states, marked := []int32{a.start[rule]}, map[int32]bool{a.start[rule]: true}
		for len(states) > 0 {
			s := states[len(states)-1]
			states = states[:len(states)-1]
			for _, e := range a.edges[s] {
				if e.rule >= 0 && (seen[e.rule] == active || seen[e.rule] == unseen && !visit(e.rule)) {
					return false
				}
				if (e.rule == free || e.rule >= 0 && empty[a.start[e.rule]]) && !marked[e.to] {
					marked[e.to] = true
					states = append(states, e.to)
				}
			}
		}
		seen[rule] = over
		return true
	}
	for rule := range a.start {
		if seen[rule] == unseen && !visit(int32(rule)) {
			return &Error{Kind: kind, What: "a rule begins with itself (left recursion)", Unsupported: true}
		}
	}
	return nil
}

// findTails marks the states after which a rule only ends. A rule that is matched there needs no
// place on the stack, so that lists written by recursion on the right stay flat.
func (a *automaton) findTails() {
	const maxTail = 64 // empty steps; what has more costs a place on the stack
	a.tail = make([]bool, len(a.edges))
	for s := range a.edges {
		t, steps := int32(s), 0
		for a.rule[t] < 0 && len(a.edges[t]) == 1 && a.edges[t][0].rule == free && steps < maxTail {
			t = a.edges[t][0].to
			steps++
		}
		a.tail[s] = a.rule[t] >= 0
	}
}

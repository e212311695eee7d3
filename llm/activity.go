package llm

// Activity is what an engine is working on at one moment.
type Activity struct {
	Running int     // sequences that are computed
	Waiting int     // sequences that wait for their turn
	KVUsage float64 // share of the KV cache that sequences use, in [0, 1]; 0 where it is not known
}

// Idle reports whether nothing runs and nothing waits.
func (a Activity) Idle() bool { return a.Running == 0 && a.Waiting == 0 }

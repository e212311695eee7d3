package engine

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/enginetest/enginetest/llm"
)

// Admission bounds what unfinished requests hold, before any memory is taken for them. A client may
// hold at most as much as it leaves free. So one client gets at most half of each bound, n clients
// that take what they can get an equal share each, and a newcomer always finds as much as any of
// them holds.

const (
	defaultWaitingBytes = 256 << 20
	bytesPerSeq         = 1 << 10 // of a sequence without its tokens: state, sampler, text
	maxSeqsOfRequest    = 16384   // what llm allows for SamplingParams.N
)

// load is what requests hold.
type load struct {
	seqs, bytes int64
}

func (l load) plus(m load) load  { return load{l.seqs + m.seqs, l.bytes + m.bytes} }
func (l load) minus(m load) load { return load{l.seqs - m.seqs, l.bytes - m.bytes} }

// callClient is the client of a call whose requests name none.
type callClient struct{ _ byte } // not empty: the addresses of two must differ

func clientOf(q *Request, c *callClient) any {
	if q.Client != "" {
		return q.Client
	}
	return c
}

// loads are those of some requests by client.
type loads map[any]load

func (ls loads) add(client any, l load) { ls[client] = ls[client].plus(l) }

// admission is what all unfinished requests hold. It is guarded by the core's lock.
type admission struct {
	most     load
	total    load
	byClient loads
}

func newAdmission(cfg *Config) admission {
	return admission{most: load{int64(cfg.MaxWaitingSeqs), cfg.MaxWaitingBytes}, byClient: loads{}}
}

// refusal returns why a client's new load is too much; nil when it is not.
func (a *admission) refusal(client any, l load) error {
	held, free := a.byClient[client], a.most.minus(a.total)
	for _, b := range []struct {
		limit, unit            string
		want, held, free, most int64
	}{
		{"MaxWaitingSeqs", "sequences", l.seqs, held.seqs, free.seqs, a.most.seqs},
		{"MaxWaitingBytes", "bytes", l.bytes, held.bytes, free.bytes, a.most.bytes},
	} {
		if b.want > 0 && b.held+b.want > b.free-b.want {
			return &llm.LimitError{Limit: b.limit, Unit: b.unit, Want: b.want, Held: b.held, Free: b.free, Most: b.most}
		}
	}
	return nil
}

// reserve takes the loads of several clients, or none of them.
func (a *admission) reserve(need loads) error {
	for _, client := range slices.SortedFunc(maps.Keys(need), compareClients) { // the same error every time
		if err := a.refusal(client, need[client]); err != nil {
			return err
		}
	}
	for client, l := range need {
		a.byClient.add(client, l)
		a.total = a.total.plus(l)
	}
	return nil
}

func (a *admission) release(client any, l load) {
	a.total = a.total.minus(l)
	if left := a.byClient[client].minus(l); left != (load{}) {
		a.byClient[client] = left
	} else {
		delete(a.byClient, client)
	}
}

func (a *admission) releaseAll(need loads) {
	for client, l := range need {
		a.release(client, l)
	}
}

func compareClients(a, b any) int {
	x, named := a.(string)
	y, both := b.(string)
	if named && both {
		return strings.Compare(x, y)
	}
	return cmp.Compare(btoi(named), btoi(both)) // the call's own client goes first
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// load estimates what a request holds until it is done.
func (k *checked) load() load {
	n := int64(k.rules.n)
	tokens := int64(len(k.tokens))
	shared := int64(len(k.req.Prompt)) + 4*tokens + k.embeds.bytes()
	for _, s := range k.rules.stop {
		shared += int64(len(s))
	}
	each := bytesPerSeq + 4*(tokens+int64(min(k.rules.maxTokens, 64)))
	return load{seqs: n, bytes: shared + n*each}
}

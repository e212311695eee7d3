package engine

import "fmt"

// requestTable lists the requests that have not finished, and counts what they hold. The
// lifecycle's lock guards it.
type requestTable struct {
	cfg    *Config
	live   map[string]*request
	held   admission
	number uint64 // of requests so far
}

func newRequestTable(cfg *Config) *requestTable {
	t := &requestTable{cfg: cfg}
	t.clear()
	return t
}

// add assigns each request its number, and with it an ID and a seed when it has none.
func (t *requestTable) add(rs []*request) error {
	named := map[string]bool{}
	for _, r := range rs {
		if r.id == "" {
			continue
		}
		taken := t.live[r.id] != nil || named[r.id]
		named[r.id] = true
		if taken {
			return paramError("ID", fmt.Sprintf("%q", r.id), "unique among the requests that have not finished")
		}
	}
	for _, r := range rs {
		t.number++
		if r.id == "" {
			for r.id = fmt.Sprintf("request-%d", t.number); t.live[r.id] != nil; {
				r.id += "'"
			}
		}
		if r.unseeded {
			r.seed(mix(uint64(t.cfg.Seed), t.number))
		}
		r.out.RequestID = r.id
		t.live[r.id] = r
	}
	return nil
}

// has reports whether a request has not finished.
func (t *requestTable) has(r *request) bool { return t.live[r.id] == r }

// remove forgets a request that has finished.
func (t *requestTable) remove(r *request) {
	if t.has(r) {
		delete(t.live, r.id)
		t.held.release(r.client, r.load)
	}
}

func (t *requestTable) list() []*request {
	var rs []*request
	for _, r := range t.live {
		rs = append(rs, r)
	}
	return rs
}

// clear empties the table and returns what was in it.
func (t *requestTable) clear() map[string]*request {
	live := t.live
	t.live, t.held = map[string]*request{}, newAdmission(t.cfg)
	return live
}

// mix is splitmix64 (Steele, Lea, Flood 2014) of a seed's n-th value: near numbers give unlike
// seeds.
func mix(seed, n uint64) uint64 {
	z := seed + n*0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}
